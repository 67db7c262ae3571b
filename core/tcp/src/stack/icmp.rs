//! ICMP: answers `ping` (RFC 1122 §3.2.2.6), and acts on errors from routers as far as they can be trusted (RFC 9293
//! §3.9.2.2, RFC 5927).

use core::net::{Ipv4Addr, SocketAddrV4};

use spillway_transport::LostReason;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::{icmp, ipv4, tcp};

use super::Stack;
use super::replies::Reply;
use crate::dropped::Dropped;
use crate::flow::Flow;

impl Stack {
    pub(super) fn handle_icmp(&mut self, mac: Mac, (ours, ip): (Ipv4Addr, Ipv4Addr), message: &[u8]) {
        match icmp::v4::Message::parse(message) {
            Ok(icmp::v4::Message::EchoRequest { ident, sequence, payload }) => {
                if ours != self.settings.address {
                    return self.drop_it(Dropped::NotForUs);
                }
                if ipv4::HEADER_BYTES + message.len() > usize::from(self.settings.mtu) {
                    return self.drop_it(Dropped::EchoTooLarge);
                }
                let payload = payload.to_vec();
                self.replies.push(Reply::Echo { mac, ip, ident, sequence, payload }, &mut self.counters);
            }
            Ok(icmp::v4::Message::Unreachable { code, next_hop_mtu, inner }) => {
                self.handle_unreachable(ours, code, next_hop_mtu, inner);
            }
            Ok(_) => self.drop_it(Dropped::UnknownProtocol),
            Err(error) => self.drop_it(error.into()),
        }
    }

    /// Acts on an error only if it quotes a segment that is in flight: others may be forged (RFC 5927 §4.1).
    fn handle_unreachable(&mut self, ours: Ipv4Addr, code: u8, next_hop_mtu: u16, inner: &[u8]) {
        let quoted = ipv4::Header::parse_quoted(inner).ok().and_then(|(header, payload)| {
            let is_ours = header.protocol == ipv4::PROTOCOL_TCP && header.source == ours;
            tcp::Quoted::parse(payload).ok().filter(|_| is_ours).map(|segment| (header, segment))
        });
        let Some((header, segment)) = quoted else { return self.drop_it(Dropped::UnrelatedError) };
        let flow = Flow {
            local: SocketAddrV4::new(header.source, segment.source),
            peer: SocketAddrV4::new(header.target, segment.target),
        };
        let Some(conn) = self.table.find(&flow) else { return self.drop_it(Dropped::UnrelatedError) };
        self.with(conn, |connection, cx| {
            if !connection.is_on_its_way(segment.seq) {
                return cx.drop(Dropped::UnrelatedError);
            }
            match code {
                icmp::v4::CODE_FRAGMENTATION_NEEDED => connection.lower_mtu(next_hop_mtu),
                // A hard error ends an opening connection; others may be temporary (RFC 1122 §4.2.3.9, RFC 5461).
                icmp::v4::CODE_PROTOCOL | icmp::v4::CODE_PORT if connection.is_opening() => {
                    connection.fail(LostReason::Refused);
                    connection.tell(cx);
                }
                _ => cx.drop(Dropped::SoftError),
            }
        });
    }
}
