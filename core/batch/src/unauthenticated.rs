//! Bounds the connections to a link port that have yet to authenticate, and chooses which one to drop.
//!
//! A connection can be opened without a key, and its peer may send nothing. Such connections must not use up
//! a server's descriptors, and must not exclude peers that have a key. A new connection is always accepted,
//! but at one of three bounds it replaces an earlier one:
//!
//! - At [`PER_SOURCE_MAX`], one from the same source address that is older than [`GRACE`].
//! - At [`TOTAL_MAX`], one from any source that is older than [`GRACE`].
//! - At [`TOTAL_ANY_AGE_MAX`], one from any source and of any age. This bound is higher, because many legitimate
//!   peers of one host connect at the same moment when their helper fails.
//!
//! The connection to drop is chosen so that peers that are about to authenticate remain:
//!
//! - A connection whose peer has not named an accepted key is dropped first. A peer with a key names the key in
//!   its first packet, so it has named no key for one round trip at most.
//! - At the total bounds, the source with the most connections without a named key loses its oldest one. A flood
//!   from one address replaces its own connections; so does a flood from many addresses that each have more
//!   connections than a legitimate source.
//! - When all have named a key, the same rule chooses among them.

use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Reverse;
use core::net::IpAddr;
use core::time::Duration;

use spillway_transport::Time;

/// With this number of unauthenticated connections of one source address, a new connection of this address replaces one
/// of them that is older than [`GRACE`].
pub const PER_SOURCE_MAX: usize = 16;
/// With this total number of unauthenticated connections, a new one replaces another one that is older than [`GRACE`].
pub const TOTAL_MAX: usize = 128;
/// Maximum total number of unauthenticated connections of any age.
pub const TOTAL_ANY_AGE_MAX: usize = 1024;
/// Time for a peer to authenticate. A connection younger than this is replaced by a new one only at
/// [`TOTAL_ANY_AGE_MAX`]. [`Unauthenticated::evict`] may also drop a younger connection whose peer has named no key.
pub const GRACE: Duration = Duration::from_secs(1);

/// The addresses among which one peer can choose freely: one IPv4 address, or an IPv6 network with a 64-bit prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    V4([u8; 4]),
    V6([u16; 4]),
}

impl Source {
    fn of(address: IpAddr) -> Source {
        match address.to_canonical() {
            IpAddr::V4(address) => Source::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Source::V6([a, b, c, d])
            }
        }
    }
}

/// Connections of one source at one stage.
type Group = (Source, Stage);

/// The greater stage is dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    NamedKey,
    Silent,
}

/// Order in which groups lose their oldest connection: the greatest rank first. The parts are the group's
/// stage, its number of connections, the arrival number of its oldest connection, and its source.
type Rank = (Stage, usize, Reverse<u64>, Source);

#[derive(Clone, Copy, Debug)]
struct Entry<H> {
    group: Group,
    handle: H,
    since: Time,
}

/// Bounds of [`Unauthenticated`]; at least one connection is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// See [`PER_SOURCE_MAX`].
    pub per_source: usize,
    /// See [`TOTAL_MAX`].
    pub total: usize,
    /// See [`TOTAL_ANY_AGE_MAX`].
    pub total_any_age: usize,
}

impl Bounds {
    /// The constants of this module.
    pub const DEFAULT: Bounds =
        Bounds { per_source: PER_SOURCE_MAX, total: TOTAL_MAX, total_any_age: TOTAL_ANY_AGE_MAX };
}

/// Connections that have yet to authenticate. `H` is the caller's handle of a connection. Operations take logarithmic
/// time.
#[derive(Clone, Debug)]
pub struct Unauthenticated<H> {
    bounds: Bounds,
    /// By arrival number: the smallest is the oldest.
    entries: BTreeMap<u64, Entry<H>>,
    arrival_by_handle: BTreeMap<H, u64>,
    groups: BTreeMap<Group, BTreeSet<u64>>,
    ranks: BTreeSet<Rank>,
    next_arrival: u64,
    evicted: u64,
}

impl<H> Default for Unauthenticated<H> {
    fn default() -> Unauthenticated<H> {
        Unauthenticated::new(Bounds::DEFAULT)
    }
}

impl<H> Unauthenticated<H> {
    /// An empty table.
    pub const fn new(bounds: Bounds) -> Unauthenticated<H> {
        Unauthenticated {
            bounds,
            entries: BTreeMap::new(),
            arrival_by_handle: BTreeMap::new(),
            groups: BTreeMap::new(),
            ranks: BTreeSet::new(),
            next_arrival: 0,
            evicted: 0,
        }
    }

