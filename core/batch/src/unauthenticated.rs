//! Which connections to a link port may wait for authentication, and which one is dropped when there are too many.
//!
//! Strangers need no key to open a connection and say nothing. They must not use up a server's descriptors, and must not
//! keep peers with a key away. So there is a bound for each source address and one in total, and a new connection is
//! never turned away: it replaces another one, chosen so that the peers which are about to authenticate survive.
//!
//! - Connections that have not named an accepted key yet go first. A peer with a key names it in its first packet, so
//!   it is past that stage when its connection is accepted, or one round trip later.
//! - Among those, the source that holds most loses its oldest one. A flood from one address replaces its own
//!   connections, and a flood from many addresses replaces its own as well, as long as each of them holds as many as an
//!   honest source.
//! - Only when all have named a key is one of these dropped, again the oldest of the source that holds most.
//!
//! The table is small, so each operation looks at all entries.

use alloc::vec::Vec;
use core::net::IpAddr;

/// Handshakes in progress from one source address.
pub const PER_SOURCE_MAX: usize = 16;
/// Handshakes in progress in total.
pub const TOTAL_MAX: usize = 128;

/// A network that one peer can use freely: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    source: Source,
    name: K,
    has_named_key: bool,
}

/// Connections whose peers have not authenticated yet, by a name of the caller's choice.
#[derive(Clone, Debug)]
pub struct Unauthenticated<K> {
    /// Oldest first.
    entries: Vec<Entry<K>>,
    per_source_max: usize,
    total_max: usize,
    evicted: u64,
}

impl<K> Default for Unauthenticated<K> {
    fn default() -> Unauthenticated<K> {
        Unauthenticated::new(PER_SOURCE_MAX, TOTAL_MAX)
    }
}

impl<K> Unauthenticated<K> {
    /// At most `total_max` connections, and `per_source_max` of each source; at least one each.
    pub const fn new(per_source_max: usize, total_max: usize) -> Unauthenticated<K> {
        Unauthenticated { entries: Vec::new(), per_source_max, total_max, evicted: 0 }
    }

    /// How many connections have yet to authenticate.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many connections were dropped for newer ones since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

impl<K: Copy + PartialEq> Unauthenticated<K> {
    /// A connection was accepted. Returns the connection that has to be closed for it, if there is no room: that one
    /// is forgotten here already.
    #[must_use = "the connection that is returned must be closed"]
    pub fn begin(&mut self, peer: IpAddr, name: K) -> Option<K> {
        let source = Source::of(peer);
        let victim = if self.held_by(source) >= self.per_source_max.max(1) {
            self.victim(|entry| entry.source == source)
        } else if self.entries.len() >= self.total_max.max(1) {
            self.victim(|_| true)
        } else {
            None
        };
        let victim = victim.map(|index| self.entries.remove(index).name);
        self.evicted += u64::from(victim.is_some());
        self.entries.push(Entry { source, name, has_named_key: false });
        victim
    }

