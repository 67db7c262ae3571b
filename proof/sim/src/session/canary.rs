//! Planted faults: each is a mistake that the code under test could make, and that a run must find.

/// One planted fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// What comes of a carrier that was replaced is delivered.
    DeliverOld,
    /// A piece of a request is lost between the link and the session.
    DropPiece,
    /// A piece is delivered twice.
    RepeatPiece,
    /// The server forgets its sessions without having been restarted.
    FalseGone,
    /// A session keeps more bytes for its client than its bound.
    KeepMore,
    /// Credit for bytes that were read is never given back.
    ForgetCredit,
    /// The end of the replies is told before the last of them.
    EarlyEnd,
}

impl Canary {
    /// All of them.
    pub const ALL: [Canary; 7] = [
        Canary::DeliverOld,
        Canary::DropPiece,
        Canary::RepeatPiece,
        Canary::FalseGone,
        Canary::KeepMore,
        Canary::ForgetCredit,
        Canary::EarlyEnd,
    ];

    /// For command lines.
    pub fn name(self) -> &'static str {
        match self {
            Canary::DeliverOld => "deliver-old",
            Canary::DropPiece => "drop-piece",
            Canary::RepeatPiece => "repeat-piece",
            Canary::FalseGone => "false-gone",
            Canary::KeepMore => "keep-more",
            Canary::ForgetCredit => "forget-credit",
            Canary::EarlyEnd => "early-end",
        }
    }
}
