//! Planted faults: each is a mistake that the code under test could make, and that a run must detect.

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A byte from a plain client is altered on the path to the helper.
    FlipByte,
    /// The bytes of an event are lost between the link and the application.
    DropPiece,
    /// The bytes of an event are delivered twice.
    RepeatPiece,
    /// The bytes of two events are delivered in the wrong order.
    SwapPieces,
    /// A virtual connection is never closed: its id stays in use.
    ForgetClose,
    /// The credit for read bytes is never returned.
    ForgetCredit,
    /// A helper reports replies as acknowledged as soon as it has sent them to the client.
    HastyAcknowledgement,
    /// A helper that is short of memory closes a client without bytes in flight.
    CloseIdle,
    /// A helper keeps all connections that do not authenticate.
    KeepStrangers,
    /// A helper keeps reading from a client that does not read the answers.
    ReadFlooders,
    /// Links are not encrypted, so that no record detects alterations on their path.
    UnsealedLinks,
}

impl Canary {
    /// All planted faults.
    pub const ALL: [Canary; 11] = [
        Canary::FlipByte,
        Canary::DropPiece,
        Canary::RepeatPiece,
        Canary::SwapPieces,
        Canary::ForgetClose,
        Canary::ForgetCredit,
        Canary::HastyAcknowledgement,
        Canary::CloseIdle,
        Canary::KeepStrangers,
        Canary::ReadFlooders,
        Canary::UnsealedLinks,
    ];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Canary::FlipByte => "flip-byte",
            Canary::DropPiece => "drop-piece",
            Canary::RepeatPiece => "repeat-piece",
            Canary::SwapPieces => "swap-pieces",
            Canary::ForgetClose => "forget-close",
            Canary::ForgetCredit => "forget-credit",
            Canary::HastyAcknowledgement => "hasty-acknowledgement",
            Canary::CloseIdle => "close-idle",
            Canary::KeepStrangers => "keep-strangers",
            Canary::ReadFlooders => "read-flooders",
            Canary::UnsealedLinks => "unsealed-links",
        }
    }
}
