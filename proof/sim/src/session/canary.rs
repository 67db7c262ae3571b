//! Planted faults: each is a mistake that the code under test could make, and that a run must detect.

use super::check::Check;

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
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

impl Canary {
    /// All planted faults.
    pub const ALL: [Canary; 19] = [
        Canary::DeliverOld,
        Canary::DropPiece,
        Canary::RepeatPiece,
        Canary::AlterRequest,
        Canary::AlterReply,
        Canary::EarlyEnd,
        Canary::AcceptStale,
        Canary::FalseGone,
        Canary::ForgetLast,
        Canary::FalseOver,
        Canary::GoneFurther,
        Canary::KeepMore,
        Canary::TakeMore,
        Canary::ForgetCredit,
        Canary::ForgetRoom,
        Canary::ForgetClose,
        Canary::WrongFinish,
        Canary::KeepStrangers,
        Canary::ReadFlooders,
    ];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Canary::DeliverOld => "deliver-old",
            Canary::DropPiece => "drop-piece",
            Canary::RepeatPiece => "repeat-piece",
            Canary::AlterRequest => "alter-request",
            Canary::AlterReply => "alter-reply",
            Canary::EarlyEnd => "early-end",
            Canary::AcceptStale => "accept-stale",
            Canary::FalseGone => "false-gone",
            Canary::ForgetLast => "forget-last",
            Canary::FalseOver => "false-over",
            Canary::GoneFurther => "gone-further",
            Canary::KeepMore => "keep-more",
            Canary::TakeMore => "take-more",
            Canary::ForgetCredit => "forget-credit",
            Canary::ForgetRoom => "forget-room",
            Canary::ForgetClose => "forget-close",
            Canary::WrongFinish => "wrong-finish",
            Canary::KeepStrangers => "keep-strangers",
            Canary::ReadFlooders => "read-flooders",
        }
    }

    /// The check that detects the fault first.
    pub fn detecting_check(self) -> Check {
        match self {
            Canary::DeliverOld | Canary::DropPiece | Canary::RepeatPiece | Canary::AlterRequest => {
                Check::Requests
            }
            Canary::AlterReply => Check::Replies,
            Canary::EarlyEnd => Check::Ends,
            Canary::AcceptStale => Check::Epochs,
            Canary::FalseGone | Canary::ForgetLast | Canary::GoneFurther => Check::Gone,
            Canary::FalseOver => Check::Closes,
            Canary::KeepMore | Canary::TakeMore | Canary::KeepStrangers | Canary::ReadFlooders => {
                Check::Memory
            }
            Canary::ForgetCredit | Canary::ForgetRoom => Check::Liveness,
            Canary::ForgetClose => Check::Leftovers,
            Canary::WrongFinish => Check::Rules,
        }
    }

    /// Whether only one check detects the fault.
    pub fn is_detected_by_one_check(self) -> bool {
        !matches!(self, Canary::DeliverOld | Canary::DropPiece | Canary::RepeatPiece)
    }
}
