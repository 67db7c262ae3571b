//! A kernel's work for its addresses, done for an address that only the stack has: announces it, detects
//! another host with it, and answers load queries.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use spillway_net::{Allowance, QUERY_BYTES_MAX, query_allowance};
use spillway_tcp::OwnAddress;
use spillway_transport::Time;
use spillway_wire::packet::checksum::pseudo_v4;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::icmp::v4::Message;
use spillway_wire::packet::{arp, ipv4, udp};

/// Frames that may wait to be sent. Further answers are lost; clients repeat their load queries.
const WAITING_MAX: usize = 256;
/// Announcements after the start (ANNOUNCE_NUM of RFC 5227 §1.1).
const ANNOUNCEMENTS: u32 = 2;
const HEADERS_BYTES: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES + udp::HEADER_BYTES;
/// Frames of one kind that are copied to all threads in a second, and of them at once. More are only a flood: each copy wakes
/// a thread.
const COPIES_PER_SECOND: f64 = 1_000.0;
const COPIES_AT_ONCE: f64 = 100.0;
/// Minimum time between two reports of conflicts.
const CONFLICT_INTERVAL: Duration = Duration::from_secs(60);

/// An IPv4 address of the stack on an interface; the kernel does not have it.
#[derive(Debug)]
pub(crate) struct SeparateAddress {
    ip: Ipv4Addr,
    /// Bits of the network's prefix.
    prefix: u8,
    mac: Mac,
    waiting: VecDeque<Box<[u8]>>,
    announced: u32,
    queries: Allowance,
    arp_replies: Allowance,
    icmp_errors: Allowance,
    /// Another host that has the address, not reported yet.
    other: Option<Mac>,
    /// Before this time conflicts are not reported.
    silent_until: Time,
}

/// Who still needs a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipients {
    /// No stack: it was a load query, which is answered or dropped.
    None,
    /// The stacks of all threads.
    AllThreads,
    /// Only the stack of the queue's thread.
    OwnThread,
}

impl SeparateAddress {
    /// `mac`: the interface's Ethernet address. `prefix`: bits of its network's prefix.
    pub(crate) fn new(ip: Ipv4Addr, prefix: u8, mac: Mac) -> SeparateAddress {
        let copies = || Allowance::new(COPIES_PER_SECOND, COPIES_AT_ONCE);
        SeparateAddress {
            ip,
            prefix,
            mac,
            waiting: VecDeque::new(),
            announced: 0,
            queries: query_allowance(),
            arp_replies: copies(),
            icmp_errors: copies(),
            other: None,
            silent_until: Time::ZERO,
        }
    }

    /// Announces the address until [`ANNOUNCEMENTS`] are sent: other hosts update their ARP caches, and a
    /// host with the same address answers (RFC 5227 §2.3). Call it once a second.
    pub(crate) fn announce(&mut self) {
        if self.announced == ANNOUNCEMENTS {
            return;
        }
        self.announced += 1;
        let packet = arp::Packet {
            operation: arp::Operation::Request,
            sender_mac: self.mac,
            sender_ip: self.ip,
            target_mac: Mac::ZERO,
            target_ip: self.ip,
        };
        self.send(packet.frame(Mac::BROADCAST).into());
    }

    pub(crate) fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// Another host that has the address; one in [`CONFLICT_INTERVAL`] at most.
    pub(crate) fn take_conflict(&mut self, now: Time) -> Option<Mac> {
        let other = self.other.take().filter(|_| now >= self.silent_until)?;
        self.silent_until = now + CONFLICT_INTERVAL;
        Some(other)
    }

