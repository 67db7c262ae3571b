//! The commands of an application.

use std::net::SocketAddr;

use spillway_transport::{Chunk, Conn, Full, Time, Transport};

use crate::connection::Connection;
use crate::sockets::Sockets;

impl Sockets {
    fn sending(&mut self, conn: Conn) -> Option<&mut Connection> {
        self.table.find(conn).filter(|connection| can_send(connection))
    }
}

fn can_send(connection: &Connection) -> bool {
    !connection.finishing && connection.note_lost.is_none() && connection.broken.is_none()
}

impl Transport for Sockets {
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        if self.table.is_full() {
            return Err(Full);
        }
        self.start_connecting(now, target).map_err(|_| Full)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        let Some(state) = self.listeners.get_mut(&listener) else { return };
        if state.wanted == open {
            return;
        }
        state.wanted = open;
        state.retry = None;
        if open {
            self.open_listener(listener);
        } else {
            self.close_listener(listener);
        }
        self.note_retry(listener);
    }

    fn room(&self, conn: Conn) -> usize {
        match self.table.look(conn) {
            Some(connection) if can_send(connection) => {
                self.config.queued_bytes_max.saturating_sub(connection.out.len())
            }
            _ => 0,
        }
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let limit = self.config.queued_bytes_max;
        let Some(connection) = self.table.find(conn).filter(|connection| can_send(connection)) else {
            return 0;
        };
        let taken = bytes.len().min(limit.saturating_sub(connection.out.len()));
        connection.wants_room |= taken < bytes.len();
        if taken > 0 {
            connection.out.gather(&bytes[..taken], &mut self.pool);
            self.mark_dirty(conn);
        }
        taken
    }

    fn want_room(&mut self, conn: Conn) {
        if let Some(connection) = self.sending(conn) {
            connection.wants_room = true;
        }
    }

    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        let limit = self.config.queued_bytes_max;
        let Some(connection) = self.table.find(conn).filter(|connection| can_send(connection)) else {
            return Err(chunk);
        };
        if !connection.out.is_empty() && connection.out.len() + chunk.len() > limit {
            connection.wants_room = true;
            return Err(chunk);
        }
        connection.out.push(chunk, &mut self.pool);
        self.mark_dirty(conn);
        Ok(())
    }

    fn spent_chunk(&mut self) -> Option<Chunk> {
        self.pool.chunk()
    }

    fn queued(&self, conn: Conn) -> usize {
        self.table.look(conn).map_or(0, |connection| connection.out.len())
    }

    fn held(&self, conn: Conn) -> usize {
        self.table.look(conn).map_or(0, |connection| connection.out.held())
    }

    fn held_by_all(&self) -> usize {
        self.pool.lent()
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        if let Some(connection) = self.table.find(conn) {
            connection.granted = connection.granted.saturating_add(u64::from(bytes));
            self.mark_ready(conn);
        }
    }

    fn release(&mut self, _: Conn, _: u64) {
        // The kernel acknowledges by itself: there is no gate.
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        if let Some(connection) = self.table.find(conn) {
            connection.watched = on;
            self.watch_soon(conn);
        }
    }

    fn finish(&mut self, conn: Conn) {
        if let Some(connection) = self.sending(conn) {
            connection.finishing = true;
            self.mark_dirty(conn);
        }
    }

    fn abort(&mut self, conn: Conn) {
        self.reset(conn);
    }
}
