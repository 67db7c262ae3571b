//! Flows for tests.

use core::net::SocketAddr;

use spillway_wire::switch::{Flow, Site};

use spillway_wire::packet::ethernet::Mac;

/// The flow of a client with this port.
pub(crate) fn flow(port: u16) -> Flow {
    let end = |last, port| SocketAddr::from(([10, 0, 0, last], port)).into();
    Flow::new(end(2, port), end(1, 80)).unwrap()
}

pub(crate) fn site() -> Site {
    Site::new(flow(1).service(), Mac([2, 0, 0, 0, 0, 9])).unwrap()
}
