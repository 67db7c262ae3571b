//! Input: from a received frame to the connection.

use spillway_transport::{Conn, Time};
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{PacketError, arp, checksum, ipv4, ipv6, tcp};

use super::Stack;
use super::listen::ListenResult;
use super::replies::Reply;
use super::time_wait::Answer;
use crate::dropped::{Dropped, DroppedSegment};
use crate::event::Delivery;
use crate::flow::{Addresses, Flow};
use crate::narrow::in_packet;
use crate::neighbour::LearnedFrom;
use crate::settings::Resolver;

/// A TCP segment in a received frame.
struct Segment<'a> {
    addresses: Addresses,
    /// The sum of the pseudo-header.
    pseudo: checksum::Sum,
    /// Header and payload.
    bytes: &'a [u8],
    /// Offset of the segment in the frame.
    at: usize,
}

impl Stack {
    /// Handles a received frame. Pass its delivery to the application, then call [`poll_event`](Self::poll_event) until
    /// it returns `None`.
    pub fn handle_frame(&mut self, now: Time, frame: &[u8]) -> Option<Delivery> {
        self.now = self.now.max(now);
        self.counters.frames_received += 1;
        if self.drops.is_watched() {
            self.drops.set_segment(None);
        }
        let (header, packet) = match ethernet::Header::parse(frame) {
            Ok(parsed) => parsed,
            Err(error) => return self.drop_frame(error.into()),
        };
        let is_ours = header.target == self.settings.mac;
        let segment = match header.kind {
            ethernet::KIND_IPV4 if is_ours && header.source.is_unicast() => {
                self.handle_ipv4(header.source, packet)?
            }
            ethernet::KIND_IPV6 if is_ours && header.source.is_unicast() => self.handle_ipv6(packet)?,
            ethernet::KIND_ARP if is_ours || header.target == Mac::BROADCAST => {
                self.handle_arp(packet);
                return None;
            }
            ethernet::KIND_IPV4 | ethernet::KIND_IPV6 | ethernet::KIND_ARP => {
                return self.drop_frame(Dropped::NotForUs);
            }
            _ => return self.drop_frame(Dropped::UnknownProtocol),
        };
        self.handle_tcp(header.source, &segment)
    }

    /// Counts the frame as dropped; always returns `None`.
    #[cold]
    fn drop_frame<T>(&mut self, reason: Dropped) -> Option<T> {
        self.count_drop(reason);
        None
    }

    fn handle_arp(&mut self, packet: &[u8]) {
        let packet = match arp::Packet::parse(packet) {
            Ok(packet) => packet,
            Err(error) => return self.count_drop(error.into()),
        };
        let (ip, mac) = (packet.sender_ip, packet.sender_mac);
        let is_arp = self.settings.resolver == Resolver::Arp;
        let own = self.settings.own_ipv4();
        if !is_arp || Some(packet.target_ip) != own || !mac.is_unicast() {
            return self.count_drop(Dropped::NotForUs);
        }
        if packet.operation == arp::Operation::Request {
            self.replies.push(Reply::Arp { mac, ip }, &mut self.counters);
        }
        // Only addresses on the link enter the cache: others would displace them.
        if Some(ip) != own && self.settings.next_hop(ip.into()) == Some(ip.into()) {
            let source_kind = match packet.operation {
                arp::Operation::Request => LearnedFrom::Request,
                arp::Operation::Reply => LearnedFrom::Reply,
            };
            self.neighbours.learn(self.now, ip.into(), mac, source_kind);
            self.touch_unresolved();
        }
    }

