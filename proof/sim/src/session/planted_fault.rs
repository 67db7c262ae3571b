//! Planted faults: each is a mistake that the code under test could make, and that a run must detect.

use super::check::Check;

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// Bytes from a replaced carrier are delivered to the server's application.
    DeliverOld,
    /// The bytes of an event are lost between link and session.
    DropPiece,
    /// The bytes of an event are delivered twice.
    RepeatPiece,
    /// A byte of a request is altered.
    AlterRequest,
    /// A byte of a reply is altered.
    AlterReply,
    /// The end of the replies is sent before the last reply.
    EarlyEnd,
    /// The server resumes a session for an opening message with an old epoch.
    AcceptStale,
    /// The server answers *gone* for a session that it has.
    FalseGone,
    /// The server keeps no record of ended sessions, and answers *gone* for those that were closed in order.
    ForgetLast,
    /// The server has no such session, but confirms to the client, after its close, that all bytes arrived.
    FalseOver,
    /// For a session that is *gone*, the client reports a higher offset than the server acknowledged.
    GoneFurther,
    /// A session keeps more bytes for its client than its bound.
    KeepMore,
    /// A session accepts more bytes from its client than its window.
    TakeMore,
    /// Credit for bytes that were read is never returned.
    ForgetCredit,
    /// Room to write that a new carrier brings is not reported to the application.
    ForgetRoom,
    /// A virtual connection is never closed after its client has left, so that its id stays in use.
    ForgetClose,
    /// The server sends a wrong offset as the end of the replies.
    WrongFinish,
    /// The server keeps all connections that do not authenticate.
    KeepStrangers,
    /// The server keeps reading from a peer that does not read the answers.
    ReadFlooders,
}

impl PlantedFault {
    /// All planted faults.
    pub const ALL: [PlantedFault; 19] = [
        PlantedFault::DeliverOld,
        PlantedFault::DropPiece,
        PlantedFault::RepeatPiece,
        PlantedFault::AlterRequest,
        PlantedFault::AlterReply,
        PlantedFault::EarlyEnd,
        PlantedFault::AcceptStale,
        PlantedFault::FalseGone,
        PlantedFault::ForgetLast,
        PlantedFault::FalseOver,
        PlantedFault::GoneFurther,
        PlantedFault::KeepMore,
        PlantedFault::TakeMore,
        PlantedFault::ForgetCredit,
        PlantedFault::ForgetRoom,
        PlantedFault::ForgetClose,
        PlantedFault::WrongFinish,
        PlantedFault::KeepStrangers,
        PlantedFault::ReadFlooders,
    ];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            PlantedFault::DeliverOld => "deliver-old",
            PlantedFault::DropPiece => "drop-piece",
            PlantedFault::RepeatPiece => "repeat-piece",
            PlantedFault::AlterRequest => "alter-request",
            PlantedFault::AlterReply => "alter-reply",
            PlantedFault::EarlyEnd => "early-end",
            PlantedFault::AcceptStale => "accept-stale",
            PlantedFault::FalseGone => "false-gone",
            PlantedFault::ForgetLast => "forget-last",
            PlantedFault::FalseOver => "false-over",
            PlantedFault::GoneFurther => "gone-further",
            PlantedFault::KeepMore => "keep-more",
            PlantedFault::TakeMore => "take-more",
            PlantedFault::ForgetCredit => "forget-credit",
            PlantedFault::ForgetRoom => "forget-room",
            PlantedFault::ForgetClose => "forget-close",
            PlantedFault::WrongFinish => "wrong-finish",
            PlantedFault::KeepStrangers => "keep-strangers",
            PlantedFault::ReadFlooders => "read-flooders",
        }
    }

    /// The check that detects the fault first.
    pub fn detecting_check(self) -> Check {
        match self {
            PlantedFault::DeliverOld
            | PlantedFault::DropPiece
            | PlantedFault::RepeatPiece
            | PlantedFault::AlterRequest => Check::Requests,
            PlantedFault::AlterReply => Check::Replies,
            PlantedFault::EarlyEnd => Check::Ends,
            PlantedFault::AcceptStale => Check::Epochs,
            PlantedFault::FalseGone | PlantedFault::ForgetLast | PlantedFault::GoneFurther => Check::Gone,
            PlantedFault::FalseOver => Check::Closes,
            PlantedFault::KeepMore
            | PlantedFault::TakeMore
            | PlantedFault::KeepStrangers
            | PlantedFault::ReadFlooders => Check::Memory,
            PlantedFault::ForgetCredit | PlantedFault::ForgetRoom => Check::Liveness,
            PlantedFault::ForgetClose => Check::Leftovers,
            PlantedFault::WrongFinish => Check::Rules,
        }
    }

    /// Whether only one check detects the fault.
    pub fn is_detected_by_one_check(self) -> bool {
        !matches!(self, PlantedFault::DeliverOld | PlantedFault::DropPiece | PlantedFault::RepeatPiece)
    }
}
