//! Load queries: datagrams that clients send to a listener's address to learn the load. The rate of answers is bounded.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use spillway_transport::Time;

use crate::allowance::Allowance;
use crate::datagrams::exchange;
use crate::sys::Epoll;

/// Maximum load queries of one listener answered in one turn, so that connections are served in between.
const QUERIES_PER_TURN_MAX: u32 = 32;
/// Maximum load queries of one listener per second. Each costs some microseconds, so together a few percent of a core.
const QUERIES_PER_SECOND_MAX: f64 = 10_000.0;
/// Maximum number of load queries answered in a burst after a quiet time.
const BURST_MAX: f64 = 1_000.0;
/// Pause after the allowance is used up. Load queries wait in the socket's buffer; those that do not fit are lost.
const PAUSE: Duration = Duration::from_millis(10);
/// Pause before a socket that could not be added to the epoll set is tried again.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// The rate at which the load queries of one listener are answered.
pub fn query_allowance() -> Allowance {
    Allowance::new(QUERIES_PER_SECOND_MAX, BURST_MAX)
}

/// The socket for load queries at a listener's address.
#[derive(Debug)]
pub struct LoadQueries {
    fd: OwnedFd,
    allowance: Allowance,
    /// The socket is not watched until this time.
    paused_until: Option<Time>,
}

impl LoadQueries {
    pub fn new(fd: OwnedFd) -> LoadQueries {
        LoadQueries { fd, allowance: query_allowance(), paused_until: None }
    }

    /// Time at which the socket must be watched again.
    pub(crate) fn retry_at(&self) -> Option<Time> {
        self.paused_until
    }

    /// Adds the socket to the epoll set; tries again later if that fails.
    pub(crate) fn watch(&mut self, now: Time, epoll: &Epoll, token: u64) {
        let added = epoll.add(&self.fd, token, EventFlags::IN);
        self.paused_until = added.err().map(|_| now + WATCH_PAUSE);
    }

    /// Answers up to [`QUERIES_PER_TURN_MAX`] load queries. If this uses up the allowance, stops watching the socket
    /// for [`PAUSE`] and returns true.
    pub(crate) fn answer(
        &mut self,
        now: Time,
        epoll: &Epoll,
        mut answer: impl FnMut(SocketAddr, &[u8], &mut [u8]) -> usize,
    ) -> bool {
        let allowed = self.allowance.update(now);
        let mut handled = 0;
        while handled < allowed.min(QUERIES_PER_TURN_MAX) {
            match exchange(&self.fd, &mut answer) {
                Ok(true) => handled += 1,
                Ok(false) => break,
                // The host reports that an earlier answer could not be delivered.
                Err(_) => handled += 1,
            }
        }
        self.allowance.use_up(handled);
        let is_used_up = handled == allowed;
        if is_used_up {
            epoll.remove(&self.fd);
            self.paused_until = Some(now + PAUSE);
        }
        is_used_up
    }
}
