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
//! | replies that the client does not read | its window, here and in the transport's queue each: `Config::first_window_bytes`, and up to `Limits::window_bytes` once it reads | `Config::connection_buffer_bytes`, then it is reset |
//! | a load balancer's PROXY header | 4 KB, with what of the requests came with it | |
//!
//! All together: `Config::memory_bytes_max`, of which the links' batches may have a quarter. What counts is
//! the capacity that is allocated, here and in the transport's queues. From three quarters of it on, until it
//! is down to five eighths, memory is *scarce*: a client with replies that it does not read is paused (none of its
//! requests are read), others are granted 4 KB at a time, and one that has not read for `Timeouts::unread` is
//! closed. At the bound the clients that hold most, and have not read for longest, are closed until an eighth is
//! free. A client that holds nothing is never closed. Not counted: a spare buffer of up to 256 KiB and a batch of 64 KiB
//! for each link, and tables, about 250 bytes for each connection of the transport.
//!
//! # Load
//! It answers library clients that ask how loaded it is, before they come ([`Relay::measured`] must tell it its thread's CPU
//! time), and sends some of them away when that is too much.
//!
//! # Time
//! Nothing waits for long: see [`Timeouts`]. Everything that happens because of the clock is in `poll_timeout`.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod admission;
mod clients;
mod config;
mod counters;
mod links;
mod listeners;
mod load;
mod marked;
mod memory;
mod notice;
mod pressure;
mod reasons;
mod relay;
mod services;
mod status;
mod timers;

pub use config::{Config, ConfigError, LoadConfig, Random, ServiceConfig, Timeouts};
pub use counters::{Cuts, Flow, LinkFailures, Questions, Refusals, ServiceCounters, Stalls};
pub use notice::Notice;
pub use reasons::{Cut, LinkDown, MemoryCut, ProxyFault, Refusal};
pub use relay::Relay;
pub use spillway_policy::SheddingSettings;
pub use spillway_wire::load::Load;
pub use status::{ClientKind, ClientStatus, Drained, LinkState, LinkStatus, ServiceStatus, Status};
