//! The rogue host, which has no stack and violates protocols: puppets, floods, noise, and forged segments.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::arp;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::tcp::{Flags, Header, Options, Timestamps};

use super::frames::{Ends, Family, arp_reply, mac_of, segment};
use super::puppet::Puppet;
use super::sniffer::{End, sniff};
use crate::rng::Rng;

const PUPPETS_MAX: usize = 12;
/// Maximum number of SYNs in one flood.
const FLOOD_MAX: u64 = 64;
/// Maximum time between two actions.
const REST_NS_MAX: u64 = 20_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RogueSettings {
    /// Sends SYNs from addresses without hosts, which do not answer.
    pub(crate) floods: bool,
    /// Forges segments of connections between other hosts.
    pub(crate) forges: bool,
    /// Planted fault [`PlantedFault::ExactReset`](super::planted fault::PlantedFault::ExactReset): forged resets carry RCV.NXT.
    pub(crate) is_exact: bool,
}

#[derive(Debug)]
pub(crate) struct Rogue {
    ip: IpAddr,
    mac: Mac,
    rng: Rng,
    settings: RogueSettings,
    targets: Vec<SocketAddr>,
    puppets: Vec<Puppet>,
    next_port: u16,
    in_calm_phase: bool,
    pub(crate) next_at: Option<Time>,
}

impl Rogue {
    pub(crate) fn new(ip: IpAddr, targets: Vec<SocketAddr>, settings: RogueSettings, rng: Rng) -> Rogue {
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
            in_calm_phase: false,
            next_at,
        }
    }

    /// Stops all attacks. Returns the last frames of the puppets.
    pub(crate) fn begin_calm_phase(&mut self) -> Vec<Vec<u8>> {
        self.in_calm_phase = true;
        self.next_at = None;
        self.puppets.iter_mut().flat_map(Puppet::end).collect()
    }

    pub(crate) fn handle_frame(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        let Ok((header, packet)) = ethernet::Header::parse(frame) else { return Vec::new() };
        if header.kind == ethernet::KIND_ARP {
            let request = arp::Packet::parse(packet).ok().filter(|packet| {
                packet.operation == arp::Operation::Request && IpAddr::V4(packet.target_ip) == self.ip
            });
            let reply = |request: arp::Packet| arp_reply(&request, (self.mac, request.target_ip));
            return request.map(reply).into_iter().collect();
        }
        let Ok(Some(seen)) = sniff(frame) else { return Vec::new() };
        let puppet = self.puppets.iter_mut().find(|puppet| puppet.source() == seen.target);
        puppet.map_or(Vec::new(), |puppet| puppet.handle_frame(&seen))
    }

    pub(crate) fn act(&mut self, now: Time) -> Vec<Vec<u8>> {
        self.next_at = Some(now + Duration::from_nanos(self.rng.log_uniform(100_000, REST_NS_MAX)));
        self.puppets.retain(|puppet| !puppet.is_over());
        match self.rng.below(8) {
            0 => return (0..self.rng.below(4)).map(|_| self.noise()).collect(),
            1 if self.settings.floods => {
                return (0..self.rng.log_uniform(1, FLOOD_MAX)).map(|_| self.flood_syn()).collect();
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

    /// A frame of random bytes, perhaps with valid headers.
    fn noise(&mut self) -> Vec<u8> {
        let target = self.rng.pick(&self.targets);
        let ends = Ends::between(SocketAddr::from((self.ip, 9)), target);
        let mut frame = vec![0; self.rng.log_uniform(1, 1500) as usize]; // fits one frame
        self.rng.fill(&mut frame);
        let valid_headers = segment(ends, Header { flags: Flags::ACK, ..Header::default() }, &[]);
        let valid_bytes = match self.rng.below(3) {
            0 => 12,
            1 => ethernet::HEADER_BYTES + Family::of(self.ip).header_bytes(),
            _ => valid_headers.len(),
        };
        for (byte, valid) in frame.iter_mut().zip(&valid_headers[..valid_bytes]) {
            *byte = *valid;
        }
        frame
    }

    fn flood_syn(&mut self) -> Vec<u8> {
        let absent = Ipv4Addr::from(0x0a00_8000 + self.rng.below(0x4000) as u32); // from 10.0.128.0 up
        let absent = Family::of(self.ip).address(absent);
        let source = SocketAddr::from((absent, 1 + self.rng.below(65_535) as u16)); // fits: any port
        let ends = Ends { source_mac: self.mac, ..Ends::between(source, self.rng.pick(&self.targets)) };
        let options = Options { mss: Some(1460), ..Options::default() };
        let header = Header {
            seq: self.rng.word() as u32, // fits: any value
            flags: Flags::SYN,
            window: 1000,
            options,
            ..Header::default()
        };
        segment(ends, header, &[])
    }

    pub(crate) fn is_forgery_due(&mut self) -> bool {
        self.settings.forges && !self.in_calm_phase && self.rng.chance(1, 200)
    }

    /// A segment that seems to come from the peer of a connection. Its sequence number is wrong, inside or
    /// outside the window, unless the planted fault makes it exact. `peer_sent` and `victim_sent`: the ends.
    pub(crate) fn forge(
        &mut self,
        peer: SocketAddr,
        victim: SocketAddr,
        peer_sent: &End,
        victim_sent: &End,
    ) -> Option<Vec<u8>> {
        let ends = Ends { source_mac: self.mac, ..Ends::between(peer, victim) };
        let (peer_initial, victim_initial) = (peer_sent.initial?, victim_sent.initial?);
        if self.settings.is_exact {
            let header = Header {
                seq: peer_initial.wrapping_add(peer_sent.sent),
                flags: Flags::RST,
                ..Header::default()
            };
            return Some(segment(ends, header, &[]));
        }
        let rng = &mut self.rng;
        if victim_sent.acknowledged == 0 {
            return None; // the connection is still opening
        }
        // A number beyond all bytes that the peer has sent cannot be RCV.NXT.
        let (first, last) =
            (peer_sent.sent.max(victim_sent.acknowledged) + 1, victim_sent.window_end.saturating_sub(1));
        let is_within = first < last && rng.chance(3, 4);
        let seq = if is_within {
            peer_initial.wrapping_add(rng.range(first.into(), last.into()) as u32)
        } else {
            rng.word() as u32
        };
        if seq.wrapping_sub(peer_initial) <= first {
            return None; // the number may be right by chance
        }
        // The segment acknowledges bytes that were not sent, and has a random timestamp or none.
        let ack =
            victim_initial.wrapping_add(victim_sent.sent).wrapping_add(rng.range(1 << 24, 1 << 30) as u32);
        let value = rng.word() as u32; // fits: any value
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
        let payload_bytes = if flags.intersects(Flags::RST | Flags::SYN) { 0 } else { rng.below(1000) };
        let options = Options { timestamps, ..Options::default() };
        let header = Header { seq, ack, flags, window: rng.word() as u16, options, ..Header::default() };
        Some(segment(ends, header, &vec![0xee; payload_bytes as usize]))
    }
}
