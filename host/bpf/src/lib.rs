//! The BPF programs that Spillway runs in the kernel, and their typed loaders.
//!
//! clang compiles the programs, C files in `c/`, when this crate is built. The library contains the objects.
//!
//! - [`Steer`]: passes packets of the user-level TCP stack to its AF_XDP sockets, all others to the kernel
//! - [`Switch`](switch::Switch): forwards frames by rules that servers change with control messages
//! - [`HeldFlows`]: holds the packets of connections that move to this host, until its kernel has them
//! - [`Stragglers`]: keeps the packets that reach a socket whose connection moves
//! - [`RemovedSockets`]: reports TCP sockets that the kernel has removed
//! - [`PeerTimestamps`]: reads the latest timestamp that a TCP connection of the kernel has from its peer
//! - [`Hub`]: forwards frames between the hosts of the laboratory
//! - [`Loss`]: drops a share of the IPv4 packets, for the laboratory
//! - [`Pass`]: passes every packet, a baseline for measurements
//!
//! A program is attached to an interface as long as its [`Attachment`] exists. When the process is killed,
//! the kernel detaches the program. Loading a program needs CAP_BPF and CAP_NET_ADMIN; one that reads the
//! kernel's structures needs CAP_PERFMON.
#![forbid(unsafe_code)]

mod attach;
mod error;
mod held;
mod hub;
mod loss;
mod map;
mod object;
mod pass;
mod peer_timestamp;
mod removed;
mod ring;
mod steer;
mod stragglers;
pub mod switch;
mod verdict;

pub use attach::{AttachError, Attachment, AttachmentState, Mode, attached_program};
pub use error::BpfError;
pub use held::{Budget, HeldCounters, HeldFlows, HeldOutcome, Hold, HoldError, Release, Waiting};
pub use hub::Hub;
pub use loss::Loss;
pub use pass::Pass;
pub use peer_timestamp::{PeerTimestamp, PeerTimestamps};
pub use removed::{Removal, RemovedSockets};
pub use steer::{AddressRule, Endpoint, Flow, Protocol, Steer, TestRun};
pub use stragglers::{Straggler, Stragglers};
pub use verdict::{Verdict, VerdictCounters};

/// Maximum number of addresses of a [`Steer`]: `ADDRESSES_MAX` in `c/maps.h`.
pub const ADDRESSES_MAX: usize = 256;
/// Maximum number of endpoints of a [`Steer`]: `ENDPOINTS_MAX` in `c/maps.h`.
pub const ENDPOINTS_MAX: usize = 4096;
/// Maximum number of queues of an interface that a [`Steer`] can serve: `QUEUES_MAX` in `c/maps.h`.
pub const QUEUES_MAX: u32 = 128;
