//! TCP connections of the kernel that move: [`export`] takes a connection out of a socket, and [`import`] continues it in a
//! new socket, on this host or another one (Prism §4.3). The kernel's repair mode (`TCP_REPAIR`) is used nowhere else.
//!
//! [`export`] returns a [`Captured`] connection, whose socket stays in repair mode behind a filter that drops all segments:
//! no segment meets a missing socket, which the kernel would answer by a reset. After the new owner has accepted the
//! connection, [`Captured::close_silently`] ends the old socket without a segment; [`Captured::resume`] continues with it
//! if the move fails. [`import`] returns a [`Restored`] connection, which sends nothing before [`Restored::go_live`].
//!
//! The state is that of `spillway_wire::state`, so the user-level stack imports what the kernel exports, and the other way
//! round. [`SocketOptions`] travel beside it. docs/capture.md has the order of the steps and what repair mode cannot do.
//!
//! Both directions act in the network namespace of the calling thread and need CAP_NET_ADMIN there; [`Injector`] and
//! [`PacketInjector`] need CAP_NET_RAW.
//!
//! - `captured`, `restored`: the two types above; `export`, `import`: their constructors
//! - `eligible`: which sockets are refused, by the names in `refusal`; `diag`: what only the kernel's diagnosis reveals
//! - `dump`: reads a socket's connection; `reading`: what was read, as a state; `plan`: a state as numbers of the kernel
//! - `repair`: repair mode; `held`: a socket in it; `muted`: one that sends nothing; `filter`: the filter
//! - `ends`, `queues`: the ends and the bytes of both queues; `options`: socket options; `info`: TCP_INFO
//! - `inject`: segments on behalf of the peer; `packet_injection`: packets that were held meanwhile
//! - `system`: the system calls without a safe wrapper, and all `unsafe` code

#![deny(unsafe_code)]

mod captured;
mod diag;
mod dump;
mod eligible;
mod ends;
mod error;
mod export;
mod filter;
mod held;
mod import;
mod info;
mod inject;
mod muted;
mod options;
mod packet_injection;
mod plan;
mod queues;
mod reading;
mod refusal;
mod repair;
mod restored;
#[allow(unsafe_code, reason = "system calls without a safe wrapper")]
mod system;

pub use captured::{Captured, Late};
pub use error::{CaptureError, Failed};
pub use export::export;
pub use import::import;
pub use inject::Injector;
pub use options::{Buffer, KeepAlive, SocketOptions};
pub use packet_injection::{InjectError, PacketInjector, SocketInjector};
pub use refusal::Refusal;
pub use restored::{Live, Restored};
