//! The program of a host as one of its servers sees it. The program knows connections by names, which they keep when they
//! move; a server knows its own connections only.

use spillway_moves::{Arrival, Attachment, Movable, RequestCommand, RequestEvent};
use spillway_transport::{Application, Chunk, Conn, Event, Full, Time, Transport};

use super::directory::Directory;
use super::names::Handle;
use super::planted_fault::PlantedFault;

/// The protocol of attachments: the name of the connection. The program of all servers of a host is one.
const PROTOCOL: &str = "simulated-name";

/// The program, for the length of one call of a server.
pub(super) struct Local<'a, A> {
    pub(super) program: &'a mut A,
    pub(super) directory: &'a mut Directory,
    pub(super) server: usize,
    /// Time on the host's clock; the server's may be ahead.
    pub(super) now: Time,
}

impl<A> Local<'_, A> {
    fn handle_of(&self, conn: Conn) -> Handle {
        Handle { server: self.server, conn }
    }
}

/// The timers and turns of the program are the host's, not those of its servers.
impl<A: Application> Application for Local<'_, A> {
    fn handle<T: Transport>(&mut self, _: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        let handle = self.handle_of(conn);
        if let Event::Opened { peer, listener: Some(listener) } = event {
            self.directory.add_accepted(handle, peer, listener);
        }
        let Some(name) = self.directory.names.name(handle) else {
            let what = format!("{event:?} of {conn:?}, which was never opened");
            return self.directory.violations.push(what);
        };
        if let Event::Lost(_) = event {
            self.directory.end(name);
        }
        let mut named = Named { out, directory: self.directory, server: self.server };
        self.program.handle(self.now, name, event, &mut named);
    }

    fn handle_timeout<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

impl<A: Application> Movable for Local<'_, A> {
    fn is_at_safe_point(&self, _: Conn) -> bool {
        self.directory.moves.is_at_safe_point()
    }

    fn leave(&mut self, _: Time, conn: Conn) -> Option<Attachment> {
        let Some(name) = self.directory.names.name(self.handle_of(conn)) else {
            self.directory.violations.push(format!("{conn:?} leaves, but was never opened"));
            return None;
        };
        self.directory.depart(name);
        Attachment::new(PROTOCOL, name.slot.to_be_bytes().to_vec()).ok()
    }

    fn knows_protocol(&self, protocol: &str) -> bool {
        protocol == PROTOCOL
    }

    fn on_migrated<T: Transport>(&mut self, _: Time, conn: Conn, arrival: &Arrival<'_>, out: &mut T) {
        let bytes = arrival.attachment.and_then(|attachment| attachment.bytes()[..].try_into().ok());
        let Some(slot) = bytes.map(u32::from_be_bytes) else {
            let what = format!("{conn:?} arrives with the attachment {:?}", arrival.attachment);
            return self.directory.violations.push(what);
        };
        let (name, handle) = (Conn { slot, generation: 0 }, self.handle_of(conn));
        if self.directory.moves.has_planted(PlantedFault::ReplaySeal) {
            self.directory.arrive(name, handle, arrival.is_return);
        }
        if let Some(transit) = self.directory.arrive(name, handle, arrival.is_return) {
            transit.apply(out, conn);
        }
        if !arrival.is_return {
            let violation = self.directory.requests.arrive(name, self.server, arrival.request.as_ref());
            self.directory.violations.extend(violation);
        }
    }

    fn serves_requests(&self) -> bool {
        true
    }

    fn poll_request_command(&mut self, _: Time) -> Option<(Conn, RequestCommand)> {
        let command = self.directory.requests.next_command(self.server, &self.directory.names);
        self.directory.violations.append(&mut self.directory.requests.violations);
        command
    }

    fn on_request<T: Transport>(&mut self, _: Time, event: RequestEvent, _: &mut T) {
        match event {
            RequestEvent::Stays { conn, .. } => {
                let name = self.directory.names.name(self.handle_of(conn));
                self.directory.requests.stay(name, self.server);
            }
            RequestEvent::Ended { number, outcome, .. } => {
                let violation = self.directory.requests.end(self.server, number, outcome);
                self.directory.violations.extend(violation);
            }
        }
    }
}

/// A server's connections by the program's names, while the program handles an event of one of them.
struct Named<'a, T> {
    out: &'a mut T,
    directory: &'a mut Directory,
    server: usize,
}

impl<T: Transport> Named<'_, T> {
    fn conn(&self, name: Conn) -> Option<Conn> {
        let handle = self.directory.names.handle(name)?;
        debug_assert!(handle.server == self.server, "the program handles an event of another connection");
        Some(handle.conn)
    }
}

impl<T: Transport> Transport for Named<'_, T> {
    /// The program opens connections when its timers are due, not in events.
    fn connect(&mut self, _: Time, _: std::net::SocketAddr) -> Result<Conn, Full> {
        Err(Full)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        self.out.set_listening(listener, open);
    }

    fn room(&self, name: Conn) -> usize {
        self.conn(name).map_or(0, |conn| self.out.room(conn))
    }

    fn send(&mut self, name: Conn, bytes: &[u8]) -> usize {
        self.conn(name).map_or(0, |conn| self.out.send(conn, bytes))
    }

    fn want_room(&mut self, name: Conn) {
        if let Some(conn) = self.conn(name) {
            self.out.want_room(conn);
        }
    }

    fn send_chunk(&mut self, name: Conn, chunk: Chunk) -> Result<(), Chunk> {
        match self.conn(name) {
            Some(conn) => self.out.send_chunk(conn, chunk),
            None => Err(chunk),
        }
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.out.take_recycled_chunk()
    }

    fn queued(&self, name: Conn) -> usize {
        self.conn(name).map_or(0, |conn| self.out.queued(conn))
    }

    fn held(&self, name: Conn) -> usize {
        self.conn(name).map_or(0, |conn| self.out.held(conn))
    }

    fn held_by_all(&self) -> usize {
        self.out.held_by_all()
    }

    fn grant(&mut self, name: Conn, bytes: u32) {
        if let Some(conn) = self.conn(name) {
            self.out.grant(conn, bytes);
        }
    }

    fn release(&mut self, name: Conn, through: u64) {
        if let Some(conn) = self.conn(name) {
            self.out.release(conn, through);
        }
    }

    fn watch_acknowledged(&mut self, name: Conn, on: bool) {
        if let Some(conn) = self.conn(name) {
            self.out.watch_acknowledged(conn, on);
        }
    }

    fn finish(&mut self, name: Conn) {
        if let Some(conn) = self.conn(name) {
            self.out.finish(conn);
        }
    }

    fn abort(&mut self, name: Conn) {
        if let Some(conn) = self.conn(name) {
            self.out.abort(conn);
            self.directory.end(name);
        }
    }
}
