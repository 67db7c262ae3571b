//! Addresses and ports at which peers may connect.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

use crate::flow::canonical;
use crate::hasher::{Keyed, keyed};
use crate::isn::Key;
use crate::settings::{Listener, Settings};

/// The listeners of one stack, by index and by address.
#[derive(Debug)]
pub(super) struct Listeners {
    slots: Vec<Option<Slot>>,
    by_address: HashMap<SocketAddr, u16, Keyed>,
    /// Number of listeners with each port.
    ports: HashMap<u16, u32, Keyed>,
    /// The addresses of all listeners, and `own`.
    addresses: Vec<IpAddr>,
    /// The addresses in the settings, which connections opened by this stack use.
    own: Vec<IpAddr>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    listener: Listener,
    is_open: bool,
}

impl Listeners {
    /// The listeners of the settings, closed.
    pub(super) fn new(settings: &Settings, key: Key) -> Listeners {
        let mut listeners = Listeners {
            slots: Vec::new(),
            by_address: HashMap::with_hasher(keyed(key)),
            ports: HashMap::with_hasher(keyed(key)),
            addresses: Vec::new(),
            own: settings.addresses.iter().map(|own| own.ip).collect(),
        };
        for (index, listener) in (0_u16..).zip(&settings.listeners) {
            listeners.set(index, Some(*listener));
        }
        listeners.update_addresses();
        listeners
    }

    /// Sets the listener with this index, closed, or removes it. Of several listeners at one address, only the one set
    /// last gets connections, and after its removal the one of the highest index.
    pub(super) fn set(&mut self, index: u16, listener: Option<Listener>) {
        let at = usize::from(index);
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        if let Some(Slot { listener, .. }) = self.slots[at].take() {
            if self.by_address.get(&listener.address) == Some(&index) {
                match self.index_at(listener.address) {
                    Some(other) => self.by_address.insert(listener.address, other),
                    None => self.by_address.remove(&listener.address),
                };
            }
            if let Some(count) = self.ports.get_mut(&listener.address.port()) {
                *count -= 1;
                if *count == 0 {
                    self.ports.remove(&listener.address.port());
                }
            }
        }
        if let Some(Listener { address, is_gated }) = listener {
            let listener = Listener { address: canonical(address), is_gated };
            self.slots[at] = Some(Slot { listener, is_open: false });
            self.by_address.insert(listener.address, index);
            *self.ports.entry(listener.address.port()).or_insert(0) += 1;
        }
        self.update_addresses();
    }

    /// The index of a listener at an address.
    fn index_at(&self, address: SocketAddr) -> Option<u16> {
        let is_there = |slot: &Option<Slot>| slot.is_some_and(|slot| slot.listener.address == address);
        self.slots.iter().rposition(is_there).and_then(|at| u16::try_from(at).ok())
    }

    pub(super) fn set_open(&mut self, index: u16, is_open: bool) {
        if let Some(Some(slot)) = self.slots.get_mut(usize::from(index)) {
            slot.is_open = is_open;
        }
    }

    /// The open listener at an address, with its index.
    pub(super) fn open_at(&self, address: SocketAddr) -> Option<(u16, Listener)> {
        let index = *self.by_address.get(&address)?;
        let slot = self.slots.get(usize::from(index)).copied().flatten()?;
        slot.is_open.then_some((index, slot.listener))
    }

    /// Whether there is a listener of this index, open or closed.
    pub(super) fn contains(&self, index: u16) -> bool {
        matches!(self.slots.get(usize::from(index)), Some(Some(_)))
    }

    pub(super) fn has_port(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }

    /// Whether an address is the stack's own or a listener's.
    #[inline]
    pub(super) fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip)
    }

    fn update_addresses(&mut self) {
        self.addresses.clear();
        self.addresses.extend_from_slice(&self.own);
        let listener_addresses = self.slots.iter().flatten().map(|slot| slot.listener.address.ip());
        self.addresses.extend(listener_addresses);
        self.addresses.sort_unstable();
        self.addresses.dedup();
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use spillway_wire::packet::ethernet::Mac;

    fn listener(text: &str) -> Listener {
        Listener { address: text.parse().expect("address"), is_gated: false }
    }

    fn listeners() -> Listeners {
        let own = Ipv4Addr::new(10, 0, 0, 1);
        let mut settings = Settings::new(Mac([2, 0, 0, 0, 0, 1]), own, 24, Key([7; 16]));
        settings.listeners.push(listener("10.0.0.1:80"));
        Listeners::new(&settings, Key([7; 16]))
    }

    #[test]
    fn listeners_are_closed_until_they_are_opened() {
        let mut listeners = listeners();
        let first = listener("10.0.0.1:80");
        assert_eq!(listeners.open_at(first.address), None);
        listeners.set_open(0, true);
        assert_eq!(listeners.open_at(first.address), Some((0, first)));
        listeners.set_open(0, false);
        listeners.set_open(7, true);
        assert_eq!((listeners.open_at(first.address), listeners.contains(7)), (None, false));
    }

    #[test]
    fn both_families_may_have_a_listener_at_one_port() {
        let mut listeners = listeners();
        let (first, second) = (listener("10.0.0.1:80"), listener("[fd00::1]:80"));
        listeners.set(1, Some(second));
        listeners.set_open(0, true);
        listeners.set_open(1, true);
        assert_eq!(listeners.open_at(first.address), Some((0, first)));
        assert_eq!(listeners.open_at(second.address), Some((1, second)));
        assert!(listeners.has_address(second.address.ip()), "the second address should be known");
        // An IPv4 address that is mapped into IPv6 counts as an IPv4 address.
        listeners.set(1, Some(listener("[::ffff:10.0.0.2]:80")));
        listeners.set_open(1, true);
        let mapped = listener("10.0.0.2:80");
        assert_eq!(listeners.open_at(mapped.address), Some((1, mapped)));
        assert!(!listeners.has_address(second.address.ip()), "the removed address should be unknown");
    }

    #[test]
    fn addresses_and_ports_follow_the_listeners() {
        let mut listeners = listeners();
        let second = listener("10.0.0.2:80");
        listeners.set(3, Some(second));
        listeners.set_open(3, true);
        assert_eq!(listeners.open_at(second.address), Some((3, second)));
        assert!(
            listeners.has_address(second.address.ip()) && listeners.has_port(80),
            "the second address and port should be known"
        );
        assert!(!listeners.contains(1) && listeners.contains(3), "only the later listener should be there");
        listeners.set(3, None);
        assert_eq!(listeners.open_at(second.address), None);
        assert!(
            !listeners.has_address(second.address.ip()) && listeners.has_port(80),
            "port 80 should remain, because the first listener has it"
        );
        listeners.set(0, None);
        assert!(!listeners.has_port(80), "the unused port should be unknown");
        assert!(
            listeners.has_address(Ipv4Addr::new(10, 0, 0, 1).into()),
            "the address in the settings should remain"
        );
    }

    #[test]
    fn an_older_listener_gets_the_connections_of_a_removed_one_at_its_address() {
        let mut listeners = listeners();
        let first = listener("10.0.0.1:80");
        listeners.set(1, Some(first));
        listeners.set_open(0, true);
        listeners.set_open(1, true);
        assert_eq!(listeners.open_at(first.address), Some((1, first)));
        listeners.set(1, None);
        assert_eq!(listeners.open_at(first.address), Some((0, first)));
        listeners.set(0, None);
        assert_eq!((listeners.open_at(first.address), listeners.has_port(80)), (None, false));
    }
}
