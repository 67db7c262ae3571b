//! The bytes that gated applications have received and released. They bound what the stacks may acknowledge.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// A gated connection; both fields are offsets of its incoming stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    /// Bytes delivered to the application, without the end of the stream.
    pub(crate) received: u64,
    /// Bytes that the application has released; the end of the stream counts as one byte.
    pub(crate) released: u64,
}

/// All gated connections, by local address and peer address.
#[derive(Debug, Default)]
pub(crate) struct Gates(BTreeMap<(SocketAddr, SocketAddr), Gate>);

/// Shared by the programs and the sniffer.
pub(crate) type SharedGates = Rc<RefCell<Gates>>;

impl Gates {
    /// Begins a connection; replaces an earlier one with the same ends.
    pub(crate) fn begin(&mut self, local: SocketAddr, peer: SocketAddr) {
        self.0.insert((local, peer), Gate::default());
    }

    pub(crate) fn get_mut(&mut self, local: SocketAddr, peer: SocketAddr) -> Option<&mut Gate> {
        self.0.get_mut(&(local, peer))
    }

    pub(crate) fn get(&self, local: SocketAddr, peer: SocketAddr) -> Gate {
        self.0.get(&(local, peer)).copied().unwrap_or_default()
    }
}
