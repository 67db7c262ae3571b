//! Valid control messages, as agents of servers send and receive them.

use super::{Endpoint, FLAG_FROM_SWITCH, Flow, FlowState, Kind, MESSAGE_BYTES, ServerId, Site, Status, View};

/// A valid control message without its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The server that made the message. Answers have the sender of their request, and relayed messages that of the
    /// original message.
    pub sender: ServerId,
    /// Number of the message; an answer has that of its request. A retransmission gets a new number.
    pub sequence: u64,
    /// Start time of the switch in nanoseconds since 1970; a *hello* from a sender that does not know it has 0.
    pub epoch: u64,
    /// The content, by direction.
    pub body: Body,
}

/// A message by its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// From a server to the switch.
    Request(Request),
    /// The switch's answer to the sender of a request.
    Answer(Answer),
    /// A request that the switch has checked, completed and sent on to another server.
    Relay(Relay),
}

/// What a server sends to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The flow's owner requests a move.
    Prepare {
        /// The flow that is to move.
        flow: Flow,
        /// The generation of the flow's entry; 0 without an entry.
        replaces: u64,
        /// The target; `None` lets the switch choose the least loaded owner.
        target: Option<Site>,
        /// After this time the flow returns to the owner: 1 to [`LIFETIME_MS_MAX`](super::LIFETIME_MS_MAX).
        lifetime_ms: u32,
    },
    /// The target is ready to import, or refuses.
    Prepared {
        /// The flow that is to move.
        flow: Flow,
        /// The generation in the relayed *prepare*.
        asked: u64,
        /// Whether the target imports the connection.
        import: Import,
    },
    /// The flow's owner directs the flow to a target without *prepare*.
    Hold {
        /// The flow that moves.
        flow: Flow,
        /// The generation of the flow's entry.
        replaces: u64,
        /// The target.
        target: Site,
        /// After this time the flow returns to the owner: 1 to [`LIFETIME_MS_MAX`](super::LIFETIME_MS_MAX).
        lifetime_ms: u32,
    },
    /// The target takes the flow over, or the owner keeps it.
    Own {
        /// The flow that moves.
        flow: Flow,
        /// The generation of the flow's entry.
        replaces: u64,
    },
    /// The flow's entry ends.
    Release {
        /// The flow.
        flow: Flow,
        /// The generation of the flow's entry.
        generation: u64,
    },
    /// Queries the flow's entry.
    Get {
        /// The flow.
        flow: Flow,
    },
    /// The sender lives. The switch replaces what it knows about the sender by these numbers.
    Heartbeat {
        /// The service of which the sender owns flows; not the unspecified address.
        service: Endpoint,
        /// The load, in a unit that the servers of a service agree on.
        load: u32,
        /// Connections that the sender can still import.
        free_places: u32,
        /// The sender's capacity relative to other owners of the service; 0 imports nothing.
        weight: u16,
    },
    /// The sender begins to be an owner, if it knows the epoch; otherwise the answer states the epoch.
    Hello,
    /// Queries an owner of a service.
    List {
        /// The service; not the unspecified address.
        service: Endpoint,
        /// Number of the owner, in the order of server ids, from 0 on.
        index: u64,
    },
}

/// A target's decision about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Import {
    /// The target imports the connection here.
    Ready(Site),
    /// The target has no room.
    Refused,
}

/// Client and service of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The request named neither: *hello*.
    None,
    /// The request named a service: *heartbeat*, *list*.
    Service(Endpoint),
    /// The request named a flow.
    Flow(Flow),
}

/// The switch's answer. Status, state, generation and owner are the switch's; all other fields are those of the
/// request, except in the answer to *list*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The kind of the request.
    pub kind: Kind,
    /// How the request ended; not [`Status::None`]. Answers to *prepare* never have [`Status::Ok`], and answers to
    /// *prepared* neither that nor [`Status::Full`]: relayed messages have these.
    pub status: Status,
    /// The state of the flow's entry after the request.
    pub state: FlowState,
    /// The generation of the flow's entry after the request; *hello*: the term, or with
    /// [`Status::Replayed`] the highest sequence; *list*: the index of the request.
    pub generation: u64,
    /// The request's client and service.
    pub subject: Subject,
    /// The owner of the flow after the request; *list*: the listed owner, with port 0.
    pub owner: Option<Site>,
    /// *list*: the owner's load.
    pub load: u32,
    /// *list*: milliseconds since the owner's last heartbeat.
    pub lifetime_ms: u32,
    /// *list*: connections that the owner can still import.
    pub free_places: u32,
    /// *list*: the owner's weight.
    pub weight: u16,
}

/// What the switch sends on from one server to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relay {
    /// The receiver is the target of a move. It answers with [`Request::Prepared`].
    Prepare {
        /// The flow that is to move.
        flow: Flow,
        /// The generation of the flow's entry.
        generation: u64,
        /// The source has repeated its *prepare*, and the flow is already *held* by the receiver; otherwise *asked*.
        is_held: bool,
        /// The receiver, as named by the source or chosen by the switch.
        target: Site,
        /// After this time the flow returns to the owner: 1 to [`LIFETIME_MS_MAX`](super::LIFETIME_MS_MAX).
        lifetime_ms: u32,
    },
    /// The receiver is the source of a move.
    Prepared {
        /// The flow.
        flow: Flow,
        /// The generation of the flow's entry: *held* by the target if it is ready, otherwise *owned*.
        generation: u64,
        /// Whether the target imports the connection.
        import: Import,
    },
}

