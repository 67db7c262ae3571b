//! The kernel's TCP as one whose connections move between servers: a [`Tcp`](spillway_moves::Tcp) for a
//! [`Server`](spillway_moves::Server), beside the user-level stack (Prism §4.2 and §4.3; docs/capture.md).
//!
//! [`KernelTcp`] joins the sockets of `spillway-net`, which the application uses, with the capture and the restoration of
//! connections (`spillway-capture`), and with the program that holds the packets of connections that are to come
//! (`spillway-bpf`). All of it acts in the network namespace of the calling thread.
//!
//! - `tcp`: [`KernelTcp`], and the trait's functions; `transport`: the application's commands
//! - `export`, `import`: the two ends of a move; `away`: connections that were exported; `coming`: one that is to come; `state`: what the sockets add to a
//!   connection's state
//! - `lifetimes`: how long the kernel has a connection
//! - `holds`: packets of connections that are to come; `frames`: packets with and without an Ethernet header
//! - `collector`: events that wait for the server; `programs`: BPF programs; `faults`: what the log should say; `error`
#![forbid(unsafe_code)]

mod away;
mod collector;
mod coming;
mod error;
mod export;
mod faults;
mod frames;
mod holds;
mod import;
mod lifetimes;
mod programs;
mod state;
mod tcp;
mod transport;

pub use coming::Coming;
pub use error::OpenError;
pub use faults::Fault;
pub use tcp::{KernelTcp, Settings};
