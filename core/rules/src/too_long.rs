//! Packets that do not fit into a tunnel. The sender gets the ICMP error by which it finds the path MTU (RFC 1191, RFC 8201).

use spillway_wire::packet::checksum::{Sum, pseudo_v6};

use crate::arrival::Arrival;
use crate::parse::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, Packet, Upper, u16_at};
use crate::rewrite;
use crate::tunnel::{DONT_FRAGMENT, ip_header};
use crate::verdict::{Action, Decision, Verdict};

/// Bytes of a packet that an error quotes. With them the IPv4 error has less than 576 bytes (RFC 1812 §4.3.2.3).
const QUOTED_BYTES: usize = 504;
/// Bytes of an error behind its IP header.
const ERROR_BYTES: u16 = 8 + 504;
/// The smallest path MTUs that an error states: what each host must accept (RFC 791 §3.1, RFC 8200 §5).
const IPV4_MTU_MIN: usize = 576;
const IPV6_MTU_MIN: usize = 1280;

/// Whether a frame's IP packet is longer than `bytes_max`, by its header or in the frame.
pub(crate) fn is_too_long(frame: &[u8], packet: &Packet, bytes_max: usize) -> bool {
    let stated = packet.network.bytes(frame).unwrap_or(usize::MAX);
    stated.max(frame.len() - packet.network.at) > bytes_max
}

/// Turns a client's packet that is too long into the error for the client. A packet is dropped without an error if it is an error
/// itself, if routers may fragment it, or if the client could not send a shorter one.
pub(crate) fn answer(arrival: &mut Arrival<'_>, packet: &Packet, bytes_max: usize) -> Decision {
    let at = packet.network.at;
    let is_ipv4 = packet.network.is_ipv4;
    let frame = &mut *arrival.frame;
    let forbids_fragments = !is_ipv4 || u16_at(frame, at + 6).is_ok_and(|flags| flags & DONT_FRAGMENT != 0);
    let mtu_min = if is_ipv4 { IPV4_MTU_MIN } else { IPV6_MTU_MIN };
    let is_long = frame.len() - at > bytes_max;
    let (Upper::Tcp(_), Ok(mtu)) = (packet.upper, u16::try_from(bytes_max)) else {
        return Decision::drop(Verdict::DropTooLong);
    };
    if !forbids_fragments || bytes_max < mtu_min || !is_long {
        return Decision::drop(Verdict::DropTooLong);
    }
    frame.truncate(at + QUOTED_BYTES);
    let [high, low] = mtu.to_be_bytes();
    // The MTU is at the end of a word of 32 bits in both: IPv4's code is "fragmentation needed" (RFC 1191 §4), IPv6's type
    // "packet too big" (RFC 4443 §3.2).
    let (protocol, kind, code) = if is_ipv4 { (PROTOCOL_ICMP, 3, 4) } else { (PROTOCOL_ICMPV6, 2, 0) };
    let mut error = [kind, code, 0, 0, 0, 0, high, low];
    let pseudo = if is_ipv4 {
        // ICMP has no pseudo-header.
        Sum::ZERO
    } else {
        pseudo_v6(packet.target.0.into(), packet.source.0.into(), protocol, ERROR_BYTES.into())
    };
    let check = pseudo.add_bytes(&error).add_bytes(&frame[at..]).finish();
    error[2..4].copy_from_slice(&check.to_be_bytes());
    let header = ip_header(packet.target, packet.source, 0, protocol, ERROR_BYTES);
    frame.splice(at..at, header.into_iter().chain(error));
    rewrite::turn_around_ethernet(frame);
    Decision { verdict: Verdict::TooLongAnswered, action: Action::Answer }
}