    /// Handles a received frame. `answer` is called with the local address, the sender, a load query and a
    /// buffer as long as the query. It returns the length of the answer in bytes, 0 to send nothing, or
    /// `None` if the local address accepts no load queries.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        frame: &[u8],
        answer: impl FnOnce(SocketAddr, SocketAddr, &[u8], &mut [u8]) -> Option<usize>,
    ) -> Recipients {
        let Ok((link, packet)) = ethernet::Header::parse(frame) else { return Recipients::OwnThread };
        match link.kind {
            ethernet::KIND_ARP => self.receive_arp(now, packet),
            // Other frames reach a promiscuous interface; the stack drops them, too.
            ethernet::KIND_IPV4 if link.target == self.mac => {
                self.receive_ipv4(now, link.source, packet, answer).unwrap_or(Recipients::OwnThread)
            }
            _ => Recipients::OwnThread,
        }
    }

    fn receive_arp(&mut self, now: Time, packet: &[u8]) -> Recipients {
        let Ok(packet) = arp::Packet::parse(packet) else { return Recipients::OwnThread };
        if packet.sender_ip == self.ip && packet.sender_mac != self.mac {
            self.other = Some(packet.sender_mac);
        }
        // All ARP packets arrive at one queue, but each thread's stack resolves its own next hops.
        match packet.operation {
            arp::Operation::Reply if self.arp_replies.take(now) => Recipients::AllThreads,
            _ => Recipients::OwnThread,
        }
    }

    /// Whether an ICMP message is an error about a connection of the address.
    fn is_own_error(&self, message: &[u8]) -> bool {
        let Ok(Message::Unreachable { inner, .. }) = Message::parse(message) else { return false };
        ipv4::Header::parse_quoted(inner)
            .is_ok_and(|(quoted, _)| (quoted.source, quoted.protocol) == (self.ip, ipv4::PROTOCOL_TCP))
    }

    fn receive_ipv4(
        &mut self,
        now: Time,
        mac: Mac,
        packet: &[u8],
        answer: impl FnOnce(SocketAddr, SocketAddr, &[u8], &mut [u8]) -> Option<usize>,
    ) -> Option<Recipients> {
        // Most frames are TCP. Only the stack parses those.
        let protocol = *packet.get(9)?;
        if protocol != ipv4::PROTOCOL_UDP && protocol != ipv4::PROTOCOL_ICMP {
            return None;
        }
        let (ip, _, payload) = ipv4::Header::parse(packet).ok()?;
        if ip.target != self.ip {
            return None;
        }
        if protocol == ipv4::PROTOCOL_ICMP {
            // An ICMP error and its connection have different hashes, and perhaps different queues.
            let is_passed = self.is_own_error(payload) && self.icmp_errors.take(now);
            return is_passed.then_some(Recipients::AllThreads);
        }
        let (datagram, query) = udp::Header::parse_v4(payload, ip.source, ip.target).ok()?;
        let is_peer = OwnAddress::new(self.ip, self.prefix).is_peer(ip.source.into());
        let is_answerable = is_peer && datagram.source != 0 && mac.is_unicast();
        if !is_answerable || query.len() > QUERY_BYTES_MAX {
            return None;
        }
        let (local, from) = ((self.ip, datagram.target).into(), (ip.source, datagram.source).into());
        let mut reply = vec![0; HEADERS_BYTES + query.len()];
        let length =
            if self.queries.take(now) { answer(local, from, query, &mut reply[HEADERS_BYTES..])? } else { 0 };
        if length > 0 {
            reply.truncate(HEADERS_BYTES + length);
            self.emit_headers(&mut reply, mac, ip.source, (datagram.target, datagram.source));
            self.send(reply);
        }
        Some(Recipients::None)
    }

    fn emit_headers(&self, reply: &mut [u8], mac: Mac, target: Ipv4Addr, ports: (u16, u16)) {
        let in_packet = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
        let (link, packet) = reply.split_at_mut(ethernet::HEADER_BYTES);
        let (ip, datagram) = packet.split_at_mut(ipv4::HEADER_BYTES);
        let datagram_bytes = in_packet(datagram.len());
        let header = udp::Header {
            source: ports.0,
            target: ports.1,
            payload_bytes: in_packet(datagram.len() - udp::HEADER_BYTES),
        };
        header.emit(datagram, pseudo_v4(self.ip, target, ipv4::PROTOCOL_UDP, u32::from(datagram_bytes)));
        let header = ipv4::Header::new(self.ip, target, ipv4::PROTOCOL_UDP, datagram_bytes);
        if let Some(ip) = ip.first_chunk_mut() {
            header.emit(ip);
        }
        if let Some(link) = link.first_chunk_mut() {
            ethernet::Header { target: mac, source: self.mac, kind: ethernet::KIND_IPV4 }.emit(link);
        }
    }

    fn send(&mut self, frame: Vec<u8>) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(frame.into());
        }
    }

    /// Writes the next frame, and returns its length.
    pub(crate) fn poll_transmit(&mut self, slot: &mut [u8]) -> Option<usize> {
        let frame = self.waiting.pop_front()?;
        // Never too long for a slot: at most 298 bytes.
        slot.get_mut(..frame.len())?.copy_from_slice(&frame);
        Some(frame.len())
    }
}

