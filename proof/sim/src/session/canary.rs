//! Planted faults: each is a mistake that the code under test could make, and that a run must find.

use super::check::Check;

/// One planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// What comes of a carrier that was replaced is delivered to the server's application.
    DeliverOld,
    /// A piece of a request is lost between the link and the session.
    DropPiece,
    /// A piece of a request is delivered twice.
    RepeatPiece,
    /// A byte of a request is altered.
    AlterRequest,
    /// A byte of a reply is altered.
    AlterReply,
    /// The end of the replies is told before the last of them.
    EarlyEnd,
    /// The server goes on with a session on a carrier whose first words are old.
    AcceptStale,
    /// The server says *gone* of a session that it knows.
    FalseGone,
    /// The server does not remember how sessions ended, and says *gone* of those that were closed in order.
    ForgetLast,
    /// The server tells clients which have closed that their session is over in order, and that it has received all that
    /// they have sent, where it does not know the session.
    FalseOver,
    /// A client that is told *gone* tells its application of more bytes than the server acknowledged.
    GoneFurther,
    /// A session keeps more bytes for its client than its bound.
    KeepMore,
    /// A session takes more bytes from its client than its window.
    TakeMore,
    /// Credit for bytes that were read is never given back.
    ForgetCredit,
    /// Room to write that comes with a new carrier is not told.
    ForgetRoom,
    /// A connection on a helper's link is never closed when its client has left: its id is never free.
    ForgetClose,
    /// The server tells an end of the replies that is not where they end.
    WrongFinish,
    /// The server keeps all connections that do not authenticate.
    KeepStrangers,
    /// The server goes on reading a peer that does not read the answers that it causes.
    ReadFlooders,
}

impl Canary {
    /// All of them.
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

    /// For command lines.
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

    /// The check that sees it first.
    pub fn seen_by(self) -> Check {
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

    /// Whether no other check ever sees it.
    pub fn is_seen_by_one(self) -> bool {
        !matches!(self, Canary::DeliverOld | Canary::DropPiece | Canary::RepeatPiece)
    }
}
