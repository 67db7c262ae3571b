//! Flows as operators see them.

use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Endpoint, FlowState, ServerId};

use super::{Entry, FlowKey, REPEAT_NONE, Site, Stage};

/// Where a server has the connection of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteView {
    /// Address and port at which the server has the connection.
    pub at: Endpoint,
    /// Ethernet address of the server.
    pub mac: Mac,
    /// The server.
    pub server: ServerId,
    /// The server's term when the site was named; 0 for the original owner, whose term does not matter.
    pub term: u64,
}

/// A flow's entry as it was left by the last packet or message: an entry that has ended since is still shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowView {
    /// The client's address and port.
    pub client: Endpoint,
    /// The service endpoint to which the client has connected.
    pub service: Endpoint,
    /// Its state; never [`FlowState::None`].
    pub state: FlowState,
    /// The number of its last change.
    pub generation: u64,
    /// Asked, or held after that: the generation that *prepare* named. Owned: the generation that the entry had during
    /// the last move. `None` after *hold*, and after a return to the original owner.
    pub repeat_generation: Option<u64>,
    /// The owner.
    pub owner: SiteView,
    /// The target of a move.
    pub target: Option<SiteView>,
    /// The owner of the flow when it had no entry.
    pub original: SiteView,
    /// Deadline of a move: after it the flow returns to its owner.
    pub deadline: Option<Time>,
    /// Time of the last packet.
    pub last_packet: Time,
    /// Whether the client has sent a FIN that the owner has acknowledged.
    pub has_client_fin: bool,
    /// The acknowledgement number that would confirm a FIN of the client.
    pub client_fin_claim: Option<u32>,
    /// Whether the owner has sent a FIN.
    pub has_owner_fin: bool,
    /// The acknowledgement number that would confirm a FIN of the owner.
    pub owner_fin_claim: Option<u32>,
    /// Time of the owner's first RST.
    pub owner_rst: Option<Time>,
}

impl FlowView {
    pub(super) fn new(key: &FlowKey, entry: &Entry) -> FlowView {
        let pending_move = match entry.stage() {
            Stage::Owned => None,
            Stage::Asked(pending_move) | Stage::Held(pending_move) => Some(pending_move),
        };
        FlowView {
            client: key.client,
            service: key.service,
            state: entry.state(),
            generation: entry.generation(),
            repeat_generation: Some(entry.repeat_generation())
                .filter(|generation| *generation != REPEAT_NONE),
            owner: SiteView::from(entry.owner()),
            target: entry.target().map(SiteView::from),
            original: SiteView::from(entry.original()),
            deadline: pending_move.map(|pending_move| pending_move.deadline),
            last_packet: entry.last_packet(),
            has_client_fin: entry.has_client_fin(),
            client_fin_claim: entry.client_fin_claim(),
            has_owner_fin: entry.has_owner_fin(),
            owner_fin_claim: entry.owner_fin_claim(),
            owner_rst: entry.owner_rst(),
        }
    }
}

impl From<&Site> for SiteView {
    fn from(site: &Site) -> SiteView {
        SiteView { at: site.at, mac: site.mac, server: site.server, term: site.term }
    }
}
