//! One link, with its parts. All functions are called with the link's lock held.

mod authentication;
mod carried;
mod cause;
mod ending;
mod events;
mod loss;
mod receiving;
mod referents;
mod sending;
mod socket;

use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use libc::c_int;
use spillway_batch::{Id, Info, RefuseReason, ServerLink};
use spillway_transport::{Time, Unsent};

use self::authentication::Authentication;
pub(crate) use self::cause::Lost;
pub(crate) use self::referents::Referent;
use self::referents::Referents;
pub(crate) use self::socket::Interest;
use self::socket::WatchedSocket;
use crate::connections::{self, Connection};
use crate::handshakes::Newcomer;
use crate::status;

/// The state of one link, or of a vacant slot.
pub(crate) struct Inner {
    index: u32,
    pub(crate) socket: WatchedSocket,
    /// `None` while the slot is vacant.
    pub(crate) endpoint: Option<Box<ServerLink>>,
    peer: Option<SocketAddr>,
    local: Option<SocketAddr>,
    referents: Referents,
    authentication: Authentication,
    /// Number of receives that found messages.
    batches_received: u64,
    /// When the oldest message without a sent reply arrived.
    received_at: Option<Time>,
    /// Whether the rest of a record is awaited, or reading is paused.
    has_read_timeout: bool,
    /// The rest of a batch that the socket accepted only in part.
    unsent: Unsent,
    /// Connections with data in the current batch, whose sets are notified at its end. A field to reuse the allocation.
    raised: Vec<u32>,
}

impl Inner {
    pub(crate) fn vacant(index: u32) -> Inner {
        Inner {
            index,
            socket: WatchedSocket::none(index),
            endpoint: None,
            peer: None,
            local: None,
            referents: Referents::new(),
            authentication: Authentication::new((index, 0)),
            batches_received: 0,
            received_at: None,
            has_read_timeout: false,
            unsent: Unsent::default(),
            raised: Vec::new(),
        }
    }

    /// A new link whose accepted socket connects `peer` with `local`, and is watched in the epoll set with index `set`.
    pub(crate) fn new(
        newcomer: Newcomer,
        fd: c_int,
        endpoint: ServerLink,
        (peer, local): (SocketAddr, SocketAddr),
        set: u32,
    ) -> Inner {
        let (index, _) = newcomer;
        Inner {
            socket: WatchedSocket::new(index, fd, set),
            endpoint: Some(Box::new(endpoint)),
            peer: Some(peer),
            local: Some(local),
            authentication: Authentication::new(newcomer),
            ..Inner::vacant(index)
        }
    }

    /// Whether this is the link with this serial number, and its peer has not authenticated yet.
    pub(crate) fn is_newcomer(&self, serial: u64) -> bool {
        self.endpoint.is_some() && self.authentication.is_newcomer(serial)
    }

    /// The id of a connection and the endpoint, if this link still carries the connection.
    pub(crate) fn endpoint_of(&mut self, connection: &Connection) -> Option<(Id, &mut ServerLink)> {
        let id = connection.id.load(Ordering::Relaxed);
        let referent = self.referent(Id(id));
        let endpoint = self.endpoint.as_deref_mut()?;
        (referent == Referent::Connection(connection.index)).then_some((Id(id), endpoint))
    }

    pub(crate) fn referent(&self, id: Id) -> Referent {
        self.referents.get(id)
    }

    fn connection(&self, id: Id) -> Option<&'static Connection> {
        match self.referent(id) {
            Referent::Connection(index) => connections::get(index),
            Referent::Nothing | Referent::Session(_) => None,
        }
    }

    pub(crate) fn set_referent(&mut self, id: Id, referent: Referent) {
        self.referents.set(id, referent);
    }

    pub(crate) fn refuse(&mut self, id: Id, reason: RefuseReason) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.refuse(id, reason);
        }
    }

    /// Updates the events that the socket is watched for. Call after each change of `may_read` or `unsent`.
    fn update_interest(&mut self) {
        if let Some(endpoint) = &self.endpoint {
            let wanted = Interest { input: endpoint.may_read(), room: !self.unsent.is_empty() };
            self.socket.watch_for(wanted);
        }
    }

    /// Updates the link's counters on the status page. Called after each batch.
    fn update_status_page(&self) {
        if let Some(endpoint) = &self.endpoint {
            status::update_link(
                self.index,
                &endpoint.counters(),
                self.batches_received,
                endpoint.connections(),
                self.referents.session_count(),
            );
        }
    }

    /// Calls `report` with the traffic of each connection that the application has not closed.
    pub(crate) fn each_connection(&self, report: &mut impl FnMut(u32, Info)) {
        let Some(endpoint) = &self.endpoint else { return };
        for (id, referent) in self.referents.iter() {
            if let (Referent::Connection(index), Some(info)) = (referent, endpoint.info(id)) {
                report(index, info);
            }
        }
    }
}
