//! Parses damaged frames: parsers do not panic, and detect damage to bytes that a checksum covers.

use std::net::{Ipv4Addr, Ipv6Addr};

use spillway_parts::Random;
use spillway_wire::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::icmp::{v4, v6};
use spillway_wire::packet::tcp::{self, Flags, Options, SackBlocks, Timestamps};
use spillway_wire::packet::{PacketError, arp, ipv4, ipv6, udp};

const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const TARGET: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const SOURCE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const TARGET_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

const IP_OFFSET: usize = ethernet::HEADER_BYTES;

/// The content of a frame, parsed as far as a stack needs it.
#[derive(Debug, PartialEq)]
enum Content {
    Arp(arp::Packet),
    Tcp(tcp::Header, Vec<u8>),
    Udp(udp::Header, Vec<u8>),
    Icmp(String),
    Unknown,
}

fn parse_frame(frame: &[u8]) -> Result<Content, PacketError> {
    let (frame, packet) = ethernet::Header::parse(frame)?;
    match frame.kind {
        ethernet::KIND_ARP => Ok(Content::Arp(arp::Packet::parse(packet)?)),
        ethernet::KIND_IPV4 => {
            let (ip, _, payload) = ipv4::Header::parse(packet)?;
            let pseudo = pseudo_v4(ip.source, ip.target, ip.protocol, u32::from(ip.payload_bytes));
            match ip.protocol {
                ipv4::PROTOCOL_TCP => parse_tcp(payload, pseudo),
                ipv4::PROTOCOL_UDP => {
                    let (header, bytes) = udp::Header::parse_v4(payload, ip.source, ip.target)?;
                    Ok(Content::Udp(header, bytes.to_vec()))
                }
                ipv4::PROTOCOL_ICMP => {
                    let message = v4::Message::parse(payload)?;
                    if let v4::Message::Unreachable { inner, .. } = message
                        && let Ok((_, segment)) = ipv4::Header::parse_quoted(inner)
                    {
                        let _ = tcp::Quoted::parse(segment);
                    }
                    Ok(Content::Icmp(format!("{message:?}")))
                }
                _ => Ok(Content::Unknown),
            }
        }
        ethernet::KIND_IPV6 => {
            let (ip, _, payload) = ipv6::Header::parse(packet)?;
            let pseudo = pseudo_v6(ip.source, ip.target, ip.protocol, u32::from(ip.payload_bytes));
            match ip.protocol {
                ipv4::PROTOCOL_TCP => parse_tcp(payload, pseudo),
                ipv6::PROTOCOL_ICMP => {
                    Ok(Content::Icmp(format!("{:?}", v6::Message::parse(payload, pseudo)?)))
                }
                _ => Ok(Content::Unknown),
            }
        }
        _ => Ok(Content::Unknown),
    }
}

fn parse_tcp(segment: &[u8], pseudo: Sum) -> Result<Content, PacketError> {
    let (header, _, payload) = tcp::Header::parse(segment, pseudo)?;
    Ok(Content::Tcp(header, payload.to_vec()))
}

fn ethernet_frame(kind: u16, packet: &[u8]) -> Vec<u8> {
    let header = ethernet::Header { target: Mac([2, 0, 0, 0, 0, 2]), source: Mac([2, 0, 0, 0, 0, 1]), kind };
    let mut out = [0; ethernet::HEADER_BYTES];
    header.emit(&mut out);
    [&out, packet].concat()
}

fn ipv4_frame(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Header {
        source: SOURCE,
        target: TARGET,
        protocol,
        ttl: 64,
        dscp_ecn: 0,
        ident: 7,
        dont_fragment: true,
        payload_bytes: u16::try_from(payload.len()).unwrap(),
    };
    let mut out = [0; ipv4::HEADER_BYTES];
    header.emit(&mut out);
    ethernet_frame(ethernet::KIND_IPV4, &[&out, payload].concat())
}

fn ipv6_frame(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = ipv6::Header {
        source: SOURCE_V6,
        target: TARGET_V6,
        protocol,
        hop_limit: 255,
        dscp_ecn: 0,
        flow_label: 0,
        payload_bytes: u16::try_from(payload.len()).unwrap(),
    };
    let mut out = [0; ipv6::HEADER_BYTES];
    header.emit(&mut out);
    ethernet_frame(ethernet::KIND_IPV6, &[&out, payload].concat())
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
    let v4_sum = |bytes| pseudo_v4(SOURCE, TARGET, ipv4::PROTOCOL_TCP, bytes);
    let v6_sum = |bytes| pseudo_v6(SOURCE_V6, TARGET_V6, ipv4::PROTOCOL_TCP, bytes);
    let data = Options { timestamps, ..Options::default() };
    let mut frames = Vec::new();
    for (flags, options, payload) in [
        (Flags::SYN, syn, &b""[..]),
        (Flags::ACK | Flags::PSH, data, b"some bytes that are odd"),
        (Flags::ACK, Options { timestamps, sack, ..Options::default() }, b""),
    ] {
        frames.push(ipv4_frame(ipv4::PROTOCOL_TCP, &segment(flags, options, payload, v4_sum)));
        frames.push(ipv6_frame(ipv4::PROTOCOL_TCP, &segment(flags, options, payload, v6_sum)));
    }

    let mut datagram = [&[0; udp::HEADER_BYTES][..], b"what?"].concat();
    let header = udp::Header { source: 4711, target: 53, payload_bytes: 5 };
    header.emit(&mut datagram, pseudo_v4(SOURCE, TARGET, ipv4::PROTOCOL_UDP, 13));
    frames.push(ipv4_frame(ipv4::PROTOCOL_UDP, &datagram));

    let quoted = frames[2][IP_OFFSET..IP_OFFSET + 28].to_vec();
    for message in [
        v4::Message::EchoRequest { ident: 1, sequence: 2, payload: b"abcde" },
        v4::Message::Unreachable { code: v4::CODE_FRAGMENTATION_NEEDED, next_hop_mtu: 1400, inner: &quoted },
    ] {
        let mut out = vec![0; message.bytes()];
        message.emit(&mut out);
        frames.push(ipv4_frame(ipv4::PROTOCOL_ICMP, &out));
    }
    for message in [
        v6::Message::PacketTooBig { mtu: 1280, inner: &quoted },
        v6::Message::NeighbourSolicitation { target: TARGET_V6, source_mac: Some(Mac([2; 6])) },
    ] {
        let mut out = vec![0; message.bytes()];
        let pseudo = pseudo_v6(SOURCE_V6, TARGET_V6, ipv6::PROTOCOL_ICMP, message.bytes() as u32);
        message.emit(&mut out, pseudo);
        frames.push(ipv6_frame(ipv6::PROTOCOL_ICMP, &out));
    }

    let request = arp::Packet {
        operation: arp::Operation::Request,
        sender_mac: Mac([2, 0, 0, 0, 0, 1]),
        sender_ip: SOURCE,
        target_mac: Mac::ZERO,
        target_ip: TARGET,
    };
    let mut out = [0; arp::BYTES];
    request.emit(&mut out);
    frames.push(ethernet_frame(ethernet::KIND_ARP, &out));
    frames
}

