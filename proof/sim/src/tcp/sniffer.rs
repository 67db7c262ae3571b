//! Checks every frame that a stack sends, outside the code under test.
//!
//! Sequence numbers are relative: a stream's SYN is 0, and its first byte 1. Streams here are far shorter than 2^31.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use spillway_wire::packet::tcp::{self, Flags};
use spillway_wire::packet::{checksum, ethernet, ipv4, ipv6};

use super::gates::SharedGates;

#[derive(Clone, Debug)]
pub(crate) struct Sniffed<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) target: SocketAddr,
    pub(crate) header: tcp::Header,
    pub(crate) payload: &'a [u8],
}

/// The TCP segment in a frame; `Ok(None)` for other packets.
pub(crate) fn sniff(frame: &[u8]) -> Result<Option<Sniffed<'_>>, String> {
    let malformed = |error| format!("a malformed frame: {error}");
    let (header, packet) = ethernet::Header::parse(frame).map_err(malformed)?;
    let (ends, protocol, segment, pseudo): ([IpAddr; 2], _, _, _) = match header.kind {
        ethernet::KIND_IPV4 => {
            let (ip, _, segment) = ipv4::Header::parse(packet).map_err(malformed)?;
            let pseudo = checksum::pseudo_v4(ip.source, ip.target, ip.protocol, segment.len() as u32); // fits: at most 65,535
            ([ip.source.into(), ip.target.into()], ip.protocol, segment, pseudo)
        }
        ethernet::KIND_IPV6 => {
            let (ip, _, segment) = ipv6::Header::parse(packet).map_err(malformed)?;
            let pseudo = checksum::pseudo_v6(ip.source, ip.target, ip.protocol, segment.len() as u32); // fits: at most 65,535
            ([ip.source.into(), ip.target.into()], ip.protocol, segment, pseudo)
        }
        _ => return Ok(None),
    };
    if protocol != ipv4::PROTOCOL_TCP {
        return Ok(None);
    }
    let (header, _, payload) = tcp::Header::parse(segment, pseudo).map_err(malformed)?;
    Ok(Some(Sniffed {
        source: SocketAddr::new(ends[0], header.source),
        target: SocketAddr::new(ends[1], header.target),
        header,
        payload,
    }))
}

/// State of one end of a connection, as its frames show it.
#[derive(Clone, Debug, Default)]
pub(crate) struct End {
    /// Initial sequence number, once known.
    pub(crate) initial: Option<u32>,
    /// The next number after all bytes that this end has sent; its FIN counts.
    pub(crate) sent: u32,
    /// Highest acknowledgement number that this end has sent.
    pub(crate) acknowledged: u32,
    /// End of the window that this end has advertised.
    pub(crate) window_end: u32,
    scale: Option<u8>,
    /// SACK blocks that this end has sent, beyond its acknowledgement.
    sacked: Vec<(u32, u32)>,
    /// Initial number and `sent` of the previous stream, which the peer uses until it receives the new SYN.
    previous: Option<(u32, u32)>,
}

impl End {
    fn restarted(&self, initial: Option<u32>) -> End {
        let previous = self.initial.map(|initial| (initial, self.sent)).or(self.previous);
        End { initial, previous, ..End::default() }
    }

    fn is_in_previous(&self, number: u32) -> bool {
        self.previous.is_some_and(|(initial, sent)| number.wrapping_sub(initial) <= sent)
    }
}

/// The ends of each connection, by their addresses; the lower address comes first.
#[derive(Debug)]
pub(crate) struct Sniffer {
    flows: BTreeMap<(SocketAddr, SocketAddr), [End; 2]>,
    gates: SharedGates,
    gated_port: u16,
    has_cookies: bool,
    /// Forged SYNs: victim, pretended source, and the number that acknowledges the SYN.
    forged_syns: BTreeSet<(SocketAddr, SocketAddr, u32)>,
}

impl Sniffer {
    pub(crate) fn new(gates: SharedGates, gated_port: u16) -> Sniffer {
        Sniffer {
            flows: BTreeMap::new(),
            gates,
            gated_port,
            has_cookies: false,
            forged_syns: BTreeSet::new(),
        }
    }

