//! A host's servers as one transport: what the program does reaches the stack that has the connection. While the
//! connection moves, it waits.

use std::net::SocketAddr;

use spillway_transport::{Chunk, Conn, Full, Time, Transport};

use super::names::Handle;
use super::rack::Rack;

impl Transport for Rack {
    /// Only the first stack opens connections, because it has the host's address.
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        let server = &mut self.servers[0];
        let conn = server.stack.connect(server.time(now), target)?;
        let local = server.stack.local_address(conn);
        let name = self.names.add(Handle { server: 0, conn });
        match local {
            Some(local) => _ = self.opened.insert((local, target), name),
            None => self.violations.push(format!("{name:?} has no address")),
        }
        Ok(name)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        // Clients connect to the services' addresses, which only the first stack has.
        self.servers[0].stack.set_listening(listener, open);
    }

    fn room(&self, name: Conn) -> usize {
        self.names.handle(name).map_or(0, |at| self.servers[at.server].stack.room(at.conn))
    }

    fn send(&mut self, name: Conn, bytes: &[u8]) -> usize {
        match self.stack_of(name) {
            Some((stack, conn)) => stack.send(conn, bytes),
            None => {
                self.want_room(name);
                0
            }
        }
    }

    fn want_room(&mut self, name: Conn) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.want_room(conn);
        } else if let Some(transit) = self.transits.get_mut(&name) {
            transit.want_room();
        }
    }

    fn send_chunk(&mut self, name: Conn, chunk: Chunk) -> Result<(), Chunk> {
        match self.stack_of(name) {
            Some((stack, conn)) => stack.send_chunk(conn, chunk),
            None => Err(chunk),
        }
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.servers.iter_mut().find_map(|server| server.stack.take_recycled_chunk())
    }

    fn queued(&self, name: Conn) -> usize {
        self.names.handle(name).map_or(0, |at| self.servers[at.server].stack.queued(at.conn))
    }

    fn held(&self, name: Conn) -> usize {
        self.names.handle(name).map_or(0, |at| self.servers[at.server].stack.held(at.conn))
    }

    fn held_by_all(&self) -> usize {
        self.servers.iter().map(|server| server.stack.held_by_all()).sum()
    }

    fn grant(&mut self, name: Conn, bytes: u32) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.grant(conn, bytes);
        } else if let Some(transit) = self.transits.get_mut(&name) {
            transit.grant(bytes);
        }
    }

    fn release(&mut self, name: Conn, through: u64) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.release(conn, through);
        } else if let Some(transit) = self.transits.get_mut(&name) {
            transit.release(through);
        }
    }

    fn watch_acknowledged(&mut self, name: Conn, on: bool) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.watch_acknowledged(conn, on);
        } else if let Some(transit) = self.transits.get_mut(&name) {
            transit.watch(on);
        }
    }

    fn finish(&mut self, name: Conn) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.finish(conn);
        } else if let Some(transit) = self.transits.get_mut(&name) {
            transit.finish();
        }
    }

    fn abort(&mut self, name: Conn) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.abort(conn);
            // The reset may be lost: the release waits, as after an orderly end.
            let now = self.latest;
            self.end_connection(now, name);
        } else if let Some(transit) = self.transits.get_mut(&name) {
            transit.abort();
        }
    }
}