/// Corrects the checksums of a damaged IPv4 frame if its length permits, so that parsing continues after them.
fn correct_checksums(frame: &mut [u8]) {
    let Some((head, payload)) = frame.get_mut(IP_OFFSET..).and_then(|packet| packet.split_at_mut_checked(20))
    else {
        return;
    };
    head[10..12].fill(0);
    let check = Sum::ZERO.add_bytes(head).finish();
    head[10..12].copy_from_slice(&check.to_be_bytes());
    let (checksum_offset, pseudo) = match head[9] {
        ipv4::PROTOCOL_ICMP => (2, Sum::ZERO),
        protocol => (16, pseudo_v4(SOURCE, TARGET, protocol, payload.len() as u32)),
    };
    if payload.len() >= checksum_offset + 2 {
        payload[checksum_offset..checksum_offset + 2].fill(0);
        let check = pseudo.add_bytes(payload).finish();
        payload[checksum_offset..checksum_offset + 2].copy_from_slice(&check.to_be_bytes());
    }
}

fn below(random: &mut Random, limit: usize) -> usize {
    random.below(limit as u64) as usize
}

/// Damages a frame in one random way. Also suitable for a coverage-guided fuzzer.
fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    let offset = below(random, frame.len().max(1));
    match below(random, 6) {
        _ if frame.is_empty() => frame.push(0x45),
        0 => frame[offset] ^= 1 << below(random, 8),
        1 => frame[offset] = [0, 1, 0x7f, 0x80, 0xff, 0x45][below(random, 6)],
        2 => frame.truncate(offset),
        3 => drop(frame.splice(offset..offset, (0..below(random, 9)).map(|byte| byte as u8))),
        4 => drop(frame.drain(offset..(offset + below(random, 9)).min(frame.len()))),
        _ => {
            let other = below(random, frame.len());
            frame.swap(offset, other);
        }
    }
}

#[test]
fn valid_frames_of_every_kind_are_parsed_and_padding_is_ignored() {
    for frame in frames() {
        assert!(
            !matches!(parse_frame(&frame), Err(_) | Ok(Content::Unknown)),
            "a valid frame should be parsed: {frame:02x?}: {:?}",
            parse_frame(&frame)
        );
        let padded = [frame.as_slice(), &[0xa5; 20]].concat();
        assert_eq!(parse_frame(&padded), parse_frame(&frame), "padding should be ignored");
    }
}

#[test]
fn damage_to_bytes_under_a_checksum_is_detected() {
    // Each bit of the IP payload and of the IPv4 header. No checksum covers ARP, or all of the IPv6 header.
    for frame in frames().into_iter().filter(|frame| frame[12..14] != [0x08, 0x06]) {
        let from = if frame[12..14] == [0x86, 0xdd] { IP_OFFSET + ipv6::HEADER_BYTES } else { IP_OFFSET };
        for offset in from..frame.len() {
            for bit in 0..8 {
                let mut damaged = frame.clone();
                damaged[offset] ^= 1 << bit;
                assert!(
                    parse_frame(&damaged).is_err(),
                    "a frame with bit {bit} of byte {offset} flipped should be rejected: {frame:02x?}"
                );
            }
        }
    }
}

#[test]
fn damaged_frames_do_not_panic() {
    // For a long search, SPILLWAY_SEED sets the first seed and SPILLWAY_SEEDS the number of seeds.
    let number_of = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, seeds) =
        (number_of("SPILLWAY_SEED").unwrap_or(0), number_of("SPILLWAY_SEEDS").unwrap_or(100_000));
    let frames = frames();
    let (mut accepted, mut rejected) = (0_u64, 0_u64);
    for seed in first..first.saturating_add(seeds) {
        let mut random = Random::new(seed);
        let mut frame = frames[below(&mut random, frames.len())].clone();
        for _ in 0..=below(&mut random, 4) {
            mutate(&mut frame, &mut random);
        }
        if below(&mut random, 2) == 0 {
            correct_checksums(&mut frame);
        }
        match parse_frame(&frame) {
            Ok(_) => accepted += 1,
            Err(_) => rejected += 1,
        }
    }
    assert!(
        accepted > seeds / 20 && rejected > seeds / 4,
        "valid and invalid frames should both occur often: {accepted} accepted, {rejected} rejected"
    );
}
