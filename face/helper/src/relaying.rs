//! A relay with its notices taken: the application of one network thread.

use std::net::SocketAddr;

use spillway_metrics::process::thread_cpu;
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

impl Relaying {
    /// Tells the relay what its thread, this one, has used.
    fn measure(&mut self, now: Time) {
        if self.relay.wants_measure(now) {
            self.relay.measured(now, thread_cpu());
        }
    }
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

    fn handle_question(
        &mut self,
        now: Time,
        listener: u16,
        from: SocketAddr,
        question: &[u8],
        answer: &mut [u8],
    ) -> usize {
        // The thread may have slept for long: what was measured before is of no use.
        self.measure(now);
        self.relay.handle_question(now, listener, from, question, answer)
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.measure(now);
        self.relay.end_of_turn(now, out);
        while let Some(notice) = self.relay.poll_notice() {
            self.not_logged += u64::from(!self.log.put(Entry::Relay { thread: self.thread, notice }));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.relay.poll_timeout()
    }
}
