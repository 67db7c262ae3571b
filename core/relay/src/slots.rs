//! Who uses which connection of the transport.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_transport::{Conn, Time};

use crate::acknowledging::Owed;
use crate::announcing::Announcing;
use crate::backlog::Backlog;
use crate::library::LibraryClient;
use crate::memory::Unread;
use crate::raw::RawClient;

/// What a connection is to the relay.
#[derive(Debug)]
pub(crate) enum Holder {
    /// Nothing (any more).
    Free,
    /// The link to a server, by index.
    Upstream(usize),
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
    /// A client whose virtual connection has ended, with what is left for it.
    pub(crate) fn leaving(
        service: u16,
        sort: Sort,
        peer: SocketAddr,
        since: Time,
        (backlog, unread): (Backlog, Unread),
    ) -> Holder {
        let leaving = Leaving {
            service,
            sort,
            peer,
            since,
            end: Stream::Unknown { bytes: backlog.len() as u64 },
            has_spoken: false,
            backlog,
            unread,
            acknowledged: 0,
            acknowledged_before: 0,
            owed: None,
        };
        Holder::Leaving(Box::new(leaving))
    }

    /// Of which service it is a client, and of which sort.
    pub(crate) fn client_of(&self) -> Option<(u16, Sort)> {
        match self {
            Holder::Free | Holder::Upstream(_) => None,
            Holder::Raw(client) => Some((client.service, Sort::Raw)),
            Holder::Library(client) => Some((client.service, Sort::Library)),
            Holder::Announcing(announcing) => Some((announcing.service, Sort::Raw)),
            Holder::Leaving(leaving) => Some((leaving.service, leaving.sort)),
        }
    }
}

/// The two sorts of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Raw,
    Library,
}

/// A client whose virtual connection has ended.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) service: u16,
    pub(crate) sort: Sort,
    pub(crate) peer: SocketAddr,
    pub(crate) since: Time,
    pub(crate) backlog: Backlog,
    pub(crate) unread: Unread,
    pub(crate) end: Stream,
    /// It has sent something since its server closed.
    pub(crate) has_spoken: bool,
    /// Stream offset that its TCP has acknowledged, and what that was when its timer was started.
    pub(crate) acknowledged: u64,
    pub(crate) acknowledged_before: u64,
    /// To a server that keeps its replies.
    pub(crate) owed: Option<Owed>,
}

/// How long the stream to a leaving client is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    /// So many bytes: all have arrived when so many are acknowledged.
    Known { bytes: u64 },
    /// Bytes sent before were not counted, and the peer's acknowledgements are not watched.
    Unknown { bytes: u64 },
}

impl Leaving {
    /// What was meant for it.
    pub(crate) fn sent(&self) -> u64 {
        match self.end {
            Stream::Known { bytes } | Stream::Unknown { bytes } => bytes,
        }
    }

    /// Whether its TCP has everything.
    pub(crate) fn has_all(&self) -> bool {
        matches!(self.end, Stream::Known { bytes } if self.acknowledged >= bytes) && self.backlog.is_empty()
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    holder: Holder,
}

/// By [`Conn::slot`]. The transport keeps slots small and dense.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
}

impl Slots {
    pub(crate) fn get(&self, conn: Conn) -> Option<&Holder> {
        let slot = self.slots.get(conn.slot as usize)?;
        (slot.generation == conn.generation).then_some(&slot.holder)
    }

    pub(crate) fn get_mut(&mut self, conn: Conn) -> Option<&mut Holder> {
        let slot = self.slots.get_mut(conn.slot as usize)?;
        (slot.generation == conn.generation).then_some(&mut slot.holder)
    }

    /// A new user of a slot: the transport has freed it before.
    pub(crate) fn put(&mut self, conn: Conn, holder: Holder) {
        let index = conn.slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || Slot { generation: 0, holder: Holder::Free });
        }
        self.slots[index] = Slot { generation: conn.generation, holder };
    }

    pub(crate) fn take(&mut self, conn: Conn) -> Holder {
        self.get_mut(conn).map_or(Holder::Free, |holder| core::mem::replace(holder, Holder::Free))
    }

    /// All holders of clients.
    pub(crate) fn client_holders(&self) -> impl Iterator<Item = &Holder> + Clone + '_ {
        self.slots.iter().map(|slot| &slot.holder).filter(|holder| holder.client_of().is_some())
    }

    /// All clients, each with its connection.
    pub(crate) fn holders_mut(&mut self) -> impl Iterator<Item = (Conn, &mut Holder)> {
        (0_u32..)
            .zip(&mut self.slots)
            .map(|(index, slot)| (Conn { slot: index, generation: slot.generation }, &mut slot.holder))
            .filter(|(_, holder)| holder.client_of().is_some())
    }

    /// All clients.
    pub(crate) fn clients(&self) -> impl Iterator<Item = Conn> + '_ {
        self.clients_from(0)
    }

    /// Those from this slot on.
    pub(crate) fn clients_from(&self, slot: u32) -> impl Iterator<Item = Conn> + '_ {
        let rest = self.slots.get(slot as usize..).unwrap_or_default();
        (slot..)
            .zip(rest)
            .filter(|(_, slot)| slot.holder.client_of().is_some())
            .map(|(index, slot)| Conn { slot: index, generation: slot.generation })
    }
}
