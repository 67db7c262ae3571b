//! A server's agent: its membership, the flows that it owns, and its moves.

mod answers;
mod relays;
mod timers;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::SwitchKey;
use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Body, Endpoint, Flow, Kind, MESSAGE_BYTES, Message, Request, ServerId, Site};

use crate::buffer::Held;
use crate::lent::Lent;
use crate::membership::Membership;
use crate::migration::MoveTimes;
use crate::migration::source::Source;
use crate::migration::target::Target;
use crate::sequences::Sequences;
use crate::transfer::{Transfer, TransferMessage};

/// Requests whose answers the agent waits for; older ones are given up.
const WAITING_MAX: usize = 4096;
/// Finished moves that the agent remembers, one a flow.
const FINISHED_MAX: usize = 1024;
/// For this time an owner asks the original owner for a flow whose entry the switch has lost.
pub(crate) const RECLAIMS_FOR: Duration = Duration::from_secs(3);

/// What an agent needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This server.
    pub id: ServerId,
    /// The key that this server shares with the switch.
    pub key: SwitchKey,
    /// The Ethernet address of this server.
    pub mac: Mac,
    /// The original owner of all services of this server.
    pub original: ServerId,
    /// Interval of heartbeats.
    pub heartbeat: Duration,
    /// The switch's timeout of owners.
    pub owner_timeout: Duration,
    /// Times of moves.
    pub times: MoveTimes,
    /// Each service endpoint, and where this server imports its connections.
    pub places: Vec<(Endpoint, Endpoint)>,
    /// All servers of the services, this one included.
    pub peers: Vec<(ServerId, Mac)>,
    /// Time after the end of a connection at which the agent releases the flow.
    pub time_wait: Duration,
}

/// What an agent sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// The payload of a datagram to the switch.
    Control(Box<[u8; MESSAGE_BYTES]>),
    /// A message to another server.
    Transfer { to: ServerId, bytes: Vec<u8> },
}

/// Why a connection was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The switch has taken the flow from a server that it did not hear for too long.
    Silence,
    /// The switch has lost the flow's entry, and the flow could not be taken back.
    Restart,
    /// A move has failed, and neither of its ends may continue the connection.
    Doubt,
    /// The entry says that another server owns the flow.
    Foreign,
}

/// What the stack's driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Export the connection; then call [`Agent::exported`] or [`Agent::not_exported`].
    Export { flow: Flow },
    /// Check whether the state can be imported; then call [`Agent::checked`].
    Check { flow: Flow, generation: u64, state: Arc<[u8]> },
    /// Import the connection, then deliver the frames. `is_return`: the connection has not moved.
    Import { flow: Flow, state: Arc<[u8]>, frames: Vec<Held>, is_return: bool },
    /// Deliver frames of a connection that is here.
    Deliver { frames: Vec<Held> },
    /// Drop the connection, if it is here, without a segment.
    Drop { flow: Flow, cause: Cause },
    /// A move has ended without the connection coming or staying here.
    Gone { flow: Flow, cause: Cause },
}

/// Where a received TCP packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sorted {
    Stack,
    /// The agent keeps it until the connection is here.
    Held,
    Dropped,
}

/// A flow with an entry whose connection is here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owned {
    pub(crate) generation: u64,
    /// The switch has lost the entry: until when, and when next, the original owner is asked for the flow.
    pub(crate) reclaim: Option<(Time, Time)>,
}

/// The release of a flow whose connection has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) next_at: Time,
    pub(crate) releases: u32,
}

/// A server's agent.
#[derive(Debug)]
pub struct Agent {
    pub(crate) settings: Settings,
    pub(crate) sequences: Sequences,
    pub(crate) membership: Membership,
    pub(crate) owned: BTreeMap<Flow, Owned>,
    pub(crate) sources: BTreeMap<Flow, Source>,
    /// Moves to this server, with their sources.
    pub(crate) targets: BTreeMap<Flow, (ServerId, Target)>,
    /// The last move of each flow to this server: generation, and whether this server came to own the flow.
    finished: BTreeMap<Flow, (u64, bool)>,
    pub(crate) lent: Lent,
    /// Flows that the original owner moves to servers that have their connections already.
    pub(crate) lending: BTreeSet<Flow>,
    pub(crate) ended: BTreeMap<Flow, Ended>,
    /// Requests in flight, by sequence.
    pub(crate) waiting: BTreeMap<u64, (Kind, Flow)>,
    /// Number of connections that the stack has.
    pub(crate) connections: u32,
    /// Number of further connections that the stack can have.
    pub(crate) free_places: u32,
    outputs: VecDeque<Transmit>,
    pub(crate) events: VecDeque<Event>,
    /// Flows that were taken back after the switch had lost their entries.
    pub reclaimed: u64,
}

