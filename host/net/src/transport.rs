//! The commands of an application to its sockets.

use std::net::SocketAddr;

use spillway_transport::{Chunk, Conn, Full, Time, Transport};

use crate::connection::Connection;
use crate::sockets::Sockets;

impl Transport for Sockets {
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        if self.table.is_full() {
            return Err(Full);
        }
        self.start_connecting(now, target).map_err(|_| Full)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        let Some(state) = self.listeners.get_mut(&listener) else { return };
        if state.is_enabled == open {
            return;
        }
        state.is_enabled = open;
        state.retry_at = None;
        if open {
            self.open_listener(listener);
        } else {
            self.close_listener(listener);
        }
        self.note_retry(listener);
    }

    fn room(&self, conn: Conn) -> usize {
        self.table.get(conn).map_or(0, |connection| connection.room(self.config.queued_bytes_max))
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let Some(connection) = self.table.get_mut(conn) else { return 0 };
        let accepted = connection.send(bytes, self.config.queued_bytes_max, &mut self.pool);
        if accepted > 0 {
            self.mark_dirty(conn);
        }
        accepted
    }

    fn want_room(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get_mut(conn) {
            connection.want_room();
        }
    }

    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        let Some(connection) = self.table.get_mut(conn) else { return Err(chunk) };
        connection.send_chunk(chunk, self.config.queued_bytes_max, &mut self.pool)?;
        self.mark_dirty(conn);
        Ok(())
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.pool.chunk()
    }

    fn queued(&self, conn: Conn) -> usize {
        self.table.get(conn).map_or(0, Connection::queued)
    }

    fn held(&self, conn: Conn) -> usize {
        self.table.get(conn).map_or(0, Connection::held)
    }

    fn held_by_all(&self) -> usize {
        self.pool.held_by_all()
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        if let Some(connection) = self.table.get_mut(conn) {
            connection.grant(bytes);
            self.mark_ready(conn);
        }
    }

    fn release(&mut self, _: Conn, _: u64) {
        // Kernel sockets have no acknowledgement gate.
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        if let Some(connection) = self.table.get_mut(conn) {
            connection.watch(on);
            self.watch_soon(conn);
        }
    }

    fn finish(&mut self, conn: Conn) {
        if self.table.get_mut(conn).is_some_and(Connection::finish) {
            self.mark_dirty(conn);
        }
    }

    fn abort(&mut self, conn: Conn) {
        self.reset(conn);
    }
}
