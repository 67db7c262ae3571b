//! Planted faults: each is a mistake that the code under test could make, and that a run must detect.

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A byte from a plain client is altered on its way to the helper.
    FlipByte,
    /// A piece of a request is lost between the link and the application.
    DropPiece,
    /// A piece is delivered twice.
    RepeatPiece,
    /// Two pieces are delivered in the wrong order.
    SwapPieces,
    /// A connection is never closed: its id is never free.
    ForgetClose,
    /// Credit for bytes that were read is never returned.
    ForgetCredit,
    /// A helper reports replies as acknowledged by a client to which it has only sent them.
    HastyAcknowledgement,
    /// A helper whose memory is short closes a client that holds nothing.
    CloseIdle,
    /// A helper keeps all connections that do not authenticate.
    KeepStrangers,
    /// A helper goes on reading a client that does not read its answers.
    ReadFlooders,
    /// Links have no records, so that alterations on their path are not noticed.
    UnsealedLinks,
}

impl Canary {
    /// All canaries.
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
