//! Cookies that were accepted. A cookie stays valid for about two minutes; a late copy of the segment that returned it
//! would open its connection again and deliver its bytes twice. So each cookie is accepted once.
//!
//! An entry is made only after a complete handshake, so a flood of forged SYNs takes no room here. Entries
//! are never removed before their cookies expire. So that one host cannot fill the table, each peer's address
//! (the /64 network of an IPv6 address) may use an eighth of the places that are free at the time, times the
//! part of the table that is free: a dynamic threshold, as for shared buffers (Choudhury and Hahne 1998). One
//! address gets a tenth of the table. The threshold is quadratic in the free places because addresses may
//! take their shares one after the other: `n` of them leave 8/(8 + n) of the table, where a linear threshold
//! would leave (8/9)^n.
//!
//! In each period, cookies are counted in [`SHARES`] counters; a keyed hash of the address chooses the
//! counter. The counters take 128 KiB, and an address shares its counter with one of `n` others in `n` of
//! 16,384 cases.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use hashbrown::HashSet;

use crate::cookies;
use crate::hasher::{Keyed, keyed};
use crate::isn::{Key, Purpose};
use crate::narrow::in_memory;

/// Number of counters of used cookies.
const SHARES: usize = 16_384;
/// A peer's address may use this part of the free places while almost all are free.
const SHARE_DIVISOR: u128 = 8;

#[derive(Debug)]
pub(super) struct UsedCookies {
    key: Key,
    cookies_max: usize,
    /// [`cookies::Cookies::counter`] in the present period.
    counter: u64,
    /// Cookies accepted in the present period, and in the one before. Older cookies are no longer valid.
    present: PeriodCookies,
    previous: PeriodCookies,
}

#[derive(Debug)]
struct PeriodCookies {
    /// Keyed hashes of cookies. A collision, once in 2^64 cases, refuses a connection.
    hashes: HashSet<u64, Keyed>,
    /// Number of these cookies for each share; empty before the first cookie.
    by_share: Vec<u32>,
    /// There was no room for a cookie of an imported connection, so used cookies may be missing.
    is_incomplete: bool,
}

impl PeriodCookies {
    fn new(key: Key) -> PeriodCookies {
        PeriodCookies { hashes: HashSet::with_hasher(keyed(key)), by_share: Vec::new(), is_incomplete: false }
    }

    fn add(&mut self, hash: u64, share: usize) {
        if self.by_share.is_empty() {
            self.by_share.resize(SHARES, 0);
        }
        self.hashes.insert(hash);
        self.by_share[share] += 1;
    }

    fn count_of(&self, share: usize) -> usize {
        self.by_share.get(share).map_or(0, |count| *count as usize)
    }
}

impl UsedCookies {
    pub(super) fn new(cookies_max: usize, key: Key) -> UsedCookies {
        let (present, previous) = (PeriodCookies::new(key), PeriodCookies::new(key));
        UsedCookies { key, cookies_max, counter: 0, present, previous }
    }

    /// Sets the present period, and removes expired entries. Call it before any other method.
    pub(super) fn advance_to(&mut self, counter: u64) {
        if counter == self.counter {
            return;
        }
        let last = core::mem::replace(&mut self.present, PeriodCookies::new(self.key));
        self.previous = if counter == self.counter + 1 { last } else { PeriodCookies::new(self.key) };
        self.counter = counter;
    }

    /// Whether another cookie of this peer's address may be accepted: no used cookie is missing, and the address has not
    /// used up its share of the room.
    pub(super) fn has_room_for(&self, peer: IpAddr) -> bool {
        let is_incomplete = self.present.is_incomplete || self.previous.is_incomplete;
        let share = self.share(peer);
        let used = self.present.count_of(share) + self.previous.count_of(share);
        let (used, free, all) = (used as u128, self.free() as u128, self.cookies_max as u128);
        !is_incomplete && used * SHARE_DIVISOR * all < free * free
    }

