//! A server's agent: its membership, the flows that it owns, and its moves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use spillway_auth::SwitchKey;
use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Body, Endpoint, Flow, Kind, MESSAGE_BYTES, Message, Request, ServerId, Site};

use super::held_frames::Held;
use super::lent::Lent;
use super::membership::Membership;
use super::sequences::Sequences;
use super::source::{MoveTimes, Source};
use super::target::Target;
use super::transfer::{Transfer, TransferMessage};

/// Requests whose answers the agent waits for; older ones are given up.
const WAITING_MAX: usize = 4096;
/// Finished moves that the agent remembers, one a flow.
const FINISHED_MAX: usize = 1024;
/// For this time an owner asks the original owner for a flow whose entry the switch has lost.
pub(super) const RECLAIMS_FOR: Duration = Duration::from_secs(3);

/// What an agent needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) id: ServerId,
    pub(crate) key: SwitchKey,
    pub(crate) mac: Mac,
    /// The original owner of all services of this server.
    pub(crate) original: ServerId,
    pub(crate) heartbeat: Duration,
    /// The switch's timeout of owners.
    pub(crate) owner_timeout: Duration,
    pub(crate) times: MoveTimes,
    /// Each service endpoint, and where this server imports its connections.
    pub(crate) places: Vec<(Endpoint, Endpoint)>,
    /// All servers of the services, this one included.
    pub(crate) peers: Vec<(ServerId, Mac)>,
    /// Time after the end of a connection at which the agent releases the flow.
    pub(crate) time_wait: Duration,
}

/// What an agent sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The payload of a datagram to the switch.
    Control(Box<[u8; MESSAGE_BYTES]>),
    /// A message to another server.
    Transfer { to: ServerId, bytes: Vec<u8> },
}

/// Why a connection was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
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
pub(crate) enum Event {
    /// Export the connection; then call [`Agent::exported`] or [`Agent::not_exported`].
    Export { flow: Flow },
    /// Check whether the state can be imported; then call [`Agent::checked`].
    Check { flow: Flow, generation: u64, state: Rc<[u8]> },
    /// Import the connection, then deliver the frames. `is_return`: the connection has not moved.
    Import { flow: Flow, state: Rc<[u8]>, frames: Vec<Held>, is_return: bool },
    /// Deliver frames of a connection that is here.
    Deliver { frames: Vec<Held> },
    /// Drop the connection, if it is here, without a segment.
    Drop { flow: Flow, cause: Cause },
    /// A move has ended without the connection coming or staying here.
    Gone { flow: Flow, cause: Cause },
}

/// Where a received TCP packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sorted {
    Stack,
    /// The agent keeps it until the connection is here.
    Held,
    Dropped,
}

/// A flow with an entry whose connection is here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned {
    pub(super) generation: u64,
    /// The switch has lost the entry: until when, and when next, the original owner is asked for the flow.
    pub(super) reclaim: Option<(Time, Time)>,
}

/// The release of a flow whose connection has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) next_at: Time,
    pub(super) releases: u32,
}

/// A server's agent.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(super) settings: Settings,
    pub(super) sequences: Sequences,
    pub(super) membership: Membership,
    pub(super) owned: BTreeMap<Flow, Owned>,
    pub(super) sources: BTreeMap<Flow, Source>,
    /// Moves to this server, with their sources.
    pub(super) targets: BTreeMap<Flow, (ServerId, Target)>,
    /// The last move of each flow to this server: generation, and whether this server came to own the flow.
    finished: BTreeMap<Flow, (u64, bool)>,
    pub(super) lent: Lent,
    /// Flows that the original owner moves to servers that have their connections already.
    pub(super) lending: BTreeSet<Flow>,
    pub(super) ended: BTreeMap<Flow, Ended>,
    /// Requests in flight, by sequence.
    pub(super) waiting: BTreeMap<u64, (Kind, Flow)>,
    /// Number of connections that the stack has.
    pub(super) connections: u32,
    /// Number of further connections that the stack can have.
    pub(super) free_places: u32,
    outputs: VecDeque<Output>,
    pub(super) events: VecDeque<Event>,
    /// Flows that were taken back after the switch had lost their entries.
    pub(crate) reclaimed: u64,
}