impl Request {
    /// The kind of the message.
    pub const fn kind(&self) -> Kind {
        match self {
            Request::Prepare { .. } => Kind::Prepare,
            Request::Prepared { .. } => Kind::Prepared,
            Request::Hold { .. } => Kind::Hold,
            Request::Own { .. } => Kind::Own,
            Request::Release { .. } => Kind::Release,
            Request::Get { .. } => Kind::Get,
            Request::Heartbeat { .. } => Kind::Heartbeat,
            Request::Hello => Kind::Hello,
            Request::List { .. } => Kind::List,
        }
    }
}

impl Message {
    /// The kind of the message.
    pub const fn kind(&self) -> Kind {
        match &self.body {
            Body::Request(request) => request.kind(),
            Body::Answer(answer) => answer.kind,
            Body::Relay(Relay::Prepare { .. }) => Kind::Prepare,
            Body::Relay(Relay::Prepared { .. }) => Kind::Prepared,
        }
    }

    /// Emits the message with a tag of zeros, which the caller must replace.
    pub fn emit(&self) -> View<[u8; MESSAGE_BYTES]> {
        let mut view = View::blank(self.kind());
        view.set_sender(self.sender.into());
        view.set_sequence(self.sequence);
        view.set_epoch(self.epoch);
        match &self.body {
            Body::Request(request) => request.emit(&mut view),
            Body::Answer(answer) => {
                view.set_flags(FLAG_FROM_SWITCH);
                answer.emit(&mut view);
            }
            Body::Relay(relay) => {
                view.set_flags(FLAG_FROM_SWITCH);
                relay.emit(&mut view);
            }
        }
        view
    }
}

impl Subject {
    fn emit(self, view: &mut View<[u8; MESSAGE_BYTES]>) {
        let (client, service) = match self {
            Subject::None => return,
            Subject::Service(service) => (Endpoint::ZERO, service),
            Subject::Flow(flow) => (flow.client(), flow.service()),
        };
        view.set_family(service.family());
        view.set_client(client);
        view.set_service(service);
    }
}

impl Import {
    fn emit(self, view: &mut View<[u8; MESSAGE_BYTES]>) {
        match self {
            Import::Ready(site) => {
                view.set_status(Status::Ok);
                view.set_owner(Some(site));
            }
            Import::Refused => view.set_status(Status::Full),
        }
    }
}

impl Request {
    fn emit(&self, view: &mut View<[u8; MESSAGE_BYTES]>) {
        self.subject().emit(view);
        match *self {
            Request::Prepare { replaces, target, lifetime_ms, .. } => {
                view.set_generation(replaces);
                view.set_owner(target);
                view.set_lifetime_ms(lifetime_ms);
            }
            Request::Prepared { asked, import, .. } => {
                view.set_generation(asked);
                import.emit(view);
            }
            Request::Hold { replaces, target, lifetime_ms, .. } => {
                view.set_generation(replaces);
                view.set_owner(Some(target));
                view.set_lifetime_ms(lifetime_ms);
            }
            Request::Own { replaces: generation, .. } | Request::Release { generation, .. } => {
                view.set_generation(generation);
            }
            Request::Heartbeat { load, free_places, weight, .. } => {
                view.set_load(load);
                view.set_free_places(free_places);
                view.set_weight(weight);
            }
            Request::List { index, .. } => view.set_generation(index),
            Request::Get { .. } | Request::Hello => {}
        }
    }

    fn subject(&self) -> Subject {
        match *self {
            Request::Prepare { flow, .. }
            | Request::Prepared { flow, .. }
            | Request::Hold { flow, .. }
            | Request::Own { flow, .. }
            | Request::Release { flow, .. }
            | Request::Get { flow } => Subject::Flow(flow),
            Request::Heartbeat { service, .. } | Request::List { service, .. } => Subject::Service(service),
            Request::Hello => Subject::None,
        }
    }
}

impl Answer {
    fn emit(&self, view: &mut View<[u8; MESSAGE_BYTES]>) {
        self.subject.emit(view);
        view.set_status(self.status);
        view.set_state(self.state);
        view.set_generation(self.generation);
        view.set_owner(self.owner);
        view.set_load(self.load);
        view.set_lifetime_ms(self.lifetime_ms);
        view.set_free_places(self.free_places);
        view.set_weight(self.weight);
    }
}

impl Relay {
    fn emit(&self, view: &mut View<[u8; MESSAGE_BYTES]>) {
        match *self {
            Relay::Prepare { flow, generation, is_held, target, lifetime_ms } => {
                Subject::Flow(flow).emit(view);
                view.set_status(Status::Ok);
                view.set_state(if is_held { FlowState::Held } else { FlowState::Asked });
                view.set_generation(generation);
                view.set_owner(Some(target));
                view.set_lifetime_ms(lifetime_ms);
            }
            Relay::Prepared { flow, generation, import } => {
                Subject::Flow(flow).emit(view);
                view.set_state(match import {
                    Import::Ready(_) => FlowState::Held,
                    Import::Refused => FlowState::Owned,
                });
                view.set_generation(generation);
                import.emit(view);
            }
        }
    }
}