    /// Handles an IPv4 packet. A TCP segment in it is returned instead.
    #[inline]
    fn handle_ipv4<'a>(&mut self, source: Mac, packet: &'a [u8]) -> Option<Segment<'a>> {
        let (header, header_bytes, payload) = match ipv4::Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(error) => return self.drop_frame(error.into()),
        };
        let is_for_us = self.is_local(header.target.into());
        match header.protocol {
            // Imported connections keep their local addresses; segments and ICMP errors are sent to these addresses.
            ipv4::PROTOCOL_TCP if is_for_us || self.has_foreign_connections => {
                let length = u32::from(in_packet(payload.len()));
                return Some(Segment {
                    addresses: Addresses::V4 { local: header.target, peer: header.source },
                    pseudo: checksum::pseudo_v4(header.source, header.target, ipv4::PROTOCOL_TCP, length),
                    bytes: payload,
                    at: ethernet::HEADER_BYTES + header_bytes,
                });
            }
            ipv4::PROTOCOL_ICMP if is_for_us || self.has_foreign_connections => {
                if self.settings.is_peer(header.source.into()) {
                    self.handle_icmp(source, (header.target, header.source), payload);
                } else {
                    self.count_drop(Dropped::InvalidPeer);
                }
            }
            ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_ICMP => self.count_drop(Dropped::NotForUs),
            _ => self.count_drop(Dropped::UnknownProtocol),
        }
        None
    }

    /// Handles an IPv6 packet. A TCP segment in it is returned instead. Not inlined, so that the code for IPv4, which
    /// is inlined, stays short.
    #[inline(never)]
    fn handle_ipv6<'a>(&mut self, packet: &'a [u8]) -> Option<Segment<'a>> {
        let (header, header_bytes, payload) = match ipv6::Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(error) => return self.drop_frame(error.into()),
        };
        let is_for_us = self.is_local(header.target.into()) || self.has_foreign_connections;
        let length = u32::from(in_packet(payload.len()));
        let pseudo = checksum::pseudo_v6(header.source, header.target, header.protocol, length);
        match header.protocol {
            ipv4::PROTOCOL_TCP if is_for_us => {
                return Some(Segment {
                    addresses: Addresses::V6 { local: header.target, peer: header.source },
                    pseudo,
                    bytes: payload,
                    at: ethernet::HEADER_BYTES + header_bytes,
                });
            }
            ipv6::PROTOCOL_ICMP if is_for_us => {
                if self.settings.is_peer(header.source.into()) {
                    self.handle_icmpv6(header.target, payload, pseudo);
                } else {
                    self.count_drop(Dropped::InvalidPeer);
                }
            }
            ipv4::PROTOCOL_TCP | ipv6::PROTOCOL_ICMP => self.count_drop(Dropped::NotForUs),
            _ => self.count_drop(Dropped::UnknownProtocol),
        }
        None
    }

    fn handle_tcp(
        &mut self,
        mac: Mac,
        &Segment { addresses, pseudo, bytes: segment, at }: &Segment<'_>,
    ) -> Option<Delivery> {
        let (header, header_bytes, payload) = match tcp::Header::parse(segment, pseudo) {
            Ok(parsed) => parsed,
            Err(PacketError::Checksum(_)) if tcp::is_checksum_partial(segment, pseudo) => {
                return self.drop_frame(Dropped::PartialChecksum);
            }
            Err(error) => return self.drop_frame(error.into()),
        };
        if header.source == 0 {
            return self.drop_frame(Dropped::Malformed);
        }
        let flow = Flow::between(addresses, header.target, header.source);
        if self.drops.is_watched() {
            let tcp::Header { seq, ack, flags, .. } = header;
            let segment = DroppedSegment { flow, seq, ack, flags, payload_bytes: payload.len() };
            self.drops.set_segment(Some(segment));
        }
        let conn = match self.table.find(&flow) {
            Some(conn) => conn,
            None => self.handle_unknown_flow(flow, mac, &header, payload)?,
        };
        let handled =
            self.with(conn, |connection, cx| connection.handle_segment(cx, mac, &header, payload))?;
        if handled.must_reset {
            self.send_reset(flow, mac, &header, payload.len());
        }
        let (range, end) = handled.delivery?;
        let start = at + header_bytes;
        Some(Delivery { conn, range: start + range.start..start + range.end, end })
    }

    /// Handles a segment without a connection. If the segment has created a connection, returns that connection, which
    /// must then handle the segment.
    fn handle_unknown_flow(
        &mut self,
        flow: Flow,
        mac: Mac,
        header: &tcp::Header,
        payload: &[u8],
    ) -> Option<Conn> {
        if !self.settings.is_peer(flow.peer().ip()) {
            return self.drop_frame(Dropped::InvalidPeer);
        }
        let expiry = self.now + self.settings.time_wait;
        let mut last_seq = None;
        let is_listening = self.listeners.open_at(flow.local()).is_some();
        match self.time_waits.handle(&flow, header, payload.len(), expiry, is_listening) {
            Some(Answer::Drop(reason)) => return self.drop_frame(reason),
            Some(Answer::Reset) => {
                self.count_drop(Dropped::Aborted);
                self.send_reset(flow, mac, header, payload.len());
                return None;
            }
            Some(Answer::Acknowledge(header)) => {
                self.count_drop(Dropped::TimeWait);
                let mac = self.back_to(flow, mac);
                self.replies.push(Reply::Segment { flow, mac, header }, &mut self.counters);
                return None;
            }
            Some(Answer::Open { last_seq: last }) => last_seq = Some(last),
            None => {}
        }
        if !self.is_local(flow.local().ip()) {
            return self.drop_frame(Dropped::NotForUs);
        }
        match self.handle_at_listener(flow, mac, header, last_seq) {
            ListenResult::Handled => None,
            ListenResult::Continues(conn) => Some(conn),
            ListenResult::Dropped(reason) => self.drop_frame(reason),
            ListenResult::Refused(reason) => {
                self.count_drop(reason);
                self.send_reset(flow, mac, header, payload.len());
                None
            }
        }
    }
}
