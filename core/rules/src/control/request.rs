//! A control message as the rules read it, and the reply that they decide.

use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Endpoint, MESSAGE_BYTES, ServerId, Site, Status, View};

use crate::config::PortId;
use crate::flow::FlowKey;
use crate::load::{OwnerView, Report};
use crate::tables::{Sender, Tables};

/// The circumstances under which a message arrived.
pub(super) struct Context<'a> {
    pub(super) tables: &'a Tables,
    pub(super) sender: &'a Sender,
    /// The switch's epoch.
    pub(super) epoch: u64,
    pub(super) now: Time,
    /// The port on which the message arrived.
    pub(super) port: PortId,
    /// Whether the message is an IPv4 packet.
    pub(super) is_ipv4: bool,
    /// Whether the message has no VLAN tags, IPv4 options and IPv6 extension headers.
    pub(super) is_plain: bool,
    /// The UDP port from which the message was sent.
    pub(super) source_port: u16,
}

/// The fields of an authentic message that the rules read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) sender: ServerId,
    pub(super) sequence: u64,
    pub(super) epoch: u64,
    pub(super) generation: u64,
    pub(super) flow: FlowKey,
    /// The message's fields *owner* and MAC: a target, or where the sender imports. `None` if they are zero.
    pub(super) site: Option<Site>,
    pub(super) lifetime_ms: u32,
    /// `None`: a code that does not exist.
    pub(super) status: Option<Status>,
    pub(super) report: Report,
}

impl Request {
    pub(super) fn new(sender: ServerId, view: &View<&[u8; MESSAGE_BYTES]>) -> Request {
        Request {
            sender,
            sequence: view.sequence(),
            epoch: view.epoch(),
            generation: view.generation(),
            flow: FlowKey { client: view.client(), service: view.service() },
            site: view.owner(),
            lifetime_ms: view.lifetime_ms(),
            status: view.status().ok(),
            report: Report { load: view.load(), free_places: view.free_places(), weight: view.weight() },
        }
    }

    /// Address and port of the message's field *owner*; zero if the field is.
    pub(super) fn site_at(&self) -> Endpoint {
        self.site.map_or(Endpoint::ZERO, |site| site.endpoint())
    }

    /// The message's field MAC; zero if the field is.
    pub(super) fn site_mac(&self) -> Mac {
        self.site.map_or(Mac::ZERO, |site| site.mac())
    }
}

/// What the switch does with an authentic message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The sender gets an answer.
    Answer(Status, Fields),
    /// Another server gets the message.
    Relay(Relay),
}

/// Which fields of a message its answer changes, besides flags, status and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fields {
    /// State, generation and owner of the flow's entry; zero without an entry.
    Entry,
    /// State, generation and owner are zero: the message was refused before its entry was looked up, or the sender must
    /// not see the entry.
    Blank,
    /// State is zero, the generation is this one, and the epoch is the switch's.
    Hello { generation: u64 },
    /// State and generation are zero.
    Heartbeat,
    /// An owner of a service.
    Listed { owner: OwnerView, site: Option<Site> },
    /// State and owner are zero.
    NotListed,
}

/// A message that another server gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Relay {
    pub(super) receiver: ServerId,
    pub(super) status: Status,
    /// Value of the fields *owner* and MAC: where the target will have the connection. `None`, sent as zeros, if the
    /// target has refused.
    pub(super) site: Option<Site>,
}
