//! Parses damaged frames: no parser panics, and damage to bytes that a checksum covers is detected.

use std::net::{Ipv4Addr, Ipv6Addr};

use spillway_parts::Random;
use spillway_wire::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::icmp::{v4, v6};
use spillway_wire::packet::tcp::{self, Flags, Options, SackBlocks, Timestamps};
use spillway_wire::packet::{PacketError, arp, ipv4, ipv6, udp};

const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const HERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const THERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// Offset of the IP header in a frame.
const IP: usize = ethernet::HEADER_BYTES;

/// The content of a frame, parsed as far as a stack needs it.
#[derive(Debug, PartialEq)]
enum Said {
    Arp(arp::Packet),
    Tcp(tcp::Header, Vec<u8>),
    Udp(udp::Header, Vec<u8>),
    Icmp(String),
    Unknown,
}

/// Parses a frame as a stack does.
fn take(frame: &[u8]) -> Result<Said, PacketError> {
    let (frame, packet) = ethernet::Header::parse(frame)?;
    match frame.kind {
        ethernet::KIND_ARP => Ok(Said::Arp(arp::Packet::parse(packet)?)),
        ethernet::KIND_IPV4 => {
            let (ip, _, payload) = ipv4::Header::parse(packet)?;
            let pseudo = pseudo_v4(ip.source, ip.target, ip.protocol, u32::from(ip.payload_bytes));
            match ip.protocol {
                ipv4::PROTOCOL_TCP => take_tcp(payload, pseudo),
                ipv4::PROTOCOL_UDP => {
                    let (header, bytes) = udp::Header::parse_v4(payload, ip.source, ip.target)?;
                    Ok(Said::Udp(header, bytes.to_vec()))
                }
                ipv4::PROTOCOL_ICMP => {
                    let message = v4::Message::parse(payload)?;
                    if let v4::Message::Unreachable { inner, .. } = message
                        && let Ok((_, segment)) = ipv4::Header::parse_quoted(inner)
                    {
                        let _ = tcp::Quoted::parse(segment);
                    }
                    Ok(Said::Icmp(format!("{message:?}")))
                }
                _ => Ok(Said::Unknown),
            }
        }
        ethernet::KIND_IPV6 => {
            let (ip, _, payload) = ipv6::Header::parse(packet)?;
            let pseudo = pseudo_v6(ip.source, ip.target, ip.protocol, u32::from(ip.payload_bytes));
            match ip.protocol {
                ipv4::PROTOCOL_TCP => take_tcp(payload, pseudo),
                ipv6::PROTOCOL_ICMP => Ok(Said::Icmp(format!("{:?}", v6::Message::parse(payload, pseudo)?))),
                _ => Ok(Said::Unknown),
            }
        }
        _ => Ok(Said::Unknown),
    }
}

fn take_tcp(segment: &[u8], pseudo: Sum) -> Result<Said, PacketError> {
    let (header, _, payload) = tcp::Header::parse(segment, pseudo)?;
    Ok(Said::Tcp(header, payload.to_vec()))
}

fn framed(kind: u16, packet: &[u8]) -> Vec<u8> {
    let header = ethernet::Header { target: Mac([2, 0, 0, 0, 0, 2]), source: Mac([2, 0, 0, 0, 0, 1]), kind };
    let mut out = [0; ethernet::HEADER_BYTES];
    header.emit(&mut out);
    [&out, packet].concat()
}

fn framed_v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Header {
        source: HERE,
        target: THERE,
        protocol,
        ttl: 64,
        dscp_ecn: 0,
        ident: 7,
        dont_fragment: true,
        payload_bytes: u16::try_from(payload.len()).unwrap(),
    };
    let mut out = [0; ipv4::HEADER_BYTES];
    header.emit(&mut out);
    framed(ethernet::KIND_IPV4, &[&out, payload].concat())
}

