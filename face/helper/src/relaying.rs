//! A relay with its notices taken: the application of one network thread.

use spillway_relay::Relay;
use spillway_transport::{Application, Conn, Event, HostLimit, Time, Transport};

use crate::log::{Entry, Log};

/// The relay of one thread.
pub struct Relaying {
    pub relay: Relay,
    pub thread: usize,
    pub log: Log,
    /// Notices that the log had no room for.
    pub not_logged: u64,
}

impl Application for Relaying {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        self.relay.handle(now, conn, event, out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.relay.handle_timeout(now, out);
    }

    fn handle_refused(&mut self, listener: u16, limit: HostLimit, peers: u64) {
        self.relay.handle_refused(listener, limit, peers);
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.relay.end_of_turn(now, out);
        while let Some(notice) = self.relay.poll_notice() {
            self.not_logged += u64::from(!self.log.put(Entry::Relay { thread: self.thread, notice }));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.relay.poll_timeout()
    }
}
