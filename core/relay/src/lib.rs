//! What a helper does, without I/O (PostMan §4.1, §4.2).
//!
//! [`Relay`] is an [`Application`](spillway_transport::Application): it keeps links to its servers, takes plain
//! clients and library clients on the transport's listeners, and carries their bytes in batches. Kernel sockets,
//! a user-level stack or the simulator run it.
//!
//! # Memory
//! What one client can make the relay hold is bounded in each direction:
//!
//! | | plain client | library client |
//! |---|---|---|
//! | requests that a stalled link does not take | 64 KB: no more is granted than its server gave credit for | 64 KB in all |
//! | replies that the client does not read | `Limits::window_bytes` | `Config::connection_buffer_bytes`, then it is reset |
//! | a load balancer's PROXY header | 4 KB, with what of the requests came with it | |
//!
//! All clients together: `Config::memory_bytes_max`. From three quarters of it new clients are refused; the
//! client whose bytes would exceed it is reset. On top come, for each link, one batch that waits for the
//! transport, up to `Limits::pending_bytes_max` of gathered requests of plain clients, 64 KB for each library
//! client, and some 50 bytes of control for each virtual connection; and what the transport itself queues.
//! Tables take about 200 bytes for each connection of the transport.
//!
//! # Load
//! It answers library clients that ask how loaded it is, before they come ([`Relay::measured`] must tell it its thread's CPU
//! time), and sends some of them away when that is too much.
//!
//! # Time
//! Nothing waits for long: see [`Timeouts`]. Everything that happens because of the clock is in `poll_timeout`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod acknowledging;
mod announcing;
mod answering;
mod backlog;
mod clients;
mod config;
mod deadlines;
mod draining;
mod gates;
mod holding;
mod library;
mod links;
mod notice;
mod passages;
mod raw;
mod reconfigure;
mod relay;
mod shedding;
mod slots;
mod status;
mod upstream;

pub use config::{Config, ConfigError, LoadConfig, Random, ServiceConfig, Timeouts};
pub use notice::{Cut, LinkDown, Notice, ProxyFault, Refusal};
pub use relay::Relay;
pub use spillway_policy::SheddingSettings;
pub use spillway_wire::load::Load;
pub use status::{
    ClientKind, ClientStatus, Cuts, Drained, Flow, LinkFailures, LinkState, LinkStatus, Questions, Refusals,
    ServiceCounters, ServiceStatus, Stalls, Status,
};
