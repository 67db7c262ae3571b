//! The transport of one network thread, on either engine.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_net::{BoundListener, Sockets};
use spillway_transport::{Chunk, Conn, Full, Time, Transport};

use crate::listeners::{ListenerKind, ListenerTable};
use crate::log::{Entry, Log};

pub enum Port<'a> {
    Sockets(&'a mut Sockets),
    Xdp(&'a mut spillway_xdp::Port),
}

/// Keep-alive probes without an answer after which a connection ends, as on the helper's kernel sockets.
const KEEP_ALIVE_PROBES: u32 = 3;

impl Port<'_> {
    /// Adds a listener with an index. If that fails, the error is logged, and the index has no listener.
    pub fn put_listener(
        &mut self,
        now: Time,
        (index, listener): (u16, BoundListener),
        kind: ListenerKind,
        log: &Log,
    ) {
        match self {
            Port::Sockets(sockets) => sockets.put_listener(index, listener),
            Port::Xdp(port) => {
                let is_gated = kind == ListenerKind::Plain;
                if let Err(error) = port.put_listener(now, index, listener, is_gated) {
                    log.put(Entry::Listener { error: error.to_string() });
                }
            }
        }
    }

    pub fn drop_listener(&mut self, index: u16) {
        match self {
            Port::Sockets(sockets) => sockets.drop_listener(index),
            Port::Xdp(port) => port.drop_listener(index),
        }
    }

    /// Sets TCP keep-alive from the listeners' settings. The user-level stack has one for all: the shortest.
    pub fn set_keep_alive(&mut self, listeners: &ListenerTable) {
        match self {
            Port::Sockets(sockets) => {
                listeners
                    .iter()
                    .for_each(|(index, listener)| sockets.set_keep_alive(index, listener.keep_alive));
            }
            Port::Xdp(port) => {
                let shortest = listeners.iter().filter_map(|(_, listener)| listener.keep_alive).min();
                port.stack.set_keep_alive(shortest.map(|idle| spillway_tcp::KeepAlive {
                    idle,
                    interval: (idle / 3).max(Duration::from_secs(1)),
                    probes: KEEP_ALIVE_PROBES,
                }));
            }
        }
    }

    /// Sets the maximum number of connections. On the user-level stack, only links may use
    /// `reserved_for_links` of them; on kernel sockets, the relay's limit on clients leaves room for links.
    pub fn set_connections_max(&mut self, connections: usize, reserved_for_links: usize) {
        match self {
            Port::Sockets(sockets) => sockets.set_connections_max(connections),
            Port::Xdp(port) => port.set_connections_max(connections, reserved_for_links),
        }
    }

    /// Sets how long input may wait for the relay's next deadline.
    pub fn set_input_patience(&mut self, patience: Duration) {
        match self {
            Port::Sockets(sockets) => sockets.set_input_patience(patience),
            Port::Xdp(port) => port.set_input_patience(patience),
        }
    }

    /// Counters of the thread's user-level stack; `None` on kernel sockets.
    pub fn figures(&self) -> Option<Box<spillway_xdp::Figures>> {
        match self {
            Port::Sockets(_) => None,
            Port::Xdp(port) => Some(Box::new(port.figures())),
        }
    }

    /// Number of connections, including those being opened.
    pub fn connections(&self) -> usize {
        match self {
            Port::Sockets(sockets) => sockets.connections(),
            Port::Xdp(port) => port.stack.connections(),
        }
    }
}

/// Calls a method of the engine's [`Transport`].
macro_rules! on_engine {
    ($port:ident.$method:ident($($argument:ident),*)) => {
        match $port {
            Port::Sockets(sockets) => sockets.$method($($argument),*),
            Port::Xdp(port) => port.stack.$method($($argument),*),
        }
    };
}

impl Transport for Port<'_> {
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        on_engine!(self.connect(now, target))
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        on_engine!(self.set_listening(listener, open));
    }

    fn room(&self, conn: Conn) -> usize {
        on_engine!(self.room(conn))
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        on_engine!(self.send(conn, bytes))
    }

    fn want_room(&mut self, conn: Conn) {
        on_engine!(self.want_room(conn));
    }

    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        on_engine!(self.send_chunk(conn, chunk))
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        on_engine!(self.take_recycled_chunk())
    }

    fn queued(&self, conn: Conn) -> usize {
        on_engine!(self.queued(conn))
    }

    fn held(&self, conn: Conn) -> usize {
        on_engine!(self.held(conn))
    }

    fn held_by_all(&self) -> usize {
        on_engine!(self.held_by_all())
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        on_engine!(self.grant(conn, bytes));
    }

    fn release(&mut self, conn: Conn, through: u64) {
        on_engine!(self.release(conn, through));
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        on_engine!(self.watch_acknowledged(conn, on));
    }

    fn finish(&mut self, conn: Conn) {
        on_engine!(self.finish(conn));
    }

    fn abort(&mut self, conn: Conn) {
        on_engine!(self.abort(conn));
    }
}
