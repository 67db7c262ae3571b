//! Packets of clients and servers, and other frames.

use std::net::{IpAddr, SocketAddr};

use super::world::{KnownFlow, World};
use crate::mac::Mac;
use crate::message::numbers::state;
use crate::packet::{Arp, Body, Content, Fragment, IcmpError, Packet, Payload, tcp_flags};
use crate::setup::{DAEMON_PORT, EGRESS, HOST_PORT, Host, LOCAL_PORT, Place};

/// A frame and the port at which it arrives.
pub(super) struct Drawn {
    pub(super) ingress: u8,
    pub(super) packet: Packet,
}

const ETHERNET_TYPES: [u16; 5] = [0x88b5, 0x88cc, 0x0806, 0x0800, 0x86dd];
const PROTOCOLS: [u8; 5] = [47, 132, 4, 41, 58];
/// Bytes of data above which a segment may not fit into a tunnel.
const LONG: usize = 500;

impl World {
    /// A client's packet of one of the flows.
    pub(super) fn client_packet(&mut self) -> Drawn {
        let flow = self.any_flow();
        let mut packet = Packet::tcp(flow.client, flow.service, self.flags());
        self.fill_tcp(&mut packet, false);
        let ingress = self.port_of(flow.client.ip());
        packet.set_macs(&self.setup, ingress);
        if self.is_unknown(flow.client.ip()) || self.chance(10) {
            packet.destination = self.port_mac(ingress);
        }
        Drawn { ingress, packet }
    }

    /// A packet of a server to a client: mostly of the owner.
    pub(super) fn server_packet(&mut self) -> Drawn {
        let flow = self.any_flow();
        let (server, mut at) = match self.random.below(10) {
            0 => (flow.target, flow.target_at),
            1 => (flow.owner, flow.service),
            2 => (self.original(flow.service), flow.service),
            _ => (flow.owner, flow.owner_at),
        };
        if self.chance(5) {
            let places: Vec<SocketAddr> = self.setup.places.values().map(|place| place.at).collect();
            at = self.pick(&places);
        }
        if at.is_ipv4() != flow.client.is_ipv4() {
            at = flow.service;
        }
        let mut packet = Packet::tcp(at, flow.client, self.flags());
        self.fill_tcp(&mut packet, true);
        let (mac, mut ingress) =
            self.setup.server(server).map_or((Mac::default(), 2), |server| (server.mac, server.port));
        if self.setup.is_host {
            ingress = if ingress == LOCAL_PORT || self.chance(30) { EGRESS } else { HOST_PORT };
        }
        packet.set_macs(&self.setup, ingress);
        packet.source = mac;
        if self.chance(15) {
            packet.destination = self.port_mac(ingress);
        }
        Drawn { ingress, packet }
    }

    /// In host mode, a packet in a tunnel: mostly one from the arbiter of a service for a place of the local server.
    pub(super) fn tunnel_packet(&mut self) -> Drawn {
        let places: Vec<Place> = self.setup.places.values().cloned().collect();
        let is_local =
            |place: &Place| self.setup.server_at(LOCAL_PORT).is_some_and(|one| one.id == place.server);
        let local: Vec<Place> = places.iter().filter(|place| is_local(place)).cloned().collect();
        let is_likely = self.chance(70) && !local.is_empty();
        let index = self.index(if is_likely { local.len() } else { places.len() });
        let place = if is_likely { &local[index] } else { &places[index] };
        let client =
            self.flows.iter().map(|flow| flow.client).find(|one| one.is_ipv4() == place.at.is_ipv4());
        let client = client.unwrap_or(place.at);
        let mut packet = Packet::tcp(client, place.at, self.flags());
        self.fill_tcp(&mut packet, false);
        if self.chance(20) {
            let mut segment = Packet::tcp(place.at, client, self.flags());
            self.fill_tcp(&mut segment, true);
            let Body::Ip(quoted) = segment.body else { unreachable!("TCP is in IP") };
            let kind = self.pick(&[1_u8, 3, 4]);
            let error =
                IcmpError { kind, quoted: Box::new(quoted), bytes: self.pick(&[28, 60]), checksum_error: 0 };
            packet = Packet::ip(client.ip(), place.at.ip(), Payload::Error(error));
        }
        let servers: Vec<IpAddr> = self.setup.servers.values().map(|server| server.address).collect();
        let arbiter = places.iter().find(|one| one.at == place.service).map_or(0, |one| one.server);
        let arbiter = self.setup.server(arbiter).map(|server| server.address);
        let here = self.setup.server_at(LOCAL_PORT).map(|server| server.address);
        let mut end = |likely: Option<IpAddr>| {
            likely.filter(|_| self.chance(80)).unwrap_or_else(|| self.pick(&servers))
        };
        let (source, destination) = (end(arbiter), end(here));
        if source.is_ipv4() == destination.is_ipv4() {
            packet.tunnel = Some((source, destination));
        }
        packet.source = self.setup.mac("gateway").unwrap_or_default();
        packet.destination = self.port_mac(HOST_PORT);
        Drawn { ingress: HOST_PORT, packet }
    }

