//! The protocol logic of a helper, without I/O (PostMan §4.1, §4.2).
//!
//! [`Relay`] is an [`Application`](spillway_transport::Application): it keeps links to its servers, accepts plain
//! clients and library clients on the transport's listeners, and carries their bytes in batches. It runs on kernel
//! sockets, on a user-level stack and in the simulator.
//!
//! # Memory
//! The bytes that one client can occupy in the relay are bounded in each direction:
//!
//! | | plain client | library client |
//! |---|---|---|
//! | requests that a stalled link does not take | 64 KiB, or the server's credit if that is less | 64 KiB in all |
//! | replies that the client does not read | its window, here and in the transport's queue each: `Config::first_window_bytes`, and up to `Limits::window_bytes` once it reads | `Config::connection_buffer_bytes`, then it is reset |
//! | a load balancer's PROXY header | 4 KiB, including requests that arrive with the header | |
//!
//! The bound for all clients and links is `Config::memory_bytes_max`; the links' batches may use a quarter of
//! it. Memory is measured as allocated capacity, here and in the transport's queues. Memory is *scarce* from
//! three quarters of the bound until use has fallen to five eighths. While memory is scarce, a client with
//! unread replies is paused (its requests are not read), others are granted 4 KiB at a time, and a client
//! that has not read for `Timeouts::unread` is closed. At the bound, the clients that hold most memory and
//! have not read for longest are closed until an eighth is free. A client that holds nothing is never closed.
//! Not counted: a spare buffer of up to 256 KiB and a batch of 64 KiB for each link, and tables, about 250
//! bytes for each connection of the transport.
//!
//! # Load
//! The relay answers load queries of library clients, and sends some library clients to other helpers when its load is
//! too high. The host must report the CPU time of the relay's thread: see [`Relay::measured`].
//!
//! # Time
//! Waits for a peer are bounded by [`Timeouts`], [`ServiceConfig::connect_timeout`] and `Limits::handshake_timeout`;
//! `poll_timeout` returns the next deadline.
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
mod measurement;
mod memory;
mod notice;
mod pressure;
mod reasons;
mod relay;
mod services;
mod status;
mod timers;

pub use config::{Config, ConfigError, LoadConfig, Random, ServiceConfig, Timeouts};
pub use counters::{Flow, LinkFailures, LoadQueries, Refusals, Resets, ServiceCounters, Stalls};
pub use measurement::{Measurement, RequestMetrics};
pub use notice::Notice;
pub use reasons::{LinkDown, MemoryReset, ProxyFault, Refusal, ResetReason};
pub use relay::Relay;
pub use spillway_policy::SheddingSettings;
pub use spillway_wire::load::LoadReport;
pub use status::{ClientKind, ClientStatus, Drained, LinkState, LinkStatus, ServiceStatus, Status};