fn framed_v6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = ipv6::Header {
        source: HERE_V6,
        target: THERE_V6,
        protocol,
        hop_limit: 255,
        dscp_ecn: 0,
        flow_label: 0,
        payload_bytes: u16::try_from(payload.len()).unwrap(),
    };
    let mut out = [0; ipv6::HEADER_BYTES];
    header.emit(&mut out);
    framed(ethernet::KIND_IPV6, &[&out, payload].concat())
}

fn segment(flags: Flags, options: Options, payload: &[u8], pseudo: impl FnOnce(u32) -> Sum) -> Vec<u8> {
    let header = tcp::Header {
        source: 40_000,
        target: 80,
        seq: 0x0102_0304,
        ack: 0x0506_0708,
        flags,
        window: 1024,
        urgent: 0,
        options,
    };
    let mut out = vec![0; header.header_bytes()];
    out.extend(payload);
    let bytes = out.len();
    assert_eq!(header.emit(&mut out, payload.len(), pseudo(bytes as u32)), bytes);
    out
}

/// One frame of each kind.
fn frames() -> Vec<Vec<u8>> {
    let timestamps = Some(Timestamps { value: 1, echo: 2 });
    let syn = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps,
        ..Options::default()
    };
    let mut sack = SackBlocks::default();
    [(1, 2), (5, 9), (100, 200)].into_iter().for_each(|(left, right)| sack.push(left, right));
    let v4_sum = |bytes| pseudo_v4(HERE, THERE, ipv4::PROTOCOL_TCP, bytes);
    let v6_sum = |bytes| pseudo_v6(HERE_V6, THERE_V6, ipv4::PROTOCOL_TCP, bytes);
    let data = Options { timestamps, ..Options::default() };
    let mut frames = Vec::new();
    for (flags, options, payload) in [
        (Flags::SYN, syn, &b""[..]),
        (Flags::ACK | Flags::PSH, data, b"some bytes that are odd"),
        (Flags::ACK, Options { timestamps, sack, ..Options::default() }, b""),
    ] {
        frames.push(framed_v4(ipv4::PROTOCOL_TCP, &segment(flags, options, payload, v4_sum)));
        frames.push(framed_v6(ipv4::PROTOCOL_TCP, &segment(flags, options, payload, v6_sum)));
    }

    let mut datagram = [&[0; udp::HEADER_BYTES][..], b"what?"].concat();
    let header = udp::Header { source: 4711, target: 53, payload_bytes: 5 };
    header.emit(&mut datagram, pseudo_v4(HERE, THERE, ipv4::PROTOCOL_UDP, 13));
    frames.push(framed_v4(ipv4::PROTOCOL_UDP, &datagram));

    let quoted = frames[2][IP..IP + 28].to_vec();
    for message in [
        v4::Message::EchoRequest { ident: 1, sequence: 2, payload: b"abcde" },
        v4::Message::Unreachable { code: v4::CODE_FRAGMENTATION_NEEDED, next_hop_mtu: 1400, inner: &quoted },
    ] {
        let mut out = vec![0; message.bytes()];
        message.emit(&mut out);
        frames.push(framed_v4(ipv4::PROTOCOL_ICMP, &out));
    }
    for message in [
        v6::Message::PacketTooBig { mtu: 1280, inner: &quoted },
        v6::Message::NeighbourSolicitation { target: THERE_V6, source_mac: Some(Mac([2; 6])) },
    ] {
        let mut out = vec![0; message.bytes()];
        let pseudo = pseudo_v6(HERE_V6, THERE_V6, ipv6::PROTOCOL_ICMP, message.bytes() as u32);
        message.emit(&mut out, pseudo);
        frames.push(framed_v6(ipv6::PROTOCOL_ICMP, &out));
    }

    let request = arp::Packet {
        operation: arp::Operation::Request,
        sender_mac: Mac([2, 0, 0, 0, 0, 1]),
        sender_ip: HERE,
        target_mac: Mac::ZERO,
        target_ip: THERE,
    };
    let mut out = [0; arp::BYTES];
    request.emit(&mut out);
    frames.push(framed(ethernet::KIND_ARP, &out));
    frames
}

