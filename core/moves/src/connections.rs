//! The stack with the flows of its connections: what the application sends and receives through.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_tcp::{ExportError, ImportError, Importable, Stack};
use spillway_transport::{Chunk, Conn, Full, Time, Transport};
use spillway_wire::Chunks;
use spillway_wire::handoff::Reason;
use spillway_wire::state::{Attachment, ConnectionState, HandedRequest, StateError};
use spillway_wire::switch::{Endpoint, Flow};

/// A state with this number of bytes to send is accepted also if this server's send buffer is smaller: the buffer of the
/// source may be larger.
const QUEUE_BYTES_ACCEPTED: usize = 1 << 20;

/// The stack, and which connections belong to flows of a service.
#[derive(Debug)]
pub struct Connections {
    stack: Stack,
    /// The services' endpoints, by the index of their listeners.
    services: Vec<Endpoint>,
    flows: BTreeMap<Conn, Flow>,
    /// The inverse of `flows`.
    conns: BTreeMap<Flow, Conn>,
    /// Connections that the application has aborted since the last [`take_aborted`](Self::take_aborted).
    aborted: Vec<(Conn, Flow)>,
}

impl Connections {
    /// `services`: the endpoint to which clients of each listener connect, by the listener's index.
    pub(crate) fn new(stack: Stack, services: Vec<Endpoint>) -> Connections {
        Connections { stack, services, flows: BTreeMap::new(), conns: BTreeMap::new(), aborted: Vec::new() }
    }

    /// The stack.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The stack, for the driver: its next hops, errors and limits.
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// The number of connections, without half-open ones: those have places of their own, and may be forged.
    pub fn established(&self) -> usize {
        self.stack.connections().saturating_sub(self.stack.half_open_connections())
    }

    /// The flow of a connection that a client of a service has opened.
    pub fn flow(&self, conn: Conn) -> Option<Flow> {
        self.flows.get(&conn).copied()
    }

    /// As [`flow`](Self::flow), also of a connection that was aborted since the last [`take_aborted`](Self::take_aborted).
    pub(crate) fn flow_until_taken(&self, conn: Conn) -> Option<Flow> {
        let aborted = || self.aborted.iter().find(|(aborted, _)| *aborted == conn).map(|(_, flow)| *flow);
        self.flow(conn).or_else(aborted)
    }

    /// Whether the application has aborted connections since the last [`take_aborted`](Self::take_aborted).
    pub(crate) fn has_aborted(&self) -> bool {
        !self.aborted.is_empty()
    }

    /// The connection of a flow, if it is here.
    pub fn conn(&self, flow: &Flow) -> Option<Conn> {
        self.conns.get(flow).copied()
    }

    /// The flows whose connections are here.
    pub fn flows(&self) -> impl Iterator<Item = Flow> {
        self.conns.keys().copied()
    }

    /// The driver has exported the connection `old` from the stack, and the stack has it again as `new`.
    pub fn replaced(&mut self, old: Conn, new: Conn) {
        if let Some(flow) = self.remove(old) {
            self.insert(new, flow);
        }
    }

    /// A client has opened a connection.
    pub(crate) fn add(&mut self, conn: Conn, peer: SocketAddr, listener: u16) {
        let service = self.services.get(usize::from(listener)).copied();
        if let Some(flow) = service.and_then(|service| Flow::new(peer.into(), service).ok()) {
            self.insert(conn, flow);
        }
    }

    fn insert(&mut self, conn: Conn, flow: Flow) {
        self.flows.insert(conn, flow);
        // A client may use its port again before the old connection has ended here.
        if let Some(older) = self.conns.insert(flow, conn).filter(|older| *older != conn) {
            self.flows.remove(&older);
        }
    }

    /// A connection has ended, or has left.
    pub(crate) fn remove(&mut self, conn: Conn) -> Option<Flow> {
        let flow = self.flows.remove(&conn)?;
        self.conns.remove(&flow);
        Some(flow)
    }

    /// Flows whose connections the application has aborted.
    pub(crate) fn take_aborted(&mut self) -> Vec<Flow> {
        core::mem::take(&mut self.aborted).into_iter().map(|(_, flow)| flow).collect()
    }

