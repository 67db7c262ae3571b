//! TCP connections of the kernel that move: a [`Capturer`] takes a connection out of a socket, and [`import`] continues it in a
//! new socket, on this host or another one (Prism §4.3). The kernel's repair mode (`TCP_REPAIR`) is used nowhere else.
//!
//! [`Capturer::export`] returns a [`Captured`] connection, whose socket stays in repair mode behind a filter that accepts no
//! segment: no segment meets a missing socket, which the kernel would answer by a reset. After the new owner has accepted the
//! connection, [`Captured::accepted`] returns the [`Leaving`] socket, which is polled: it returns what the new owner must get
//! of the peer, and ends without a segment after its grace. [`Captured::resume`] continues with the socket if the move fails.
//! [`import`] returns a [`Restored`] connection, which sends nothing before [`Restored::go_live`].
//!
//! The state is that of `spillway_wire::state`, so the user-level stack imports what the kernel exports, and the other way
//! round. It has the [`SocketOptions`], too. docs/capture.md has the order of the steps and what repair mode cannot do.
//!
//! Both directions act in the network namespace of the calling thread and need CAP_NET_ADMIN there; [`Injector`] needs
//! CAP_NET_RAW. BPF programs, which this crate does not contain, copy the segments that reach a captured socket
//! ([`CopyingFilter`]) and read TS.Recent ([`PeerStamps`]).
//!
//! - `capturer`, `import`: the two directions; `captured`, `leaving`, `restored`: the types above; `grace`: how long a leaving
//!   socket stays
//! - `eligible`: which sockets are refused, by the names in `refusal`; `movable`: what may change until the connection is read;
//!   `diag`: the kernel's diagnosis of a connection
//! - `dump`: reads a socket's connection; `reading`: what was read, as a state; `plan`: a state as numbers of the kernel
//! - `repair`: repair mode; `held`: a socket in it; `muted`: one that sends nothing; `filter`: the filter
//! - `remainder`: what a socket gets of the peer after its state was read; `copies`: what the filter has copied
//! - `ends`, `queues`: the ends and the bytes of both queues; `options`: socket options; `info`: TCP_INFO
//! - `arrived`: checks packets that the kernel has not checked
//! - `peer_packet`: packets of the peer; `inject`: gives them to sockets of this host; `packet_injection`: does the same with
//!   packets that were held at an interface
//! - `programs`: what BPF programs add
//! - `system`: the system calls without a safe wrapper, and all `unsafe` code

#![deny(unsafe_code)]

mod arrived;
mod captured;
mod capturer;
mod copies;
mod diag;
mod dump;
mod eligible;
mod ends;
mod error;
mod filter;
mod grace;
mod held;
mod import;
mod info;
mod inject;
mod leaving;
mod movable;
mod muted;
mod options;
mod packet_injection;
mod peer_packet;
mod plan;
mod programs;
mod queues;
mod reading;
mod refusal;
mod remainder;
mod repair;
mod restored;
#[allow(unsafe_code, reason = "system calls without a safe wrapper")]
mod system;

pub use captured::{Captured, Resumed};
pub use capturer::{Capturer, export};
pub use copies::{CopyCounters, CopyLimits};
pub use error::{CaptureError, Failed};
pub use grace::GRACE;
pub use import::import;
pub use inject::Injector;
pub use leaving::{Leaving, Step};
pub use packet_injection::{InjectError, SocketInjector};
pub use peer_packet::PeerPacket;
pub use programs::{CopyingFilter, PeerStamp, PeerStamps};
pub use refusal::Refusal;
pub use restored::{Live, Restored};
pub use spillway_wire::state::{Buffer, KeepAlive, SocketOptions};
