//! Datagrams to the addresses of listeners. They are answered at a bounded rate, so that a flood costs clients little.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use spillway_transport::Time;

use crate::datagrams::exchange;
use crate::sys::Epoll;

/// Maximum questions of one listener answered in one turn, so that clients do not wait.
const PER_TURN: u32 = 32;
/// Maximum questions of one listener per second. Each costs some microseconds, so together a few percent of a core.
const PER_SECOND: f64 = 10_000.0;
/// Maximum burst of questions after a quiet time.
const AT_ONCE: f64 = 1_000.0;
/// Pause after the allowance is used up. Questions wait in the socket's buffer; those that do not fit are lost.
const PAUSE: Duration = Duration::from_millis(10);
/// Pause before a socket that could not be added to the epoll set is tried again.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// The socket for questions at a listener's address.
#[derive(Debug)]
pub struct Questions {
    fd: OwnedFd,
    /// How many questions may be answered, as of `since`.
    allowance: f64,
    since: Time,
    /// The socket is not watched until then.
    paused: Option<Time>,
}

impl Questions {
    pub fn new(fd: OwnedFd) -> Questions {
        Questions { fd, allowance: AT_ONCE, since: Time::ZERO, paused: None }
    }

    /// How many questions may be answered now.
    fn allow(&mut self, now: Time) -> u32 {
        let earned = now.since(self.since).as_secs_f64() * PER_SECOND;
        self.allowance = (self.allowance + earned).min(AT_ONCE);
        self.since = now;
        self.allowance as u32
    }

    /// When the socket must be watched again.
    pub(crate) fn retry(&self) -> Option<Time> {
        self.paused
    }

    /// Adds the socket to the epoll set; tries again later if that fails.
    pub(crate) fn watch(&mut self, now: Time, epoll: &Epoll, token: u64) {
        let added = epoll.add(&self.fd, token, EventFlags::IN);
        self.paused = added.err().map(|_| now + WATCH_PAUSE);
    }

    /// Answers up to [`PER_TURN`] questions. Returns whether the allowance is used up: answering then pauses for [`PAUSE`].
    pub(crate) fn answer(
        &mut self,
        now: Time,
        epoll: &Epoll,
        mut answer: impl FnMut(SocketAddr, &[u8], &mut [u8]) -> usize,
    ) -> bool {
        let allowed = self.allow(now);
        let mut handled = 0;
        while handled < allowed.min(PER_TURN) {
            match exchange(&self.fd, &mut answer) {
                Ok(true) => handled += 1,
                Ok(false) => break,
                // The host reports that an earlier answer could not be delivered.
                Err(_) => handled += 1,
            }
        }
        self.allowance -= f64::from(handled);
        let is_used_up = handled == allowed;
        if is_used_up {
            epoll.remove(&self.fd);
            self.paused = Some(now + PAUSE);
        }
        is_used_up
    }
}
