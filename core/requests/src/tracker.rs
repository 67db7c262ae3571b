//! One connection's requests and replies.

use core::time::Duration;

use spillway_transport::Time;

use crate::gave_up::GaveUp;
use crate::memcached::Memcached;
use crate::outstanding::Outstanding;
use crate::redis::Redis;
use crate::tcp;

/// What a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text protocol, meta commands included, or its binary one: the first byte tells.
    Memcached,
    /// redis: RESP2, RESP3, inline commands.
    Redis,
    /// Anything in which a client asks and awaits the answer.
    #[default]
    Tcp,
}

/// A request was answered in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// From the last byte of the request, as the client sent it, to the last byte of its reply; `None` where that says
    /// nothing about the server's speed: the command may block, or the client did not read.
    pub latency: Option<Duration>,
}

/// Follows one connection's streams of requests and replies. Bounded: see [`OUTSTANDING_MAX`](crate::OUTSTANDING_MAX).
///
/// A request counts from its *last* byte, so that a client that types slowly is no slow server. (`Tcp`, which knows no
/// requests, counts from the first byte to the first byte.)
#[derive(Clone, Debug)]
pub struct Tracker {
    following: Following,
    outstanding: Outstanding,
    gave_up: Option<GaveUp>,
    is_told: bool,
}

#[derive(Clone, Debug)]
enum Following {
    Memcached(Memcached),
    Redis(Redis),
    Tcp,
    Nothing,
}

impl Tracker {
    /// For a new connection.
    pub fn new(protocol: Protocol) -> Tracker {
        let following = match protocol {
            Protocol::Memcached => Following::Memcached(Memcached::default()),
            Protocol::Redis => Following::Redis(Redis::default()),
            Protocol::Tcp => Following::Tcp,
        };
        Tracker { following, outstanding: Outstanding::default(), gave_up: None, is_told: false }
    }

    /// The client has sent these bytes. Call it before they go on to the server.
    pub fn requests(&mut self, now: Time, bytes: &[u8]) {
        let outstanding = &mut self.outstanding;
        let outcome = match &mut self.following {
            Following::Memcached(memcached) => memcached.requests(now, bytes, outstanding),
            Following::Redis(redis) => redis.requests(now, bytes, outstanding),
            Following::Tcp => tcp::requests(now, bytes, outstanding),
            Following::Nothing => Ok(()),
        };
        self.check(outcome);
    }

    /// The server has sent these bytes. Each reply that ends in them is told.
    pub fn replies(&mut self, now: Time, bytes: &[u8], mut told: impl FnMut(Reply)) {
        let outstanding = &mut self.outstanding;
        let answered = |since: Option<Time>| told(Reply { latency: since.map(|since| now.since(since)) });
        let outcome = match &mut self.following {
            Following::Memcached(memcached) => memcached.replies(bytes, outstanding, answered),
            Following::Redis(redis) => redis.replies(bytes, outstanding, answered),
            Following::Tcp => {
                tcp::replies(bytes, outstanding, answered);
                Ok(())
            }
            Following::Nothing => Ok(()),
        };
        self.check(outcome);
    }

    fn check(&mut self, outcome: Result<(), GaveUp>) {
        if let Err(why) = outcome {
            self.gave_up = Some(why);
            self.following = Following::Nothing;
            self.outstanding = Outstanding::default();
        }
    }

    /// What waits now waits for the client, which does not read: its latency is no measure.
    pub fn excuse(&mut self) {
        self.outstanding.excuse();
    }

    /// Since when the oldest request waits whose reply will be a measure.
    pub fn pending_since(&self) -> Option<Time> {
        self.outstanding.since()
    }

    /// Whether nothing is under way: no request that waits for its reply, no part of either. `None` when it does not know
    /// any more.
    pub fn is_idle(&self) -> Option<bool> {
        let between = match &self.following {
            Following::Memcached(memcached) => memcached.is_between(),
            Following::Redis(redis) => redis.is_between(),
            Following::Tcp => true,
            Following::Nothing => return None,
        };
        Some(between && self.outstanding.is_idle())
    }

    /// Why it gave up, once.
    #[must_use]
    pub fn poll_gave_up(&mut self) -> Option<GaveUp> {
        let why = self.gave_up.filter(|_| !self.is_told);
        self.is_told |= why.is_some();
        why
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_tcp_is_measured_from_first_byte_to_first_byte() {
        let mut tracker = Tracker::new(Protocol::Tcp);
        let mut heard = None;
        tracker.replies(Time(1), b"greeting", |_| panic!("nobody asked"));
        tracker.requests(Time(10), b"he");
        tracker.requests(Time(20), b"llo");
        assert_eq!((tracker.pending_since(), tracker.is_idle()), (Some(Time(10)), Some(false)));
        tracker.replies(Time(25), b"wo", |reply| heard = reply.latency);
        assert_eq!(heard, Some(Duration::from_nanos(15)));
        tracker.replies(Time(30), b"rld", |_| panic!("the rest of the same reply"));
        assert_eq!((tracker.pending_since(), tracker.is_idle()), (None, Some(true)));
    }

    #[test]
    fn giving_up_is_told_once_and_is_for_ever() {
        let mut tracker = Tracker::new(Protocol::Redis);
        assert_eq!(tracker.poll_gave_up(), None);
        tracker.requests(Time(1), b"PING\r\n");
        tracker.requests(Time(1), b"*x\r\n");
        assert_eq!(tracker.poll_gave_up(), Some(GaveUp::Syntax));
        assert_eq!((tracker.poll_gave_up(), tracker.pending_since(), tracker.is_idle()), (None, None, None));
        tracker.requests(Time(2), b"PING\r\n");
        tracker.replies(Time(3), b"+PONG\r\n", |_| panic!("nothing is measured any more"));
        assert_eq!(tracker.pending_since(), None);
    }
}
