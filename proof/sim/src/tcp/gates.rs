//! What gated applications have received and released: the bound of their stack's acknowledgements.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// A gated connection, in offsets of the incoming stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    /// Bytes delivered to the application, without the end.
    pub(crate) received: u64,
    /// Bytes that the application has released; one more than the stream's length includes the end.
    pub(crate) released: u64,
}

/// By local address and peer address.
#[derive(Debug, Default)]
pub(crate) struct Gates(BTreeMap<(SocketAddr, SocketAddr), Gate>);

/// Shared by the programs and the sniffer.
pub(crate) type SharedGates = Rc<RefCell<Gates>>;

impl Gates {
    /// Begins a connection, in the place of an earlier one with the same ends.
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
