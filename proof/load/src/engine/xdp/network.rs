//! The stack as a network: streams that the worker uses like sockets.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use spillway_moving_client::{Network, Stream};
use spillway_parts::SlotKey;
use spillway_tcp::Stack;
use spillway_transport::{Time, Transport};
use spillway_xdp::Shared;

use super::streams::Streams;

/// A stack and its streams. Clones share them: the engine and each stream of one thread hold a clone.
#[derive(Clone)]
pub(crate) struct StackNetwork {
    host: Rc<RefCell<Shared<Streams>>>,
    /// Time zero of the stack's clock.
    start: Instant,
}

impl StackNetwork {
    pub(super) fn new(host: Shared<Streams>, start: Instant) -> StackNetwork {
        StackNetwork { host: Rc::new(RefCell::new(host)), start }
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Calls `work` with the stack and its driver's state. `work` must not use a [`StackStream`], which borrows both.
    pub(super) fn with_host<R>(&self, work: impl FnOnce(&mut Shared<Streams>) -> R) -> R {
        work(&mut self.host.borrow_mut())
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Stack, &mut Streams) -> R) -> R {
        let hosted = &mut self.host.borrow_mut().hosted;
        work(&mut hosted.stack, &mut hosted.application)
    }
}

impl fmt::Debug for StackNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackNetwork").finish_non_exhaustive()
    }
}

impl Network for StackNetwork {
    type Stream = StackStream;

    fn connect(&self, target: SocketAddr) -> io::Result<StackStream> {
        let now = self.now();
        let key = self.with(|stack, streams| {
            let conn = stack.connect(now, target).ok()?;
            let key = streams.add(conn);
            if key.is_none() {
                stack.abort(conn);
            }
            key
        });
        let key = key.ok_or_else(|| {
            io::Error::new(io::ErrorKind::AddrNotAvailable, "the stack's ports or connections are all in use")
        })?;
        Ok(StackStream { network: self.clone(), key })
    }
}

/// A connection of the stack. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct StackStream {
    network: StackNetwork,
    key: SlotKey,
}

impl StackStream {
    pub(super) fn key(&self) -> SlotKey {
        self.key
    }
}

impl Stream for StackStream {
    fn is_connected(&self) -> io::Result<bool> {
        self.network.with(|_, streams| streams.is_connected(self.key))
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.network.with(|stack, streams| {
            let conn = streams.conn(self.key)?;
            stack.local_address(conn).ok_or_else(|| io::ErrorKind::NotConnected.into())
        })
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.network.with(|stack, streams| streams.send(self.key, bytes, stack))
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.network.with(|stack, streams| {
            let length_max = buffer.len();
            let take = |bytes: &[u8]| buffer[..bytes.len()].copy_from_slice(bytes);
            streams.receive(self.key, length_max, stack, take)
        })
    }

    fn receive_into(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let length_max = buffer.capacity() - buffer.len();
        self.network.with(|stack, streams| {
            streams.receive(self.key, length_max, stack, |bytes| buffer.extend_from_slice(bytes))
        })
    }

    fn peek(&self) -> io::Result<usize> {
        self.network.with(|_, streams| streams.peek(self.key).map(|waiting| waiting.min(1)))
    }

    fn finish(&self) -> io::Result<()> {
        self.network.with(|stack, streams| {
            stack.finish(streams.conn(self.key)?);
            Ok(())
        })
    }
}

impl Drop for StackStream {
    fn drop(&mut self) {
        self.network.with(|stack, streams| streams.close(self.key, stack));
    }
}