    /// Number of connections that have yet to authenticate.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether every connection has authenticated or ended.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of connections dropped for newer ones since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

impl<H: Copy + Ord> Unauthenticated<H> {
    /// Adds a connection. If there is no room, removes another connection and returns it: the caller must close it.
    #[must_use = "the connection that is returned must be closed"]
    pub fn begin(&mut self, now: Time, peer: IpAddr, handle: H) -> Option<H> {
        let source = Source::of(peer);
        let victim = self.victim(now, source).and_then(|arrival| self.remove(arrival));
        self.evicted += u64::from(victim.is_some());
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        debug_assert!(!self.arrival_by_handle.contains_key(&handle), "a connection must not begin twice");
        self.arrival_by_handle.insert(handle, arrival);
        self.insert(arrival, Entry { group: (source, Stage::Silent), handle, since: now });
        victim
    }

    /// Whether [`evict`](Self::evict) would return a connection.
    pub fn can_evict(&self, now: Time) -> bool {
        self.eviction_candidate(now).is_some()
    }

    /// Makes room when another table that holds these connections is full: removes and returns a connection; the caller
    /// must close it. A peer that has named a key stays for [`GRACE`], so that peers with a key do not replace each
    /// other.
    #[must_use = "the connection that is returned must be closed"]
    pub fn evict(&mut self, now: Time) -> Option<H> {
        let victim = self.eviction_candidate(now).and_then(|arrival| self.remove(arrival));
        self.evicted += u64::from(victim.is_some());
        victim
    }

    fn eviction_candidate(&self, now: Time) -> Option<u64> {
        let (stage, _, Reverse(arrival), _) = self.ranks.last()?;
        (*stage == Stage::Silent || self.is_old(now, *arrival)).then_some(*arrival)
    }

    fn is_old(&self, now: Time, arrival: u64) -> bool {
        self.entries.get(&arrival).is_some_and(|entry| now.since(entry.since) >= GRACE)
    }

    /// The peer has named an accepted key. Its proof is still missing.
    pub fn named_key(&mut self, handle: H) {
        let Some(&arrival) = self.arrival_by_handle.get(&handle) else { return };
        if let Some(entry) = self.take(arrival) {
            self.insert(arrival, Entry { group: (entry.group.0, Stage::NamedKey), ..entry });
        }
    }

    /// The peer has authenticated, or its connection has ended. Returns whether the connection was in the table;
    /// spurious calls are harmless.
    pub fn end(&mut self, handle: H) -> bool {
        let arrival = self.arrival_by_handle.get(&handle).copied();
        arrival.and_then(|arrival| self.remove(arrival)).is_some()
    }

    fn victim(&self, now: Time, source: Source) -> Option<u64> {
        let (silent, named) = (self.group((source, Stage::Silent)), self.group((source, Stage::NamedKey)));
        let held = silent.map_or(0, BTreeSet::len) + named.map_or(0, BTreeSet::len);
        if held >= self.bounds.per_source.max(1)
            && let Some(oldest) =
                silent.or(named).and_then(BTreeSet::first).filter(|arrival| self.is_old(now, **arrival))
        {
            return Some(*oldest);
        }
        let (_, _, Reverse(candidate), _) = self.ranks.last()?;
        let is_full = self.entries.len() >= self.bounds.total.max(1) && self.is_old(now, *candidate);
        (is_full || self.entries.len() >= self.bounds.total_any_age.max(1)).then_some(*candidate)
    }

    fn group(&self, group: Group) -> Option<&BTreeSet<u64>> {
        self.groups.get(&group)
    }

    fn insert(&mut self, arrival: u64, entry: Entry<H>) {
        self.update_group(entry.group, |members| {
            members.insert(arrival);
        });
        self.entries.insert(arrival, entry);
    }

    fn take(&mut self, arrival: u64) -> Option<Entry<H>> {
        let entry = self.entries.remove(&arrival)?;
        self.update_group(entry.group, |members| {
            members.remove(&arrival);
        });
        Some(entry)
    }

    fn remove(&mut self, arrival: u64) -> Option<H> {
        let entry = self.take(arrival)?;
        self.arrival_by_handle.remove(&entry.handle);
        Some(entry.handle)
    }

