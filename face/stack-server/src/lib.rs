//! A server whose live TCP connections move to other servers through a switch, on the user-level stack (`spillway-tcp`) of one
//! interface (Capybara §3.3) or on sockets of the kernel (Prism §4; docs/moves.md).
//!
//! The application is a [`Movable`]: an [`Application`](spillway_transport::Application) that also decides when a
//! connection may leave, and continues those that arrive ([`on_migrated`](Movable::on_migrated)). [`Engine::start`] opens the
//! interface, [`Engine::run`] is the loop of its thread ([`KernelEngine`] is the same with the kernel's TCP), and [`Remote`] gives orders from other threads:
//! [`migrate`](Remote::migrate). [`Control`] answers `spillway move` and `spillway status` at an admin socket.
//!
//! - `settings`: what an engine needs; `file`: the section `[moves]` of a file; `policy_keys`: its keys of the policy
//! - `interface`: the interface, its steering program, and the stack
//! - `datagrams`: messages to and from the switch and other servers, over one socket of the kernel
//! - `agent`: the agent of the switch's protocol
//! - `station`: stack, agent and application as the endpoint of a device
//! - `engine`, `kernel_engine`: the loops; `remote`: orders from other threads; `about`: facts about the server that its threads share
//! - `log`: what the thread says in the log; `notices`: incidents in it, at a limited rate; `switch_watch`: whether the switch answers, for the log
//! - `control`, `status`, `steps`: the admin socket; `link_port`: helpers of the server
//! - `process`: all of this as a process: [`run`]
#![forbid(unsafe_code)]

mod about;
mod agent;
mod control;
mod datagrams;
mod engine;
mod error;
mod file;
mod interface;
mod kernel_engine;
mod link_port;
mod log;
mod notices;
mod policy_keys;
mod process;
mod remote;
mod settings;
mod station;
mod status;
mod steps;
mod switch_watch;

pub use control::{Control, FailedMove, MoveOutcome, Request, send_request};
pub use engine::Engine;
pub use error::EngineError;
pub use file::MovesFile;
pub use kernel_engine::KernelEngine;
pub use link_port::{LinkPortSettings, linked};
pub use process::{ProcessSettings, run, run_on_kernel};
pub use remote::{MoveFailure, Remote};
pub use settings::{EngineSettings, Measuring, MoveSettings, PeerServer};
pub use spillway_batch::AddressRange;
pub use spillway_links::Linked;
pub use spillway_moves::{
    Arrival, Attachment, AttachmentError, HandedRequest, Movable, MovePolicy, OrderError, OrderResult,
    Override, OwnLoad, PolicySettings, Purpose, RequestCommand, RequestEvent, RequestOutcome,
};
pub use spillway_wire::switch::ServerId;
pub use status::{BlackoutStatus, MoveCounts, PolicyStatus, ServerStatus};
pub use steps::{MoveStepTimes, StepsOfMoves, step_name};