impl Agent {
    pub fn new(now: Time, settings: Settings) -> Agent {
        Agent {
            membership: Membership::new(now, settings.heartbeat, settings.owner_timeout),
            settings,
            sequences: Sequences::default(),
            owned: BTreeMap::new(),
            sources: BTreeMap::new(),
            targets: BTreeMap::new(),
            finished: BTreeMap::new(),
            lent: Lent::default(),
            lending: BTreeSet::new(),
            ended: BTreeMap::new(),
            waiting: BTreeMap::new(),
            connections: 0,
            free_places: 0,
            outputs: VecDeque::new(),
            events: VecDeque::new(),
            reclaimed: 0,
        }
    }

    pub fn id(&self) -> ServerId {
        self.settings.id
    }

    pub(crate) fn is_original(&self) -> bool {
        self.settings.id == self.settings.original
    }

    /// Number of connections, and how many more the stack can have.
    pub fn set_load(&mut self, connections: usize, free_places: usize) {
        let saturating = |count| u32::try_from(count).unwrap_or(u32::MAX);
        (self.connections, self.free_places) = (saturating(connections), saturating(free_places));
    }

    /// Begins to move a connection of this server. `to`: `None` lets the switch choose. Returns false if the server cannot
    /// move it now.
    pub fn request_move(&mut self, now: Time, flow: Flow, to: Option<ServerId>) -> bool {
        let owned = self.owned.get(&flow);
        let is_ours = match owned {
            Some(owned) => owned.reclaim.is_none(),
            None => self.is_original(),
        };
        let is_busy = self.sources.contains_key(&flow) || self.targets.contains_key(&flow);
        if !is_ours || is_busy || self.ended.contains_key(&flow) || self.membership.is_mute(now) {
            return false;
        }
        let replaces = owned.map_or(0, |owned| owned.generation);
        let target = to.and_then(|to| self.site_of(to, &flow));
        self.begin(flow, Source::new(now, flow, replaces, target, self.settings.times));
        true
    }

    pub(crate) fn begin(&mut self, flow: Flow, source: Source) {
        self.forget_requests(&flow);
        self.sources.insert(flow, source);
    }

    /// The connection of a flow has ended here; its last segments may have to be repeated.
    pub fn connection_ended(&mut self, now: Time, flow: Flow) {
        let next_at = now + self.settings.time_wait;
        if self.owned.contains_key(&flow) || self.sources.contains_key(&flow) {
            self.ended.insert(flow, Ended { next_at, releases: 0 });
        }
    }

    /// Where a TCP packet goes that has arrived here. `is_opening`: it has SYN without ACK.
    pub fn sort(
        &mut self,
        now: Time,
        (source, target): (SocketAddr, SocketAddr),
        is_opening: bool,
        (frame, is_damaged): (&[u8], bool),
    ) -> Sorted {
        let Some(flow) = self.flow_here(target, source) else { return Sorted::Stack };
        if let Some((_, target)) = self.targets.get_mut(&flow) {
            return if target.hold(frame, is_damaged) { Sorted::Held } else { Sorted::Dropped };
        }
        // A damaged packet goes to the stack, which must notice the damage.
        if !is_damaged && self.lent.hides(now, &flow, is_opening) { Sorted::Dropped } else { Sorted::Stack }
    }

    /// Whether the stack's packet with these ends may leave now.
    pub fn may_transmit(&self, now: Time, (source, target): (SocketAddr, SocketAddr)) -> bool {
        let Some(flow) = self.flow_here(source, target) else { return true };
        self.is_original()
            || self.owned.get(&flow).is_some_and(|owned| owned.reclaim.is_none())
                && !self.membership.is_mute(now)
    }

    /// The flow of a connection with this local end and peer here.
    fn flow_here(&self, local: SocketAddr, peer: SocketAddr) -> Option<Flow> {
        let (local, peer) = (Endpoint::from(local), Endpoint::from(peer));
        let (service, _) =
            self.settings.places.iter().find(|(service, place)| *service == local || *place == local)?;
        Flow::new(peer, *service).ok()
    }

    /// Where this server has connections of a service.
    pub fn place_of(&self, service: Endpoint) -> Option<Endpoint> {
        self.settings.places.iter().find(|(of, _)| *of == service).map(|(_, place)| *place)
    }

