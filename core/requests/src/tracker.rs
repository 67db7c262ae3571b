use core::time::Duration;

use spillway_transport::Time;

use crate::memcached::Memcached;
use crate::outstanding::Outstanding;
use crate::redis::Redis;
use crate::stop_reason::StopReason;
use crate::tcp;

/// The application protocol of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text protocol, meta commands included, or its binary protocol. The client's first byte decides.
    Memcached,
    /// redis: RESP2, RESP3, inline commands.
    Redis,
    /// Any protocol whose clients wait for each reply before the next request.
    #[default]
    Tcp,
}

/// The complete reply to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Time from the request's last byte to the reply's last byte. `None` if that time does not reflect the server's
    /// load, because the command may block or the client did not read.
    pub latency: Option<Duration>,
}

/// Measures the latency of one connection's requests. [`OUTSTANDING_MAX`](crate::OUTSTANDING_MAX) bounds the memory for
/// requests without a reply.
///
/// Latency counts from a request's *last* byte, so that a slow client does not look like a slow server.
/// [`Protocol::Tcp`], which cannot find the ends of requests, counts from first byte to first byte.
#[derive(Clone, Debug)]
pub struct Tracker {
    parser: Parser,
    outstanding: Outstanding,
    stop_reason: Option<StopReason>,
    is_reported: bool,
}

#[derive(Clone, Debug)]
enum Parser {
    Memcached(Memcached),
    Redis(Redis),
    Tcp,
    Stopped,
}

impl Tracker {
    /// A tracker for a new connection.
    pub fn new(protocol: Protocol) -> Tracker {
        let parser = match protocol {
            Protocol::Memcached => Parser::Memcached(Memcached::default()),
            Protocol::Redis => Parser::Redis(Redis::default()),
            Protocol::Tcp => Parser::Tcp,
        };
        Tracker { parser, outstanding: Outstanding::default(), stop_reason: None, is_reported: false }
    }

    /// Reads bytes from the client. Call it before the bytes are forwarded to the server.
    pub fn requests(&mut self, now: Time, bytes: &[u8]) {
        let outstanding = &mut self.outstanding;
        let outcome = match &mut self.parser {
            Parser::Memcached(memcached) => memcached.requests(now, bytes, outstanding),
            Parser::Redis(redis) => redis.requests(now, bytes, outstanding),
            Parser::Tcp => tcp::requests(now, bytes, outstanding),
            Parser::Stopped => Ok(()),
        };
        self.check(outcome);
    }

    /// Reads bytes from the server, and calls `on_reply` for each reply that ends in them.
    pub fn replies(&mut self, now: Time, bytes: &[u8], mut on_reply: impl FnMut(Reply)) {
        let outstanding = &mut self.outstanding;
        let answered = |since: Option<Time>| on_reply(Reply { latency: since.map(|since| now.since(since)) });
        let outcome = match &mut self.parser {
            Parser::Memcached(memcached) => memcached.replies(bytes, outstanding, answered),
            Parser::Redis(redis) => redis.replies(bytes, outstanding, answered),
            Parser::Tcp => {
                tcp::replies(bytes, outstanding, answered);
                Ok(())
            }
            Parser::Stopped => Ok(()),
        };
        self.check(outcome);
    }

    fn check(&mut self, outcome: Result<(), StopReason>) {
        if let Err(reason) = outcome {
            self.stop_reason = Some(reason);
            self.parser = Parser::Stopped;
            self.outstanding = Outstanding::default();
        }
    }

    /// Excludes the outstanding requests from measurement. Call it when replies wait because the client does not read.
    pub fn exclude_outstanding(&mut self) {
        self.outstanding.stop_measuring();
    }

    /// When the oldest outstanding request that is measured was sent.
    pub fn pending_since(&self) -> Option<Time> {
        self.outstanding.oldest_measured_since()
    }

    /// Whether no request waits for its reply, and neither direction is inside a message. `None` after tracking
    /// stopped.
    pub fn is_idle(&self) -> Option<bool> {
        let is_between_messages = match &self.parser {
            Parser::Memcached(memcached) => memcached.is_between_messages(),
            Parser::Redis(redis) => redis.is_between_messages(),
            Parser::Tcp => true,
            Parser::Stopped => return None,
        };
        Some(is_between_messages && self.outstanding.is_idle())
    }

    /// Why tracking of this connection stopped, returned once. Call after each `requests` and `replies`.
    #[must_use]
    pub fn poll_stop_reason(&mut self) -> Option<StopReason> {
        let reason = self.stop_reason.filter(|_| !self.is_reported);
        self.is_reported |= reason.is_some();
        reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_measured_from_first_byte_to_first_byte() {
        let mut tracker = Tracker::new(Protocol::Tcp);
        let mut latency = None;
        tracker.replies(Time(1), b"greeting", |_| panic!("a greeting must not be reported as a reply"));
        tracker.requests(Time(10), b"he");
        tracker.requests(Time(20), b"llo");
        assert_eq!(
            (tracker.pending_since(), tracker.is_idle()),
            (Some(Time(10)), Some(false)),
            "the request should be pending"
        );
        tracker.replies(Time(25), b"wo", |reply| latency = reply.latency);
        assert_eq!(latency, Some(Duration::from_nanos(15)));
        tracker.replies(Time(30), b"rld", |_| panic!("a reply must be reported only once"));
        assert_eq!(
            (tracker.pending_since(), tracker.is_idle()),
            (None, Some(true)),
            "the connection should be idle"
        );
    }

    #[test]
    fn tracking_stops_permanently_and_the_reason_is_reported_once() {
        let mut tracker = Tracker::new(Protocol::Redis);
        assert_eq!(tracker.poll_stop_reason(), None);
        tracker.requests(Time(1), b"PING\r\n");
        tracker.requests(Time(1), b"*x\r\n");
        assert_eq!(tracker.poll_stop_reason(), Some(StopReason::Syntax));
        assert_eq!(
            (tracker.poll_stop_reason(), tracker.pending_since(), tracker.is_idle()),
            (None, None, None)
        );
        tracker.requests(Time(2), b"PING\r\n");
        tracker.replies(Time(3), b"+PONG\r\n", |_| panic!("a stopped tracker must not report replies"));
        assert_eq!(tracker.pending_since(), None);
    }
}
