//! Opening a connection again from another local port.
//!
//! An interface with several queues chooses the queue of a packet by a hash of its addresses and ports. The
//! stack cannot compute this hash. It learns a connection's queue from the answer to its SYN: if the answer
//! arrives at the queue of another stack, this stack tries another port, so that no later packets must be
//! passed on.

use spillway_transport::Time;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{checksum, ipv4, ipv6, tcp};

use super::Stack;
use crate::flow::{Addresses, Flow};
use crate::narrow::in_packet;

impl Stack {
    /// If `frame` answers the SYN of a connection, opens the connection again from another local port, and
    /// resets the first attempt at the peer. Call it for a frame that has arrived at the queue of another
    /// stack. Returns whether the connection was opened again; otherwise pass the frame to
    /// [`handle_frame`](Self::handle_frame). A connection changes its port 64 times at most.
    pub fn reopen_misdirected(&mut self, now: Time, frame: &[u8]) -> bool {
        self.now = self.now.max(now);
        let Some((mac, addresses, header)) = parse(frame) else { return false };
        let old = Flow::between(addresses, header.target, header.source);
        let Some(conn) = self.table.find(&old) else { return false };
        if !self.table.get(conn).is_some_and(|connection| connection.may_change_port(&header)) {
            return false;
        }
        let Some(flow) = self.free_flow(old.local().ip(), old.peer()) else { return false };
        let opening = self.active_opening(conn, flow);
        self.table.change_flow(conn, flow);
        self.with(conn, |connection, cx| connection.open_again(cx.now, cx.settings, &opening));
        self.send_reset(old, mac, &header, 0);
        self.counters.ports_changed += 1;
        true
    }
}

/// The sender, the addresses and the header of a valid TCP segment.
fn parse(frame: &[u8]) -> Option<(Mac, Addresses, tcp::Header)> {
    let (link, packet) = ethernet::Header::parse(frame).ok()?;
    let (addresses, pseudo, segment) = match link.kind {
        ethernet::KIND_IPV4 => {
            let (ip, _, segment) = ipv4::Header::parse(packet).ok()?;
            let length = u32::from(in_packet(segment.len()));
            let pseudo = checksum::pseudo_v4(ip.source, ip.target, ip.protocol, length);
            let is_tcp = ip.protocol == ipv4::PROTOCOL_TCP;
            is_tcp.then_some((Addresses::V4 { local: ip.target, peer: ip.source }, pseudo, segment))
        }
        ethernet::KIND_IPV6 => {
            let (ip, _, segment) = ipv6::Header::parse(packet).ok()?;
            let length = u32::from(in_packet(segment.len()));
            let pseudo = checksum::pseudo_v6(ip.source, ip.target, ip.protocol, length);
            let is_tcp = ip.protocol == ipv4::PROTOCOL_TCP;
            is_tcp.then_some((Addresses::V6 { local: ip.target, peer: ip.source }, pseudo, segment))
        }
        _ => None,
    }?;
    let (header, _, _) = tcp::Header::parse(segment, pseudo).ok()?;
    Some((link.source, addresses, header))
}
