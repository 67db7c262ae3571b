//! A host's servers as one transport: what the program does reaches the server that has the connection. While the
//! connection moves, it waits.

use std::net::SocketAddr;

use spillway_moves::Connections;
use spillway_transport::{Chunk, Conn, Full, Time, Transport};

use super::names::Handle;
use super::rack::Rack;
use super::transit::Transit;

impl Rack {
    fn at(&self, name: Conn) -> Option<(&Connections, Conn)> {
        let Handle { server, conn } = self.directory.names.handle(name)?;
        Some((self.members[server].server.connections(), conn))
    }

    fn at_mut(&mut self, name: Conn) -> Option<(&mut Connections, Conn)> {
        let Handle { server, conn } = self.directory.names.handle(name)?;
        Some((self.members[server].server.connections_mut(), conn))
    }

    /// Does something with a connection at its server, or, if the connection is on its way, keeps it for the next server.
    fn act(
        &mut self,
        name: Conn,
        here: impl FnOnce(&mut Connections, Conn),
        on_its_way: impl FnOnce(&mut Transit),
    ) {
        if let Some((connections, conn)) = self.at_mut(name) {
            here(connections, conn);
        } else if let Some(transit) = self.directory.transits.get_mut(&name) {
            on_its_way(transit);
        }
    }
}

impl Transport for Rack {
    /// Only the first server opens connections, because it has the host's address.
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        let member = &mut self.members[0];
        let server_now = member.time(now);
        let conn = member.server.connections_mut().connect(server_now, target)?;
        let handle = Handle { server: 0, conn };
        match member.stack().local_address(conn) {
            Some(local) => Ok(self.directory.add_opened(handle, (local, target))),
            None => {
                self.directory.violations.push(format!("{conn:?} has no address"));
                Err(Full)
            }
        }
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        // Clients connect to the services' addresses, which only the first server has.
        self.members[0].server.connections_mut().set_listening(listener, open);
    }

    fn room(&self, name: Conn) -> usize {
        self.at(name).map_or(0, |(connections, conn)| connections.room(conn))
    }

    fn send(&mut self, name: Conn, bytes: &[u8]) -> usize {
        match self.at_mut(name) {
            Some((connections, conn)) => connections.send(conn, bytes),
            None => {
                self.want_room(name);
                0
            }
        }
    }

    fn want_room(&mut self, name: Conn) {
        self.act(name, |connections, conn| connections.want_room(conn), Transit::want_room);
    }

    fn send_chunk(&mut self, name: Conn, chunk: Chunk) -> Result<(), Chunk> {
        match self.at_mut(name) {
            Some((connections, conn)) => connections.send_chunk(conn, chunk),
            None => Err(chunk),
        }
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.members.iter_mut().find_map(|member| member.stack_mut().take_recycled_chunk())
    }

    fn queued(&self, name: Conn) -> usize {
        self.at(name).map_or(0, |(connections, conn)| connections.queued(conn))
    }

    fn held(&self, name: Conn) -> usize {
        self.at(name).map_or(0, |(connections, conn)| connections.held(conn))
    }

    fn held_by_all(&self) -> usize {
        self.members.iter().map(|member| member.stack().held_by_all()).sum()
    }

    fn grant(&mut self, name: Conn, bytes: u32) {
        self.act(name, |connections, conn| connections.grant(conn, bytes), |transit| transit.grant(bytes));
    }

    fn release(&mut self, name: Conn, through: u64) {
        self.act(
            name,
            |connections, conn| connections.release(conn, through),
            |transit| transit.release(through),
        );
    }

    fn watch_acknowledged(&mut self, name: Conn, on: bool) {
        self.act(
            name,
            |connections, conn| connections.watch_acknowledged(conn, on),
            |transit| transit.watch(on),
        );
    }

    fn finish(&mut self, name: Conn) {
        self.act(name, |connections, conn| connections.finish(conn), Transit::finish);
    }

    fn abort(&mut self, name: Conn) {
        self.act(name, |connections, conn| connections.abort(conn), Transit::abort);
        if self.directory.names.handle(name).is_some() {
            self.directory.end(name);
        }
    }
}