    /// Whether a move of this flow may still end with the connection here.
    pub fn may_continue(&self, flow: &Flow) -> bool {
        self.sources.get(flow).is_some_and(|source| source.state().is_some())
            || self.targets.contains_key(flow)
    }

    /// The connection was exported.
    pub fn exported(&mut self, now: Time, flow: Flow, state: Arc<[u8]>) {
        if let Some(source) = self.sources.get_mut(&flow) {
            source.exported(now, state);
            self.owned.remove(&flow);
        }
    }

    /// The connection cannot be exported.
    pub fn not_exported(&mut self, now: Time, flow: Flow) {
        if let Some(source) = self.sources.get_mut(&flow) {
            source.not_exported(now);
        }
    }

    /// The result of a [`Event::Check`].
    pub fn checked(&mut self, now: Time, flow: Flow, generation: u64, state: Arc<[u8]>, is_possible: bool) {
        let Some((_, target)) = self.targets.get_mut(&flow) else { return };
        if target.generation() != generation {
            return;
        }
        if is_possible {
            target.receive(now, state);
        } else {
            self.refuse(flow);
        }
    }

    /// Ends a move to this server; its source is informed.
    pub(crate) fn refuse(&mut self, flow: Flow) {
        let Some((source, target)) = self.targets.remove(&flow) else { return };
        self.forget_requests(&flow);
        self.finish(flow, target.generation(), false);
        self.transfer(source, flow, target.generation(), Transfer::Refused);
        self.events.push_back(Event::Gone { flow, cause: Cause::Doubt });
    }

    pub(crate) fn finish(&mut self, flow: Flow, generation: u64, is_owned: bool) {
        if self.finished.len() >= FINISHED_MAX {
            self.finished.pop_first();
        }
        self.finished.insert(flow, (generation, is_owned));
    }

    /// The generation of the last finished move of a flow to this server, and whether this server came to own it.
    pub(crate) fn finished(&self, flow: &Flow) -> Option<(u64, bool)> {
        self.finished.get(flow).copied()
    }

    /// The release of a flow was answered, or the flow has moved on.
    pub(crate) fn end_release(&mut self, flow: &Flow) {
        self.ended.remove(flow);
        self.owned.remove(flow);
    }

    /// The server does not own a flow any more whose connection it has.
    pub(crate) fn give_up(&mut self, flow: Flow, cause: Cause) {
        self.owned.remove(&flow);
        self.ended.remove(&flow);
        self.events.push_back(Event::Drop { flow, cause });
    }

    pub(crate) fn forget_ended(&mut self) {
        self.ended.clear();
    }

    pub(crate) fn forget_requests(&mut self, flow: &Flow) {
        self.waiting.retain(|_, (_, waiting)| waiting != flow);
    }

    /// A server's site, with the service's own address: the server states its place in *prepared*.
    pub(crate) fn site_of(&self, server: ServerId, flow: &Flow) -> Option<Site> {
        let (_, mac) = self.settings.peers.iter().find(|(id, _)| *id == server)?;
        Site::new(flow.service(), *mac)
    }

    pub(crate) fn server_with(&self, mac: Mac) -> Option<ServerId> {
        self.settings.peers.iter().find(|(_, of)| *of == mac).map(|(id, _)| *id)
    }

    pub(crate) fn request(&mut self, now: Time, request: Request) -> u64 {
        let (kind, flow) = (request.kind(), flow_of(&request));
        let sequence = self.sequences.next(now);
        let (sender, epoch) = (self.settings.id, self.membership.epoch());
        let message = Message { sender, sequence, epoch, body: Body::Request(request) };
        self.outputs.push_back(Transmit::Control(Box::new(self.settings.key.emit(&message))));
        if let Some(flow) = flow {
            if self.waiting.len() >= WAITING_MAX {
                self.waiting.pop_first();
            }
            self.waiting.insert(sequence, (kind, flow));
        }
        sequence
    }

    pub(crate) fn transfer(&mut self, to: ServerId, flow: Flow, generation: u64, body: Transfer) {
        let bytes = TransferMessage { flow, generation, body }.emit();
        self.outputs.push_back(Transmit::Transfer { to, bytes });
    }

    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outputs.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

fn flow_of(request: &Request) -> Option<Flow> {
    match *request {
        Request::Prepare { flow, .. }
        | Request::Prepared { flow, .. }
        | Request::Hold { flow, .. }
        | Request::Own { flow, .. }
        | Request::Release { flow, .. }
        | Request::Get { flow } => Some(flow),
        Request::Heartbeat { .. } | Request::Hello | Request::List { .. } => None,
    }
}