    fn update_group(&mut self, group: Group, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let members = self.groups.entry(group).or_default();
        if let Some(rank) = rank(group, members) {
            self.ranks.remove(&rank);
        }
        change(members);
        match rank(group, members) {
            Some(rank) => {
                self.ranks.insert(rank);
            }
            None => {
                self.groups.remove(&group);
            }
        }
    }
}

fn rank((source, stage): Group, members: &BTreeSet<u64>) -> Option<Rank> {
    members.first().map(|oldest| (stage, members.len(), Reverse(*oldest), source))
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const LATER: Time = Time(GRACE.as_nanos() as u64);

    fn v4(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn table(per_source: usize, total: usize, total_any_age: usize) -> Unauthenticated<u32> {
        Unauthenticated::new(Bounds { per_source, total, total_any_age })
    }

    fn handles(table: &Unauthenticated<u32>) -> Vec<u32> {
        table.entries.values().map(|entry| entry.handle).collect()
    }

    #[test]
    fn one_source_replaces_its_own_oldest_connection() {
        let mut table = table(3, 10, 20);
        assert_eq!(table.begin(Time(0), v4(9), 100), None);
        for handle in 0..3 {
            assert_eq!(table.begin(Time(0), v4(1), handle), None);
        }
        assert_eq!(table.begin(LATER, v4(1), 3), Some(0));
        assert_eq!(table.begin(LATER, v4(1), 4), Some(1));
        assert_eq!(handles(&table), [100, 2, 3, 4]);
        assert_eq!((table.len(), table.evicted()), (4, 2), "two connections should have been replaced");
    }

    #[test]
    fn a_full_table_drops_the_oldest_of_the_source_that_holds_most() {
        for (bounds, now) in [((3, 6, 20), LATER), ((20, 20, 6), Time(0))] {
            let mut table = table(bounds.0, bounds.1, bounds.2);
            for (handle, source) in [(0, 1), (1, 2), (2, 3), (3, 3), (4, 2), (5, 3)] {
                assert_eq!(table.begin(Time(0), v4(source), handle), None);
            }
            assert_eq!(
                table.begin(now, v4(4), 6),
                Some(2),
                "the oldest of the source with 3 connections should be dropped"
            );
            assert_eq!(
                table.begin(now, v4(5), 7),
                Some(1),
                "the oldest of the two sources with 2 connections should be dropped"
            );
        }
    }

    #[test]
    fn many_peers_of_one_host_may_connect_at_once() {
        let mut table: Unauthenticated<u32> = Unauthenticated::default();
        for handle in 0..TOTAL_ANY_AGE_MAX as u32 {
            assert_eq!(table.begin(Time(5), v4(1), handle), None);
        }
        let replaced = table.begin(Time(5), v4(1), 5000);
        assert_eq!(replaced, Some(0), "at TOTAL_ANY_AGE_MAX a connection of any age should be replaced");
        for handle in 1..TOTAL_ANY_AGE_MAX as u32 {
            assert!(table.end(handle), "each remaining connection should be in the table");
        }
        assert_eq!(handles(&table), [5000]);
    }

    #[test]
    fn evict_drops_silent_peers_first_and_then_old_ones() {
        let mut table = table(9, 9, 9);
        assert_eq!(table.evict(LATER), None);
        for (handle, source) in [(0, 1), (1, 2), (2, 2)] {
            assert_eq!(table.begin(Time(0), v4(source), handle), None);
        }
        table.named_key(0);
        assert_eq!(
            (table.evict(Time(0)), table.evict(Time(0))),
            (Some(1), Some(2)),
            "silent peers should be dropped, the oldest first"
        );
        assert!(!table.can_evict(Time(0)), "a peer that named a key should stay for GRACE");
        assert_eq!(
            (table.evict(Time(0)), table.evict(LATER)),
            (None, Some(0)),
            "a peer that named a key should be dropped only after GRACE"
        );
        assert_eq!((table.len(), table.evicted()), (0, 3), "three connections should have been dropped");
    }

    #[test]
    fn peers_that_named_a_key_outlive_silent_ones() {
        let mut flooded = table(4, 128, 64);
        assert_eq!(flooded.begin(Time(0), v4(1), 0), None);
        flooded.named_key(0);
        let evicted: Vec<Option<u32>> = (1..1000).map(|handle| flooded.begin(LATER, v4(1), handle)).collect();
        assert!(!evicted.contains(&Some(0)), "a flood of silent connections should not evict the peer");
        assert!(flooded.end(0), "the peer that named a key should be in the table");
        assert!(!flooded.end(0), "a second end should report that the connection is not in the table");

        let mut flooded = table(4, 128, 256);
        for handle in 0..4 {
            assert_eq!(flooded.begin(Time(0), v4(200), handle), None);
            flooded.named_key(handle);
        }
        for handle in 4..10_000_u32 {
            let [_, _, high, low] = handle.to_be_bytes();
            let victim = flooded.begin(LATER, Ipv4Addr::new(10, 1, high, low).into(), handle);
            assert!(
                victim.is_none_or(|victim| victim >= 4),
                "silent connections from many addresses should not evict the peer: {handle}"
            );
        }
        for handle in 0..4 {
            assert!(flooded.end(handle), "each connection that named a key should be in the table");
        }
    }

    #[test]
    fn when_all_have_named_a_key_the_oldest_of_the_largest_source_is_dropped() {
        let mut table = table(2, 3, 3);
        for (handle, source) in [(0, 1), (1, 2), (2, 2)] {
            assert_eq!(table.begin(Time(0), v4(source), handle), None);
            table.named_key(handle);
        }
        assert_eq!(table.begin(LATER, v4(3), 3), Some(1));
        assert_eq!(table.begin(LATER, v4(4), 4), Some(3), "the silent peer should be dropped first");
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_source_and_mapped_addresses_are_ipv4() {
        let mut table = table(1, 10, 20);
        let v6 = |subnet: u16, host: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, subnet, 0, 0, 0, host));
        assert_eq!(table.begin(Time(0), v6(1, 1), 0), None);
        assert_eq!(table.begin(LATER, v6(2, 1), 1), None);
        assert_eq!(table.begin(LATER, v6(1, 2), 2), Some(0));
        assert_eq!(table.begin(Time(0), v4(1), 3), None);
        assert_eq!(table.begin(LATER, Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().into(), 4), Some(3));
    }

    #[test]
    fn bounds_of_zero_allow_one_connection() {
        let mut table = table(0, 0, 0);
        assert_eq!(table.begin(Time(0), v4(1), 0), None);
        assert_eq!(table.begin(Time(0), v4(2), 1), Some(0));
        assert_eq!(handles(&table), vec![1]);
    }

    /// Reference model: searches all connections, given as (handle, source, has named a key, since), oldest first.
    fn expected(alive: &[(u32, u8, bool, Time)], bounds: Bounds, now: Time, source: u8) -> Option<u32> {
        let is_old = |since: Time| now.since(since) >= GRACE;
        let own: Vec<_> = alive.iter().filter(|(_, other, ..)| *other == source).collect();
        if own.len() >= bounds.per_source {
            let silent = own.iter().find(|(_, _, named, _)| !named);
            if let Some((handle, _, _, since)) = silent.or(own.first())
                && is_old(*since)
            {
                return Some(*handle);
            }
        }
        let has_silent = alive.iter().any(|(_, _, named, _)| !named);
        // The silent connections if there are any, otherwise all.
        let candidates: Vec<_> = alive.iter().filter(|(_, _, named, _)| !(has_silent && *named)).collect();
        let held = |source: u8| candidates.iter().filter(|(_, other, ..)| *other == source).count();
        let held_max = candidates.iter().map(|(_, other, ..)| held(*other)).max()?;
        let (handle, _, _, since) = candidates.iter().find(|(_, other, ..)| held(*other) == held_max)?;
        let is_full = alive.len() >= bounds.total && is_old(*since);
        (is_full || alive.len() >= bounds.total_any_age).then_some(*handle)
    }

    proptest::proptest! {
        #[test]
        fn drops_the_same_connections_as_the_reference_model(
            steps in proptest::collection::vec((0_u8..5, 0_u8..6, 0_u32..40), 0..300),
            bounds in (1_usize..5, 1_usize..12, 1_usize..20),
        ) {
            let bounds = Bounds { per_source: bounds.0, total: bounds.1, total_any_age: bounds.2 };
            let mut table = Unauthenticated::new(bounds);
            let mut alive: Vec<(u32, u8, bool, Time)> = Vec::new();
            let mut now = Time(0);
            for (fresh, (step, source, pick)) in (1000_u32..).zip(steps) {
                match step {
                    0 | 1 => {
                        let expected = expected(&alive, bounds, now, source);
                        assert_eq!(table.begin(now, v4(source), fresh), expected);
                        alive.retain(|(handle, ..)| Some(*handle) != expected);
                        alive.push((fresh, source, false, now));
                    }
                    2 if !alive.is_empty() => {
                        let (handle, ..) = alive.remove(pick as usize % alive.len());
                        assert!(table.end(handle), "each connection of the model should be in the table");
                    }
                    3 if !alive.is_empty() => {
                        let index = pick as usize % alive.len();
                        alive[index].2 = true;
                        table.named_key(alive[index].0);
                    }
                    _ => now = now + GRACE / 3,
                }
                let expected: Vec<u32> = alive.iter().map(|(handle, ..)| *handle).collect();
                assert_eq!(handles(&table), expected, "connections should be listed oldest first");
                assert!(table.len() <= bounds.total_any_age.max(1), "the table should stay within its bound");
                assert_eq!((table.arrival_by_handle.len(), table.ranks.len()), (table.len(), table.groups.len()));
            }
        }
    }
}
