//! Input: from a received frame to the connection.

use core::net::{Ipv4Addr, SocketAddrV4};

use spillway_transport::{Conn, Time};
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::tcp;
use spillway_wire::packet::{arp, checksum, ipv4};

use super::Stack;
use super::listen::Taken;
use super::replies::Reply;
use super::time_wait::Answer;
use crate::dropped::{Dropped, DroppedSegment};
use crate::event::Delivery;
use crate::flow::Flow;
use crate::narrow::in_packet;
use crate::neighbour::Heard;

impl Stack {
    /// Handles a received frame. Pass the delivery on first, then call [`poll_event`](Self::poll_event) until it is `None`.
    pub fn handle_frame(&mut self, now: Time, frame: &[u8]) -> Option<Delivery> {
        self.now = self.now.max(now);
        self.counters.frames_received += 1;
        if self.drops.is_watched() {
            self.drops.looks_at(None);
        }
        let (header, packet) = match ethernet::Header::parse(frame) {
            Ok(parsed) => parsed,
            Err(error) => return self.drop_frame(error.into()),
        };
        let is_ours = header.target == self.settings.mac;
        match header.kind {
            ethernet::KIND_IPV4 if is_ours && header.source.is_unicast() => {
                return self.handle_ipv4(header.source, packet);
            }
            ethernet::KIND_ARP if is_ours || header.target == Mac::BROADCAST => self.handle_arp(packet),
            ethernet::KIND_IPV4 | ethernet::KIND_ARP => self.drop_it(Dropped::NotForUs),
            _ => self.drop_it(Dropped::UnknownProtocol),
        }
        None
    }

    /// Counts the frame as dropped; always returns `None`.
    #[cold]
    fn drop_frame<T>(&mut self, reason: Dropped) -> Option<T> {
        self.drop_it(reason);
        None
    }

    fn handle_arp(&mut self, packet: &[u8]) {
        let packet = match arp::Packet::parse(packet) {
            Ok(packet) => packet,
            Err(error) => return self.drop_it(error.into()),
        };
        let (ip, mac) = (packet.sender_ip, packet.sender_mac);
        if packet.target_ip != self.settings.address || !mac.is_unicast() {
            return self.drop_it(Dropped::NotForUs);
        }
        if packet.operation == arp::Operation::Request {
            self.replies.push(Reply::Arp { mac, ip }, &mut self.counters);
        }
        // Only addresses on the link enter the cache: others would displace them.
        if ip != self.settings.address && self.settings.next_hop(ip) == Some(ip) {
            let heard = match packet.operation {
                arp::Operation::Request => Heard::Question,
                arp::Operation::Reply => Heard::Reply,
            };
            self.neighbours.learned(self.now, ip, mac, heard);
            // The entry may be needed by a waiting connection: all of them look up their next hop again.
            self.touch_unresolved();
        }
    }

    fn handle_ipv4(&mut self, source: Mac, packet: &[u8]) -> Option<Delivery> {
        let (header, header_bytes, payload) = match ipv4::Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(error) => return self.drop_frame(error.into()),
        };
        let is_for_us = header.target == self.settings.address;
        let ends = (header.target, header.source);
        match header.protocol {
            // Imported connections keep their addresses, and ICMP errors about them go to those.
            ipv4::PROTOCOL_TCP if is_for_us || self.has_moved_here => {
                return self.handle_tcp(source, ends, payload, ethernet::HEADER_BYTES + header_bytes);
            }
            ipv4::PROTOCOL_ICMP if is_for_us || self.has_moved_here => {
                if self.settings.is_peer(header.source) {
                    self.handle_icmp(source, ends, payload);
                } else {
                    self.drop_it(Dropped::ForeignPeer);
                }
            }
            ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_ICMP => self.drop_it(Dropped::NotForUs),
            _ => self.drop_it(Dropped::UnknownProtocol),
        }
        None
    }

    fn handle_tcp(
        &mut self,
        mac: Mac,
        (ours, theirs): (Ipv4Addr, Ipv4Addr),
        segment: &[u8],
        at: usize,
    ) -> Option<Delivery> {
        let length = u32::from(in_packet(segment.len()));
        let pseudo = checksum::pseudo_v4(theirs, ours, ipv4::PROTOCOL_TCP, length);
        let (header, header_bytes, payload) = match tcp::Header::parse(segment, pseudo) {
            Ok(parsed) => parsed,
            Err(error) => return self.drop_frame(error.into()),
        };
        if header.source == 0 {
            return self.drop_frame(Dropped::Malformed);
        }
        let local = SocketAddrV4::new(ours, header.target);
        let flow = Flow { local, peer: SocketAddrV4::new(theirs, header.source) };
        if self.drops.is_watched() {
            let tcp::Header { seq, ack, flags, .. } = header;
            let segment = DroppedSegment { flow, seq, ack, flags, payload_bytes: payload.len() };
            self.drops.looks_at(Some(segment));
        }
        let conn = match self.table.find(&flow) {
            Some(conn) => conn,
            None => self.handle_stranger(flow, mac, &header, payload)?,
        };
        let handled =
            self.with(conn, |connection, cx| connection.handle_segment(cx, mac, &header, payload))?;
        if handled.is_refused {
            self.refuse(flow, mac, &header, payload.len());
        }
        let (range, end) = handled.delivery?;
        let start = at + header_bytes;
        Some(Delivery { conn, range: start + range.start..start + range.end, end })
    }

    /// Handles a segment of no live connection. Returns the connection, if the segment creates one that must handle it.
    fn handle_stranger(
        &mut self,
        flow: Flow,
        mac: Mac,
        header: &tcp::Header,
        payload: &[u8],
    ) -> Option<Conn> {
        if !self.settings.is_peer(*flow.peer.ip()) {
            return self.drop_frame(Dropped::ForeignPeer);
        }
        let expiry = self.now + self.settings.time_wait;
        let mut last = None;
        let is_listening = self.listener(flow.local).is_some();
        match self.time_waits.handle(&flow, header, payload.len(), expiry, is_listening) {
            Some(Answer::Nothing(reason)) => return self.drop_frame(reason),
            Some(Answer::Refuse) => {
                self.drop_it(Dropped::BrokenOff);
                self.refuse(flow, mac, header, payload.len());
                return None;
            }
            Some(Answer::Acknowledge(header)) => {
                self.drop_it(Dropped::TimeWait);
                self.replies.push(Reply::Segment { flow, mac: Some(mac), header }, &mut self.counters);
                return None;
            }
            Some(Answer::Begin { last: used }) => last = Some(used),
            None => {}
        }
        if *flow.local.ip() != self.settings.address {
            return self.drop_frame(Dropped::NotForUs);
        }
        match self.handle_at_listener(flow, mac, header, last) {
            Taken::Done => None,
            Taken::Continues(conn) => Some(conn),
            Taken::Dropped(reason) => self.drop_frame(reason),
            Taken::Refused(reason) => {
                self.drop_it(reason);
                self.refuse(flow, mac, header, payload.len());
                None
            }
        }
    }
}