    /// The peer has named a key that is accepted. It has not proven yet that it has that key.
    pub fn named_key(&mut self, name: K) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.name == name) {
            entry.has_named_key = true;
        }
    }

    /// The peer has authenticated, or its connection has ended. Returns whether it was waiting; spurious calls are
    /// harmless.
    pub fn end(&mut self, name: K) -> bool {
        let found = self.entries.iter().position(|entry| entry.name == name);
        if let Some(index) = found {
            self.entries.remove(index);
        }
        found.is_some()
    }

    fn held_by(&self, source: Source) -> usize {
        self.entries.iter().filter(|entry| entry.source == source).count()
    }

    /// Index of the connection that is dropped, among those for which `is_candidate` holds.
    fn victim(&self, is_candidate: impl Fn(&Entry<K>) -> bool) -> Option<usize> {
        let candidates = || self.entries.iter().enumerate().filter(|(_, entry)| is_candidate(entry));
        let silent = |entry: &Entry<K>| !entry.has_named_key;
        let any_silent = candidates().any(|(_, entry)| silent(entry));
        let held = |source| {
            candidates().filter(|(_, entry)| entry.source == source && (!any_silent || silent(entry))).count()
        };
        let mut chosen: Option<(usize, usize)> = None;
        for (index, entry) in candidates().filter(|(_, entry)| !any_silent || silent(entry)) {
            let held = held(entry.source);
            // The entries are in order of age, so only a source that holds more replaces an older entry.
            if chosen.is_none_or(|(_, most)| held > most) {
                chosen = Some((index, held));
            }
        }
        chosen.map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn v4(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn names(table: &Unauthenticated<u32>) -> Vec<u32> {
        table.entries.iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn one_source_replaces_its_own_oldest_connection() {
        let mut table = Unauthenticated::new(3, 10);
        assert_eq!(table.begin(v4(9), 100), None);
        for name in 0..3 {
            assert_eq!(table.begin(v4(1), name), None);
        }
        assert_eq!(table.begin(v4(1), 3), Some(0));
        assert_eq!(table.begin(v4(1), 4), Some(1));
        assert_eq!(names(&table), [100, 2, 3, 4]);
        assert_eq!((table.len(), table.evicted()), (4, 2));
    }

    #[test]
    fn a_full_table_drops_the_oldest_of_the_source_that_holds_most() {
        let mut table = Unauthenticated::new(3, 6);
        for (name, source) in [(0, 1), (1, 2), (2, 3), (3, 3), (4, 2), (5, 3)] {
            assert_eq!(table.begin(v4(source), name), None);
        }
        assert_eq!(table.begin(v4(4), 6), Some(2), "of the source with three");
        assert_eq!(table.begin(v4(5), 7), Some(1), "two sources have two: the oldest of them");
    }

    #[test]
    fn who_has_named_a_key_outlives_who_is_silent() {
        let mut table = Unauthenticated::new(4, 128);
        assert_eq!(table.begin(v4(1), 0), None);
        table.named_key(0);
        let evicted: Vec<Option<u32>> = (1..1000).map(|name| table.begin(v4(1), name)).collect();
        assert!(!evicted.contains(&Some(0)), "a flood of silent connections from the same address");
        assert!(table.end(0));
        assert!(!table.end(0), "only once");

        let mut table = Unauthenticated::new(4, 128);
        for name in 0..4 {
            assert_eq!(table.begin(v4(200), name), None);
            table.named_key(name);
        }
        for name in 4..10_000_u32 {
            let [_, _, high, low] = name.to_be_bytes();
            let victim = table.begin(Ipv4Addr::new(10, 1, high, low).into(), name);
            assert!(
                victim.is_none_or(|victim| victim >= 4),
                "each stranger has an address of its own: {name}"
            );
        }
        for name in 0..4 {
            assert!(table.end(name));
        }
    }

    #[test]
    fn when_all_have_named_a_key_the_oldest_of_the_largest_source_goes() {
        let mut table = Unauthenticated::new(2, 3);
        for (name, source) in [(0, 1), (1, 2), (2, 2)] {
            assert_eq!(table.begin(v4(source), name), None);
            table.named_key(name);
        }
        assert_eq!(table.begin(v4(3), 3), Some(1));
        assert_eq!(table.begin(v4(4), 4), Some(3), "the one that is silent");
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_source_and_mapped_addresses_are_ipv4() {
        let mut table = Unauthenticated::new(1, 10);
        let v6 = |subnet: u16, host: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, subnet, 0, 0, 0, host));
        assert_eq!(table.begin(v6(1, 1), 0), None);
        assert_eq!(table.begin(v6(2, 1), 1), None);
        assert_eq!(table.begin(v6(1, 2), 2), Some(0));
        assert_eq!(table.begin(v4(1), 3), None);
        assert_eq!(table.begin(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().into(), 4), Some(3));
    }

    #[test]
    fn bounds_of_zero_leave_room_for_one() {
        let mut table = Unauthenticated::new(0, 0);
        assert_eq!(table.begin(v4(1), 0), None);
        assert_eq!(table.begin(v4(2), 1), Some(0));
        assert_eq!(names(&table), vec![1]);
    }

    proptest::proptest! {
        /// Whatever comes and goes: the bounds hold, a connection leaves once, and who has named a key is dropped only
        /// when no silent one could have been.
        #[test]
        fn bounds_hold(
            steps in proptest::collection::vec((0_u8..4, 0_u8..6, 0_u32..40), 0..300),
            per_source_max in 1_usize..5,
            total_max in 1_usize..12,
        ) {
            let mut table = Unauthenticated::new(per_source_max, total_max);
            let mut alive: Vec<(u32, u8, bool)> = Vec::new();
            for (fresh, (step, source, pick)) in (1000_u32..).zip(steps) {
                match step {
                    0 | 1 => {
                        let of_source = alive.iter().filter(|(_, of, _)| *of == source).count();
                        let is_source_full = of_source >= per_source_max;
                        let is_full = is_source_full || alive.len() >= total_max;
                        let victim = table.begin(v4(source), fresh);
                        assert_eq!(victim.is_some(), is_full);
                        if let Some(victim) = victim {
                            let at = alive.iter().position(|(name, ..)| *name == victim).expect("it was waiting");
                            let (_, of, named) = alive.remove(at);
                            assert!(!is_source_full || of == source);
                            let could_be_silent =
                                alive.iter().any(|(_, of, named)| !named && (!is_source_full || *of == source));
                            assert!(!named || !could_be_silent);
                        }
                        alive.push((fresh, source, false));
                    }
                    2 if !alive.is_empty() => {
                        let index = pick as usize % alive.len();
                        let (name, ..) = alive.remove(index);
                        assert!(table.end(name));
                    }
                    3 if !alive.is_empty() => {
                        let index = pick as usize % alive.len();
                        alive[index].2 = true;
                        table.named_key(alive[index].0);
                    }
                    _ => {}
                }
                let expected: Vec<u32> = alive.iter().map(|(name, ..)| *name).collect();
                assert_eq!(names(&table), expected, "oldest first");
                assert!(table.len() <= total_max);
                for source in 0..6 {
                    assert!(table.held_by(Source::of(v4(source))) <= per_source_max);
                }
            }
        }
    }
}