impl Agent {
    pub(crate) fn new(now: Time, settings: Settings) -> Agent {
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

    pub(crate) fn id(&self) -> ServerId {
        self.settings.id
    }

    pub(super) fn is_original(&self) -> bool {
        self.settings.id == self.settings.original
    }

    /// Number of connections, and how many more the stack can have.
    pub(crate) fn set_load(&mut self, connections: usize, free_places: usize) {
        (self.connections, self.free_places) = (connections as u32, free_places as u32); // fit: a table's length
    }

    /// Begins to move a connection of this server. `to`: `None` lets the switch choose. Returns false if the server cannot
    /// move it now.
    pub(crate) fn request_move(&mut self, now: Time, flow: Flow, to: Option<ServerId>) -> bool {
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

    pub(super) fn begin(&mut self, flow: Flow, source: Source) {
        self.forget_requests(&flow);
        self.sources.insert(flow, source);
    }

    /// The connection of a flow has ended here; its last segments may have to be repeated.
    pub(crate) fn connection_ended(&mut self, now: Time, flow: Flow) {
        let next_at = now + self.settings.time_wait;
        if self.owned.contains_key(&flow) || self.sources.contains_key(&flow) {
            self.ended.insert(flow, Ended { next_at, releases: 0 });
        }
    }

    /// Where a TCP packet goes that has arrived here. `is_opening`: it has SYN without ACK.
    pub(crate) fn sort(
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
    pub(crate) fn may_transmit(&self, now: Time, (source, target): (SocketAddr, SocketAddr)) -> bool {
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
    pub(crate) fn place_of(&self, service: Endpoint) -> Option<Endpoint> {
        self.settings.places.iter().find(|(of, _)| *of == service).map(|(_, place)| *place)
    }

    /// Whether a move of this flow may still end with the connection here.
    pub(crate) fn may_continue(&self, flow: &Flow) -> bool {
        self.sources.get(flow).is_some_and(|source| source.state().is_some())
            || self.targets.contains_key(flow)
    }

    /// The connection was exported.
    pub(crate) fn exported(&mut self, now: Time, flow: Flow, state: Rc<[u8]>) {
        if let Some(source) = self.sources.get_mut(&flow) {
            source.exported(now, state);
            self.owned.remove(&flow);
        }
    }

    /// The connection cannot be exported.
    pub(crate) fn not_exported(&mut self, now: Time, flow: Flow) {
        if let Some(source) = self.sources.get_mut(&flow) {
            source.not_exported(now);
        }
    }

    /// The result of a [`Event::Check`].
    pub(crate) fn checked(
        &mut self,
        now: Time,
        flow: Flow,
        generation: u64,
        state: Rc<[u8]>,
        is_possible: bool,
    ) {
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
    pub(super) fn refuse(&mut self, flow: Flow) {
        let Some((source, target)) = self.targets.remove(&flow) else { return };
        self.forget_requests(&flow);
        self.finish(flow, target.generation(), false);
        self.transfer(source, flow, target.generation(), Transfer::Refused);
        self.events.push_back(Event::Gone { flow, cause: Cause::Doubt });
    }

    pub(super) fn finish(&mut self, flow: Flow, generation: u64, is_owned: bool) {
        if self.finished.len() >= FINISHED_MAX {
            self.finished.pop_first();
        }
        self.finished.insert(flow, (generation, is_owned));
    }

    /// The generation of the last finished move of a flow to this server, and whether this server came to own it.
    pub(super) fn finished(&self, flow: &Flow) -> Option<(u64, bool)> {
        self.finished.get(flow).copied()
    }

    /// The release of a flow was answered, or the flow has moved on.
    pub(super) fn end_release(&mut self, flow: &Flow) {
        self.ended.remove(flow);
        self.owned.remove(flow);
    }

    /// The server does not own a flow any more whose connection it has.
    pub(super) fn give_up(&mut self, flow: Flow, cause: Cause) {
        self.owned.remove(&flow);
        self.ended.remove(&flow);
        self.events.push_back(Event::Drop { flow, cause });
    }

    pub(super) fn forget_ended(&mut self) {
        self.ended.clear();
    }

    pub(super) fn forget_requests(&mut self, flow: &Flow) {
        self.waiting.retain(|_, (_, waiting)| waiting != flow);
    }

    /// A server's site, with the service's own address: the server states its place in *prepared*.
    pub(super) fn site_of(&self, server: ServerId, flow: &Flow) -> Option<Site> {
        let (_, mac) = self.settings.peers.iter().find(|(id, _)| *id == server)?;
        Site::new(flow.service(), *mac)
    }

    pub(super) fn server_with(&self, mac: Mac) -> Option<ServerId> {
        self.settings.peers.iter().find(|(_, of)| *of == mac).map(|(id, _)| *id)
    }

    pub(super) fn request(&mut self, now: Time, request: Request) -> u64 {
        let (kind, flow) = (request.kind(), flow_of(&request));
        let sequence = self.sequences.next(now);
        let (sender, epoch) = (self.settings.id, self.membership.epoch());
        let message = Message { sender, sequence, epoch, body: Body::Request(request) };
        self.outputs.push_back(Output::Control(Box::new(self.settings.key.emit(&message))));
        if let Some(flow) = flow {
            if self.waiting.len() >= WAITING_MAX {
                self.waiting.pop_first();
            }
            self.waiting.insert(sequence, (kind, flow));
        }
        sequence
    }

    pub(super) fn transfer(&mut self, to: ServerId, flow: Flow, generation: u64, body: Transfer) {
        let bytes = TransferMessage { flow, generation, body }.emit();
        self.outputs.push_back(Output::Transfer { to, bytes });
    }

    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
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
