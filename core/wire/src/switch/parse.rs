//! Parses control messages.

use core::borrow::Borrow;
use core::ops::Range;

use super::{
    Answer, Body, Endpoint, FLAG_FROM_SWITCH, Flow, FlowState, Import, Kind, MESSAGE_BYTES, Message,
    MessageError, Relay, Request, SWITCH_VERSION, Site, Status, Subject, View, field,
};

impl Message {
    /// Parses a message, whose tag the caller must verify before it uses the message. Accepts exactly the bytes that
    /// [`emit`](Message::emit) writes, and so fewer requests than the switch, which ignores fields that a kind does
    /// not use.
    ///
    /// # Errors
    /// The bytes are not a message of this version.
    pub fn parse<B: Borrow<[u8; MESSAGE_BYTES]>>(view: &View<B>) -> Result<Message, MessageError> {
        if view.version() != SWITCH_VERSION {
            return Err(MessageError::Version(view.version()));
        }
        let (kind, status) = (view.kind()?, view.status()?);
        let message = Message {
            sender: view.sender().try_into()?,
            sequence: view.sequence(),
            epoch: view.epoch(),
            body: match (view.flags(), kind, status) {
                (0, ..) => Body::Request(Request::parse(view, kind)?),
                (FLAG_FROM_SWITCH, Kind::Prepare, Status::Ok) => Body::Relay(Relay::Prepare {
                    flow: flow(view)?,
                    generation: view.generation(),
                    is_held: view.state()? == FlowState::Held,
                    target: site(view)?,
                    lifetime_ms: view.lifetime_ms(),
                }),
                (FLAG_FROM_SWITCH, Kind::Prepared, Status::Ok | Status::Full) => {
                    Body::Relay(Relay::Prepared {
                        flow: flow(view)?,
                        generation: view.generation(),
                        import: Import::parse(view)?,
                    })
                }
                (FLAG_FROM_SWITCH, ..) => Body::Answer(Answer::parse(view, kind, status)?),
                (flags, ..) => return Err(MessageError::Flags(flags)),
            },
        };
        match first_difference(message.emit().tagged(), view.tagged()) {
            None => Ok(message),
            Some(offset) => Err(unexpected(view, offset)),
        }
    }
}

impl Request {
    fn parse<B: Borrow<[u8; MESSAGE_BYTES]>>(view: &View<B>, kind: Kind) -> Result<Request, MessageError> {
        let generation = view.generation();
        Ok(match kind {
            Kind::Prepare => Request::Prepare {
                flow: flow(view)?,
                replaces: generation,
                target: view.owner(),
                lifetime_ms: view.lifetime_ms(),
            },
            Kind::Prepared => {
                Request::Prepared { flow: flow(view)?, asked: generation, import: Import::parse(view)? }
            }
            Kind::Hold => Request::Hold {
                flow: flow(view)?,
                replaces: generation,
                target: site(view)?,
                lifetime_ms: view.lifetime_ms(),
            },
            Kind::Own => Request::Own { flow: flow(view)?, replaces: generation },
            Kind::Release => Request::Release { flow: flow(view)?, generation },
            Kind::Get => Request::Get { flow: flow(view)? },
            Kind::Heartbeat => Request::Heartbeat {
                service: service(view)?,
                load: view.load(),
                free_places: view.free_places(),
                weight: view.weight(),
            },
            Kind::Hello => Request::Hello,
            Kind::List => Request::List { service: service(view)?, index: generation },
        })
    }
}

impl Import {
    fn parse<B: Borrow<[u8; MESSAGE_BYTES]>>(view: &View<B>) -> Result<Import, MessageError> {
        match view.status()? {
            Status::Ok => Ok(Import::Ready(site(view)?)),
            Status::Full => Ok(Import::Refused),
            other => Err(MessageError::Status(other.code())),
        }
    }
}

impl Answer {
    fn parse<B: Borrow<[u8; MESSAGE_BYTES]>>(
        view: &View<B>,
        kind: Kind,
        status: Status,
    ) -> Result<Answer, MessageError> {
        if status == Status::None {
            return Err(MessageError::Status(status.code()));
        }
        let subject = match kind {
            Kind::Hello => Subject::None,
            Kind::Heartbeat | Kind::List => Subject::Service(service(view)?),
            _ => Subject::Flow(flow(view)?),
        };
        Ok(Answer {
            kind,
            status,
            state: view.state()?,
            generation: view.generation(),
            subject,
            owner: view.owner(),
            load: view.load(),
            lifetime_ms: view.lifetime_ms(),
            free_places: view.free_places(),
            weight: view.weight(),
        })
    }
}

fn flow<B: Borrow<[u8; MESSAGE_BYTES]>>(view: &View<B>) -> Result<Flow, MessageError> {
    Flow::new(view.client(), view.service())
}

fn service<B: Borrow<[u8; MESSAGE_BYTES]>>(view: &View<B>) -> Result<Endpoint, MessageError> {
    let service = view.service();
    if service.is_unspecified() { Err(MessageError::Missing("service")) } else { Ok(service) }
}

fn site<B: Borrow<[u8; MESSAGE_BYTES]>>(view: &View<B>) -> Result<Site, MessageError> {
    view.owner().ok_or(MessageError::Missing("target"))
}

fn first_difference(emitted: &[u8], received: &[u8]) -> Option<usize> {
    emitted.iter().zip(received).position(|(emitted, received)| emitted != received)
}

/// The error about the byte at `offset`, which a message of this kind and direction does not have.
fn unexpected<B: Borrow<[u8; MESSAGE_BYTES]>>(view: &View<B>, offset: usize) -> MessageError {
    const NAMES: [(Range<usize>, &str); 9] = [
        (field::GENERATION, "generation"),
        (field::CLIENT_ADDRESS.start..field::CLIENT_PORT.end, "client"),
        (field::SERVICE_ADDRESS.start..field::SERVICE_PORT.end, "service"),
        (field::OWNER_ADDRESS.start..field::OWNER_PORT.end, "owner"),
        (field::OWNER_MAC, "MAC"),
        (field::LOAD, "load"),
        (field::LIFETIME_MS, "lifetime"),
        (field::FREE_PLACES, "number of free places"),
        (field::WEIGHT, "weight"),
    ];
    let byte = view.bytes()[offset];
    match offset {
        field::FAMILY => MessageError::Family(byte),
        field::STATUS => MessageError::Status(byte),
        field::STATE => MessageError::State(byte),
        _ => NAMES
            .into_iter()
            .find(|(range, _)| range.contains(&offset))
            .map_or(MessageError::Reserved, |(_, name)| MessageError::Unused(name)),
    }
}
