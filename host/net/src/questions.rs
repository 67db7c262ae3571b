//! Datagrams to the addresses of listeners: answered at a bounded rate, so that a flood of them costs clients little.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use spillway_transport::Time;

use crate::datagrams::exchange;
use crate::sys::Epoll;

/// Questions of one listener in one turn; then it is the clients' turn.
const PER_TURN: u32 = 32;
/// Questions of one listener each second: each costs some microseconds, so that all of them take a few percent of a core.
const PER_SECOND: f64 = 10_000.0;
/// More at once, after a quiet time.
const AT_ONCE: f64 = 1_000.0;
/// How long questions then have to wait. Those that find the socket's buffer full are lost.
const PAUSE: Duration = Duration::from_millis(10);
/// Before a socket that could not be watched is tried again.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// The socket for questions at a listener's address.
#[derive(Debug)]
pub struct Questions {
    fd: OwnedFd,
    /// What may be answered still, and as of when.
    allowance: f64,
    since: Time,
    /// Not looked at until then.
    paused: Option<Time>,
}

impl Questions {
    pub fn new(fd: OwnedFd) -> Questions {
        Questions { fd, allowance: AT_ONCE, since: Time::ZERO, paused: None }
    }

    /// How many may be answered now.
    fn allow(&mut self, now: Time) -> u32 {
        let earned = now.since(self.since).as_secs_f64() * PER_SECOND;
        self.allowance = (self.allowance + earned).min(AT_ONCE);
        self.since = now;
        self.allowance as u32
    }

    /// When it is to be looked at again.
    pub(crate) fn retry(&self) -> Option<Time> {
        self.paused
    }

    /// Has questions come in from now on.
    pub(crate) fn watch(&mut self, now: Time, epoll: &Epoll, token: u64) {
        let added = epoll.add(&self.fd, token, EventFlags::IN);
        self.paused = added.err().map(|_| now + WATCH_PAUSE);
    }

    /// Answers questions that have come, a bounded number. Returns whether no more may be answered for a while: they are
    /// not looked at then.
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
                // An answer before could not be delivered, says the host.
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
