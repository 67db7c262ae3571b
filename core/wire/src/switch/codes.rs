//! Fields of one byte with a list of values: kind, status, and the state of a flow.

use core::fmt;

use super::MessageError;

/// What a control message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A flow's owner requests that a target imports the connection. The switch relays it to the target.
    Prepare = 1,
    /// The target is ready, or refuses. The switch relays it to the owner, and holds the flow.
    Prepared = 2,
    /// A flow's owner directs the flow to a target with which the owner has agreed without the switch.
    Hold = 3,
    /// The target takes the flow over, or the owner keeps it.
    Own = 4,
    /// The flow's entry ends.
    Release = 5,
    /// Queries a flow's entry.
    Get = 6,
    /// An owner states its load, and that it lives.
    Heartbeat = 7,
    /// A server begins to be an owner, and learns the switch's epoch.
    Hello = 8,
    /// Queries one of the owners of a service.
    List = 9,
}

impl Kind {
    /// All kinds, in the order of their codes.
    pub const ALL: [Kind; 9] = [
        Kind::Prepare,
        Kind::Prepared,
        Kind::Hold,
        Kind::Own,
        Kind::Release,
        Kind::Get,
        Kind::Heartbeat,
        Kind::Hello,
        Kind::List,
    ];

    /// The byte that stands for the kind.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl TryFrom<u8> for Kind {
    type Error = MessageError;

    fn try_from(code: u8) -> Result<Kind, MessageError> {
        Kind::ALL.into_iter().find(|kind| kind.code() == code).ok_or(MessageError::Kind(code))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Prepare => "prepare",
            Kind::Prepared => "prepared",
            Kind::Hold => "hold",
            Kind::Own => "own",
            Kind::Release => "release",
            Kind::Get => "get",
            Kind::Heartbeat => "heartbeat",
            Kind::Hello => "hello",
            Kind::List => "list",
        })
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Status {
    /// The status of requests.
    None = 0,
    /// The request was carried out.
    Ok = 1,
    /// The request names a generation, or needs a state, that is not the entry's.
    Stale = 2,
    /// The flow has no entry.
    NoEntry = 3,
    /// The flow table is full, or the target cannot import another connection.
    Full = 4,
    /// The sender may not do this.
    Forbidden = 5,
    /// The switch does not know the message's version or kind.
    UnknownVersion = 6,
    /// The sender or the target is not a live owner of this epoch of the switch.
    NoOwner = 7,
    /// The sequence number was used before, or is too old; the message changed nothing.
    Replayed = 8,
}

impl Status {
    /// All statuses, in the order of their codes.
    pub const ALL: [Status; 9] = [
        Status::None,
        Status::Ok,
        Status::Stale,
        Status::NoEntry,
        Status::Full,
        Status::Forbidden,
        Status::UnknownVersion,
        Status::NoOwner,
        Status::Replayed,
    ];

    /// The byte that stands for the status.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl TryFrom<u8> for Status {
    type Error = MessageError;

    fn try_from(code: u8) -> Result<Status, MessageError> {
        Status::ALL.into_iter().find(|status| status.code() == code).ok_or(MessageError::Status(code))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::None => "none",
            Status::Ok => "ok",
            Status::Stale => "stale",
            Status::NoEntry => "no entry",
            Status::Full => "full",
            Status::Forbidden => "forbidden",
            Status::UnknownVersion => "unknown version",
            Status::NoOwner => "no owner",
            Status::Replayed => "replayed",
        })
    }
}

/// The state of a flow's entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FlowState {
    /// The flow has no entry.
    #[default]
    None = 0,
    /// A move was requested; packets still go to the owner.
    Asked = 1,
    /// Packets go to the target, which buffers them until it owns the flow.
    Held = 2,
    /// Packets go to the owner; no move is under way.
    Owned = 3,
}

impl FlowState {
    /// All states, in the order of their codes.
    pub const ALL: [FlowState; 4] = [FlowState::None, FlowState::Asked, FlowState::Held, FlowState::Owned];

    /// The byte that stands for the state.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl TryFrom<u8> for FlowState {
    type Error = MessageError;

    fn try_from(code: u8) -> Result<FlowState, MessageError> {
        FlowState::ALL.into_iter().find(|state| state.code() == code).ok_or(MessageError::State(code))
    }
}

impl fmt::Display for FlowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FlowState::None => "none",
            FlowState::Asked => "asked",
            FlowState::Held => "held",
            FlowState::Owned => "owned",
        })
    }
}
