//! Servers on the user-level stack, whose connections move between hosts.
//!
//! - `echo`: returns what it receives; `kv`: memcached's text protocol; both are applications without I/O
//! - `protocol`: memcached's requests and the store; `run`: options, and the process around an application

mod echo;
mod kv;
mod protocol;
mod run;

pub(crate) use echo::Echo;
pub(crate) use kv::Kv;
pub(crate) use run::{XdpArgs, run};
