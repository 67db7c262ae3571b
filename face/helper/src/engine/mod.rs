//! The engine under the relays: kernel sockets, or the user-level TCP stack on AF_XDP.
//!
//! - `context`: the event loop of one network thread on either engine
//! - `remote`, `port`: commands for a thread, and the transport that they act on
//! - `privileges`: the capabilities of network threads
//! - `choice`: chooses the engine of a configuration
//! - `status`: the engine of a running helper, for operators
//! - `xdp`: opens the user-level stack on an interface; `xdp_error`: why this may fail

mod choice;
mod context;
mod port;
mod privileges;
mod remote;
mod status;
mod xdp;
mod xdp_error;

pub use choice::{Chosen, EngineState, choose};
pub use context::Context;
pub use port::Port;
pub use remote::Remote;
pub use status::EngineStatus;
pub use xdp::check_addresses;
pub use xdp_error::{AddressProblem, XdpError, unreachable_text};
