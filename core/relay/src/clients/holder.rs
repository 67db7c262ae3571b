//! What a connection of the transport is to the relay.

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_transport::{Conn, Time, Transport};

use crate::clients::announcing::Announcing;
use crate::clients::leaving::Leaving;
use crate::clients::library::LibraryClient;
use crate::clients::raw::RawClient;
use crate::clients::sort::Sort;
use crate::memory::{Held, Holding, Memory};
use crate::status::ClientStatus;
use crate::timers::Timer;

/// Who uses a connection.
#[derive(Debug)]
pub(crate) enum Holder {
    /// The place is free.
    Free,
    /// The link to a server, by index.
    Link(usize),
    /// A plain client.
    Raw(RawClient),
    /// A library client.
    Library(Box<LibraryClient>),
    /// A load balancer's connection, whose header is still to come.
    Announcing(Box<Announcing>),
    /// A client that is over, and takes what is left for it.
    Leaving(Box<Leaving>),
}

impl Holder {
    /// Of which service it is a client, and of which sort.
    pub(crate) fn client_of(&self) -> Option<(u16, Sort)> {
        match self {
            Holder::Free | Holder::Link(_) => None,
            Holder::Raw(client) => Some((client.service(), Sort::Raw)),
            Holder::Library(client) => Some((client.service(), Sort::Library)),
            Holder::Announcing(announcing) => Some((announcing.service(), Sort::Raw)),
            Holder::Leaving(leaving) => Some((leaving.service(), leaving.sort())),
        }
    }

    /// Of which service it is a client, and its address.
    pub(crate) fn identity(&self) -> Option<(u16, SocketAddr)> {
        match self {
            Holder::Free | Holder::Link(_) => None,
            Holder::Raw(client) => Some((client.service(), client.peer())),
            Holder::Library(client) => Some((client.service(), client.peer())),
            Holder::Announcing(announcing) => Some((announcing.service(), announcing.peer())),
            Holder::Leaving(leaving) => Some((leaving.service(), leaving.peer())),
        }
    }

    /// Nothing of it counts any more.
    pub(crate) fn over(&mut self, memory: &mut Memory) {
        match self {
            Holder::Free | Holder::Link(_) => {}
            Holder::Raw(client) => client.over(memory),
            Holder::Library(client) => client.over(memory),
            Holder::Announcing(announcing) => announcing.over(memory),
            Holder::Leaving(leaving) => leaving.over(memory),
        }
    }

    /// Whether a timer of this kind still has a purpose.
    pub(crate) fn waits_for(&self, timer: Timer) -> bool {
        match (self, timer) {
            (Holder::Raw(client), Timer::Acknowledge) => client.is_acknowledgement_due(),
            (Holder::Leaving(leaving), Timer::Acknowledge) => leaving.is_acknowledgement_due(),
            (Holder::Leaving(_), Timer::Linger) => true,
            (Holder::Library(client), Timer::Handshake) => !client.is_established(),
            (Holder::Library(client), Timer::Record) => client.is_watched(),
            (Holder::Library(client), Timer::Rest) => client.is_resting(),
            (Holder::Announcing(_), Timer::ProxyHeader) => true,
            _ => false,
        }
    }

    /// Its requests are not read because memory is scarce.
    pub(crate) fn is_paused(&self) -> bool {
        match self {
            Holder::Raw(client) => client.is_paused(),
            Holder::Library(client) => client.is_paused(),
            _ => false,
        }
    }

    /// What a client holds here and in the transport; none if that is nothing.
    pub(crate) fn holding<T: Transport>(&mut self, now: Time, conn: Conn, out: &T) -> Option<Holding> {
        let queued = out.queued(conn);
        let Held { waits, bytes, age } = match self {
            Holder::Free | Holder::Link(_) => return None,
            Holder::Raw(client) => client.held(now, queued),
            Holder::Library(client) => client.held(now, queued),
            Holder::Announcing(announcing) => announcing.held(),
            Holder::Leaving(leaving) => leaving.held(now, queued),
        };
        (waits + queued > 0).then(|| Holding { conn, bytes: bytes + out.held(conn), age })
    }

    pub(crate) fn status(&self) -> Option<ClientStatus> {
        match self {
            Holder::Free | Holder::Link(_) => None,
            Holder::Raw(client) => Some(client.status()),
            Holder::Library(client) => Some(client.status()),
            Holder::Announcing(announcing) => Some(announcing.status()),
            Holder::Leaving(leaving) => Some(leaving.status()),
        }
    }
}
