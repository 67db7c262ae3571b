//! Servers on the user-level stack, whose connections move between hosts.
//!
//! - `echo`: returns what it receives; `working_echo`: the same, with a time for each request; `kv`: memcached's text protocol; both are applications without I/O
//! - `protocol`, `replies`: the requests of `kv`, and what waits for room in the stack
//! - `run`: options, and the process around an application

mod echo;
mod kv;
mod protocol;
mod replies;
mod run;
#[cfg(test)]
mod test_transport;
mod working_echo;

pub(crate) use echo::Echo;
pub(crate) use kv::Kv;
pub(crate) use run::{XdpArgs, run};
pub(crate) use working_echo::WorkingEcho;
