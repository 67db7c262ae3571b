//! One host's view of the simulated network: an implementation of [`Transport`].

use std::net::SocketAddr;

use spillway_transport::{Chunk, Conn, Full, LostReason, Time, Transport};

use crate::network::Network;
use crate::socket::{HostId, Segment};

/// One host's side of the network.
pub struct Port<'a> {
    /// The network of all hosts.
    pub network: &'a mut Network,
    /// The host whose view this is.
    pub host: HostId,
}

impl Port<'_> {
    /// For canaries. Begins at 20 ms, when some connections are idle.
    fn reports_full_memory(&self) -> bool {
        self.network.reports_full_memory && self.network.now >= Time(20_000_000)
    }

    fn sending(&mut self, conn: Conn, bytes: usize) -> bool {
        let Some(socket) = self.network.socket(self.host, conn) else { return false };
        if socket.finishing && bytes > 0 {
            let what = format!("host {}: {bytes} bytes sent after finish on {conn:?}", self.host);
            self.network.misuse.push(what);
            return false;
        }
        socket.can_send()
    }
}

impl Transport for Port<'_> {
    fn connect(&mut self, _: Time, target: SocketAddr) -> Result<Conn, Full> {
        self.network.connect(self.host, target).ok_or(Full)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        if let Some(listener) = self.network.hosts[self.host].listeners.get_mut(usize::from(listener)) {
            listener.1 = open;
        }
    }

    fn room(&self, conn: Conn) -> usize {
        match self.network.socket(self.host, conn) {
            Some(socket) if socket.can_send() => {
                self.network.weather.queue_bytes_max.saturating_sub(socket.out.len())
            }
            _ => 0,
        }
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        if !self.sending(conn, bytes.len()) {
            return 0;
        }
        let taken = bytes.len().min(self.room(conn));
        if let Some(socket) = self.network.socket_mut(self.host, conn) {
            socket.out.extend(&bytes[..taken]);
            socket.wants_room |= taken < bytes.len();
            self.network.hosts[self.host].dirty.push(conn);
        }
        taken
    }

    fn want_room(&mut self, conn: Conn) {
        if let Some(socket) = self.network.socket_mut(self.host, conn) {
            socket.wants_room = true;
        }
    }

    fn send_chunk(&mut self, conn: Conn, mut chunk: Chunk) -> Result<(), Chunk> {
        if !self.sending(conn, chunk.len()) {
            return Err(chunk);
        }
        let queue_max = self.network.weather.queue_bytes_max;
        let Some(socket) = self.network.socket_mut(self.host, conn) else { return Err(chunk) };
        if !socket.out.is_empty() && socket.out.len() + chunk.len() > queue_max {
            socket.wants_room = true;
            return Err(chunk);
        }
        socket.out.extend(chunk.as_slice());
        chunk.clear();
        let chunks = &mut self.network.hosts[self.host].reusable_chunks;
        if chunks.len() < 16 {
            chunks.push(chunk);
        }
        self.network.hosts[self.host].dirty.push(conn);
        Ok(())
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.network.hosts[self.host].reusable_chunks.pop()
    }

    fn queued(&self, conn: Conn) -> usize {
        let queued = self.network.socket(self.host, conn).map_or(0, |socket| socket.out.len());
        if self.reports_full_memory() { queued.max(1) } else { queued }
    }

    fn held_by_all(&self) -> usize {
        let sockets = self.network.hosts[self.host].slots.iter().filter_map(|slot| slot.socket.as_ref());
        let held = sockets.map(|socket| socket.out.len()).sum();
        if self.reports_full_memory() { 1 << 40 } else { held }
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        if let Some(socket) = self.network.socket_mut(self.host, conn) {
            socket.granted += u64::from(bytes);
            self.network.mark_ready(self.host, conn);
        }
    }

    /// The simulated network gates no acknowledgements.
    fn release(&mut self, _: Conn, _: u64) {}

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        if let Some(socket) = self.network.socket_mut(self.host, conn) {
            socket.watched = on;
            self.network.mark_ready(self.host, conn);
        }
    }

    fn finish(&mut self, conn: Conn) {
        if let Some(socket) = self.network.socket_mut(self.host, conn) {
            socket.finishing = true;
            self.network.hosts[self.host].dirty.push(conn);
        }
    }

    fn abort(&mut self, conn: Conn) {
        self.network.emit(self.host, conn, Segment::Lost(LostReason::Reset));
        self.network.remove(self.host, conn);
    }
}