    /// Removes a connection from the stack. Returns its state.
    pub(crate) fn export(&mut self, now: Time, conn: Conn) -> Result<ConnectionState, ExportError> {
        let state = self.stack.export(now, conn)?;
        self.remove(conn);
        Ok(state)
    }

    /// An exported connection has ended, or is lost: the stack answers its segments by resets. `place`: where this server
    /// has connections of the flow's service.
    pub(crate) fn end_exported(&mut self, now: Time, flow: Flow, place: Endpoint) {
        if let Some(flow) = spillway_tcp::Flow::new(place.into(), flow.client().into()) {
            self.stack.end_exported(now, flow);
        }
    }

    /// Reads the state of a connection that comes from another server: as [`read`](Self::read), and its queue must not be too
    /// long.
    pub(crate) fn read_coming(
        &mut self,
        now: Time,
        state: &Chunks,
        ends: (&Flow, Endpoint),
    ) -> Result<ExportedConnection, Reason> {
        let connection = self.read(now, state, ends)?;
        // A source could otherwise fill this server's memory: 16 MiB for each connection.
        if connection.queued > self.stack.settings().send_buffer_bytes.max(QUEUE_BYTES_ACCEPTED) {
            return Err(Reason::TooLarge);
        }
        Ok(connection)
    }

    /// Reads a state, and checks that it is that of the flow's connection, and that the stack can import it at this server's
    /// place of the service.
    pub(crate) fn read(
        &mut self,
        now: Time,
        state: &Chunks,
        (flow, place): (&Flow, Endpoint),
    ) -> Result<ExportedConnection, Reason> {
        let state = ConnectionState::decode(state).map_err(|error| match error {
            StateError::Version(_) => Reason::Version,
            StateError::Features(_) => Reason::Feature,
            StateError::TooMany(_) => Reason::TooLarge,
            _ => Reason::Damaged,
        })?;
        // The switch lets the source move this flow only, not that of another client.
        if Endpoint::from(state.peer) != flow.client() {
            return Err(Reason::Invalid);
        }
        let state = ConnectionState { local: place.into(), ..state };
        let importable = self.stack.check_import(now, &state).map_err(|error| match error {
            ImportError::Full => Reason::NoRoom,
            ImportError::Family => Reason::Family,
            ImportError::TooMuch(_) => Reason::TooLarge,
            ImportError::Present | ImportError::Contradiction(_) => Reason::Invalid,
        })?;
        let ConnectionState { peer, listener, attachment, request, sending, .. } = state;
        let queued = sending.queue.len();
        Ok(ExportedConnection { importable, peer, listener, attachment, request, queued })
    }

    /// Imports a connection. `None` if the stack cannot import it any more.
    pub(crate) fn import(&mut self, now: Time, flow: Flow, importable: Importable) -> Option<Conn> {
        let conn = self.stack.import_checked(now, importable).ok()?;
        self.insert(conn, flow);
        Some(conn)
    }
}

/// A connection that a server has exported, and that the stack can import.
#[derive(Debug)]
pub(crate) struct ExportedConnection {
    pub(crate) importable: Importable,
    pub(crate) peer: SocketAddr,
    pub(crate) listener: Option<u16>,
    pub(crate) attachment: Option<Attachment>,
    pub(crate) request: Option<HandedRequest>,
    /// Bytes to send.
    queued: usize,
}