/// Corrects the checksums of a damaged IPv4 frame if its length permits it, so that the code behind the checks is reached.
fn sum_again(frame: &mut [u8]) {
    let Some((head, payload)) = frame.get_mut(IP..).and_then(|packet| packet.split_at_mut_checked(20)) else {
        return;
    };
    head[10..12].fill(0);
    let check = Sum::ZERO.add_bytes(head).finish();
    head[10..12].copy_from_slice(&check.to_be_bytes());
    let (place, pseudo) = match head[9] {
        ipv4::PROTOCOL_ICMP => (2, Sum::ZERO),
        protocol => (16, pseudo_v4(HERE, THERE, protocol, payload.len() as u32)),
    };
    if payload.len() >= place + 2 {
        payload[place..place + 2].fill(0);
        let check = pseudo.add_bytes(payload).finish();
        payload[place..place + 2].copy_from_slice(&check.to_be_bytes());
    }
}

/// A random number below `limit`.
fn below(random: &mut Random, limit: usize) -> usize {
    random.below(limit as u64) as usize
}

/// Damages a frame in one random way. Also suitable for a coverage-guided fuzzer.
fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    let place = below(random, frame.len().max(1));
    match below(random, 6) {
        _ if frame.is_empty() => frame.push(0x45),
        0 => frame[place] ^= 1 << below(random, 8),
        1 => frame[place] = [0, 1, 0x7f, 0x80, 0xff, 0x45][below(random, 6)],
        2 => frame.truncate(place),
        3 => drop(frame.splice(place..place, (0..below(random, 9)).map(|byte| byte as u8))),
        4 => drop(frame.drain(place..(place + below(random, 9)).min(frame.len()))),
        _ => {
            let other = below(random, frame.len());
            frame.swap(place, other);
        }
    }
}

#[test]
fn frames_of_every_kind_are_understood() {
    for frame in frames() {
        assert!(!matches!(take(&frame), Err(_) | Ok(Said::Unknown)), "{frame:02x?}: {:?}", take(&frame));
        let padded = [frame.as_slice(), &[0xa5; 20]].concat();
        assert_eq!(take(&padded), take(&frame), "what the network adds behind it says nothing");
    }
}

#[test]
fn damage_to_what_is_summed_is_seen() {
    // Each bit of the IP payload and of the IPv4 header. No checksum covers all of the IPv6 header.
    for frame in frames().into_iter().filter(|frame| frame[12..14] != [0x08, 0x06]) {
        let from = if frame[12..14] == [0x86, 0xdd] { IP + ipv6::HEADER_BYTES } else { IP };
        for place in from..frame.len() {
            for bit in 0..8 {
                let mut damaged = frame.clone();
                damaged[place] ^= 1 << bit;
                assert!(take(&damaged).is_err(), "byte {place}, bit {bit} of {frame:02x?}");
            }
        }
    }
}

#[test]
fn damaged_frames_do_no_harm() {
    // For a long search, SPILLWAY_SEED sets the first seed and SPILLWAY_SEEDS the number of seeds.
    let number_of = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, seeds) =
        (number_of("SPILLWAY_SEED").unwrap_or(0), number_of("SPILLWAY_SEEDS").unwrap_or(100_000));
    let frames = frames();
    let (mut believed, mut refused) = (0_u64, 0_u64);
    for seed in first..first.saturating_add(seeds) {
        let mut random = Random::new(seed);
        let mut frame = frames[below(&mut random, frames.len())].clone();
        for _ in 0..=below(&mut random, 4) {
            mutate(&mut frame, &mut random);
        }
        if below(&mut random, 2) == 0 {
            sum_again(&mut frame);
        }
        match take(&frame) {
            Ok(_) => believed += 1,
            Err(_) => refused += 1,
        }
    }
    // Valid and invalid frames both occur often.
    assert!(believed > seeds / 20 && refused > seeds / 4, "{believed} believed, {refused} refused");
}
