//! Library clients: a real client's end of a link, the relay, and a real server's end of a link.
//!
//! - `authentication`: which clients are accepted, and which are evicted
//! - `relaying`: connections and sessions from *connect* to the end
//! - `draining`: drains, and the override `off`
//! - `back_pressure`: clients, links and servers that do not read
//! - `incomplete_records`: clients that withhold the ends of records
//! - `misbehaviour`: protocol errors and floods of control messages
//! - `client`: the client that all tests use

mod client;
#[path = "../harness/mod.rs"]
mod harness;

mod authentication;
mod back_pressure;
mod draining;
mod incomplete_records;
mod misbehaviour;
mod relaying;
