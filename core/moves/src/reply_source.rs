//! Replies under the service's address, where no switch rewrites them on their way to the client.

use core::net::{IpAddr, SocketAddr};

use spillway_wire::packet::checksum::adjust_u16;
use spillway_wire::packet::{ethernet, ipv4, ipv6, tcp};

/// Start of the ports in a TCP header, of its checksum, and of the checksum in an IPv4 header.
const SOURCE_PORT_AT: usize = 0;
const TCP_CHECKSUM_AT: usize = 16;
const IPV4_CHECKSUM_AT: usize = 10;
/// Start of the source address in the headers of the two versions.
const IPV4_SOURCE_AT: usize = 12;
const IPV6_SOURCE_AT: usize = 8;

/// The source of segments that leave from a place where a server has connections of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplySource {
    /// Where the server has the connections.
    pub(crate) place: SocketAddr,
    /// The address and port to which clients have connected.
    pub(crate) service: SocketAddr,
}

impl ReplySource {
    /// Gives a frame with a TCP segment from the place, which the stack has written, the service's address and port. The
    /// checksums change with them (RFC 1624). The stack writes neither VLAN tags nor IP options or extension headers.
    pub(crate) fn apply(&self, frame: &mut [u8]) {
        let ip = ethernet::HEADER_BYTES;
        match self.service.ip() {
            IpAddr::V4(address) => {
                let segment = ip + ipv4::HEADER_BYTES;
                let checks = [ip + IPV4_CHECKSUM_AT, segment + TCP_CHECKSUM_AT];
                self.rewrite(frame, (ip + IPV4_SOURCE_AT, segment), &address.octets(), &checks);
            }
            IpAddr::V6(address) => {
                let segment = ip + ipv6::HEADER_BYTES;
                let checks = [segment + TCP_CHECKSUM_AT];
                self.rewrite(frame, (ip + IPV6_SOURCE_AT, segment), &address.octets(), &checks);
            }
        }
    }

    fn rewrite(&self, frame: &mut [u8], (at, segment): (usize, usize), address: &[u8], checks: &[usize]) {
        if frame.len() < segment + tcp::HEADER_BYTES {
            return;
        }
        replace(frame, at, address, checks);
        let tcp_check = &checks[checks.len() - 1..];
        replace(frame, segment + SOURCE_PORT_AT, &self.service.port().to_be_bytes(), tcp_check);
    }
}

/// Replaces bytes, whose number is even, and adjusts the checksums that cover them. All positions are inside the frame.
fn replace(frame: &mut [u8], at: usize, bytes: &[u8], checks: &[usize]) {
    for (index, word) in bytes.chunks_exact(2).enumerate() {
        let at = at + 2 * index;
        let (from, to) = (word_at(frame, at), u16::from_be_bytes([word[0], word[1]]));
        for check in checks {
            let sum = adjust_u16(word_at(frame, *check), from, to);
            frame[*check..*check + 2].copy_from_slice(&sum.to_be_bytes());
        }
        frame[at..at + 2].copy_from_slice(word);
    }
}

fn word_at(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use spillway_wire::packet::checksum::{pseudo_v4, pseudo_v6};
    use spillway_wire::packet::ethernet::Mac;
    use spillway_wire::packet::ipv4::PROTOCOL_TCP;

    use super::*;

    /// A frame with a TCP segment whose checksum is right, and the segment's pseudo header for another source.
    fn frame(source: SocketAddr, target: SocketAddr) -> Vec<u8> {
        let bytes = tcp::HEADER_BYTES + 5;
        let ip_bytes = if source.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
        let mut frame = alloc::vec![0; ethernet::HEADER_BYTES + ip_bytes + bytes];
        let kind = if source.is_ipv4() { ethernet::KIND_IPV4 } else { ethernet::KIND_IPV6 };
        let header = ethernet::Header { target: Mac([2; 6]), source: Mac([4; 6]), kind };
        header.emit(frame.first_chunk_mut().unwrap());
        let ip = &mut frame[ethernet::HEADER_BYTES..];
        match (source.ip(), target.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                ipv4::Header::new(from, to, PROTOCOL_TCP, bytes as u16).emit(ip.first_chunk_mut().unwrap());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                ipv6::Header::new(from, to, PROTOCOL_TCP, bytes as u16).emit(ip.first_chunk_mut().unwrap());
            }
            _ => unreachable!("one family"),
        }
        let segment = &mut ip[ip_bytes..];
        segment[..2].copy_from_slice(&source.port().to_be_bytes());
        segment[2..4].copy_from_slice(&target.port().to_be_bytes());
        segment[12] = 5 << 4;
        segment[tcp::HEADER_BYTES..].copy_from_slice(b"bytes");
        let check = sum(source.ip(), target.ip(), segment);
        segment[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2].copy_from_slice(&check.to_be_bytes());
        frame
    }

    /// The checksum of a segment whose checksum field is zero; 0 if the field has the right one.
    fn sum(source: IpAddr, target: IpAddr, segment: &[u8]) -> u16 {
        let bytes = segment.len() as u32;
        let pseudo = match (source, target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => pseudo_v4(source, target, PROTOCOL_TCP, bytes),
            (IpAddr::V6(source), IpAddr::V6(target)) => pseudo_v6(source, target, PROTOCOL_TCP, bytes),
            _ => unreachable!("one family"),
        };
        pseudo.add_bytes(segment).finish()
    }

    #[test]
    fn a_segment_gets_the_services_address_and_right_checksums() {
        for [place, service, client] in [
            ["10.0.0.3:21211", "10.0.0.5:80", "10.0.0.9:4000"],
            ["[fd00::3]:21211", "[fd00:7::5]:80", "[fd00::9]:4000"],
        ] {
            let [place, service, client] =
                [place, service, client].map(|text| text.parse::<SocketAddr>().unwrap());
            let mut rewritten = frame(place, client);
            ReplySource { place, service }.apply(&mut rewritten);
            assert_eq!(rewritten, frame(service, client));
        }
        // A frame that is cut stays as it is.
        let service: SocketAddr = "10.0.0.5:80".parse().unwrap();
        let mut cut = alloc::vec![7; 30];
        ReplySource { place: service, service }.apply(&mut cut);
        assert_eq!(cut, [7; 30]);
    }
}
