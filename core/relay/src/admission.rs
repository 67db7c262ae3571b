//! Whether there is room for one more client, and which client goes to make room.

use core::net::IpAddr;

use spillway_batch::Unauthenticated;
use spillway_batch::unauthenticated::Bounds;
use spillway_transport::{Conn, Time};

use crate::memory::Memory;
use crate::reasons::Refusal;

/// Bounds on the number of clients, and the library clients that have yet to authenticate.
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

    /// Whether there is room for one more.
    pub(crate) fn check(&self, now: Time, clients: u32, memory: &Memory) -> Result<(), Refusal> {
        // One that has yet to authenticate goes when somebody else wants its place.
        if clients >= self.clients_max && !self.unauthenticated.can_evict(now) {
            return Err(Refusal::ClientsMax);
        }
        // Those that hold most are closed before it comes to this: the rest of the memory is not clients'.
        if memory.is_exceeded() {
            return Err(Refusal::Memory);
        }
        Ok(())
    }

    /// A client was admitted. If there is no room for it, returns a client that has yet to authenticate, and that goes.
    #[must_use]
    pub(crate) fn make_room(&mut self, now: Time, clients: u32) -> Option<Conn> {
        if clients >= self.clients_max { self.unauthenticated.evict(now) } else { None }
    }

    /// A library client begins to authenticate. Returns an older one that goes for it, if too many do.
    #[must_use]
    pub(crate) fn begin(&mut self, now: Time, peer: IpAddr, conn: Conn) -> Option<Conn> {
        self.unauthenticated.begin(now, peer, conn)
    }

    /// A library client has named a key that is accepted, and has yet to prove that it has the key.
    pub(crate) fn named_key(&mut self, conn: Conn) {
        self.unauthenticated.named_key(conn);
    }

    /// A library client has authenticated, or has gone.
    pub(crate) fn end(&mut self, conn: Conn) {
        self.unauthenticated.end(conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_goes_for_a_client_when_there_is_no_room() {
        let mut admission = Admission::new(2, Bounds::DEFAULT);
        let mut memory = Memory::new(800);
        let stranger = Conn { slot: 1, generation: 1 };
        let late = Time(0) + core::time::Duration::from_secs(60);
        assert_eq!(admission.check(Time(0), 1, &memory), Ok(()));
        assert_eq!(admission.make_room(Time(0), 1), None);
        assert_eq!(admission.check(Time(0), 2, &memory), Err(Refusal::ClientsMax));
        assert_eq!(admission.begin(Time(0), "10.0.0.1".parse().unwrap(), stranger), None);
        assert_eq!(admission.check(late, 2, &memory), Ok(()));
        assert_eq!(admission.make_room(late, 2), Some(stranger));
        assert_eq!(admission.check(late, 2, &memory), Err(Refusal::ClientsMax));
        memory.changed(0, 801);
        assert_eq!(admission.check(late, 1, &memory), Err(Refusal::Memory));
    }
}
