//! Initial sequence numbers and timestamp offsets from a keyed hash (RFC 6528, RFC 7323 §5.4).
//!
//! Helpers that share a key and a clock compute the same numbers for a connection, so that the connection can move
//! between these helpers.

use core::fmt;
use core::hash::Hasher as _;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use siphasher::sip::SipHasher24;
use spillway_transport::Time;

use crate::narrow::low_half;

/// RFC 6528 §3: the clock ticks every 4 µs.
const TICK_NS: u64 = 4_000;
/// RFC 7323 §5.4 recommends 1 ms to 1 s per tick; 1 ms is common.
const TIMESTAMP_TICK_NS: u64 = 1_000_000;

/// The secret key of all hashes in this module, from a good source of randomness. Several helpers may share one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Separates the uses of one key, so that a hash for one purpose reveals nothing about another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Initial = 1,
    Timestamp = 2,
    Port = 3,
    CookieMask = 4,
    CookieTag = 5,
    Map = 6,
    CookieUsed = 7,
    CookieShare = 8,
}

impl Key {
    /// Hashes both ends of a connection and one more number with SipHash-2-4 (Aumasson and Bernstein 2012).
    pub(crate) fn hash(&self, purpose: Purpose, local: SocketAddr, peer: SocketAddr, more: u64) -> u64 {
        let mut input = [0; 45];
        input[0] = purpose as u8;
        for (offset, end) in [(1, local), (19, peer)] {
            // An IPv4 address and its mapped IPv6 form hash alike.
            let address = match end.ip() {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            input[offset..offset + 16].copy_from_slice(&address.octets());
            input[offset + 16..offset + 18].copy_from_slice(&end.port().to_be_bytes());
        }
        input[37..].copy_from_slice(&more.to_be_bytes());
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&input);
        hasher.finish()
    }
}

/// Computes the numbers with which connections begin: sequence numbers, timestamp offsets, ports.
#[derive(Clone, Copy, Debug)]
pub struct Isn {
    key: Key,
    /// The clock's value at [`Time::ZERO`].
    clock_at_zero: Duration,
}

impl Isn {
    /// `clock_at_zero` is the time since 1970 at [`Time::ZERO`], by a clock that survives restarts and is the same for
    /// all helpers that share the key.
    pub fn new(key: Key, clock_at_zero: Duration) -> Isn {
        Isn { key, clock_at_zero }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the clock wraps, as the numbers do")]
    fn ticks(&self, now: Time, tick_ns: u64) -> u32 {
        let ticks = (self.clock_at_zero.as_nanos() + u128::from(now.as_nanos())) / u128::from(tick_ns);
        ticks as u32
    }

    /// The initial sequence number of a connection. For the same two ends it grows with time, so that a new connection
    /// does not accept segments of an old one (RFC 6528 §3).
    pub fn initial(&self, now: Time, local: SocketAddr, peer: SocketAddr) -> u32 {
        let hash = low_half(self.key.hash(Purpose::Initial, local, peer, 0));
        self.ticks(now, TICK_NS).wrapping_add(hash)
    }

    /// The offset added to [`Isn::milliseconds`] in timestamps for this peer. All ports share one offset, so that the
    /// timestamps of a new connection are later than those of an earlier one (RFC 6191, RFC 7323 §5.8). The offset
    /// hides the uptime.
    pub fn timestamp_offset(&self, local: IpAddr, peer: IpAddr) -> u32 {
        let (local, peer) = (SocketAddr::new(local, 0), SocketAddr::new(peer, 0));
        low_half(self.key.hash(Purpose::Timestamp, local, peer, 0))
    }

    /// Where the search for a local port begins for connections to this peer (RFC 6056 §3.3.3).
    pub fn port_offset(&self, local: IpAddr, peer: SocketAddr) -> u32 {
        low_half(self.key.hash(Purpose::Port, SocketAddr::new(local, 0), peer, 0))
    }

    /// The timestamp clock without an offset, in milliseconds. It wraps after 49 days.
    pub fn milliseconds(&self, now: Time) -> u32 {
        self.ticks(now, TIMESTAMP_TICK_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "192.0.2.1:80";
    const PEER: &str = "198.51.100.7:40000";

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn isn() -> Isn {
        Isn::new(Key(*b"sixteen bytes of"), Duration::from_secs(1_700_000_000))
    }

    #[test]
    fn the_hash_agrees_with_the_test_vector_of_the_paper() {
        // Test vector of Aumasson and Bernstein, appendix A: key 00 01 … 0f, message 00 01 … 0e.
        let mut hasher = SipHasher24::new_with_key(&core::array::from_fn(|at| at as u8));
        hasher.write(&core::array::from_fn::<u8, 15, _>(|at| at as u8));
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn initial_numbers_advance_every_four_microseconds() {
        let (local, peer) = (end(LOCAL), end(PEER));
        let at = |ns| isn().initial(Time(ns), local, peer);
        assert_eq!(at(3_999), at(0));
        assert_eq!(at(4_000), at(0).wrapping_add(1));
        assert_eq!(at(4_000 << 32), at(0), "the clock should wrap after 4.8 hours");
    }

    #[test]
    fn the_same_key_and_clock_give_the_same_numbers() {
        let (local, peer) = (end(LOCAL), end(PEER));
        let started_later = Isn::new(isn().key, Duration::from_secs(1_700_000_009));
        let (early, late) = (Time(9_500_000_000), Time(500_000_000));
        assert_eq!(isn().initial(early, local, peer), started_later.initial(late, local, peer));
        assert_eq!(isn().milliseconds(early), started_later.milliseconds(late));
    }

    #[test]
    fn key_addresses_and_ports_change_the_number() {
        let one = isn().initial(Time(0), end(LOCAL), end(PEER));
        let others = [
            (isn(), "192.0.2.1:81", PEER),
            (isn(), "192.0.2.2:80", PEER),
            (isn(), LOCAL, "198.51.100.7:40001"),
            (isn(), LOCAL, "198.51.100.8:40000"),
            (isn(), PEER, LOCAL),
            (Isn::new(Key([0; 16]), isn().clock_at_zero), LOCAL, PEER),
        ];
        for (isn, local, peer) in others {
            assert_ne!(
                isn.initial(Time(0), end(local), end(peer)),
                one,
                "{local} and {peer} should change the number"
            );
        }
        let mapped = end("[::ffff:192.0.2.1]:80");
        assert_eq!(isn().initial(Time(0), mapped, end(PEER)), one);
    }

    #[test]
    fn the_timestamp_offset_depends_on_both_addresses() {
        let offset =
            |local: &str, peer: &str| isn().timestamp_offset(local.parse().unwrap(), peer.parse().unwrap());
        assert_eq!(offset("192.0.2.1", "192.0.2.2"), offset("192.0.2.1", "192.0.2.2"));
        assert_ne!(offset("192.0.2.1", "192.0.2.2"), offset("192.0.2.1", "192.0.2.3"));
        let (begin, later) = (isn().milliseconds(Time(0)), isn().milliseconds(Time(5_999_999)));
        assert_eq!(later.wrapping_sub(begin), 5);
    }

    #[test]
    fn debug_output_does_not_contain_the_key() {
        assert_eq!(alloc::format!("{:?}", Key([7; 16])), "Key(…)");
    }
}
