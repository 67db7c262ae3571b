//! The switch in front of a host's stacks, with a rule for each connection.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use spillway_transport::{Conn, Time};
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::ipv4;

use crate::rng::{Rng, mix};

/// Local address and peer address.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// For this time after a move, some late frames arrive at the old stack: one in `LATE_ONE_IN`.
const LATE_FRAMES_FOR: Duration = Duration::from_secs(1);
const LATE_ONE_IN: u64 = 50;

#[derive(Debug)]
struct Rule {
    stack: usize,
    /// The program's name of the connection; `None` after its end.
    name: Option<Conn>,
    /// The stack before the last move, and the time of that move.
    before: Option<(usize, Time)>,
}

/// Rules remain after their connections have ended, for late frames.
#[derive(Debug)]
pub(super) struct Switch {
    rules: BTreeMap<Ends, Rule>,
    ends: BTreeMap<Conn, Ends>,
    stacks: usize,
    /// Whether a hash of the peer spreads new connections over all stacks; otherwise the first accepts them.
    is_spread: bool,
    rng: Rng,
    /// Frames delivered to the old stack after a move.
    pub(super) late: u64,
}

impl Switch {
    pub(super) fn new(stacks: usize, is_spread: bool, rng: Rng) -> Switch {
        Switch { rules: BTreeMap::new(), ends: BTreeMap::new(), stacks, is_spread, rng, late: 0 }
    }

    pub(super) fn add(&mut self, ends: Ends, stack: usize, name: Conn) {
        self.rules.insert(ends, Rule { stack, name: Some(name), before: None });
        self.ends.insert(name, ends);
    }

    pub(super) fn forget(&mut self, name: Conn) {
        if let Some(rule) = self.ends.remove(&name).and_then(|ends| self.rules.get_mut(&ends)) {
            rule.name = rule.name.filter(|latest| *latest != name);
        }
    }

    pub(super) fn redirect(&mut self, now: Time, name: Conn, stack: usize) {
        if let Some(rule) = self.ends.get(&name).and_then(|ends| self.rules.get_mut(ends)) {
            rule.before = Some((rule.stack, now));
            rule.stack = stack;
        }
    }

    pub(super) fn name(&self, ends: &Ends) -> Option<Conn> {
        self.rules.get(ends).and_then(|rule| rule.name)
    }

    pub(super) fn targets(&mut self, now: Time, frame: &[u8]) -> Vec<usize> {
        let is_arp = frame.get(12..14) == Some(&ethernet::KIND_ARP.to_be_bytes()[..]);
        if is_arp {
            let is_request = frame.get(20..22) == Some(&[0, 1][..]);
            // Only one of the stacks that share an address may answer.
            return if is_request && self.is_spread { vec![0] } else { (0..self.stacks).collect() };
        }
        let Some((source, target)) = ends_of(frame) else { return vec![0] };
        let Some(rule) = self.rules.get(&(target, source)) else {
            return vec![if self.is_spread { self.initial_stack(source) } else { 0 }];
        };
        let old = rule.before.filter(|(_, at)| now.since(*at) < LATE_FRAMES_FOR).map(|(old, _)| old);
        if let Some(old) = old.filter(|_| self.rng.chance(1, LATE_ONE_IN)) {
            self.late += 1;
            return vec![old];
        }
        vec![rule.stack]
    }

    fn initial_stack(&self, peer: SocketAddr) -> usize {
        let mut hasher = DefaultHasher::new();
        peer.hash(&mut hasher);
        (mix(hasher.finish()) % self.stacks as u64) as usize // fits: a few stacks
    }
}

/// Source and target of a TCP segment; the frame may be damaged.
pub(super) fn ends_of(frame: &[u8]) -> Option<Ends> {
    const IP: usize = ethernet::HEADER_BYTES;
    const TCP: usize = IP + ipv4::HEADER_BYTES;
    let is_tcp = frame.len() >= TCP + 4
        && frame[12..14] == ethernet::KIND_IPV4.to_be_bytes()
        && frame[IP + 9] == ipv4::PROTOCOL_TCP;
    let end = |at: usize, port: usize| {
        let ip = Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
        SocketAddr::from((ip, u16::from_be_bytes([frame[port], frame[port + 1]])))
    };
    is_tcp.then(|| (end(IP + 12, TCP), end(IP + 16, TCP + 2)))
}

/// Sets the target MAC address of an IPv4 frame.
pub(super) fn set_target_mac(frame: &mut [u8], mac: Mac) {
    let is_ip = frame.get(12..14) == Some(&ethernet::KIND_IPV4.to_be_bytes()[..]);
    if let Some(target) = frame.first_chunk_mut::<6>().filter(|_| is_ip) {
        *target = mac.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::frames::{Ends as FrameEnds, segment};

    const PEER: &str = "10.0.0.2:40000";
    const OURS: &str = "10.0.0.1:80";

    fn frame() -> Vec<u8> {
        let ends = FrameEnds::between(PEER.parse().unwrap(), OURS.parse().unwrap());
        segment(ends, spillway_wire::packet::tcp::Header::default(), &[])
    }

    #[test]
    fn after_a_move_most_frames_reach_the_new_stack_and_some_the_old_one() {
        let mut switch = Switch::new(3, false, Rng::new(1));
        assert_eq!(
            switch.targets(Time(1), &frame()),
            [0],
            "without a rule the first stack receives the frame"
        );
        let name = Conn { slot: 7, generation: 0 };
        let ends = (OURS.parse().unwrap(), PEER.parse().unwrap());
        switch.add(ends, 0, name);
        switch.redirect(Time(1), name, 2);
        assert_eq!(switch.name(&ends), Some(name));
        let targets: Vec<_> = (0..1000).flat_map(|_| switch.targets(Time(2), &frame())).collect();
        let late = targets.iter().filter(|target| **target == 0).count();
        assert!((5..50).contains(&late) && targets.iter().all(|target| [0, 2].contains(target)), "{late}");
        let later = Time::ZERO + 2 * LATE_FRAMES_FOR;
        assert!((0..100).all(|_| switch.targets(later, &frame()) == [2]));
        switch.forget(name);
        assert_eq!(
            (switch.name(&ends), switch.targets(later, &frame())),
            (None, vec![2]),
            "late frames should reach the connection's last stack"
        );
    }

    #[test]
    fn frames_of_a_new_connection_to_a_shared_address_always_reach_the_same_stack() {
        let mut switch = Switch::new(3, true, Rng::new(1));
        let target = switch.targets(Time(1), &frame());
        assert!(
            (0..10).all(|_| switch.targets(Time(1), &frame()) == target),
            "all frames of a connection should reach the same stack"
        );
        let mut arp = frame();
        arp[12..14].copy_from_slice(&[8, 6]);
        arp[20..22].copy_from_slice(&[0, 1]);
        assert_eq!(switch.targets(Time(1), &arp), [0], "only one stack should receive an ARP request");
        arp[21] = 2;
        assert_eq!(switch.targets(Time(1), &arp), [0, 1, 2], "all stacks should receive an ARP reply");
    }
}
