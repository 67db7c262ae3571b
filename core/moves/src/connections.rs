//! A TCP with the flows of its connections: what the application sends and receives through.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_tcp::Stack;
use spillway_transport::{Chunk, Conn, Full, Time, Transport};
use spillway_wire::Chunks;
use spillway_wire::handoff::Reason;
use spillway_wire::state::{Attachment, ConnectionState, HandedRequest, StateError};
use spillway_wire::switch::{Endpoint, Flow};

use crate::tcp::{ConnectionEnds, Tcp};

/// A state with this number of bytes to send is accepted also if this server's send buffer is smaller: the buffer of the
/// source may be larger.
const QUEUE_BYTES_ACCEPTED: usize = 1 << 20;

/// The TCP of a server, and which connections belong to flows of a service.
#[derive(Debug)]
pub struct Connections<S = Stack> {
    tcp: S,
    /// The services' endpoints, by the index of their listeners.
    services: Vec<Endpoint>,
    flows: BTreeMap<Conn, Flow>,
    /// The inverse of `flows`.
    conns: BTreeMap<Flow, Conn>,
    /// Connections that the application has aborted since the last [`take_aborted`](Self::take_aborted).
    aborted: Vec<(Conn, Flow)>,
}

impl<S: Tcp> Connections<S> {
    /// `services`: the endpoint to which clients of each listener connect, by the listener's index.
    pub(crate) fn new(tcp: S, services: Vec<Endpoint>) -> Connections<S> {
        Connections { tcp, services, flows: BTreeMap::new(), conns: BTreeMap::new(), aborted: Vec::new() }
    }

    /// The TCP.
    pub fn stack(&self) -> &S {
        &self.tcp
    }

    /// The TCP, for the driver: its next hops, errors and limits.
    pub fn stack_mut(&mut self) -> &mut S {
        &mut self.tcp
    }

    /// The number of connections, without half-open ones: those have places of their own, and may be forged.
    pub fn established(&self) -> usize {
        self.tcp.established()
    }

    /// The flow of a connection that a client of a service has opened.
    pub fn flow(&self, conn: Conn) -> Option<Flow> {
        self.flows.get(&conn).copied()
    }

    /// The flow of a client's connection to the service that listener 0 has here.
    pub(crate) fn flow_of(&self, ends: ConnectionEnds) -> Option<Flow> {
        Flow::new(ends.peer.into(), *self.services.first()?).ok()
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

    /// Removes a connection from the TCP. Returns its state; `None` if it cannot be exported.
    pub(crate) fn export(&mut self, now: Time, conn: Conn) -> Option<ConnectionState> {
        let state = self.tcp.export(now, conn)?;
        self.remove(conn);
        Some(state)
    }

    /// Ends a connection without a segment. Returns false if it has ended already.
    pub(crate) fn discard(&mut self, now: Time, conn: Conn) -> bool {
        let is_discarded = self.tcp.discard(now, conn);
        if is_discarded {
            self.remove(conn);
        }
        is_discarded
    }

    /// Checks the state of a connection that comes from another server, at this server's place of the service. Its queue must
    /// not be too long.
    pub(crate) fn check(
        &mut self,
        now: Time,
        state: &Chunks,
        ends: (&Flow, Endpoint),
    ) -> Result<ComingConnection<S::Checked>, Reason> {
        let state = read(state, ends)?;
        // A source could otherwise fill this server's memory: 16 MiB for each connection.
        if state.sending.queue.len() > self.tcp.queue_bytes_max().max(QUEUE_BYTES_ACCEPTED) {
            return Err(Reason::TooLarge);
        }
        let checked = self.tcp.check(now, &state)?;
        Ok(ComingConnection { checked, about: About::of(state) })
    }

    /// Imports a connection that comes from another server. `None` if this is not possible any more.
    pub(crate) fn import(&mut self, now: Time, flow: Flow, checked: S::Checked) -> Option<Conn> {
        let conn = self.tcp.import(now, checked)?;
        self.insert(conn, flow);
        Some(conn)
    }

    /// Continues a connection that was exported here and has not moved. `None` if this is not possible.
    pub(crate) fn take_back(
        &mut self,
        now: Time,
        state: &Chunks,
        (flow, place): (&Flow, Endpoint),
    ) -> Option<(Conn, About)> {
        let state = read(state, (flow, place)).ok()?;
        let conn = self.tcp.take_back(now, &state)?;
        self.insert(conn, *flow);
        Some((conn, About::of(state)))
    }
}

/// Reads a state, and checks that it is that of the flow's connection. `place`: where this server has connections of the
/// service.
fn read(state: &Chunks, (flow, place): (&Flow, Endpoint)) -> Result<ConnectionState, Reason> {
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
    Ok(ConnectionState { local: place.into(), ..state })
}

/// The ends of a flow's connection at this server.
pub(crate) fn ends_of(flow: &Flow, place: Endpoint) -> ConnectionEnds {
    ConnectionEnds { local: place.into(), peer: flow.client().into() }
}

/// A connection of another server that this one can import.
#[derive(Debug)]
pub(crate) struct ComingConnection<C> {
    pub(crate) checked: C,
    pub(crate) about: About,
}

/// What the server and its application read of a connection's state.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) peer: SocketAddr,
    pub(crate) listener: Option<u16>,
    pub(crate) attachment: Option<Attachment>,
    pub(crate) request: Option<HandedRequest>,
}

impl About {
    fn of(state: ConnectionState) -> About {
        let ConnectionState { peer, listener, attachment, request, .. } = state;
        About { peer, listener, attachment, request }
    }
}

impl<S: Tcp> Transport for Connections<S> {
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        self.tcp.connect(now, target)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        self.tcp.set_listening(listener, open);
    }

    fn room(&self, conn: Conn) -> usize {
        self.tcp.room(conn)
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        self.tcp.send(conn, bytes)
    }

    fn want_room(&mut self, conn: Conn) {
        self.tcp.want_room(conn);
    }

    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        self.tcp.send_chunk(conn, chunk)
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.tcp.take_recycled_chunk()
    }

    fn queued(&self, conn: Conn) -> usize {
        self.tcp.queued(conn)
    }

    fn held(&self, conn: Conn) -> usize {
        self.tcp.held(conn)
    }

    fn held_by_all(&self) -> usize {
        self.tcp.held_by_all()
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        self.tcp.grant(conn, bytes);
    }

    fn release(&mut self, conn: Conn, through: u64) {
        self.tcp.release(conn, through);
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        self.tcp.watch_acknowledged(conn, on);
    }

    fn finish(&mut self, conn: Conn) {
        self.tcp.finish(conn);
    }

    fn abort(&mut self, conn: Conn) {
        self.tcp.abort(conn);
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
            connections.check(NOW, &state, (&flow, place)).map(|connection| connection.about.peer)
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
            assert!(connections.check(NOW, &longest, ends).is_ok());
            assert_eq!(connections.check(NOW, &longer, ends).err(), Some(Reason::TooLarge));
            assert!(connections.take_back(NOW, &longer, ends).is_some());
        }
    }
}
