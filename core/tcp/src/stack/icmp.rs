//! ICMP: answers `ping` (RFC 1122 §3.2.2.6), and acts on plausible errors from routers and peers (RFC 9293 §3.9.2.2,
//! RFC 5927), also for IPv6 (RFC 4443, RFC 8201).

use core::net::{Ipv4Addr, Ipv6Addr};

use spillway_transport::{LostReason, Time};
use spillway_wire::packet::checksum::Sum;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::{PacketError, icmp, ipv4, ipv6, tcp};

use super::Stack;
use super::replies::Reply;
use crate::dropped::Dropped;
use crate::flow::{Addresses, Flow};
use crate::settings::{IPV6_MTU_MIN, Resolver};

/// The kind of an ICMP error that quotes a segment of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouterError {
    /// The segment exceeds this MTU of the path, in bytes.
    TooLarge(u16),
    /// No program listens at the peer's port: a hard error (RFC 1122 §4.2.3.9).
    Refused,
    /// Any other error may be temporary.
    Soft,
}

impl Stack {
    /// Handles an IPv4 packet with an ICMP message, as a raw socket receives it. For stacks that share their address
    /// with a kernel: the kernel receives the ICMP errors of the stack's connections.
    pub fn handle_icmp_packet(&mut self, now: Time, packet: &[u8]) {
        self.now = self.now.max(now);
        let Ok((header, _, message)) = ipv4::Header::parse(packet) else {
            return self.count_drop(Dropped::Malformed);
        };
        if header.protocol == ipv4::PROTOCOL_ICMP && self.settings.is_peer(header.source.into()) {
            self.handle_icmp(Mac::ZERO, (header.target, header.source), message);
        }
    }

    /// Handles an ICMPv6 message from `source`, as a raw socket receives it: without the IPv6 header, and after the
    /// kernel has verified the checksum (RFC 3542 §3.1). Use it as [`handle_icmp_packet`](Self::handle_icmp_packet).
    pub fn handle_icmpv6_message(&mut self, now: Time, source: Ipv6Addr, message: &[u8]) {
        self.now = self.now.max(now);
        if self.settings.is_peer(source.into()) {
            self.handle_icmpv6_error(None, icmp::v6::Message::parse_verified(message));
        }
    }

    /// Handles an ICMPv6 message in a frame to the address `local`. The kernel, which shares every IPv6
    /// address of the stack, answers echo requests.
    pub(super) fn handle_icmpv6(&mut self, local: Ipv6Addr, message: &[u8], pseudo: Sum) {
        self.handle_icmpv6_error(Some(local), icmp::v6::Message::parse(message, pseudo));
    }

    /// `local`: the address to which the error was sent; `None` if the kernel has received the error, at one
    /// of its own addresses.
    fn handle_icmpv6_error(
        &mut self,
        local: Option<Ipv6Addr>,
        message: Result<icmp::v6::Message<'_>, PacketError>,
    ) {
        let (error, inner) = match message {
            Ok(icmp::v6::Message::PacketTooBig { mtu, inner }) => {
                let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                if mtu < IPV6_MTU_MIN {
                    // RFC 8201 §4: such a message is discarded.
                    return self.count_drop(Dropped::MtuTooSmall);
                }
                (RouterError::TooLarge(mtu), inner)
            }
            // Unlike ICMP for IPv4, RFC 4443 §3.1 has no code for an unknown protocol.
            Ok(icmp::v6::Message::Unreachable { code: icmp::v6::CODE_PORT, inner }) => {
                (RouterError::Refused, inner)
            }
            Ok(icmp::v6::Message::Unreachable { inner, .. }) => (RouterError::Soft, inner),
            Ok(icmp::v6::Message::EchoRequest { .. }) => return self.count_drop(Dropped::NotForUs),
            Ok(_) => return self.count_drop(Dropped::UnknownProtocol),
            Err(error) => return self.count_drop(error.into()),
        };
        let quoted = ipv6::Header::parse_quoted(inner).ok().and_then(|(header, payload)| {
            let is_ours =
                header.protocol == ipv4::PROTOCOL_TCP && local.is_none_or(|local| local == header.source);
            let segment = tcp::Quoted::parse(payload).ok().filter(|_| is_ours)?;
            let addresses = Addresses::V6 { local: header.source, peer: header.target };
            Some((addresses, segment))
        });
        self.handle_error(quoted, error);
    }

    pub(super) fn handle_icmp(&mut self, mac: Mac, (local, sender): (Ipv4Addr, Ipv4Addr), message: &[u8]) {
        match icmp::v4::Message::parse(message) {
            Ok(icmp::v4::Message::EchoRequest { ident, sequence, payload }) => {
                // If a kernel shares the address, the kernel answers.
                if !self.is_local(local.into()) || self.settings.resolver == Resolver::Driver {
                    return self.count_drop(Dropped::NotForUs);
                }
                if ipv4::HEADER_BYTES + message.len() > usize::from(self.settings.mtu) {
                    return self.count_drop(Dropped::EchoTooLarge);
                }
                let payload = payload.to_vec();
                let reply = Reply::Echo { mac, local, ip: sender, ident, sequence, payload };
                self.replies.push(reply, &mut self.counters);
            }
            Ok(icmp::v4::Message::Unreachable { code, next_hop_mtu, inner }) => {
                self.handle_unreachable(local, code, next_hop_mtu, inner);
            }
            Ok(_) => self.count_drop(Dropped::UnknownProtocol),
            Err(error) => self.count_drop(error.into()),
        }
    }

    fn handle_unreachable(&mut self, local: Ipv4Addr, code: u8, next_hop_mtu: u16, inner: &[u8]) {
        let quoted = ipv4::Header::parse_quoted(inner).ok().and_then(|(header, payload)| {
            let is_ours = header.protocol == ipv4::PROTOCOL_TCP && header.source == local;
            let segment = tcp::Quoted::parse(payload).ok().filter(|_| is_ours)?;
            Some((Addresses::V4 { local: header.source, peer: header.target }, segment))
        });
        let error = match code {
            icmp::v4::CODE_FRAGMENTATION_NEEDED => RouterError::TooLarge(next_hop_mtu),
            icmp::v4::CODE_PROTOCOL | icmp::v4::CODE_PORT => RouterError::Refused,
            _ => RouterError::Soft,
        };
        self.handle_error(quoted, error);
    }

    /// Acts on an error only if it quotes a segment in flight: other errors may be forged (RFC 5927 §4.1). `quoted`:
    /// the addresses and numbers of the quoted segment.
    fn handle_error(&mut self, quoted: Option<(Addresses, tcp::Quoted)>, error: RouterError) {
        let Some((addresses, segment)) = quoted else { return self.count_drop(Dropped::UnrelatedError) };
        let flow = Flow::between(addresses, segment.source, segment.target);
        let Some(conn) = self.table.find(&flow) else { return self.count_drop(Dropped::UnrelatedError) };
        self.with(conn, |connection, cx| {
            if !connection.is_in_flight(segment.seq) {
                return cx.drop(Dropped::UnrelatedError);
            }
            match error {
                RouterError::TooLarge(mtu) => connection.lower_mtu(mtu),
                // A hard error ends an opening connection; other errors may be temporary (RFC 1122 §4.2.3.9, RFC 5461).
                RouterError::Refused if connection.is_opening() => {
                    connection.fail(LostReason::Refused);
                    connection.push_events(cx);
                }
                RouterError::Refused | RouterError::Soft => cx.drop(Dropped::SoftError),
            }
        });
    }
}
