//! Control messages: mostly such as a server would send in the state that it knows, some that no server should send.

use std::net::SocketAddr;

use super::traffic::Drawn;
use super::world::{KnownFlow, Sender, World};
use crate::mac::Mac;
use crate::message::Message;
use crate::message::numbers::kind::{GET, HEARTBEAT, HELLO, HOLD, LIST, OWN, PREPARE, PREPARED, RELEASE};
use crate::message::numbers::state::{ASKED, HELD, OWNED};
use crate::message::numbers::status;
use crate::packet::{Content, Packet};
use crate::setup::DAEMON_PORT;

/// Time between heartbeats.
const HEARTBEAT_NS: u64 = 10_000_000;

impl World {
    /// A hello or a heartbeat that is due.
    pub(super) fn due_message(&mut self) -> Option<Drawn> {
        let now_ns = self.now_ns;
        let start = self.index(self.senders.len());
        let order = (0..self.senders.len()).map(|offset| (start + offset) % self.senders.len());
        let index = order.clone().find(|index| {
            let sender = &self.senders[*index];
            sender.server.id != 0
                && sender.is_alive
                && (sender.wants_hello || sender.heartbeat_due_ns <= now_ns)
        })?;
        self.senders[index].heartbeat_due_ns = now_ns + HEARTBEAT_NS;
        let kind = if self.senders[index].wants_hello { HELLO } else { HEARTBEAT };
        let flow = self.any_flow();
        Some(self.message(kind, index, &flow))
    }

    /// A message about a flow, or one that only reads.
    pub(super) fn flow_message(&mut self) -> Drawn {
        let flow = self.any_flow();
        let kind = match (flow.state, self.random.below(20)) {
            (_, 0) => GET,
            (_, 1) => LIST,
            (_, 2) => self.pick(&[PREPARE, PREPARED, HOLD, OWN, RELEASE]),
            (_, 3) => self.pick(&[HEARTBEAT, HELLO]),
            (ASKED, 4) => OWN,
            (ASKED, 5) => PREPARE,
            (ASKED, _) => PREPARED,
            (HELD, 4) => PREPARED,
            (HELD, _) => OWN,
            (OWNED, 4..8) => HOLD,
            (OWNED, 8..10) => RELEASE,
            _ => PREPARE,
        };
        let right = match kind {
            PREPARED => flow.target,
            OWN if self.chance(70) => flow.target,
            RELEASE if self.chance(15) => 0,
            GET | LIST if self.chance(20) => 0,
            _ => flow.owner,
        };
        let right = self.senders.iter().position(|sender| sender.server.id == right);
        let index = match right {
            Some(index) if !self.chance(8) => index,
            _ => self.index(self.senders.len()),
        };
        self.message(kind, index, &flow)
    }

    fn message(&mut self, kind: u8, sender: usize, flow: &KnownFlow) -> Drawn {
        let epoch = self.setup.epoch;
        let Sender { server, sequence, .. } = &mut self.senders[sender];
        *sequence = sequence.saturating_add(1);
        let server = server.clone();
        let mut message = Message::new(kind, server.id.into(), server.key, *sequence, epoch);
        message.client = Some(flow.client);
        message.service = Some(flow.service);
        match kind {
            HELLO => (message.client, message.service) = (None, None),
            HEARTBEAT => {
                message.client = None;
                message.service = Some(self.home_service(server.id, flow.service));
                message.load = self.pick(&[0, 1, 10, 10, 20, u32::MAX]);
                message.free = self.pick(&[0, 1, 2, 5, 9, 9, u32::MAX]);
                message.weight = self.pick(&[0, 1, 1, 1, 2, 3, u16::MAX]);
            }
            LIST => message.generation = self.random.below(6),
            PREPARE | HOLD => {
                message.lifetime_ms = match self.random.below(20) {
                    0 => self.pick(&[0, 60_001, u32::MAX]),
                    1 | 2 => self.pick(&[1, 30]),
                    _ => self.pick(&[500, 500, 60_000]),
                };
                if kind == HOLD || self.chance(40) {
                    self.set_site(&mut message, flow);
                }
            }
            PREPARED => {
                message.status = self.pick(&[
                    status::NONE,
                    status::NONE,
                    status::OK,
                    status::OK,
                    status::FULL,
                    status::STALE,
                ]);
                (message.owner, message.mac) = (Some(flow.target_at), server.mac);
                if self.chance(40) {
                    let at = self.place_of(server.id, flow.service);
                    message.owner = at;
                }
                if self.chance(8) {
                    self.set_site(&mut message, flow);
                }
            }
            _ => {}
        }
        if !matches!(kind, HELLO | HEARTBEAT | LIST) {
            message.generation = self.generation(kind, flow);
        }
        if kind == PREPARE {
            let known = self
                .flows
                .iter_mut()
                .find(|known| (known.client, known.service) == (flow.client, flow.service));
            if let Some(known) = known.filter(|known| !matches!(known.state, ASKED | HELD)) {
                known.repeat_generation = message.generation;
            }
        }
        message.set_family();
        self.spoil(&mut message);
        self.frame(message, &server)
    }

