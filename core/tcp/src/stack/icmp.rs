//! ICMP: answers `ping` (RFC 1122 §3.2.2.6), and acts on errors from routers that are plausible (RFC 9293 §3.9.2.2, RFC
//! 5927).

use core::net::{Ipv4Addr, SocketAddrV4};

use spillway_transport::{LostReason, Time};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::{icmp, ipv4, tcp};

use super::Stack;
use super::replies::Reply;
use crate::dropped::Dropped;
use crate::flow::Flow;
use crate::settings::Resolver;

impl Stack {
    /// Handles an IPv4 packet with an ICMP message, as a raw socket receives it, where the kernel that shares the stack's
    /// address gets the ICMP errors of the stack's connections.
    pub fn handle_icmp_packet(&mut self, now: Time, packet: &[u8]) {
        self.now = self.now.max(now);
        let Ok((header, _, message)) = ipv4::Header::parse(packet) else {
            return self.count_drop(Dropped::Malformed);
        };
        if header.protocol == ipv4::PROTOCOL_ICMP && self.settings.is_peer(header.source) {
            self.handle_icmp(Mac::ZERO, (header.target, header.source), message);
        }
    }

    pub(super) fn handle_icmp(&mut self, mac: Mac, (ours, ip): (Ipv4Addr, Ipv4Addr), message: &[u8]) {
        match icmp::v4::Message::parse(message) {
            Ok(icmp::v4::Message::EchoRequest { ident, sequence, payload }) => {
                // The kernel that shares the address answers.
                if !self.is_local(ours) || self.settings.resolver == Resolver::Driver {
                    return self.count_drop(Dropped::NotForUs);
                }
                if ipv4::HEADER_BYTES + message.len() > usize::from(self.settings.mtu) {
                    return self.count_drop(Dropped::EchoTooLarge);
                }
                let payload = payload.to_vec();
                self.replies
                    .push(Reply::Echo { mac, local: ours, ip, ident, sequence, payload }, &mut self.counters);
            }
            Ok(icmp::v4::Message::Unreachable { code, next_hop_mtu, inner }) => {
                self.handle_unreachable(ours, code, next_hop_mtu, inner);
            }
            Ok(_) => self.count_drop(Dropped::UnknownProtocol),
            Err(error) => self.count_drop(error.into()),
        }
    }

    /// Acts on an error only if it quotes a segment in flight: other errors may be forged (RFC 5927 §4.1).
    fn handle_unreachable(&mut self, ours: Ipv4Addr, code: u8, next_hop_mtu: u16, inner: &[u8]) {
        let quoted = ipv4::Header::parse_quoted(inner).ok().and_then(|(header, payload)| {
            let is_ours = header.protocol == ipv4::PROTOCOL_TCP && header.source == ours;
            tcp::Quoted::parse(payload).ok().filter(|_| is_ours).map(|segment| (header, segment))
        });
        let Some((header, segment)) = quoted else { return self.count_drop(Dropped::UnrelatedError) };
        let flow = Flow {
            local: SocketAddrV4::new(header.source, segment.source),
            peer: SocketAddrV4::new(header.target, segment.target),
        };
        let Some(conn) = self.table.find(&flow) else { return self.count_drop(Dropped::UnrelatedError) };
        self.with(conn, |connection, cx| {
            if !connection.is_in_flight(segment.seq) {
                return cx.drop(Dropped::UnrelatedError);
            }
            match code {
                icmp::v4::CODE_FRAGMENTATION_NEEDED => connection.lower_mtu(next_hop_mtu),
                // A hard error ends an opening connection; other errors may be temporary (RFC 1122 §4.2.3.9, RFC 5461).
                icmp::v4::CODE_PROTOCOL | icmp::v4::CODE_PORT if connection.is_opening() => {
                    connection.fail(LostReason::Refused);
                    connection.push_events(cx);
                }
                _ => cx.drop(Dropped::SoftError),
            }
        });
    }
}
