//! Implements [`Transport`] for the stack.

use alloc::boxed::Box;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use spillway_transport::{Chunk, Conn, Full, LostReason, Time, Transport};

use super::replies::Reply;
use super::{Stack, touch};
use crate::connection::{Connection, Opening};
use crate::flow::{Flow, canonical};
use crate::narrow::in_field;

impl Stack {
    /// The local address of a connection, as `getsockname` returns it; `None` if there is no such connection.
    pub fn local_address(&self, conn: Conn) -> Option<SocketAddr> {
        self.table.get(conn).map(|connection| connection.flow.local())
    }

    /// The value of the timestamp clock for this peer at [`Time::ZERO`].
    pub(super) fn timestamp_offset(&self, flow: Flow) -> u32 {
        let hashed = self.isn.timestamp_offset(flow.local().ip(), flow.peer().ip());
        hashed.wrapping_add(self.isn.milliseconds(Time::ZERO))
    }

    /// The parameters of a connection that this end opens on this flow.
    pub(super) fn active_opening(&self, conn: Conn, flow: Flow) -> Opening {
        Opening {
            conn,
            flow,
            listener: None,
            is_gated: false,
            mac: None,
            initial: self.isn.initial(self.now, flow.local(), flow.peer()),
            timestamp_offset: self.timestamp_offset(flow),
        }
    }

    /// A flow from this address to a peer, with a free local port. The search begins at an unpredictable port (RFC 6056
    /// §3.3.3).
    pub(super) fn free_flow(&mut self, own: IpAddr, peer: SocketAddr) -> Option<Flow> {
        let (first, last) = (*self.settings.ports.start(), *self.settings.ports.end());
        let ports = u32::from(last - first) + 1; // `Settings::check` rejects an empty range
        let offset = self.isn.port_offset(own, peer);
        for _ in 0..ports {
            self.next_port = self.next_port.wrapping_add(1);
            let nth = offset.wrapping_add(u32::from(self.next_port)) % ports;
            let port = first + in_field(u64::from(nth));
            let flow = Flow::new(SocketAddr::new(own, port), peer)?;
            let is_listener = self.listeners.has_port(port);
            if !is_listener && self.table.find(&flow).is_none() && !self.time_waits.contains(&flow) {
                return Some(flow);
            }
        }
        None
    }
}

/// The unspecified address of an address's family.
fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

impl Transport for Stack {
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        self.now = self.now.max(now);
        let conn = self.table.next().filter(|_| self.free_places() > 0).ok_or(Full)?;
        let peer = canonical(target);
        // Without an address of the peer's family the connection is lost at once, as with an unreachable network.
        let own = self.settings.own_address(peer.ip());
        let flow = self.free_flow(own.unwrap_or(unspecified(peer.ip())), peer).ok_or(Full)?;
        let opening = self.active_opening(conn, flow);
        self.table.add(Box::new(Connection::connect(self.now, &self.settings, opening)));
        let is_reachable = own.is_some()
            && self.settings.is_peer(peer.ip())
            && peer.port() != 0
            && self.settings.next_hop(peer.ip()).is_some();
        self.with(conn, |connection, cx| {
            if !is_reachable {
                connection.fail(LostReason::Failed);
                connection.push_events(cx);
            }
        });
        Ok(conn)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        self.listeners.set_open(listener, open);
    }

    fn room(&self, conn: Conn) -> usize {
        self.table.get(conn).map_or(0, |connection| connection.room(&self.settings))
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let Some(connection) = self.table.get_mut(conn) else { return 0 };
        let accepted = connection.send(&self.settings, &mut self.spent, bytes);
        connection.count_held(&mut self.held_bytes);
        touch(&mut self.touched, connection);
        accepted
    }

    fn want_room(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get_mut(conn) {
            connection.want_room();
        }
    }

    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        let Some(connection) = self.table.get_mut(conn) else { return Err(chunk) };
        connection.send_chunk(&self.settings, chunk)?;
        connection.count_held(&mut self.held_bytes);
        touch(&mut self.touched, connection);
        Ok(())
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.spent.take()
    }

    fn queued(&self, conn: Conn) -> usize {
        self.table.get(conn).map_or(0, Connection::queued)
    }

    fn held(&self, conn: Conn) -> usize {
        self.table.get(conn).map_or(0, Connection::held)
    }

    fn held_by_all(&self) -> usize {
        self.held_bytes
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        let Some(connection) = self.table.get_mut(conn) else { return };
        connection.grant(bytes);
        touch(&mut self.touched, connection);
        if connection.has_waiting() {
            self.with(conn, |connection, cx| connection.deliver_granted(cx));
        }
    }

    fn release(&mut self, conn: Conn, through: u64) {
        self.with(conn, |connection, cx| connection.release(cx, through));
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        self.with(conn, |connection, cx| {
            connection.watch(on);
            connection.push_events(cx);
        });
    }

    fn finish(&mut self, conn: Conn) {
        self.with(conn, |connection, _| connection.finish());
    }

    fn abort(&mut self, conn: Conn) {
        let Some(connection) = self.table.get(conn) else { return };
        let mac = connection.next_hop.known();
        let (flow, is_begun) = (connection.flow, connection.is_begun());
        let is_half_open = connection.is_half_open();
        let header = connection.final_segments(self.now).reset;
        let is_alive = !connection.is_lost();
        if is_begun && is_alive {
            self.counters.resets_sent += 1;
            self.replies.push(Reply::Segment { flow, mac, header }, &mut self.counters);
        }
        self.half_open -= u32::from(is_half_open);
        self.wheel.disarm(conn.slot);
        self.free(conn);
        if is_alive {
            self.remember_aborted(flow); // an ended one may be in TIME-WAIT, whose entry must stay
        }
    }
}
