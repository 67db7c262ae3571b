//! Admission of new clients: the limit on clients, and eviction of library clients that have not authenticated.

use core::net::IpAddr;

use spillway_batch::Unauthenticated;
use spillway_batch::unauthenticated::Bounds;
use spillway_transport::{Conn, Time};

use crate::memory::Memory;
use crate::reasons::Refusal;

/// The limit on clients, and the library clients that have not authenticated yet.
#[derive(Debug)]
pub(crate) struct Admission {
    clients_max: u32,
    unauthenticated: Unauthenticated<Conn>,
}

impl Admission {
    pub(crate) fn new(clients_max: u32, unauthenticated: Bounds) -> Admission {
        Admission { clients_max, unauthenticated: Unauthenticated::new(unauthenticated) }
    }

    pub(crate) fn set_clients_max(&mut self, clients_max: u32) {
        self.clients_max = clients_max;
    }

    /// Whether one more client can be admitted.
    pub(crate) fn check(&self, now: Time, clients: u32, memory: &Memory) -> Result<(), Refusal> {
        // A client that has not authenticated can be evicted for the new one.
        if clients >= self.clients_max && !self.unauthenticated.can_evict(now) {
            return Err(Refusal::ClientsMax);
        }
        // The caller has already closed the clients that hold most memory. If the bound is still exceeded,
        // links or the transport hold the memory.
        if memory.is_exceeded() {
            return Err(Refusal::Memory);
        }
        Ok(())
    }

    /// Call this before an admitted client is added. Returns an unauthenticated client to close, if the limit on
    /// clients is reached.
    #[must_use]
    pub(crate) fn make_room(&mut self, now: Time, clients: u32) -> Option<Conn> {
        if clients >= self.clients_max { self.unauthenticated.evict(now) } else { None }
    }

    /// Adds a library client that begins to authenticate. Returns an older one to close, if there are too many.
    #[must_use]
    pub(crate) fn begin(&mut self, now: Time, peer: IpAddr, conn: Conn) -> Option<Conn> {
        self.unauthenticated.begin(now, peer, conn)
    }

    /// The library client has named an accepted key, but has not proved that it has the key.
    pub(crate) fn named_key(&mut self, conn: Conn) {
        self.unauthenticated.named_key(conn);
    }

    /// The library client has authenticated, or its connection has ended.
    pub(crate) fn end(&mut self, conn: Conn) {
        self.unauthenticated.end(conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unauthenticated_client_is_evicted_for_a_new_one() {
        let mut admission = Admission::new(2, Bounds::DEFAULT);
        let mut memory = Memory::new(800);
        let unauthenticated = Conn { slot: 1, generation: 1 };
        let after_a_minute = Time(0) + core::time::Duration::from_secs(60);
        assert_eq!(admission.check(Time(0), 1, &memory), Ok(()));
        assert_eq!(admission.make_room(Time(0), 1), None);
        assert_eq!(admission.check(Time(0), 2, &memory), Err(Refusal::ClientsMax));
        assert_eq!(admission.begin(Time(0), "10.0.0.1".parse().unwrap(), unauthenticated), None);
        assert_eq!(admission.check(after_a_minute, 2, &memory), Ok(()));
        assert_eq!(admission.make_room(after_a_minute, 2), Some(unauthenticated));
        assert_eq!(admission.check(after_a_minute, 2, &memory), Err(Refusal::ClientsMax));
        memory.resize_client(0, 801);
        assert_eq!(admission.check(after_a_minute, 1, &memory), Err(Refusal::Memory));
    }
}
