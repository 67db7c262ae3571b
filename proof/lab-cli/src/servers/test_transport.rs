//! A transport whose room the test sets.

use std::net::SocketAddr;

use spillway_transport::{Chunk, Conn, Full, Time, Transport};

/// Records what an application does. All connections share the room.
#[derive(Debug, Default)]
pub(super) struct TestTransport {
    /// Bytes that `send` still takes.
    pub(super) room: usize,
    pub(super) sent: Vec<u8>,
    /// The sum of all grants.
    pub(super) granted: u64,
    pub(super) aborted: Vec<Conn>,
    pub(super) finished: Vec<Conn>,
}

impl Transport for TestTransport {
    fn connect(&mut self, _: Time, _: SocketAddr) -> Result<Conn, Full> {
        Err(Full)
    }

    fn set_listening(&mut self, _: u16, _: bool) {}

    fn room(&self, _: Conn) -> usize {
        self.room
    }

    fn send(&mut self, _: Conn, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room);
        self.room -= count;
        self.sent.extend_from_slice(&bytes[..count]);
        count
    }

    fn want_room(&mut self, _: Conn) {}

    fn send_chunk(&mut self, _: Conn, chunk: Chunk) -> Result<(), Chunk> {
        Err(chunk)
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        None
    }

    fn queued(&self, _: Conn) -> usize {
        0
    }

    fn grant(&mut self, _: Conn, bytes: u32) {
        self.granted += u64::from(bytes);
    }

    fn release(&mut self, _: Conn, _: u64) {}

    fn watch_acknowledged(&mut self, _: Conn, _: bool) {}

    fn finish(&mut self, conn: Conn) {
        self.finished.push(conn);
    }

    fn abort(&mut self, conn: Conn) {
        self.aborted.push(conn);
    }
}
