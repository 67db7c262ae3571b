//! Lingering clients, whose server has closed: they get the remaining replies and then the end of the stream. A server
//! that keeps replies gets acknowledgements until the client has all of them (`clients/reply_acks.rs`).

use spillway_transport::{Conn, Time, Transport};

use super::Relay;
use crate::clients::{ConnRole, Lingering};
use crate::timers::Timer;

impl Relay {
    pub(super) fn start_lingering<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        lingering: Lingering,
        out: &mut T,
    ) {
        let Some(role) = self.clients.get_mut(conn) else {
            debug_assert!(false, "callers have found the client");
            return;
        };
        *role = ConnRole::Lingering(alloc::boxed::Box::new(lingering));
        self.clients.start(Timer::Linger, now, conn);
        if let Some(lingering) = self.clients.lingering_mut(conn) {
            lingering.transmit(conn, &mut self.memory, out);
        }
    }

    /// Resets a client that has sent bytes after its server's close, when it has acknowledged all replies.
    pub(super) fn reset_if_sent_after_close<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if self.clients.lingering_mut(conn).is_some_and(|lingering| lingering.is_reset_due()) {
            self.drop_client(conn, false);
            out.abort(conn);
        }
    }

    /// Resets a lingering client that has made no progress since its timer was started.
    pub(super) fn linger_timeout<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        // `None`: the client has ended, and the timer is not needed any more.
        let Some(lingering) = self.clients.lingering_mut(conn) else { return };
        if lingering.check_progress() {
            return self.clients.start(Timer::Linger, now, conn);
        }
        self.drop_client(conn, false);
        out.abort(conn);
    }

    /// A client's TCP has acknowledged the stream up to `through`.
    pub(super) fn acknowledged<T: Transport>(&mut self, now: Time, conn: Conn, through: u64, out: &mut T) {
        let starts_timer = match self.clients.get_mut(conn) {
            Some(ConnRole::Plain(client)) => {
                let linked = self.links.open_link(client.link());
                linked.is_some_and(|linked| client.handle_acknowledged(through, linked))
            }
            Some(ConnRole::Lingering(lingering)) => {
                let linked = lingering.final_ack_link().and_then(|link| self.links.linked_mut(link));
                lingering.handle_acknowledged(conn, through, linked)
            }
            _ => false,
        };
        if starts_timer {
            self.clients.start(Timer::Acknowledge, now, conn);
        }
        self.reset_if_sent_after_close(conn, out);
    }

    /// Sends the server acknowledgements that were delayed.
    pub(super) fn acknowledge_timeout(&mut self, conn: Conn) {
        match self.clients.get_mut(conn) {
            Some(ConnRole::Plain(client)) => {
                let linked = self.links.open_link(client.link());
                client.acknowledge_timeout(linked);
            }
            Some(ConnRole::Lingering(lingering)) => {
                let linked = lingering.final_ack_link().and_then(|link| self.links.linked_mut(link));
                lingering.acknowledge_timeout(conn, linked);
            }
            _ => {}
        }
    }

    /// Sends the last acknowledgement to the server of a lingering client whose connection has ended.
    pub(super) fn send_final_ack(&mut self, conn: Conn) {
        if let Some(lingering) = self.clients.lingering_mut(conn) {
            let linked = lingering.final_ack_link().and_then(|link| self.links.linked_mut(link));
            lingering.send_final_ack(conn, linked);
        }
    }
}