    /// Frames of other kinds.
    pub(super) fn other_frame(&mut self) -> Drawn {
        let hosts: Vec<Host> = self.setup.hosts.values().cloned().collect();
        let (source_index, target_index) = (self.index(hosts.len()), self.index(hosts.len()));
        let (source, target) = (&hosts[source_index], &hosts[target_index]);
        let ingress = self.ingress_of(source);
        let mut packet = match self.random.below(6) {
            0 if self.chance(50) => self.discovery(source, target),
            0 => self.arp(source, target),
            1 => self.solicitation(source),
            2 => Packet {
                source: source.mac,
                destination: target.mac,
                vlan_tags: Vec::new(),
                tunnel: None,
                body: Body::Other(self.pick(&ETHERNET_TYPES), vec![0; 46]),
                edits: Vec::new(),
            },
            _ => self.ip_packet(source, target, ingress),
        };
        match self.random.below(12) {
            0 => packet.destination = Mac::BROADCAST,
            1 => packet.destination = Mac([1, 0x80, 0xc2, 0, 0, self.pick(&[0, 1, 0xe, 0xf, 0x10, 0x21])]),
            2 => packet.destination = self.port_mac(ingress),
            3 => packet.destination = Mac([2, 0, 0, 0, 9, 9]),
            4 => packet.destination = Mac([0x33, 0x33, 0, 0, 0, 1]),
            _ => {}
        }
        Drawn { ingress, packet }
    }

    fn ip_packet(&mut self, source: &Host, target: &Host, ingress: u8) -> Packet {
        let is_v6 = self.chance(40);
        let family =
            |addresses: &[IpAddr]| addresses.iter().copied().find(|address| address.is_ipv6() == is_v6);
        let own: Vec<IpAddr> = self.setup.own_addresses.clone();
        let fallback = family(&own).expect("an own address of each family");
        let elsewhere: [IpAddr; 5] = if is_v6 {
            ["2001:db8:9::7", "2001:db8:9:1::8", "2001:db9::1", "ff02::1", "2001:db8::1"]
                .map(|text| text.parse().expect("an address"))
        } else {
            ["192.0.2.7", "192.0.2.200", "203.0.113.1", "224.0.0.1", "10.0.0.1"]
                .map(|text| text.parse().expect("an address"))
        };
        let from = family(&source.addresses).unwrap_or(fallback);
        let to = match self.random.below(4) {
            0 => fallback,
            1 => self.pick(&elsewhere),
            _ => family(&target.addresses).unwrap_or(fallback),
        };
        let ports = (self.pick(&[53_u16, 40_000, 7100]), self.pick(&[53_u16, 80, 7100, 7101, 8080]));
        let (from_port, to_port) = (SocketAddr::new(from, ports.0), SocketAddr::new(to, ports.1));
        let data = self.data();
        let mut packet = match self.random.below(4) {
            0 => Packet::udp(from_port, to_port, Content::Bytes(data)),
            1 => {
                let mut packet = Packet::tcp(from_port, to_port, self.flags());
                self.fill_tcp(&mut packet, false);
                packet
            }
            2 => Packet::ip(from, to, Payload::Icmp(if is_v6 { 128 } else { 8 }, vec![0, 1, 0, 1])),
            _ => Packet::ip(from, to, Payload::Other(self.pick(&PROTOCOLS), data)),
        };
        packet.set_macs(&self.setup, ingress);
        packet.source = source.mac;
        packet
    }