    fn frame(&mut self, message: Message, server: &crate::setup::Server) -> Drawn {
        let is_v6 = if self.chance(5) { !server.address.is_ipv6() } else { server.address.is_ipv6() };
        let host = self.setup.hosts.values().find(|host| host.mac == server.mac);
        let address = host
            .and_then(|host| host.addresses.iter().copied().find(|address| address.is_ipv6() == is_v6))
            .unwrap_or(server.address);
        let control = self.setup.control_address(address).expect("a control address of each family");
        let port = 7000 + u16::from(server.id) + u16::from(self.chance(5));
        let mut packet = Packet::udp(
            SocketAddr::new(address, port),
            SocketAddr::new(control, self.setup.control_port),
            Content::Message(message),
        );
        let ingress = if self.chance(3) { self.any_port() } else { server.port };
        packet.source = server.mac;
        packet.destination = self.port_mac(if server.port == DAEMON_PORT { 1 } else { server.port });
        Drawn { ingress, packet }
    }

    fn generation(&mut self, kind: u8, flow: &KnownFlow) -> u64 {
        match self.random.below(25) {
            0 => 0,
            1 => flow.generations[1],
            2 => flow.generations[2],
            3 => flow.generations[0].wrapping_add(1),
            4 => u64::MAX,
            _ if kind == PREPARE && matches!(flow.state, ASKED | HELD) => flow.repeat_generation,
            _ => flow.generations[0],
        }
    }

    /// Names a server with one of its places, or something that is none.
    fn set_site(&mut self, message: &mut Message, flow: &KnownFlow) {
        let mut index = self.index(self.senders.len());
        if self.chance(80) {
            let able = self.able_senders(flow);
            if !able.is_empty() {
                index = self.pick(&able);
            }
        }
        let server = self.senders[index].server.clone();
        message.mac = server.mac;
        message.owner =
            if self.chance(30) { Some(flow.service) } else { self.place_of(server.id, flow.service) };
        if self.chance(6) {
            let places: Vec<SocketAddr> = self.setup.places.values().map(|place| place.at).collect();
            message.owner = Some(self.pick(&places));
        }
        if self.chance(3) {
            message.mac = Mac([2, 0, 0, 0, 0, 0x99]);
        }
        if self.chance(2) {
            message.owner = None;
        }
    }

    /// The senders whose ports may own the flow's service.
    fn able_senders(&self, flow: &KnownFlow) -> Vec<usize> {
        let service = self.services.iter().find(|place| place.at == flow.service);
        let is_able = |index: &usize| {
            let port = self.setup.port(self.senders[*index].server.port);
            port.is_some_and(|port| service.is_some_and(|service| port.may_own.contains(&service.number)))
        };
        (0..self.senders.len()).filter(is_able).collect()
    }

    /// A place of a server for a service; the service itself if it has none.
    fn place_of(&self, server: u8, service: SocketAddr) -> Option<SocketAddr> {
        let place = self
            .setup
            .places
            .values()
            .find(|place| (place.server, place.service) == (server, service) && !place.is_endpoint());
        Some(place.map_or(service, |place| place.at))
    }

    /// A service that the server may own; sometimes another one.
    fn home_service(&mut self, server: u8, other: SocketAddr) -> SocketAddr {
        if self.chance(4) {
            return other;
        }
        let port = self.sender(server).and_then(|sender| self.setup.port(sender.server.port));
        let service =
            self.services.iter().find(|place| port.is_some_and(|port| port.may_own.contains(&place.number)));
        service.map_or(other, |place| place.at)
    }

    /// Changes a field, before the tag is computed.
    fn spoil(&mut self, message: &mut Message) {
        if !self.chance(12) {
            return;
        }
        let id = u8::try_from(message.sender).unwrap_or_default();
        match self.random.below(14) {
            0 => message.version = self.pick(&[0, 2, 255]),
            1 => message.kind = self.pick(&[0, 10, 255]),
            2 => message.epoch = self.pick(&[0, message.epoch ^ 1]),
            3 => message.sequence = message.sequence.saturating_sub(1),
            4 => message.sequence = message.sequence.saturating_sub(self.random.below(80)),
            5 => {
                message.sequence = message.sequence.saturating_add(self.random.below(100));
                if let Some(sender) = self.senders.iter_mut().find(|sender| sender.server.id == id) {
                    sender.sequence = message.sequence;
                }
            }
            6 => message.sender = self.pick(&[0, 1, 2, 77, 255, 256, 65_537]),
            7 => message.flags = self.pick(&[1, 2, 0x8000, 0xffff]),
            8 => message.magic[3] ^= 1,
            9 => message.tag_error = 0x80,
            10 => message.service = self.setup.places.values().next_back().map(|place| place.at),
            11 => message.client = None,
            12 => message.reserved = [1, 2, 3],
            _ => message.family = 9,
        }
    }
}