    fn free(&self) -> usize {
        self.cookies_max.saturating_sub(self.present.hashes.len() + self.previous.hashes.len())
    }

    pub(super) fn contains(&self, binding: cookies::Binding, initial: u32) -> bool {
        let hash = self.hash(binding, initial);
        self.present.hashes.contains(&hash) || self.previous.hashes.contains(&hash)
    }

    /// Adds a cookie of an accepted or imported connection.
    pub(super) fn add(&mut self, binding: cookies::Binding, initial: u32) {
        // A second use does not renew an entry.
        if self.contains(binding, initial) {
            return;
        }
        // An imported connection has its cookie from another stack, which has checked the share.
        if self.free() > 0 {
            let (hash, share) = (self.hash(binding, initial), self.share(binding.peer.ip()));
            self.present.add(hash, share);
        } else {
            self.present.is_incomplete = true;
        }
    }

    /// Hash of the cookie and its connection: with another cookie the same peer may connect again.
    fn hash(&self, binding: cookies::Binding, initial: u32) -> u64 {
        let numbers = u64::from(binding.peer_initial) << 32 | u64::from(initial);
        self.key.hash(Purpose::CookieUsed, binding.local, binding.peer, numbers)
    }

    /// The share that a peer's address counts to: the index of its counter. A host usually has all addresses
    /// of its IPv6 /64 network.
    fn share(&self, peer: IpAddr) -> usize {
        let network = match peer {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        };
        let end = SocketAddr::new(network, 0);
        in_memory(self.key.hash(Purpose::CookieShare, end, end, 0) % SHARES as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(ip: IpAddr, peer_initial: u32) -> cookies::Binding {
        let peer = SocketAddr::new(ip, 4000);
        cookies::Binding { local: SocketAddr::from(([10, 0, 0, 1], 80)), peer, peer_initial }
    }

    /// Uses all cookies that an address may use; returns their number.
    fn take_all(used: &mut UsedCookies, ip: IpAddr) -> usize {
        let may_use = |number: &u32| {
            let has_room = used.has_room_for(ip);
            if has_room {
                used.add(binding(ip, *number), 7);
            }
            has_room
        };
        (0..1_000_000).take_while(may_use).count()
    }

    /// The addresses take their shares one after the other, which leaves less than if they took turns.
    #[test]
    fn greedy_addresses_leave_the_documented_part_of_the_table() {
        for (hosts, documented) in [(1, 235_000), (6, 155_000), (100, 19_000), (1000, 1800)] {
            let mut used = UsedCookies::new(262_144, Key([7; 16]));
            for host in 0..hosts {
                take_all(&mut used, IpAddr::from((0x0a01_0000_u32 + host).to_be_bytes()));
            }
            let free = used.free();
            assert!(free >= documented, "{hosts} hosts should leave {documented} places, not {free}");
            let honest = take_all(&mut used, IpAddr::from([192, 0, 2, 1]));
            assert!(honest >= 1, "an honest peer should get a place beside {hosts} hosts");
        }
    }

    #[test]
    fn a_host_has_one_share_for_all_addresses_of_its_ipv6_network() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut used = UsedCookies::new(9000, Key([7; 16]));
        assert_eq!(take_all(&mut used, ip("fd01:1:2:3::1")), 910);
        assert_eq!(take_all(&mut used, ip("fd01:1:2:3:ffff::1")), 0);
        assert_eq!(take_all(&mut used, ip("fd01:1:2:4::1")), 749);
        assert_eq!(take_all(&mut used, ip("10.1.0.1")), 627);
    }

    #[test]
    fn a_share_is_free_again_after_two_periods() {
        let mut used = UsedCookies::new(9000, Key([7; 16]));
        let ip = IpAddr::from([10, 1, 0, 1]);
        assert_eq!(take_all(&mut used, ip), 910);
        used.advance_to(1);
        assert_eq!(take_all(&mut used, ip), 0);
        used.advance_to(2);
        assert_eq!(take_all(&mut used, ip), 910);
    }
}
