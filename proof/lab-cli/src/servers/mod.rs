//! Servers on the user-level stack, whose connections move between hosts.
//!
//! All servers are applications without I/O.
//!
//! - `echo`: returns what it receives
//! - `requests`: executes the requests of a `protocol`, which is `memcached` or `http`; `replies`: what waits for room in the
//!   stack; `held`: a bound for what is kept of all clients
//! - `partition`: which server has an object, so that requests for others are handed off
//! - `working`: a time for each request of a server
//! - `run`: options, and the process around an application

mod echo;
mod held;
mod http;
mod memcached;
mod partition;
mod protocol;
mod replies;
mod requests;
mod run;
#[cfg(test)]
mod test_transport;
mod working;

pub(crate) use echo::Echo;
pub(crate) use http::Http;
pub(crate) use memcached::Store;
pub(crate) use partition::Partition;
pub(crate) use requests::RequestServer;
pub(crate) use run::{Engine, StackArgs, XdpArgs, run_on};
