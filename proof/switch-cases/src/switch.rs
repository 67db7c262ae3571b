//! What cases and random sequences need from an implementation of the switch.

use std::fmt;
use std::net::SocketAddr;

use crate::mac::Mac;
use crate::message::{STATES, name};
use crate::setup::Setup;

/// Names of the verdicts, in the order of their counters.
pub const VERDICTS: [&str; 21] = [
    "switched",
    "routed",
    "flooded",
    "to-owner",
    "to-target",
    "from-owner",
    "answered",
    "relayed",
    "passed",
    "unknown-port",
    "short",
    "link-local",
    "same-port",
    "not-owner",
    "fragment",
    "unknown-station",
    "no-route",
    "control-port",
    "control-invalid",
    "control-tag",
    "announcement",
];

/// What happened to a frame: an index in [`VERDICTS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Verdict(pub usize);

impl Verdict {
    /// The verdict of this name.
    pub fn named(name: &str) -> Option<Verdict> {
        VERDICTS.iter().position(|other| *other == name).map(Verdict)
    }

    /// Whether the frame was dropped.
    pub fn is_drop(self) -> bool {
        self.0 >= 9
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VERDICTS.get(self.0).unwrap_or(&"unknown verdict"))
    }
}

/// The result for a frame.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Its verdict.
    pub verdict: Verdict,
    /// The ports to which it goes, in order; empty if the frame passes to the kernel or is dropped.
    pub ports: Vec<u8>,
    /// The frame as it leaves or passes; empty if it is dropped.
    pub frame: Vec<u8>,
}

/// A server with the place at which it has a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Address and port.
    pub at: SocketAddr,
    /// MAC.
    pub mac: Mac,
    /// Server's id.
    pub server: u8,
    /// The server's term when the site was stated.
    pub term: u64,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} server {} term {}", self.at, self.mac, self.server, self.term)
    }
}

/// An entry of the table of flows. Times are nanoseconds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowRow {
    /// Client's address and port.
    pub client: SocketAddr,
    /// Service's address and port.
    pub service: SocketAddr,
    /// A number of [`STATES`].
    pub state: u8,
    /// Generation.
    pub generation: u64,
    /// Generation that the last *prepare* named.
    pub repeat_generation: u64,
    /// Owner.
    pub owner: Site,
    /// Target, if asked or held.
    pub target: Option<Site>,
    /// Original owner.
    pub original: Site,
    /// Deadline of the move of an asked or held flow; 0: owned.
    pub deadline_ns: u64,
    /// Time of the last packet.
    pub last_packet_ns: u64,
    /// The client has sent FIN.
    pub client_fin: bool,
    /// The owner has sent FIN.
    pub owner_fin: bool,
    /// End of the owner's last segment with FIN, until the client has acknowledged it.
    pub owner_claim: Option<u32>,
    /// End of the client's last segment with FIN, until the owner has acknowledged one.
    pub claim: Option<u32>,
    /// Time of the owner's first RST.
    pub reset_ns: Option<u64>,
}

impl fmt::Debug for FlowRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} > {}: {} generation {} repeat generation {}",
            self.client,
            self.service,
            name(&STATES, self.state),
            self.generation,
            self.repeat_generation
        )?;
        writeln!(f, "  owner {:?}", self.owner)?;
        writeln!(f, "  target {:?}", self.target)?;
        writeln!(f, "  original {:?}", self.original)?;
        write!(
            f,
            "  deadline {} last packet {} claim {:?} client fin {} owner fin {} owner claim {:?} reset {:?}",
            self.deadline_ns,
            self.last_packet_ns,
            self.claim,
            self.client_fin,
            self.owner_fin,
            self.owner_claim,
            self.reset_ns
        )
    }
}

/// A server with a term, as the switch's table of owners has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerRow {
    /// Server's id.
    pub server: u8,
    /// Generation of its last hello; not 0.
    pub term: u64,
    /// UDP port to which messages for it are relayed.
    pub control_port: u16,
    /// Service's number.
    pub service: u16,
    /// Load.
    pub load: u32,
    /// Free places.
    pub free: u32,
    /// Weight.
    pub weight: u16,
    /// Time of the last heartbeat.
    pub last_heartbeat_ns: u64,
    /// Whether it is silent now.
    pub is_silent: bool,
}

/// A switch's changing state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Flows in the order of their keys.
    pub flows: Vec<FlowRow>,
    /// Owners in the order of their ids.
    pub owners: Vec<OwnerRow>,
}

/// An implementation of the switch.
pub trait Switch {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// Handles a frame that arrives at a port (which may not exist, or be the daemon's) at this time, or that leaves a
    /// host ([`EGRESS`](crate::setup::EGRESS)).
    fn handle(&mut self, ingress: u8, now_ns: u64, frame: &[u8]) -> Outcome;

    /// Changes its configuration; flows and owners stay.
    fn reload(&mut self, setup: &Setup);

    /// Its state at this time. The state does not contain replay windows and clocks, which also decide on later messages.
    fn state(&self, now_ns: u64) -> State;
}
