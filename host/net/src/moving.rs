//! Established connections that leave a thread's sockets, and those that come to them.

use std::io;
use std::os::fd::OwnedFd;

use spillway_transport::{Chunk, Conn};

use crate::connection::{Connection, Detached};
use crate::sockets::Sockets;

impl Sockets {
    /// Another descriptor of a connection's socket. `None`: the connection is not established, or has failed.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn socket_of(&self, conn: Conn) -> io::Result<Option<OwnedFd>> {
        let connection = self.table.get(conn).filter(|connection| connection.is_open());
        connection.map(|connection| connection.fd().try_clone()).transpose()
    }

    /// The state of an established connection beside its socket. `None`, as there.
    pub fn detached(&self, conn: Conn) -> Option<Detached> {
        self.table.get(conn).filter(|connection| connection.is_open()).map(Connection::detached)
    }

    /// Takes a connection out of the table, without an event, and closes its socket here: another descriptor
    /// ([`socket_of`](Self::socket_of)) keeps it open.
    pub fn detach(&mut self, conn: Conn) {
        let Some(connection) = self.table.remove(conn) else { return };
        self.epoll.remove(connection.fd());
        if let Some(urgent) = &self.urgent {
            urgent.remove(connection.fd());
        }
        drop(connection.into_socket(&mut self.pool));
    }

    /// Adds an established connection, whose socket must not block, and sets the options that accepted sockets have. No
    /// [`Opened`](spillway_transport::Event::Opened) follows. Offsets of its events count from now on.
    ///
    /// # Errors
    /// The table is full, or the kernel has no memory. The socket is closed.
    pub fn attach(&mut self, socket: OwnedFd, detached: Detached) -> io::Result<Conn> {
        crate::listen::configure(&socket, &self.config)?;
        let Detached { granted, is_finished, queue, has_ended, wants_room, is_watched } = detached;
        let mut connection = Connection::opened(socket);
        if !queue.is_empty() {
            // An empty queue accepts a chunk of any length.
            let _ = connection.send_chunk(Chunk::from(queue), usize::MAX, &mut self.pool);
        }
        connection.resume(granted, is_finished, has_ended, wants_room);
        connection.watch(is_watched);
        connection.note_readable();
        let conn = self.register(connection)?;
        self.mark_dirty(conn);
        self.mark_ready(conn);
        if wants_room {
            self.note(conn);
        }
        Ok(conn)
    }
}
