//! A host without a stack that breaks rules: puppets, floods, noise, and forged segments of others' connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::tcp::{Flags, Header, Options, Timestamps};
use spillway_wire::packet::{arp, ipv4};

use super::frames::{Ends, arp_reply, mac_of, segment};
use super::puppet::Puppet;
use super::sniffer::{End, sniff};
use crate::rng::Rng;

/// Connections at a time.
const PUPPETS_MAX: usize = 12;
/// Maximum of SYNs that a flood sends at once.
const FLOOD_MAX: u64 = 64;
/// Maximum time between two actions.
const REST_NS_MAX: u64 = 20_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RogueSettings {
    /// Sends SYNs from addresses that do not answer.
    pub(crate) floods: bool,
    /// Forges segments of others' connections.
    pub(crate) forges: bool,
    /// For [`Canary::ExactReset`](super::canary::Canary::ExactReset): knows RCV.NXT.
    pub(crate) is_exact: bool,
}

#[derive(Debug)]
pub(crate) struct Rogue {
    ip: Ipv4Addr,
    mac: Mac,
    rng: Rng,
    settings: RogueSettings,
    targets: Vec<SocketAddr>,
    puppets: Vec<Puppet>,
    next_port: u16,
    is_calm: bool,
    pub(crate) next_at: Option<Time>,
}

impl Rogue {
    pub(crate) fn new(ip: Ipv4Addr, targets: Vec<SocketAddr>, settings: RogueSettings, rng: Rng) -> Rogue {
        let next_at = Some(Time(1));
        let mac = mac_of(ip);
        Rogue {
            ip,
            mac,
            rng,
            settings,
            targets,
            puppets: Vec::new(),
            next_port: 1024,
            is_calm: false,
            next_at,
        }
    }

    pub(crate) fn has(&self, mac: Mac) -> bool {
        mac == self.mac
    }

    /// Ends all puppets; returns their last frames.
    pub(crate) fn calm_down(&mut self) -> Vec<Vec<u8>> {
        self.is_calm = true;
        self.next_at = None;
        self.puppets.iter_mut().flat_map(Puppet::end).collect()
    }

    /// Handles a frame; returns the answers.
    pub(crate) fn handle_frame(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        let Ok((header, packet)) = ethernet::Header::parse(frame) else { return Vec::new() };
        if header.kind == ethernet::KIND_ARP {
            let question = arp::Packet::parse(packet)
                .ok()
                .filter(|packet| packet.operation == arp::Operation::Request && packet.target_ip == self.ip);
            return question.map(|question| arp_reply(&question, (self.mac, self.ip))).into_iter().collect();
        }
        let Ok(Some(seen)) = sniff(frame) else { return Vec::new() };
        let puppet = self.puppets.iter_mut().find(|puppet| puppet.source() == seen.target);
        puppet.map_or(Vec::new(), |puppet| puppet.handle_frame(&seen))
    }

    /// Returns the frames of the host's next action.
    pub(crate) fn act(&mut self, now: Time) -> Vec<Vec<u8>> {
        self.next_at = Some(now + Duration::from_nanos(self.rng.scale(100_000, REST_NS_MAX)));
        self.puppets.retain(|puppet| !puppet.is_over());
        match self.rng.below(8) {
            0 => return (0..self.rng.below(4)).map(|_| self.noise()).collect(),
            1 if self.settings.floods => {
                return (0..self.rng.scale(1, FLOOD_MAX)).map(|_| self.flood()).collect();
            }
            2 if self.puppets.len() < PUPPETS_MAX => {
                self.next_port = self.next_port.checked_add(1).unwrap_or(1024);
                let target = self.rng.pick(&self.targets);
                let source = SocketAddr::from((self.ip, self.next_port));
                self.puppets.push(Puppet::new(
                    source,
                    (target, Ends::between(source, target).target_mac),
                    self.rng.fork(),
                ));
            }
            _ => {}
        }
        self.puppets.iter_mut().flat_map(Puppet::act).collect()
    }