    /// Allows repeated SYN-ACKs: a listener with cookies may not store the connection of a late SYN any more.
    pub(crate) fn with_cookies(self, has_cookies: bool) -> Sniffer {
        Sniffer { has_cookies, ..self }
    }

    /// Both ends of a connection: the local end, then the peer.
    pub(crate) fn ends(&self, local: SocketAddr, peer: SocketAddr) -> Option<(&End, &End)> {
        let is_lower = local < peer;
        let [lower, higher] = self.flows.get(&if is_lower { (local, peer) } else { (peer, local) })?;
        Some(if is_lower { (lower, higher) } else { (higher, lower) })
    }

    /// Records a forged SYN; if its connection has ended, the SYN begins a new one.
    pub(crate) fn record_forged(&mut self, frame: &[u8]) {
        if let Ok(Some(seen)) = sniff(frame)
            && seen.header.flags.contains(Flags::SYN)
        {
            self.forged_syns.insert((seen.target, seen.source, seen.header.seq.wrapping_add(1)));
        }
    }

    /// Records a frame. `is_checked`: a stack sent the frame, so it must be valid.
    pub(crate) fn observe(&mut self, frame: &[u8], is_checked: bool) -> Result<(), String> {
        let seen = match sniff(frame) {
            Ok(Some(seen)) => seen,
            Ok(None) => return Ok(()),
            Err(why) => return if is_checked { Err(why) } else { Ok(()) },
        };
        let (source, target) = (seen.source, seen.target);
        let is_lower = source < target;
        let key = if is_lower { (source, target) } else { (target, source) };
        let flags = seen.header.flags;
        if flags.contains(Flags::RST) {
            return Ok(());
        }
        // A bare acknowledgement may answer a forged SYN, unless the number also acknowledges bytes of the connection.
        let is_bare = flags.contains(Flags::ACK) && seen.payload.is_empty();
        let is_regular = self.ends(source, target).is_some_and(|(us, them)| {
            let ack = them.initial.map(|initial| seen.header.ack.wrapping_sub(initial));
            ack.is_some_and(|ack| (us.acknowledged..=them.sent).contains(&ack))
        });
        if is_bare && !is_regular && self.forged_syns.contains(&(source, target, seen.header.ack)) {
            return Ok(());
        }
        let ends = self.flows.entry(key).or_default();
        let [lower, higher] = std::mem::take(ends);
        let (mut sender, mut receiver) = if is_lower { (lower, higher) } else { (higher, lower) };
        if flags.contains(Flags::SYN) && sender.initial != Some(seen.header.seq) {
            if !flags.contains(Flags::ACK) {
                receiver = receiver.restarted(None);
            }
            sender = sender.restarted(Some(seen.header.seq));
        }
        if flags.contains(Flags::SYN) {
            sender.scale = seen.header.options.window_scale;
        }
        let is_cookie = flags.contains(Flags::SYN | Flags::ACK)
            && receiver.initial.is_some_and(|initial| seen.header.ack == initial.wrapping_add(1));
        if self.has_cookies && is_cookie && sender.acknowledged > 1 {
            let ends = if is_lower { [sender, receiver] } else { [receiver, sender] };
            self.flows.insert(key, ends);
            return Ok(());
        }
        let limit = self.gated_limit(source, target);
        let verdict = check_segment(&mut sender, &mut receiver, &seen, limit);
        let ends = if is_lower { [sender, receiver] } else { [receiver, sender] };
        self.flows.insert(key, ends);
        let context = || format!("{source} to {target}: {} {:?}", seen.header.flags, seen.header);
        verdict
            .map_err(|why| format!("{why} ({})", context()))
            .or_else(|why| if is_checked { Err(why) } else { Ok(()) })
    }

    /// Highest acknowledgement that a gated end may send, and end of its delivered bytes.
    fn gated_limit(&self, local: SocketAddr, peer: SocketAddr) -> Option<(u32, u32)> {
        let gate = (local.port() == self.gated_port).then(|| self.gates.borrow().get(local, peer))?;
        Some((1 + gate.released as u32, 1 + gate.received as u32)) // fits: streams are short
    }
}

