//! Clients whose server has closed: they get what is left, then the end; and the server what it is owed.
//!
//! A server that was asked to keep replies gets acknowledgements until its client has everything
//! (`clients/acknowledging.rs`).

use spillway_transport::{Conn, Time, Transport};

use super::Relay;
use crate::clients::{Holder, Leaving};
use crate::timers::Timer;

impl Relay {
    /// The client takes what is left for it.
    pub(super) fn let_leave<T: Transport>(&mut self, now: Time, conn: Conn, leaving: Leaving, out: &mut T) {
        let Some(holder) = self.clients.get_mut(conn) else {
            debug_assert!(false, "a client that begins to leave is there");
            return;
        };
        *holder = Holder::Leaving(alloc::boxed::Box::new(leaving));
        self.clients.start(Timer::Linger, now, conn);
        if let Some(leaving) = self.clients.leaving_mut(conn) {
            leaving.transmit(conn, &mut self.memory, out);
        }
    }

    /// A client that sends although its server has closed is reset when it has everything.
    pub(super) fn reset_if_it_spoke<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if self.clients.leaving_mut(conn).is_some_and(|leaving| leaving.is_to_be_reset()) {
            self.drop_client(conn, false);
            out.abort(conn);
        }
    }

    /// A leaving client has time as long as it makes progress.
    pub(super) fn linger_timeout<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        // A timer without a purpose: the client has gone.
        let Some(leaving) = self.clients.leaving_mut(conn) else { return };
        if leaving.makes_progress() {
            return self.clients.start(Timer::Linger, now, conn);
        }
        self.drop_client(conn, false);
        out.abort(conn);
    }

    /// A client's TCP has our bytes up to this offset.
    pub(super) fn acknowledged<T: Transport>(&mut self, now: Time, conn: Conn, through: u64, out: &mut T) {
        let starts = match self.clients.get_mut(conn) {
            Some(Holder::Raw(client)) => {
                let linked = self.links.carrier(client.link());
                linked.is_some_and(|linked| client.heard(through, linked))
            }
            Some(Holder::Leaving(leaving)) => {
                let linked = leaving.owed_link().and_then(|link| self.links.linked_mut(link));
                leaving.heard(conn, through, linked)
            }
            _ => false,
        };
        if starts {
            self.clients.start(Timer::Acknowledge, now, conn);
        }
        self.reset_if_it_spoke(conn, out);
    }

    /// The server learns what it did not learn at once.
    pub(super) fn acknowledge_timeout(&mut self, conn: Conn) {
        match self.clients.get_mut(conn) {
            Some(Holder::Raw(client)) => {
                let linked = self.links.carrier(client.link());
                client.acknowledge_timeout(linked);
            }
            Some(Holder::Leaving(leaving)) => {
                let linked = leaving.owed_link().and_then(|link| self.links.linked_mut(link));
                leaving.acknowledge_timeout(conn, linked);
            }
            _ => {}
        }
    }

    /// A client whose server has closed has gone: the server gets what it is owed.
    pub(super) fn settle(&mut self, conn: Conn) {
        if let Some(leaving) = self.clients.leaving_mut(conn) {
            let linked = leaving.owed_link().and_then(|link| self.links.linked_mut(link));
            leaving.settle(conn, linked);
        }
    }
}