#[cfg(test)]
mod tests {
    use spillway_wire::packet::icmp::v4::CODE_HOST;

    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
    const OWN_MAC: Mac = Mac([2; 6]);
    const CLIENT_MAC: Mac = Mac([4; 6]);
    const PORT: u16 = 7000;

    fn separate() -> SeparateAddress {
        SeparateAddress::new(OWN, 24, OWN_MAC)
    }

    /// The frame of a query from the client's port 4711.
    fn query(payload: &[u8]) -> Vec<u8> {
        query_from(CLIENT, OWN_MAC, payload)
    }

    fn query_from(sender: Ipv4Addr, target_mac: Mac, payload: &[u8]) -> Vec<u8> {
        let mut frame = [&[0; HEADERS_BYTES][..], payload].concat();
        SeparateAddress::new(sender, 24, CLIENT_MAC).emit_headers(&mut frame, target_mac, OWN, (4711, PORT));
        frame
    }

    /// An ICMP error about a packet of this source address.
    fn icmp_error(quoted_source: Ipv4Addr) -> Vec<u8> {
        let header = |source, target, protocol, payload_bytes| {
            let mut out = [0; ipv4::HEADER_BYTES];
            let header = ipv4::Header::new(source, target, protocol, payload_bytes);
            header.emit(&mut out);
            out
        };
        let quoted = [&header(quoted_source, CLIENT, ipv4::PROTOCOL_TCP, 8)[..], &[0; 8]].concat();
        let message = Message::Unreachable { code: CODE_HOST, next_hop_mtu: 0, inner: &quoted };
        let mut error = vec![0; message.bytes()];
        message.emit(&mut error);
        let mut head = [0; ethernet::HEADER_BYTES];
        ethernet::Header { target: OWN_MAC, source: CLIENT_MAC, kind: ethernet::KIND_IPV4 }.emit(&mut head);
        [&head[..], &header(CLIENT, OWN, ipv4::PROTOCOL_ICMP, error.len() as u16), &error].concat()
    }

    fn arp(operation: arp::Operation, sender_mac: Mac, sender_ip: Ipv4Addr) -> Vec<u8> {
        let packet = arp::Packet { operation, sender_mac, sender_ip, target_mac: OWN_MAC, target_ip: OWN };
        packet.frame(OWN_MAC).into()
    }

    fn sent(separate: &mut SeparateAddress) -> Option<Vec<u8>> {
        let mut slot = [0; 2048];
        separate.poll_transmit(&mut slot).map(|length| slot[..length].to_vec())
    }

    #[test]
    fn a_load_query_is_answered_to_its_sender() {
        let mut separate = separate();
        let seen = separate.receive(Time::ZERO, &query(b"load?"), |local, from, query, answer| {
            assert_eq!((local, from), ((OWN, PORT).into(), (CLIENT, 4711).into()));
            assert_eq!((query, answer.len()), (&b"load?"[..], 5));
            answer[..2].copy_from_slice(b"42");
            Some(2)
        });
        assert_eq!(seen, Recipients::None);
        let frame = sent(&mut separate).expect("an answer");
        let (link, packet) = ethernet::Header::parse(&frame).unwrap();
        assert_eq!((link.source, link.target), (OWN_MAC, CLIENT_MAC));
        let (ip, _, payload) = ipv4::Header::parse(packet).unwrap();
        assert_eq!((ip.source, ip.target), (OWN, CLIENT));
        let (datagram, answer) = udp::Header::parse_v4(payload, ip.source, ip.target).unwrap();
        assert_eq!((datagram.source, datagram.target, answer), (PORT, 4711, &b"42"[..]));
        assert_eq!(sent(&mut separate), None);
    }

