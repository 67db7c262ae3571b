//! What applications have released of what came: how far acknowledgements may go where there is a gate.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// One connection at a gate, in offsets of the stream that comes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    /// The application was told of so many bytes, the end not counted.
    pub(crate) came: u64,
    /// It has released so many; one more than the stream has: the end, too.
    pub(crate) released: u64,
}

/// By our end and the peer's.
#[derive(Debug, Default)]
pub(crate) struct Gates(BTreeMap<(SocketAddr, SocketAddr), Gate>);

/// Shared by the programs and the sniffer.
pub(crate) type SharedGates = Rc<RefCell<Gates>>;

impl Gates {
    /// A connection begins; one of before with the same ends is over.
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