fn check_segment(
    sender: &mut End,
    receiver: &mut End,
    seen: &Sniffed<'_>,
    gated: Option<(u32, u32)>,
) -> Result<(), String> {
    let (header, flags) = (&seen.header, seen.header.flags);
    let Some(initial) = sender.initial else { return Ok(()) };
    let (is_syn, is_fin) = (flags.contains(Flags::SYN), flags.contains(Flags::FIN));
    let segment_start = header.seq.wrapping_sub(initial).cast_signed();
    let payload_bytes = seen.payload.len() as i32; // fits: one frame
    let segment_end = segment_start + payload_bytes + i32::from(is_syn) + i32::from(is_fin);
    sender.sent = sender.sent.max(segment_end.max(0).cast_unsigned());
    // The windows of the present stream do not apply to a segment of the previous one.
    if flags.contains(Flags::ACK) && receiver.is_in_previous(header.ack) || sender.is_in_previous(header.seq)
    {
        return Ok(());
    }
    let mut verdict = Ok(());
    // A segment with one byte beyond the window is a window probe.
    if payload_bytes > 1
        && receiver.initial.is_some()
        && segment_start + payload_bytes > receiver.window_end.cast_signed()
    {
        verdict = Err(format!(
            "sends up to {}, but the window ends at {}",
            segment_start + payload_bytes,
            receiver.window_end
        ));
    }
    let Some(receiver_initial) = receiver.initial.filter(|_| flags.contains(Flags::ACK)) else {
        return verdict;
    };
    let ack = header.ack.wrapping_sub(receiver_initial);
    let scale = if is_syn || sender.scale.is_none() || receiver.scale.is_none() {
        0
    } else {
        sender.scale.unwrap_or(0)
    };
    let window_end = ack.wrapping_add(u32::from(header.window) << scale.min(14));
    if ack > receiver.sent {
        return Err(format!("acknowledges {ack} of {} that were sent", receiver.sent));
    }
    if ack < sender.acknowledged {
        return Err(format!("acknowledges {ack} after {}", sender.acknowledged));
    }
    // A retransmitted SYN has an unscaled window. RFC 7323 §2.4: others may move back by less than a unit.
    if window_end + (1 << scale.min(14)) <= sender.window_end && !is_syn {
        return Err(format!("the window's end goes back from {} to {window_end}", sender.window_end));
    }
    (sender.acknowledged, sender.window_end) = (ack, window_end.max(sender.window_end));
    sender.sacked.retain(|(_, right)| *right > ack);
    if let Some((left, right)) = sender.sacked.iter().find(|(left, _)| *left <= ack && gated.is_none()) {
        return Err(format!("acknowledges {ack} after SACK {left}..{right}"));
    }
    if let Some((released, _)) = gated.filter(|(released, _)| ack > *released) {
        return Err(format!("acknowledges {ack} where the gate is at {released}"));
    }
    for (left, right) in header.options.sack.as_slice() {
        let (left, right) = (left.wrapping_sub(receiver_initial), right.wrapping_sub(receiver_initial));
        // Forged segments may cause a duplicate SACK of any old range (RFC 2883).
        if right.wrapping_sub(ack).cast_signed() <= 0 && left.wrapping_sub(right).cast_signed() < 0 {
            continue;
        }
        if left >= right || right > receiver.sent {
            return Err(format!("SACK {left}..{right}, but only {} were sent", receiver.sent));
        }
        if gated.is_some_and(|(_, received)| left < received && right > ack) {
            return Err(format!("SACK {left}..{right}, which waits at the gate"));
        }
        if right > ack && !sender.sacked.contains(&(left, right)) {
            sender.sacked.push((left, right));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::frames::{Ends, segment};

    const A: &str = "10.0.0.1:40000";
    const B: &str = "10.0.0.2:80";

    fn frame(from: &str, to: &str, header: tcp::Header, payload: &[u8]) -> Vec<u8> {
        let ends = Ends::between(from.parse().unwrap(), to.parse().unwrap());
        segment(ends, header, payload)
    }

    fn header(flags: Flags, seq: u32, ack: u32) -> tcp::Header {
        tcp::Header { flags, seq, ack, window: 1000, ..tcp::Header::default() }
    }

    /// A connection from A (initial number 100) to B (initial number 900) opens. B is gated if `gated_port` is 80.
    fn opened(gated_port: u16) -> Sniffer {
        let mut sniffer = Sniffer::new(SharedGates::default(), gated_port);
        sniffer.observe(&frame(A, B, header(Flags::SYN, 100, 0), b""), true).unwrap();
        sniffer.observe(&frame(B, A, header(Flags::SYN | Flags::ACK, 900, 101), b""), true).unwrap();
        sniffer.observe(&frame(A, B, header(Flags::ACK, 101, 901), b"hello"), true).unwrap();
        sniffer
    }

    fn verdict(sniffer: &mut Sniffer, header: tcp::Header, payload: &[u8]) -> String {
        sniffer.observe(&frame(B, A, header, payload), true).err().unwrap_or_default()
    }

    #[test]
    fn valid_segments_cause_no_violation() {
        let mut sniffer = opened(1);
        assert_eq!(verdict(&mut sniffer, header(Flags::ACK, 901, 106), &[0; 1000]), "");
        assert_eq!(
            verdict(&mut sniffer, header(Flags::ACK, 1901, 106), b"1"),
            "",
            "one byte beyond the window should count as a probe"
        );
    }

    #[test]
    fn only_listeners_with_cookies_may_repeat_a_syn_ack() {
        let again = header(Flags::SYN | Flags::ACK, 900, 101);
        let after_data = |sniffer: Sniffer| {
            let mut sniffer = sniffer;
            assert_eq!(verdict(&mut sniffer, header(Flags::ACK, 901, 106), b""), "");
            verdict(&mut sniffer, again, b"")
        };
        assert!(after_data(opened(1)).starts_with("acknowledges 1 after 6"));
        assert_eq!(after_data(opened(1).with_cookies(true)), "");
    }

    #[test]
    fn invalid_segments_are_detected() {
        let ack = |ack| header(Flags::ACK, 901, ack);
        assert!(verdict(&mut opened(1), ack(107), b"").starts_with("acknowledges 7 of 6 that were sent"));
        assert!(verdict(&mut opened(1), ack(100), b"").starts_with("acknowledges 0 after 1"));
        assert!(verdict(&mut opened(1), ack(106), &[0; 1001]).starts_with("sends up to 1002"));
        let narrow = tcp::Header { window: 994, ..ack(106) };
        assert!(
            verdict(&mut opened(1), narrow, b"").starts_with("the window's end goes back from 1001 to 1000")
        );
        let mut sack = ack(101);
        sack.options.sack.push(103, 107);
        assert!(verdict(&mut opened(1), sack, b"").starts_with("SACK 3..7, but only 6 were sent"));
        let mut damaged = frame(B, A, ack(106), b"abc");
        damaged[55] ^= 1;
        assert!(opened(1).observe(&damaged, true).unwrap_err().starts_with("a malformed frame"));
        assert!(opened(1).observe(&damaged, false).is_ok(), "frames of other hosts should not be checked");
    }

    #[test]
    fn acknowledgements_and_sack_blocks_beyond_the_gate_are_detected() {
        let ack = |ack| header(Flags::ACK, 901, ack);
        let mut sniffer = opened(80);
        let (local, peer) = (B.parse().unwrap(), A.parse().unwrap());
        sniffer.gates.borrow_mut().begin(local, peer);
        assert!(verdict(&mut sniffer, ack(102), b"").starts_with("acknowledges 2 where the gate is at 1"));
        let mut sniffer = opened(80);
        sniffer.gates.borrow_mut().begin(local, peer);
        *sniffer.gates.borrow_mut().get_mut(local, peer).unwrap() =
            super::super::gates::Gate { received: 3, released: 2 };
        assert_eq!(verdict(&mut sniffer, ack(103), b""), "");
        let mut sack = ack(103);
        sack.options.sack.push(104, 106);
        assert_eq!(
            verdict(&mut sniffer, sack, b""),
            "",
            "SACK of bytes received out of order should be valid"
        );
        sack.options.sack = tcp::SackBlocks::default();
        sack.options.sack.push(103, 106);
        assert!(verdict(&mut sniffer, sack, b"").starts_with("SACK 3..6, which waits at the gate"));
    }
}