    /// Random bytes, or a frame with a valid beginning.
    fn noise(&mut self) -> Vec<u8> {
        let target = self.rng.pick(&self.targets);
        let ends = Ends::between(SocketAddr::from((self.ip, 9)), target);
        let mut frame = vec![0; self.rng.scale(1, 1500) as usize]; // one frame's
        self.rng.fill(&mut frame);
        let head = segment(ends, Header { flags: Flags::ACK, ..Header::default() }, &[]);
        let begins = match self.rng.below(3) {
            0 => 12,
            1 => ethernet::HEADER_BYTES + ipv4::HEADER_BYTES,
            _ => head.len(),
        };
        for (byte, right) in frame.iter_mut().zip(&head[..begins]) {
            *byte = *right;
        }
        frame
    }

    /// A SYN from an address without a host.
    fn flood(&mut self) -> Vec<u8> {
        let absent = Ipv4Addr::from(0x0a00_8000 + self.rng.below(0x4000) as u32); // 10.0.128.0 and on
        let source = SocketAddr::from((absent, 1 + self.rng.below(65_535) as u16)); // any port
        let ends = Ends { source_mac: self.mac, ..Ends::between(source, self.rng.pick(&self.targets)) };
        let options = Options { mss: Some(1460), ..Options::default() };
        let header = Header {
            seq: self.rng.word() as u32, // any
            flags: Flags::SYN,
            window: 1000,
            options,
            ..Header::default()
        };
        segment(ends, header, &[])
    }

    pub(crate) fn forges(&mut self) -> bool {
        self.settings.forges && !self.is_calm && self.rng.chance(1, 200)
    }

    /// A segment that claims to come from the peer of a connection, with a sequence number in its window or anywhere,
    /// but wrong. `them` and `us`: what the peer and the victim have sent.
    pub(crate) fn forge(
        &mut self,
        peer: SocketAddr,
        victim: SocketAddr,
        them: &End,
        us: &End,
    ) -> Option<Vec<u8>> {
        let ends = Ends { source_mac: self.mac, ..Ends::between(peer, victim) };
        let (theirs, ours) = (them.initial?, us.initial?);
        if self.settings.is_exact {
            let header =
                Header { seq: theirs.wrapping_add(them.sent), flags: Flags::RST, ..Header::default() };
            return Some(segment(ends, header, &[]));
        }
        let rng = &mut self.rng;
        // Beyond all that the peer has sent, so that RCV.NXT cannot be there.
        if us.acknowledged == 0 {
            return None; // the connection is still opening
        }
        let (first, last) = (them.sent.max(us.acknowledged) + 1, us.edge.saturating_sub(1));
        let is_within = first < last && rng.chance(3, 4);
        let seq = if is_within {
            theirs.wrapping_add(rng.range(first.into(), last.into()) as u32)
        } else {
            rng.word() as u32
        };
        if seq.wrapping_sub(theirs) <= first {
            return None; // right by chance
        }
        // With a random timestamp or none, and an acknowledgement of unsent bytes.
        let ack = ours.wrapping_add(us.sent).wrapping_add(rng.range(1 << 24, 1 << 30) as u32);
        let value = rng.word() as u32; // any
        let timestamps = rng.chance(1, 2).then_some(Timestamps { value, echo: 0 });
        let flags = rng.pick(&[
            Flags::RST,
            Flags::RST | Flags::ACK,
            Flags::SYN,
            Flags::SYN | Flags::ACK,
            Flags::ACK,
            Flags::FIN | Flags::ACK,
            Flags::NONE,
        ]);
        let many = if flags.intersects(Flags::RST | Flags::SYN) { 0 } else { rng.below(1000) };
        let options = Options { timestamps, ..Options::default() };
        let header = Header { seq, ack, flags, window: rng.word() as u16, options, ..Header::default() };
        Some(segment(ends, header, &vec![0xee; many as usize]))
    }
}
