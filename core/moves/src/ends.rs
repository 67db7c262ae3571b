//! The ends of a frame's TCP segment.

use core::net::{IpAddr, SocketAddr};

use spillway_wire::packet::tcp::Flags;
use spillway_wire::packet::{ethernet, ipv4, ipv6};

/// Start of the flags in a TCP header.
const FLAGS_AT: usize = 13;

/// The addresses, ports and flags of a TCP segment. Checksums are not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) source: SocketAddr,
    pub(crate) target: SocketAddr,
    /// The segment has SYN without ACK.
    pub(crate) is_opening: bool,
}

impl Ends {
    /// The ends of a frame; `None` if the frame has no TCP segment.
    pub(crate) fn of(frame: &[u8]) -> Option<Ends> {
        let (header, packet) = ethernet::Header::parse(frame).ok()?;
        let (source, target, protocol, segment): (IpAddr, IpAddr, _, _) = match header.kind {
            ethernet::KIND_IPV4 => {
                let (ip, _, segment) = ipv4::Header::parse(packet).ok()?;
                (ip.source.into(), ip.target.into(), ip.protocol, segment)
            }
            ethernet::KIND_IPV6 => {
                let (ip, _, segment) = ipv6::Header::parse(packet).ok()?;
                (ip.source.into(), ip.target.into(), ip.protocol, segment)
            }
            _ => return None,
        };
        if protocol != ipv4::PROTOCOL_TCP {
            return None;
        }
        let port = |at: usize| Some(u16::from_be_bytes([*segment.get(at)?, *segment.get(at + 1)?]));
        let flags = Flags(*segment.get(FLAGS_AT)?);
        Some(Ends {
            source: SocketAddr::new(source, port(0)?),
            target: SocketAddr::new(target, port(2)?),
            is_opening: flags.contains(Flags::SYN) && !flags.contains(Flags::ACK),
        })
    }
}