    /// An ICMP error about a packet that a flow's owner, or another host of the flow, has sent.
    pub(super) fn icmp_error(&mut self) -> Drawn {
        let flow = self.any_flow();
        let at = if self.chance(85) { flow.service } else { flow.owner_at };
        let at = if at.is_ipv4() == flow.client.is_ipv4() { at } else { flow.service };
        let mut segment = Packet::tcp(at, flow.client, self.flags());
        self.fill_tcp(&mut segment, true);
        let Body::Ip(mut quoted) = segment.body else { unreachable!("TCP is in IP") };
        quoted.hop_limit = self.pick(&[1, 63]);
        if at.is_ipv4() && self.chance(10) {
            quoted.option_words = self.pick(&[1, 10]);
        }
        if self.chance(5) {
            quoted.fragment = self.pick(&[Fragment::First, Fragment::Later, Fragment::Atomic]);
        }
        let header_bytes = if at.is_ipv4() { 20 } else { 40 };
        let bytes = header_bytes + self.pick(&[0_usize, 3, 4, 8, 17, 18, 20, 100, 100]);
        let kinds: &[u8] = if at.is_ipv4() { &[3, 3, 11, 12, 4, 5, 0] } else { &[1, 2, 2, 3, 4, 0, 5] };
        let kind = self.pick(kinds);
        let checksum_error = if self.chance(10) { self.pick(&[1, 0xffff]) } else { 0 };
        let error = IcmpError { kind, quoted: Box::new(quoted), bytes, checksum_error };
        let is_v6 = at.is_ipv6();
        let hosts: Vec<Host> = self.setup.hosts.values().cloned().collect();
        let index = self.index(hosts.len());
        let sender = &hosts[index];
        let from = sender.addresses.iter().copied().find(|address| address.is_ipv6() == is_v6);
        let to = if self.chance(95) { at.ip() } else { flow.client.ip() };
        let mut packet = Packet::ip(from.unwrap_or(flow.client.ip()), to, Payload::Error(error));
        let ingress = self.ingress_of(sender);
        packet.set_macs(&self.setup, ingress);
        packet.source = sender.mac;
        if self.chance(20) {
            packet.destination = self.port_mac(ingress);
        }
        Drawn { ingress, packet }
    }

    /// Neighbour discovery of one host, which sometimes announces the address of another one.
    fn discovery(&mut self, source: &Host, target: &Host) -> Packet {
        let mut places: Vec<IpAddr> = self.setup.places.values().map(|place| place.at.ip()).collect();
        places.extend(self.setup.hosts.values().flat_map(|host| host.addresses.clone()));
        places.extend(self.setup.own_addresses.clone());
        places.retain(IpAddr::is_ipv6);
        let own = source.addresses.iter().copied().find(IpAddr::is_ipv6);
        let mut pick = |own: Option<IpAddr>, percent| match own {
            Some(own) if self.chance(percent) => own,
            _ => self.pick(&places),
        };
        let (from, about) = (pick(own, 70), pick(own, 50));
        let to = pick(target.addresses.iter().copied().find(IpAddr::is_ipv6), 90);
        let mut content = vec![0; 4];
        content.extend(crate::message::address_bytes(about));
        let kind = self.pick(&[132, 133, 134, 135, 136, 136, 137, 138]);
        let mut packet = Packet::ip(from, to, Payload::Icmp(kind, content));
        (packet.source, packet.destination) = (source.mac, target.mac);
        packet
    }

    fn arp(&mut self, source: &Host, target: &Host) -> Packet {
        let octets = |addresses: &[IpAddr]| {
            addresses
                .iter()
                .find_map(
                    |address| if let IpAddr::V4(address) = address { Some(address.octets()) } else { None },
                )
                .unwrap_or([10, 0, 0, 254])
        };
        let is_request = self.chance(60);
        let wanted = if self.chance(30) { [10, 0, 0, 254] } else { octets(&target.addresses) };
        Packet {
            source: source.mac,
            destination: if is_request { Mac::BROADCAST } else { target.mac },
            vlan_tags: Vec::new(),
            tunnel: None,
            body: Body::Arp(Arp {
                operation: if is_request { 1 } else { 2 },
                sender: (source.mac, if self.chance(20) { wanted } else { octets(&source.addresses) }),
                target: (Mac::default(), wanted),
            }),
            edits: Vec::new(),
        }
    }

