//! Planted faults: each is a mistake that the code under test could make, and that a run must detect.

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
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

impl PlantedFault {
    /// All planted faults.
    pub const ALL: [PlantedFault; 11] = [
        PlantedFault::FlipByte,
        PlantedFault::DropPiece,
        PlantedFault::RepeatPiece,
        PlantedFault::SwapPieces,
        PlantedFault::ForgetClose,
        PlantedFault::ForgetCredit,
        PlantedFault::HastyAcknowledgement,
        PlantedFault::CloseIdle,
        PlantedFault::KeepStrangers,
        PlantedFault::ReadFlooders,
        PlantedFault::UnsealedLinks,
    ];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            PlantedFault::FlipByte => "flip-byte",
            PlantedFault::DropPiece => "drop-piece",
            PlantedFault::RepeatPiece => "repeat-piece",
            PlantedFault::SwapPieces => "swap-pieces",
            PlantedFault::ForgetClose => "forget-close",
            PlantedFault::ForgetCredit => "forget-credit",
            PlantedFault::HastyAcknowledgement => "hasty-acknowledgement",
            PlantedFault::CloseIdle => "close-idle",
            PlantedFault::KeepStrangers => "keep-strangers",
            PlantedFault::ReadFlooders => "read-flooders",
            PlantedFault::UnsealedLinks => "unsealed-links",
        }
    }
}
