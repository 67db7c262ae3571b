//! The application of one network thread: a relay whose notices go to the log.

use std::net::SocketAddr;

use spillway_metrics::process::thread_cpu;
use spillway_relay::Relay;
use spillway_transport::{Application, Conn, Event, HostLimit, Time, Transport};

use crate::log::{Entry, Log};

pub struct RelayApp {
    pub relay: Relay,
    pub thread: usize,
    pub log: Log,
    /// Notices dropped because the log was full.
    pub notices_dropped: u64,
}

impl RelayApp {
    /// Passes the CPU time of the calling thread, the relay's own, to the relay if a measurement is due.
    fn measure(&mut self, now: Time) {
        if self.relay.is_measurement_due(now) {
            self.relay.measured(now, thread_cpu());
        }
    }
}

impl Application for RelayApp {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        self.relay.handle(now, conn, event, out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.relay.handle_timeout(now, out);
    }

    fn handle_refused(&mut self, listener: u16, limit: HostLimit, peers: u64) {
        self.relay.handle_refused(listener, limit, peers);
    }

    fn handle_datagram(
        &mut self,
        now: Time,
        listener: u16,
        from: SocketAddr,
        query: &[u8],
        reply: &mut [u8],
    ) -> usize {
        // The last measurement is outdated if the thread has slept for a long time.
        self.measure(now);
        self.relay.handle_datagram(now, listener, from, query, reply)
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.measure(now);
        self.relay.end_of_turn(now, out);
        while let Some(notice) = self.relay.poll_notice() {
            self.notices_dropped += u64::from(!self.log.put(Entry::Relay { thread: self.thread, notice }));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.relay.poll_timeout()
    }
}
