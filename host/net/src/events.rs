//! Handles epoll events and deadlines.

use std::net::SocketAddr;

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use spillway_transport::{Application, Conn, Event, LostReason};

use crate::connection::{Connection, Note, Read};
use crate::context::Context;
use crate::reason::reason;
use crate::sockets::{WAKE_TOKEN, is_connecting, listener_of_load_queries};

/// Maximum consecutive reads of one connection; then other connections are read. A read that fills the buffer
/// is the last one, even below this number.
const READS_IN_A_ROW: usize = 4;

impl<A: Application> Context<A> {
    /// Handles one event of an epoll set.
    pub(crate) fn handle_event(&mut self, token: u64, flags: EventFlags) {
        if token == WAKE_TOKEN {
            return self.run_commands();
        }
        let (slot, generation) = (token as u32, (token >> 32) as u32);
        if generation == 0 {
            // The slot is a listener's index; a mark in it stands for the listener's socket for load queries.
            if let Some(index) = listener_of_load_queries(slot) {
                let (now, app) = (self.sockets.now, &mut self.app);
                return self.sockets.answer_load_queries(index, |from, query, answer| {
                    app.handle_datagram(now, index, from, query, answer)
                });
            }
            return u16::try_from(slot).map_or((), |index| self.accept(index));
        }
        let conn = Conn { slot, generation };
        let Some(connection) = self.sockets.table.get_mut(conn) else { return };
        if connection.is_dead() {
            return;
        }
        if connection.is_connecting() {
            return self.handle_connecting(conn, flags);
        }
        self.handle_open(conn, flags);
    }

    fn handle_connecting(&mut self, conn: Conn, flags: EventFlags) {
        if !flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
            return;
        }
        let Some(connection) = self.sockets.table.get_mut(conn) else { return };
        let outcome = match sockopt::socket_error(connection.fd()) {
            Ok(Ok(())) => rustix::net::getpeername(connection.fd()),
            Ok(Err(error)) | Err(error) => Err(error),
        };
        let peer = match outcome {
            Ok(peer) => peer.and_then(|peer| SocketAddr::try_from(peer).ok()),
            Err(error) => return self.report_lost(conn, reason(error)),
        };
        let Some(peer) = peer else { return self.report_lost(conn, LostReason::Failed) };
        let has_output = connection.mark_established();
        self.report(conn, Event::Opened { peer, listener: None });
        if has_output {
            self.sockets.mark_dirty(conn);
        }
        // The same event may report data, too, and epoll reports it only once.
        self.handle_open(conn, flags);
    }

    fn handle_open(&mut self, conn: Conn, flags: EventFlags) {
        let Some(connection) = self.sockets.table.get_mut(conn) else { return };
        if let Some(reason) = connection.note_events(flags) {
            return self.report_lost(conn, reason);
        }
        if flags.contains(EventFlags::OUT) && connection.unblock() {
            self.sockets.mark_dirty(conn);
        }
        self.read(conn);
    }

    pub(crate) fn read(&mut self, conn: Conn) {
        for _ in 0..READS_IN_A_ROW {
            match self.read_once(conn) {
                None | Some((Read::Nothing, _)) => return,
                Some((Read::Data { .. }, true)) => break,
                Some((Read::Data { .. }, false)) => {}
                Some((Read::Finished, _)) => {
                    self.report(conn, Event::Finished);
                    return self.sockets.report_if_ended(conn);
                }
                Some((Read::Lost(reason), _)) => return self.report_lost(conn, reason),
            }
        }
        self.sockets.mark_ready(conn);
    }

    /// Reads the connections that are readable without a new event, each once.
    pub(crate) fn read_ready(&mut self) {
        for _ in 0..self.sockets.ready.len() {
            let Some(conn) = self.sockets.ready.pop_front() else { return };
            if let Some(connection) = self.sockets.table.get_mut(conn) {
                connection.leave_ready();
                self.read(conn);
            }
        }
    }

    /// Reports room and losses that were found while no event was handled.
    pub(crate) fn report_notes(&mut self) {
        for _ in 0..self.sockets.notes.len() {
            let Some(conn) = self.sockets.notes.pop_front() else { return };
            let Some(connection) = self.sockets.table.get_mut(conn) else { continue };
            match connection.take_note() {
                Note::Lost(reason) => self.report_lost(conn, reason),
                Note::Room => self.report(conn, Event::Room),
                Note::Nothing => {}
            }
        }
    }

    /// Handles connect timeouts, queries of acknowledgements, and retries of listeners and of load queries
    /// that are due.
    pub(crate) fn handle_deadlines(&mut self) {
        let now = self.sockets.now;
        while let Some(conn) = self.sockets.connecting.pop(now) {
            if is_connecting(&self.sockets.table, conn) {
                self.report_lost(conn, LostReason::TimedOut);
            }
        }
        // A connection that enters the list again is due later than now, so the loop ends.
        while let Some(conn) = self.sockets.watch.pop(now) {
            if let Some(through) = self.sockets.table.get_mut(conn).and_then(Connection::query_acknowledged) {
                self.report(conn, Event::Acknowledged { through });
            }
            self.sockets.watch_soon(conn);
            self.sockets.report_if_ended(conn);
        }
        self.sockets.retry_listeners();
        self.sockets.retry_load_queries();
    }
}
