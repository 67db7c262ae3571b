//! Handles epoll events and deadlines.

use std::net::SocketAddr;

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use spillway_transport::{Application, Conn, Event, LostReason};

use crate::connection::{Connection, Note, Read};
use crate::context::Context;
use crate::reason::reason;
use crate::sockets::{WAKE_TOKEN, is_connecting, listener_of_questions};

/// Maximum reads of one connection in a row; then other connections are served. A read that fills the buffer is the last.
const READS_IN_A_ROW: usize = 4;

impl<A: Application> Context<A> {
    /// Handles one event of an epoll set.
    pub(crate) fn handle_event(&mut self, token: u64, flags: EventFlags) {
        if token == WAKE_TOKEN {
            return self.run_commands();
        }
        let (slot, generation) = (token as u32, (token >> 32) as u32);
        if generation == 0 {
            // The slot is a listener's index, or a mark and the index for the listener's questions.
            if let Some(index) = listener_of_questions(slot) {
                let (now, app) = (self.sockets.now, &mut self.app);
                return self.sockets.answer_questions(index, |from, question, answer| {
                    app.handle_datagram(now, index, from, question, answer)
                });
            }
            return u16::try_from(slot).map_or((), |index| self.accept(index));
        }
        let conn = Conn { slot, generation };
        let Some(connection) = self.sockets.table.find(conn) else { return };
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
        let Some(connection) = self.sockets.table.find(conn) else { return };
        let outcome = match sockopt::socket_error(connection.fd()) {
            Ok(Ok(())) => rustix::net::getpeername(connection.fd()),
            Ok(Err(error)) | Err(error) => Err(error),
        };
        let peer = match outcome {
            Ok(peer) => peer.and_then(|peer| SocketAddr::try_from(peer).ok()),
            Err(error) => return self.tell_lost(conn, reason(error)),
        };
        let Some(peer) = peer else { return self.tell_lost(conn, LostReason::Failed) };
        let has_something = connection.established();
        self.tell(conn, Event::Opened { peer, listener: None });
        if has_something {
            self.sockets.mark_dirty(conn);
        }
        // The same event may report data, too, and is not repeated.
        self.handle_open(conn, flags);
    }

    fn handle_open(&mut self, conn: Conn, flags: EventFlags) {
        let Some(connection) = self.sockets.table.find(conn) else { return };
        if let Some(reason) = connection.note_events(flags) {
            return self.tell_lost(conn, reason);
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
                    self.tell(conn, Event::Finished);
                    return self.sockets.finish_if_over(conn);
                }
                Some((Read::Lost(reason), _)) => return self.tell_lost(conn, reason),
            }
        }
        self.sockets.mark_ready(conn);
    }

    /// Reads the connections that are readable without a new event, each once.
    pub(crate) fn read_ready(&mut self) {
        for _ in 0..self.sockets.ready.len() {
            let Some(conn) = self.sockets.ready.pop_front() else { return };
            if let Some(connection) = self.sockets.table.find(conn) {
                connection.leave_ready();
                self.read(conn);
            }
        }
    }

    /// Reports room and losses that were found outside of events.
    pub(crate) fn tell_notes(&mut self) {
        for _ in 0..self.sockets.notes.len() {
            let Some(conn) = self.sockets.notes.pop_front() else { return };
            let Some(connection) = self.sockets.table.find(conn) else { continue };
            match connection.take_note() {
                Note::Lost(reason) => self.tell_lost(conn, reason),
                Note::Room => self.tell(conn, Event::Room),
                Note::Nothing => {}
            }
        }
    }

    /// Handles what is due: attempts to connect, acknowledgements, listeners.
    pub(crate) fn handle_deadlines(&mut self) {
        let now = self.sockets.now;
        while let Some(conn) = self.sockets.connecting.pop(now) {
            if is_connecting(&self.sockets.table, conn) {
                self.tell_lost(conn, LostReason::TimedOut);
            }
        }
        // A connection that enters the list again is due later than now, so the loop ends.
        while let Some(conn) = self.sockets.watch.pop(now) {
            if let Some(through) = self.sockets.table.find(conn).and_then(Connection::ask_acknowledged) {
                self.tell(conn, Event::Acknowledged { through });
            }
            self.sockets.watch_soon(conn);
            self.sockets.finish_if_over(conn);
        }
        self.sockets.retry_listeners();
        self.sockets.retry_questions();
    }
}