    fn solicitation(&mut self, source: &Host) -> Packet {
        let wanted: IpAddr = self.pick(&["2001:db8::254", "2001:db8::1"]).parse().expect("an address");
        let octets = crate::message::address_bytes(wanted);
        let mut content = vec![0; 4];
        content.extend(octets);
        content.extend([1, 1]);
        content.extend(source.mac.0);
        let kind = self.pick(&[135, 135, 136]);
        let from = source.addresses.iter().copied().find(IpAddr::is_ipv6).unwrap_or(wanted);
        let mut packet = Packet::ip(from, wanted, Payload::Icmp(kind, content));
        packet.source = source.mac;
        packet.destination = Mac([0x33, 0x33, 0xff, octets[13], octets[14], octets[15]]);
        packet
    }

    /// One of the flows: mostly one with an entry, so that these get far.
    pub(super) fn any_flow(&mut self) -> KnownFlow {
        if self.chance(65) {
            let with_entry: Vec<usize> =
                (0..self.flows.len()).filter(|index| self.flows[*index].state != state::NONE).collect();
            if !with_entry.is_empty() {
                let index = self.pick(&with_entry);
                return self.flows[index].clone();
            }
        }
        let count = if self.chance(80) { self.flows.len().min(12) } else { self.flows.len() };
        // The first flows of a seed are all of one service: the step spreads them.
        let index = self.index(count) * 13 % self.flows.len();
        self.flows[index].clone()
    }

    fn flags(&mut self) -> u8 {
        match self.random.below(20) {
            0 | 1 => tcp_flags::SYN,
            2 => tcp_flags::SYN | tcp_flags::ACK,
            3..=6 => tcp_flags::FIN | tcp_flags::ACK,
            7 => tcp_flags::RST,
            8 => u8::try_from(self.random.below(256)).expect("below 256"),
            _ => tcp_flags::ACK | tcp_flags::PSH,
        }
    }

    /// Few sequence numbers, so that owners acknowledge what clients have claimed.
    fn fill_tcp(&mut self, packet: &mut Packet, is_from_server: bool) {
        let (data, sequence, acknowledged) = (self.data(), self.random.below(2), self.random.below(4));
        let options = self.pick(&[0_u8, 0, 0, 3, 10]);
        let Some(Payload::Tcp(tcp)) = packet.ip_mut().map(|ip| &mut ip.payload) else { return };
        let number = |number: u64| u32::try_from(number).expect("small");
        tcp.sequence = number(sequence);
        tcp.acknowledgement = number(acknowledged);
        tcp.option_words = options;
        // Short segments of clients acknowledge and claim the same numbers often. Long ones may not fit into a tunnel.
        tcp.data =
            if is_from_server || data.len() > LONG { data } else { data.into_iter().take(2).collect() };
    }

    fn data(&mut self) -> Vec<u8> {
        if self.setup.is_host && self.chance(10) {
            return vec![7; LONG + self.index(1500 - LONG)];
        }
        let length = self.pick(&[0_u8, 0, 1, 2, 7, 31, 128, 200]);
        (0..length).collect()
    }

    /// Where a host's frames arrive.
    fn ingress_of(&self, host: &Host) -> u8 {
        match (self.setup.is_host, host.port) {
            (true, Some(LOCAL_PORT)) => EGRESS,
            (true, _) => HOST_PORT,
            (false, port) => port.unwrap_or(1),
        }
    }

    fn port_of(&self, client: IpAddr) -> u8 {
        if self.setup.is_host {
            return HOST_PORT;
        }
        let host = self.setup.host_at(client).and_then(|host| host.port);
        host.or_else(|| self.setup.port_number("uplink")).unwrap_or(1)
    }

    fn is_unknown(&self, client: IpAddr) -> bool {
        self.setup.host_at(client).is_none()
    }

    pub(super) fn port_mac(&self, number: u8) -> Mac {
        self.setup.port(number).map(|port| port.mac).unwrap_or_default()
    }

    fn original(&self, service: SocketAddr) -> u8 {
        self.services.iter().find(|place| place.at == service).map_or(0, |place| place.server)
    }

    /// Any port, also the daemon's and one that does not exist.
    pub(super) fn any_port(&mut self) -> u8 {
        if self.setup.is_host {
            return self.pick(&[HOST_PORT, EGRESS, LOCAL_PORT, 9, DAEMON_PORT]);
        }
        self.pick(&[1, 2, 3, 4, 5, 6, 9, DAEMON_PORT])
    }
}