    #[test]
    fn frames_that_are_no_load_queries_go_to_the_stack() {
        let mut separate = separate();
        let long = query(&[0; QUERY_BYTES_MAX + 1]);
        let mut damaged = query(b"load?");
        damaged[HEADERS_BYTES] ^= 1;
        let to_other_host = query_from(CLIENT, CLIENT_MAC, b"load?");
        let [from_broadcast, from_loopback, from_itself] = [[10, 0, 0, 255], [127, 0, 0, 1], [10, 0, 0, 9]]
            .map(|ip| query_from(ip.into(), OWN_MAC, b"load?"));
        for frame in [
            &[][..],
            &[0xff; 60],
            &long,
            &damaged,
            &to_other_host,
            &from_broadcast,
            &from_loopback,
            &from_itself,
        ] {
            let seen = separate.receive(Time::ZERO, frame, |_, _, _, _| panic!("no query"));
            assert_eq!(seen, Recipients::OwnThread, "{frame:02x?}");
        }
        let seen = separate.receive(Time::ZERO, &query(b"load?"), |_, _, _, _| None);
        assert_eq!(seen, Recipients::OwnThread, "the port takes no load queries");
        assert_eq!(sent(&mut separate), None);
    }

    #[test]
    fn a_flood_of_load_queries_is_answered_at_a_bounded_rate() {
        let mut separate = separate();
        let mut answered = 0;
        for _ in 0..20_000 {
            let seen = separate.receive(Time::ZERO, &query(b"load?"), |_, _, _, _| {
                answered += 1;
                Some(1)
            });
            assert_eq!(seen, Recipients::None);
        }
        assert_eq!(answered, 1_000, "as many as a socket for load queries answers at once");
        assert_eq!(separate.waiting.len(), WAITING_MAX);
    }

    #[test]
    fn the_address_is_announced_twice() {
        let mut separate = separate();
        (0..5).for_each(|_| separate.announce());
        let first = sent(&mut separate).unwrap();
        assert_eq!(sent(&mut separate), Some(first.clone()));
        assert_eq!(sent(&mut separate), None);
        let (link, packet) = ethernet::Header::parse(&first).unwrap();
        assert_eq!((link.target, link.kind), (Mac::BROADCAST, ethernet::KIND_ARP));
        let packet = arp::Packet::parse(packet).unwrap();
        assert_eq!((packet.sender_ip, packet.target_ip, packet.sender_mac), (OWN, OWN, OWN_MAC));
    }

    #[test]
    fn other_hosts_with_the_address_are_reported_once_a_minute() {
        let mut separate = separate();
        let mut receive = |seconds: u64, frame: &[u8]| {
            let now = Time::ZERO + Duration::from_secs(seconds);
            let seen = separate.receive(now, frame, |_, _, _, _| panic!("no query"));
            (seen, separate.take_conflict(now))
        };
        assert_eq!(
            receive(0, &arp(arp::Operation::Reply, CLIENT_MAC, CLIENT)),
            (Recipients::AllThreads, None)
        );
        assert_eq!(receive(0, &arp(arp::Operation::Request, OWN_MAC, OWN)), (Recipients::OwnThread, None));
        let [one, two] = [6, 8].map(|byte| arp(arp::Operation::Reply, Mac([byte; 6]), OWN));
        assert_eq!(receive(1, &one), (Recipients::AllThreads, Some(Mac([6; 6]))));
        assert_eq!(receive(2, &one), (Recipients::AllThreads, None));
        assert_eq!(receive(3, &two), (Recipients::AllThreads, None));
        assert_eq!(receive(62, &two), (Recipients::AllThreads, Some(Mac([8; 6]))));
    }

    #[test]
    fn icmp_errors_and_arp_replies_for_all_threads_are_bounded() {
        let mut separate = separate();
        let mut seen = |at_ms: u64, frame: &[u8]| {
            let now = Time::ZERO + Duration::from_millis(at_ms);
            separate.receive(now, frame, |_, _, _, _| panic!("no query"))
        };
        assert_eq!(
            seen(0, &icmp_error(CLIENT)),
            Recipients::OwnThread,
            "an error about another host's packet"
        );
        for frame in [icmp_error(OWN), arp(arp::Operation::Reply, CLIENT_MAC, CLIENT)] {
            let passed = (0..10_000).filter(|_| seen(0, &frame) == Recipients::AllThreads).count();
            assert_eq!(passed, 100);
            assert_eq!(seen(100, &frame), Recipients::AllThreads);
        }
    }
}
