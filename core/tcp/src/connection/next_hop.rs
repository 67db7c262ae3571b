//! The Ethernet address to which a connection sends its frames.

use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;

/// How long a one-way connection uses an address before it looks it up again in the neighbour cache: many connections then cost
/// the cache, which may have fewer entries than there are peers, few lookups.
const RESOLVED_FOR: Duration = Duration::from_secs(5);

/// The next hop of one connection.
#[derive(Debug)]
pub(crate) struct NextHop {
    /// The source of the peer's last accepted segment, unless it is in doubt.
    confirmed: Option<Mac>,
    /// The address used while none is confirmed: the one in the neighbour cache, or the previous one.
    in_doubt: Option<Mac>,
    /// The entry in the neighbour cache must be marked as doubtful before its next lookup.
    must_doubt_neighbour: bool,
    /// The peer's segments arrive from another station than the one to which its frames must go.
    is_one_way: bool,
    /// One-way: until this time the address in `in_doubt` is used without a lookup.
    resolved_until: Time,
}

impl NextHop {
    pub(super) fn new(confirmed: Option<Mac>) -> NextHop {
        NextHop {
            confirmed,
            in_doubt: None,
            must_doubt_neighbour: false,
            is_one_way: false,
            resolved_until: Time::ZERO,
        }
    }

    /// The next hop is always the one of the route, wherever segments come from.
    pub(super) fn one_way() -> NextHop {
        NextHop { is_one_way: true, ..NextHop::new(None) }
    }

    /// The peer's segment came from this address.
    #[inline]
    pub(super) fn confirm(&mut self, source: Mac) {
        if !self.is_one_way {
            self.confirmed = Some(source);
        }
    }

    /// Resolves the next hop again, because frames may go to an interface that no longer exists. Until the next hop is
    /// resolved, frames are sent to the old address.
    pub(super) fn doubt(&mut self) {
        self.in_doubt = self.confirmed.take().or(self.in_doubt);
        self.must_doubt_neighbour = true;
        self.resolved_until = Time::ZERO;
    }

    /// The address of the peer's last accepted segment. `None`: call [`resolve`](Self::resolve).
    #[inline]
    pub(crate) fn confirmed(&self) -> Option<Mac> {
        self.confirmed
    }

    /// The address that a one-way connection has found a short time ago.
    pub(crate) fn recent(&self, now: Time) -> Option<Mac> {
        self.in_doubt.filter(|_| now < self.resolved_until)
    }

    /// The best address that is known without a lookup.
    pub(crate) fn known(&self) -> Option<Mac> {
        self.confirmed.or(self.in_doubt)
    }

    /// Whether the entry in the neighbour cache must be marked as doubtful now. Returns `true` once after each
    /// [`doubt`](Self::doubt).
    pub(crate) fn take_doubt(&mut self) -> bool {
        core::mem::take(&mut self.must_doubt_neighbour)
    }

    /// Takes over the address that was `found` in the neighbour cache, and returns the address to use.
    pub(crate) fn resolve(&mut self, now: Time, found: Option<Mac>) -> Option<Mac> {
        if self.is_one_way && found.is_some() {
            self.resolved_until = now + RESOLVED_FOR;
        }
        self.in_doubt = found.or(self.in_doubt);
        self.in_doubt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const NEW: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const AT: Time = Time(1_000);

    #[test]
    fn a_doubted_address_is_used_until_another_is_found() {
        let mut hop = NextHop::new(Some(OLD));
        assert_eq!((hop.confirmed(), hop.take_doubt()), (Some(OLD), false));
        hop.doubt();
        assert_eq!((hop.confirmed(), hop.known(), hop.take_doubt()), (None, Some(OLD), true));
        assert!(!hop.take_doubt(), "the entry should be marked as doubtful once");
        assert_eq!((hop.resolve(AT, None), hop.resolve(AT, Some(NEW))), (Some(OLD), Some(NEW)));
        assert_eq!(hop.recent(AT), None, "the cache is asked until a segment confirms the address");
        hop.confirm(OLD);
        assert_eq!(hop.known(), Some(OLD));
    }

    #[test]
    fn segments_from_another_station_do_not_change_the_next_hop() {
        let mut hop = NextHop::one_way();
        hop.confirm(OLD);
        assert_eq!((hop.confirmed(), hop.resolve(AT, Some(NEW))), (None, Some(NEW)));
        hop.confirm(OLD);
        assert_eq!((hop.confirmed(), hop.known()), (None, Some(NEW)));
    }

    #[test]
    fn a_one_way_connection_looks_its_next_hop_up_at_times_only() {
        let mut hop = NextHop::one_way();
        assert_eq!((hop.resolve(AT, None), hop.recent(AT)), (None, None));
        assert_eq!(hop.resolve(AT, Some(OLD)), Some(OLD));
        let later = AT + RESOLVED_FOR;
        assert_eq!((hop.recent(AT), hop.recent(later)), (Some(OLD), None));
        // A timeout asks at once; the old address is used while there is no other.
        hop.doubt();
        assert_eq!((hop.recent(AT), hop.take_doubt(), hop.resolve(AT, None)), (None, true, Some(OLD)));
        assert_eq!((hop.resolve(AT, Some(NEW)), hop.recent(AT)), (Some(NEW), Some(NEW)));
    }
}
