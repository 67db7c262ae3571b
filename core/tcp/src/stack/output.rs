//! Output: from a connection to a frame.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{arp, icmp, ipv4, tcp};

use super::Stack;
use super::replies::Reply;
use crate::connection::{write_headers, write_network};
use crate::flow::{Addresses, Flow};
use crate::neighbour::{Neighbours, REQUEST_INTERVAL, REQUESTS_MAX};
use crate::settings::{Resolver, Settings};

/// Replies that leave before the next segment: more than the resets and SYN-ACKs of a usual turn.
const REPLIES_IN_A_ROW_MAX: u32 = 32;

/// A reply is dropped if its next hop is not resolved within this time: after the last request, as in `neighbour`.
const RESOLVED_WITHIN: Duration = REQUEST_INTERVAL.saturating_mul(REQUESTS_MAX as u32);

impl Stack {
    /// Length of the longest frame in bytes: [`poll_transmit`](Self::poll_transmit) needs a buffer of this size.
    pub fn frame_bytes_max(&self) -> usize {
        ethernet::HEADER_BYTES + usize::from(self.settings.mtu)
    }

    /// Writes the next frame into `slot` and returns its length. Call it at the end of each turn until it returns
    /// `None`. `slot` must hold [`frame_bytes_max`](Self::frame_bytes_max) bytes; into a shorter one nothing is
    /// written.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        self.now = self.now.max(now);
        if slot.len() < self.frame_bytes_max() {
            debug_assert!(false, "the slot should hold `frame_bytes_max` bytes");
            return None;
        }
        let length = self.next_in_turn(slot).or_else(|| self.next_arp_request(slot))?;
        self.counters.frames_sent += 1;
        Some(length)
    }

    /// Writes a waiting reply, or a segment if none waits. After [`REPLIES_IN_A_ROW_MAX`] replies a segment comes first, so that
    /// a flood of pings does not keep connections from sending.
    #[inline]
    fn next_in_turn(&mut self, slot: &mut [u8]) -> Option<usize> {
        if self.replies.is_empty() {
            self.replies_in_a_row = 0;
            return self.next_segment(slot);
        }
        if self.replies_in_a_row < REPLIES_IN_A_ROW_MAX {
            self.replies_in_a_row += 1;
            self.next_reply(slot).or_else(|| self.next_segment(slot))
        } else {
            self.replies_in_a_row = 0;
            self.next_segment(slot).or_else(|| self.next_reply(slot))
        }
    }

    /// Writes one segment of the next connection. Round robin, so that no connection waits for all segments of another.
    fn next_segment(&mut self, slot: &mut [u8]) -> Option<usize> {
        let (now, settings) = (self.now, &self.settings);
        while let Some(index) = self.touched.pop_front() {
            let Some(connection) = self.table.at_mut(index) else { continue };
            // Resolve a neighbour only if there is something to send.
            let needs_mac = connection.next_hop.confirmed().is_none() && connection.wants_transmit(settings);
            let mac = connection.next_hop.confirmed().or_else(|| {
                if !needs_mac {
                    return None;
                }
                if let Some(mac) = connection.next_hop.recent(now) {
                    return Some(mac);
                }
                let peer = connection.flow.peer().ip();
                if connection.next_hop.take_doubt()
                    && let Some(hop) = settings.next_hop(peer)
                {
                    self.neighbours.doubt(now, hop);
                }
                let found = resolve(now, settings, &mut self.neighbours, peer);
                connection.next_hop.resolve(now, found)
            });
            if let Some(mac) = mac
                && let Some(length) =
                    connection.transmit(now, settings, mac, slot, &mut self.counters.retransmitted)
            {
                if connection.has_sent_all() {
                    connection.is_touched = false;
                    connection.settle(now, settings);
                    self.wheel.arm(index, connection.wakes_at());
                } else {
                    self.touched.push_back(index);
                }
                return Some(length);
            }
            if needs_mac && mac.is_none() && !core::mem::replace(&mut connection.is_unresolved, true) {
                self.unresolved.push(connection.conn);
            }
            connection.is_touched = false;
            connection.settle(now, settings);
            self.wheel.arm(index, connection.wakes_at());
        }
        None
    }

    fn next_arp_request(&mut self, slot: &mut [u8]) -> Option<usize> {
        if self.settings.resolver == Resolver::Driver {
            return None; // the driver resolves next hops: see `poll_next_hop_request`
        }
        let IpAddr::V4(ip) = self.neighbours.poll_request(self.now)? else {
            debug_assert!(
                false,
                "only IPv4 addresses should be resolved by ARP: `Settings::next_hop` returns no others"
            );
            return None;
        };
        self.write_arp(slot, arp::Operation::Request, Mac::BROADCAST, Mac::ZERO, ip)
    }

    fn next_reply(&mut self, slot: &mut [u8]) -> Option<usize> {
        while let Some(reply) = self.replies.pop() {
            match reply {
                Reply::Segment { flow, mac, header } => {
                    let until = self.now + RESOLVED_WITHIN;
                    if let Some(length) = self.write_reply(slot, (flow, mac, header), until) {
                        return Some(length);
                    }
                }
                Reply::Resolving { flow, header, until } => {
                    if let Some(length) = self.write_reply(slot, (flow, None, header), until) {
                        return Some(length);
                    }
                }
                Reply::Arp { mac, ip } => {
                    if let Some(length) = self.write_arp(slot, arp::Operation::Reply, mac, mac, ip) {
                        return Some(length);
                    }
                }
                Reply::Echo { mac, local, ip, ident, sequence, payload } => {
                    let echo = icmp::v4::Message::EchoReply { ident, sequence, payload: &payload };
                    let flow = Flow::between(Addresses::V4 { local, peer: ip }, 0, 0);
                    let bytes = echo.emit(&mut slot[flow.tcp_at()..]);
                    return Some(write_network(&self.settings, &flow, mac, ipv4::PROTOCOL_ICMP, bytes, slot));
                }
            }
        }
        None
    }

    /// Writes a segment without payload, or keeps it until its next hop is resolved.
    fn write_reply(
        &mut self,
        slot: &mut [u8],
        (flow, mac, header): (Flow, Option<Mac>, tcp::Header),
        until: Time,
    ) -> Option<usize> {
        let peer = flow.peer().ip();
        if mac.is_none() && until <= self.now {
            // A lookup would restart the requests for a next hop that has not answered them.
            self.counters.replies_dropped += 1;
            return None;
        }
        match mac.or_else(|| resolve(self.now, &self.settings, &mut self.neighbours, peer)) {
            Some(mac) => Some(write_headers(&self.settings, &flow, mac, &header, 0, slot)),
            None => {
                self.replies.resolve((flow, header), until, &mut self.counters);
                None
            }
        }
    }

    fn write_arp(
        &self,
        slot: &mut [u8],
        operation: arp::Operation,
        to: Mac,
        target_mac: Mac,
        ip: Ipv4Addr,
    ) -> Option<usize> {
        let sender_ip = self.settings.own_ipv4()?;
        let packet =
            arp::Packet { operation, sender_mac: self.settings.mac, sender_ip, target_mac, target_ip: ip };
        match slot.first_chunk_mut() {
            Some(frame) => *frame = packet.frame(to),
            None => debug_assert!(false, "the slot should hold a frame: `poll_transmit` checks its length"),
        }
        Some(arp::FRAME_BYTES)
    }
}

fn resolve(now: Time, settings: &Settings, neighbours: &mut Neighbours, target: IpAddr) -> Option<Mac> {
    neighbours.lookup(now, settings.next_hop(target)?)
}
