//! A server on the user-level TCP stack (`spillway-tcp`) of one interface, whose live connections move to other servers
//! through a switch (Capybara §3.3; docs/moves.md).
//!
//! The application is a [`Movable`]: an [`Application`](spillway_transport::Application) that also decides when a
//! connection may leave, and continues those that arrive ([`on_migrated`](Movable::on_migrated)). [`Engine::start`] opens the
//! interface, [`Engine::run`] is the loop of its thread, and [`Remote`] gives orders from other threads:
//! [`migrate`](Remote::migrate). [`Control`] answers `spillway move` and `spillway status` at an admin socket.
//!
//! - `settings`: what an engine needs; `file`: the section `[moves]` of a file; `policy_keys`: its keys of the policy
//! - `interface`: the interface, its steering program, and the stack
//! - `datagrams`: messages to and from the switch and other servers, over one socket of the kernel
//! - `station`: stack, agent and application as the endpoint of a device
//! - `engine`: the loop; `remote`: orders from other threads; `about`: facts about the server that its threads share
//! - `notices`: incidents in the log, at a limited rate; `switch_watch`: whether the switch answers, for the log
//! - `control`, `status`, `steps`: the admin socket; `link_port`: helpers of the server
//! - `process`: all of this as a process: [`run`]
#![forbid(unsafe_code)]

mod about;
mod control;
mod datagrams;
mod engine;
mod error;
mod file;
mod interface;
mod link_port;
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
pub use link_port::{LinkPortSettings, linked};
pub use process::{ProcessSettings, run};
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
