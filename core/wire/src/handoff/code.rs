//! Fields of one byte with a list of values: the kind of a message, and the reason of a refusal.

use core::fmt;

use super::HandoffError;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A part of a connection's state, from the source to the target.
    State = 1,
    /// The parts that the target has.
    Received = 2,
    /// The target owns the flow.
    Accepted = 3,
    /// The receiver of a state, or of *reclaim*, will not take part.
    Refused = 4,
    /// The source owns the flow again.
    TakenBack = 5,
    /// A frame of a client that arrived at the wrong server.
    Forward = 6,
    /// An owner without an entry requests a move to itself from the original owner.
    Reclaim = 7,
    /// Instead of a state: the receiver has the connection already.
    Lent = 8,
    /// A request that the receiver has handed off was served.
    Served = 9,
    /// A request that the receiver has handed off will not be served.
    Abandoned = 10,
    /// A request that the receiver has handed off has moved on to another server.
    PassedOn = 11,
    /// The receiver's report about a request has arrived.
    Noted = 12,
}

impl Kind {
    /// All kinds, in the order of their codes.
    pub const ALL: [Kind; 12] = [
        Kind::State,
        Kind::Received,
        Kind::Accepted,
        Kind::Refused,
        Kind::TakenBack,
        Kind::Forward,
        Kind::Reclaim,
        Kind::Lent,
        Kind::Served,
        Kind::Abandoned,
        Kind::PassedOn,
        Kind::Noted,
    ];

    /// The byte that stands for the kind.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether messages of this kind name the generation of the flow's entry. The others are not about a move.
    pub const fn has_generation(self) -> bool {
        !matches!(self, Kind::Reclaim | Kind::Served | Kind::Abandoned | Kind::PassedOn | Kind::Noted)
    }
}

impl TryFrom<u8> for Kind {
    type Error = HandoffError;

    fn try_from(code: u8) -> Result<Kind, HandoffError> {
        Kind::ALL.into_iter().find(|kind| kind.code() == code).ok_or(HandoffError::Kind(code))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::State => "state",
            Kind::Received => "received",
            Kind::Accepted => "accepted",
            Kind::Refused => "refused",
            Kind::TakenBack => "taken back",
            Kind::Forward => "forward",
            Kind::Reclaim => "reclaim",
            Kind::Lent => "lent",
            Kind::Served => "served",
            Kind::Abandoned => "abandoned",
            Kind::PassedOn => "passed on",
            Kind::Noted => "noted",
        })
    }
}

/// Why a move was refused. The connection stays at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The receiver expects no state of this flow with this generation.
    NoMove = 1,
    /// The receiver has no room for another connection, or for its bytes.
    NoRoom = 2,
    /// The receiver does not serve the flow's service.
    NoService = 3,
    /// The receiver has no address of the flow's family.
    Family = 4,
    /// The receiver does not support the version of the state.
    Version = 5,
    /// The state needs a feature that the receiver does not have.
    Feature = 6,
    /// The state was altered or cut short.
    Damaged = 7,
    /// The state, or one of its queues, is longer than the receiver accepts.
    TooLarge = 8,
    /// The receiver's stack found a contradiction in the state.
    Invalid = 9,
    /// The state did not arrive in time.
    Late = 10,
    /// The switch's entry names another owner.
    Lost = 11,
    /// The receiver is not an owner at present.
    Silent = 12,
}

impl Reason {
    /// All reasons, in the order of their codes.
    pub const ALL: [Reason; 12] = [
        Reason::NoMove,
        Reason::NoRoom,
        Reason::NoService,
        Reason::Family,
        Reason::Version,
        Reason::Feature,
        Reason::Damaged,
        Reason::TooLarge,
        Reason::Invalid,
        Reason::Late,
        Reason::Lost,
        Reason::Silent,
    ];

    /// The byte that stands for the reason.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::NoMove => "no_move",
            Reason::NoRoom => "no_room",
            Reason::NoService => "no_service",
            Reason::Family => "family",
            Reason::Version => "version",
            Reason::Feature => "feature",
            Reason::Damaged => "damaged",
            Reason::TooLarge => "too_large",
            Reason::Invalid => "invalid",
            Reason::Late => "late",
            Reason::Lost => "lost",
            Reason::Silent => "silent",
        }
    }
}

impl TryFrom<u8> for Reason {
    type Error = HandoffError;

    fn try_from(code: u8) -> Result<Reason, HandoffError> {
        Reason::ALL.into_iter().find(|reason| reason.code() == code).ok_or(HandoffError::Reason(code))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NoMove => "the target expects no such move",
            Reason::NoRoom => "the target has no room for the connection",
            Reason::NoService => "the target does not serve this service",
            Reason::Family => "the target has no address of the connection's family",
            Reason::Version => "the target does not support this version of the state: upgrade the target",
            Reason::Feature => "the state needs a feature that the target does not have: upgrade the target",
            Reason::Damaged => "the state arrived altered or incomplete",
            Reason::TooLarge => "the state is larger than the target accepts",
            Reason::Invalid => "the target's stack found a contradiction in the state",
            Reason::Late => "the state did not arrive at the target in time",
            Reason::Lost => "the switch's entry names another owner",
            Reason::Silent => {
                "the target is not an owner at present: it has no term, or its heartbeats are late"
            }
        })
    }
}