impl Transport for Connections {
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        self.stack.connect(now, target)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        self.stack.set_listening(listener, open);
    }

    fn room(&self, conn: Conn) -> usize {
        self.stack.room(conn)
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        self.stack.send(conn, bytes)
    }

    fn want_room(&mut self, conn: Conn) {
        self.stack.want_room(conn);
    }

    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        self.stack.send_chunk(conn, chunk)
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.stack.take_recycled_chunk()
    }

    fn queued(&self, conn: Conn) -> usize {
        self.stack.queued(conn)
    }

    fn held(&self, conn: Conn) -> usize {
        self.stack.held(conn)
    }

    fn held_by_all(&self) -> usize {
        self.stack.held_by_all()
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        self.stack.grant(conn, bytes);
    }

    fn release(&mut self, conn: Conn, through: u64) {
        self.stack.release(conn, through);
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        self.stack.watch_acknowledged(conn, on);
    }

    fn finish(&mut self, conn: Conn) {
        self.stack.finish(conn);
    }

    fn abort(&mut self, conn: Conn) {
        self.stack.abort(conn);
        // No event follows, but the agent must learn that the connection has ended.
        let flow = self.remove(conn);
        self.aborted.extend(flow.map(|flow| (conn, flow)));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use spillway_tcp::{Listener, Settings, isn};
    use spillway_wire::packet::ethernet::Mac;
    use spillway_wire::state::{Agreed, Finish, Receiving, Sending, Stage};

    use super::*;

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A connection of a client, with this number of bytes to send.
    fn state_of(client: &str, queued: usize) -> Chunks {
        let sending = Sending {
            initial: 7,
            una: 1,
            nxt: 1,
            window: 1000,
            window_largest: 1000,
            window_update: None,
            scale: 0,
            finish: Finish::No,
            wants_room: false,
            is_watched: false,
            reported_acknowledged: 0,
            queue: vec![7; queued].into(),
        };
        let receiving = Receiving {
            initial: 8,
            next: 1,
            granted: 1000,
            edge: 1000,
            window_largest: 1000,
            scale: 0,
            fin: None,
            reported_finished: false,
            gate: None,
            acknowledged: 1,
            owes: false,
            late: vec![],
        };
        let state = ConnectionState {
            local: end("10.0.0.1:80"),
            peer: end(client),
            stage: Stage::Established,
            listener: Some(0),
            sending,
            receiving,
            agreed: Agreed { mss: 1460, has_sack: false, stamps: None },
            received_age_ns: 0,
            recovery: None,
            attachment: None,
            request: None,
            socket_options: None,
        };
        state.encode()
    }

    /// A server with a send buffer of this size, and the ends of the flow of 10.0.0.2:1000.
    fn server(send_buffer_bytes: usize) -> (Connections, (Flow, Endpoint)) {
        let (service, place) = (end("10.0.0.1:80"), end("10.0.0.3:8080"));
        let settings = Settings::new(Mac([2, 0, 0, 0, 0, 3]), place.ip(), 8, isn::Key([3; 16]));
        let listeners = vec![Listener { address: place, is_gated: false }];
        let stack = Stack::new(NOW, Settings { listeners, send_buffer_bytes, ..settings }).unwrap();
        let flow = Flow::new(end("10.0.0.2:1000").into(), service.into()).unwrap();
        (Connections::new(stack, vec![service.into()]), (flow, place.into()))
    }

    const NOW: Time = Time(1_000);

    #[test]
    fn the_state_of_another_clients_connection_is_refused() {
        let (mut connections, (flow, place)) = server(10_000);
        let mut check = |client| {
            let state = state_of(client, 0);
            connections.read_coming(NOW, &state, (&flow, place)).map(|connection| connection.peer)
        };
        assert_eq!(check("10.0.0.2:1000"), Ok(end("10.0.0.2:1000")));
        for client in ["10.0.0.2:1001", "10.0.0.9:1000", "[2001:db8::2]:1000"] {
            assert_eq!(check(client), Err(Reason::Invalid), "{client}");
        }
    }

    /// A connection that comes back is one of this server: its application has queued the bytes here.
    #[test]
    fn a_state_with_more_bytes_to_send_than_a_server_would_queue_is_refused_unless_it_comes_back() {
        for (send_buffer_bytes, queued_max) in [(10_000, 1 << 20), (2 << 20, 2 << 20)] {
            let (mut connections, (flow, place)) = server(send_buffer_bytes);
            let [longest, longer] = [0, 1].map(|more| state_of("10.0.0.2:1000", queued_max + more));
            let ends = (&flow, place);
            assert!(connections.read_coming(NOW, &longest, ends).is_ok());
            assert_eq!(connections.read_coming(NOW, &longer, ends).err(), Some(Reason::TooLarge));
            assert!(connections.read(NOW, &longer, ends).is_ok());
        }
    }
}
