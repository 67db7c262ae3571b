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
    /// Whether the planted fault of this name is active: it begins at 20 ms, when some connections are idle.
    fn reports_full_memory(&self) -> bool {
        self.network.reports_full_memory && self.network.now >= Time(20_000_000)
    }

    fn check_send(&mut self, conn: Conn, bytes: usize) -> bool {
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
                self.network.conditions.queue_bytes_max.saturating_sub(socket.send_queue.len())
            }
            _ => 0,
        }
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        if !self.check_send(conn, bytes.len()) {
            return 0;
        }
        let accepted = bytes.len().min(self.room(conn));
        if let Some(socket) = self.network.socket_mut(self.host, conn) {
            socket.send_queue.extend(&bytes[..accepted]);
            socket.wants_room |= accepted < bytes.len();
            self.network.hosts[self.host].dirty.push(conn);
        }
        accepted
    }

    fn want_room(&mut self, conn: Conn) {
        if let Some(socket) = self.network.socket_mut(self.host, conn) {
            socket.wants_room = true;
        }
    }

    fn send_chunk(&mut self, conn: Conn, mut chunk: Chunk) -> Result<(), Chunk> {
        if !self.check_send(conn, chunk.len()) {
            return Err(chunk);
        }
        let queue_max = self.network.conditions.queue_bytes_max;
        let Some(socket) = self.network.socket_mut(self.host, conn) else { return Err(chunk) };
        if !socket.send_queue.is_empty() && socket.send_queue.len() + chunk.len() > queue_max {
            socket.wants_room = true;
            return Err(chunk);
        }
        socket.send_queue.extend(chunk.as_slice());
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
        let queued = self.network.socket(self.host, conn).map_or(0, |socket| socket.send_queue.len());
        if self.reports_full_memory() { queued.max(1) } else { queued }
    }

    fn held_by_all(&self) -> usize {
        let sockets = self.network.hosts[self.host].slots.iter().filter_map(|slot| slot.socket.as_ref());
        let held = sockets.map(|socket| socket.send_queue.len()).sum();
        if self.reports_full_memory() { 1 << 40 } else { held }
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        if let Some(socket) = self.network.socket_mut(self.host, conn) {
            socket.granted += u64::from(bytes);
            self.network.mark_ready(self.host, conn);
        }
    }

    /// Does nothing: the simulated network has no gates.
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
