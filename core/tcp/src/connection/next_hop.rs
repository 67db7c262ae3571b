//! The Ethernet address to which a connection sends its frames.

use spillway_wire::packet::ethernet::Mac;

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
}

impl NextHop {
    pub(super) fn new(confirmed: Option<Mac>) -> NextHop {
        NextHop { confirmed, in_doubt: None, must_doubt_neighbour: false, is_one_way: false }
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
    }

    /// The address of the peer's last accepted segment. `None`: call [`resolve`](Self::resolve).
    #[inline]
    pub(crate) fn confirmed(&self) -> Option<Mac> {
        self.confirmed
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
    pub(crate) fn resolve(&mut self, found: Option<Mac>) -> Option<Mac> {
        self.in_doubt = found.or(self.in_doubt);
        self.in_doubt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const NEW: Mac = Mac([2, 0, 0, 0, 0, 2]);

    #[test]
    fn a_doubted_address_is_used_until_another_is_found() {
        let mut hop = NextHop::new(Some(OLD));
        assert_eq!((hop.confirmed(), hop.take_doubt()), (Some(OLD), false));
        hop.doubt();
        assert_eq!((hop.confirmed(), hop.known(), hop.take_doubt()), (None, Some(OLD), true));
        assert!(!hop.take_doubt(), "the entry should be marked as doubtful once");
        assert_eq!((hop.resolve(None), hop.resolve(Some(NEW))), (Some(OLD), Some(NEW)));
        hop.confirm(OLD);
        assert_eq!(hop.known(), Some(OLD));
    }

    #[test]
    fn segments_from_another_station_do_not_change_the_next_hop() {
        let mut hop = NextHop::one_way();
        hop.confirm(OLD);
        assert_eq!((hop.confirmed(), hop.resolve(Some(NEW))), (None, Some(NEW)));
        hop.confirm(OLD);
        assert_eq!((hop.confirmed(), hop.known()), (None, Some(NEW)));
    }
}
