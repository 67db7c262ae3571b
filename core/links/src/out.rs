//! The transport that the wrapped application sees: plain connections, and helped clients.

use core::net::SocketAddr;

use spillway_batch::CloseReason;
use spillway_transport::{Chunk, Conn, Full, Time, Transport};

use crate::clients::{Clients, Finish};
use crate::links::Links;

/// A transport with the helped clients of all links.
pub(crate) struct Out<'a, T> {
    pub(crate) out: &'a mut T,
    pub(crate) links: &'a mut Links,
}

impl<T: Transport> Transport for Out<'_, T> {
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        self.out.connect(now, target)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        self.out.set_listening(listener, open);
    }

    fn room(&self, conn: Conn) -> usize {
        if !Clients::is_helped(conn) {
            return self.out.room(conn);
        }
        self.links.end_of(conn).map_or(0, |(end, id)| end.room(id))
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        if !Clients::is_helped(conn) {
            return self.out.send(conn, bytes);
        }
        self.links.end_of_mut(conn).map_or(0, |(end, id)| end.compose(id, bytes))
    }

    fn want_room(&mut self, conn: Conn) {
        if Clients::is_helped(conn) {
            self.links.want_room(conn);
        } else {
            self.out.want_room(conn);
        }
    }

    /// A helped client takes the chunk if its window has room for all of it.
    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        if !Clients::is_helped(conn) {
            return self.out.send_chunk(conn, chunk);
        }
        match self.links.end_of_mut(conn) {
            Some((end, id)) if end.room(id) >= chunk.len() => {
                let taken = end.compose(id, chunk.as_slice());
                debug_assert_eq!(taken, chunk.len(), "there was room");
                Ok(())
            }
            _ => Err(chunk),
        }
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.out.take_recycled_chunk()
    }

    /// Replies to helped clients wait in the batch of their link: none is queued for one of them.
    fn queued(&self, conn: Conn) -> usize {
        if Clients::is_helped(conn) { 0 } else { self.out.queued(conn) }
    }

    fn held(&self, conn: Conn) -> usize {
        if Clients::is_helped(conn) { 0 } else { self.out.held(conn) }
    }

    fn held_by_all(&self) -> usize {
        self.out.held_by_all()
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        if !Clients::is_helped(conn) {
            return self.out.grant(conn, bytes);
        }
        if let Some(client) = self.links.clients.get_mut(conn) {
            client.granted = client.granted.saturating_add(bytes as usize);
            if client.has_waiting() {
                self.links.ready.push(conn);
            }
        }
    }

    fn release(&mut self, conn: Conn, through: u64) {
        if !Clients::is_helped(conn) {
            self.out.release(conn, through);
        }
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        if !Clients::is_helped(conn) {
            self.out.watch_acknowledged(conn, on);
        }
    }

    fn finish(&mut self, conn: Conn) {
        if !Clients::is_helped(conn) {
            return self.out.finish(conn);
        }
        if let Some((end, id)) = self.links.end_of_mut(conn) {
            end.finish(id);
        }
        if let Some(client) = self.links.clients.get_mut(conn) {
            client.is_finished_here = true;
            if client.finish == Finish::Delivered {
                self.links.ready.push(conn);
            }
        }
    }

    fn abort(&mut self, conn: Conn) {
        if Clients::is_helped(conn) {
            self.links.close(conn, CloseReason::Reset);
        } else {
            self.out.abort(conn);
        }
    }
}
