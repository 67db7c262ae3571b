//! The application's commands, which go to the sockets.

use std::net::SocketAddr;

use spillway_transport::{Chunk, Conn, Full, Time, Transport};

use crate::tcp::KernelTcp;

impl Transport for KernelTcp {
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        self.context.sockets_mut().connect(now, target)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        self.context.sockets_mut().set_listening(listener, open);
    }

    fn room(&self, conn: Conn) -> usize {
        self.context.sockets().room(conn)
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        self.context.sockets_mut().send(conn, bytes)
    }

    fn want_room(&mut self, conn: Conn) {
        self.context.sockets_mut().want_room(conn);
    }

    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        self.context.sockets_mut().send_chunk(conn, chunk)
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.context.sockets_mut().take_recycled_chunk()
    }

    fn queued(&self, conn: Conn) -> usize {
        self.context.sockets().queued(conn)
    }

    fn held(&self, conn: Conn) -> usize {
        self.context.sockets().held(conn)
    }

    fn held_by_all(&self) -> usize {
        self.context.sockets().held_by_all()
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        self.context.sockets_mut().grant(conn, bytes);
    }

    fn release(&mut self, conn: Conn, through: u64) {
        self.context.sockets_mut().release(conn, through);
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        self.context.sockets_mut().watch_acknowledged(conn, on);
    }

    fn finish(&mut self, conn: Conn) {
        self.context.sockets_mut().finish(conn);
    }

    fn abort(&mut self, conn: Conn) {
        self.lifetimes.forget(conn);
        // No event follows, not even one that has been read already.
        self.context.app_mut().0.retain(|(other, _)| *other != conn);
        self.context.sockets_mut().abort(conn);
    }
}
