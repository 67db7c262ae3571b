//! The keys that the accepting end of links accepts, by role.

use alloc::vec::Vec;

use spillway_wire::preamble::{KeyId, Role};

use crate::key::Key;

/// The keys that are accepted from helpers and from clients. A role may have several keys, so that keys can be rotated.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    helpers: Vec<Key>,
    clients: Vec<Key>,
}

impl KeyRing {
    /// A ring without keys: it accepts no peer.
    pub fn new() -> KeyRing {
        KeyRing::default()
    }

    /// A ring for loopback links without a configured key. It accepts every process of this machine, in either role, so
    /// the caller must listen on loopback addresses only.
    pub fn loopback_only() -> KeyRing {
        let key = Key::loopback_only();
        KeyRing { helpers: Vec::from([key.clone()]), clients: Vec::from([key]) }
    }

    /// Adds a key that peers of this role may use.
    pub fn accept(&mut self, role: Role, key: Key) {
        match role {
            Role::Helper => self.helpers.push(key),
            Role::Client => self.clients.push(key),
        }
    }

    /// The key with this identifier, if this role may use it.
    pub fn find(&self, role: Role, id: KeyId) -> Option<&Key> {
        let keys = match role {
            Role::Helper => &self.helpers,
            Role::Client => &self.clients,
        };
        keys.iter().find(|key| key.id() == id)
    }

    /// Whether the ring accepts no key of any role.
    pub fn is_empty(&self) -> bool {
        self.helpers.is_empty() && self.clients.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_found_for_its_role_only() {
        let (helper, client) = (Key::from_secret([1; 32]), Key::from_secret([2; 32]));
        let mut ring = KeyRing::new();
        assert!(ring.is_empty(), "a new ring should be empty");
        ring.accept(Role::Helper, helper.clone());
        ring.accept(Role::Client, client.clone());
        assert!(ring.find(Role::Helper, helper.id()).is_some(), "a helper's key should be found for helpers");
        assert!(
            ring.find(Role::Client, helper.id()).is_none(),
            "a helper's key should not be found for clients"
        );
        assert!(
            ring.find(Role::Helper, client.id()).is_none(),
            "a client's key should not be found for helpers"
        );
        assert!(ring.find(Role::Client, client.id()).is_some(), "a client's key should be found for clients");
    }
}
