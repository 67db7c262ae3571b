//! Properties of all packets and of all sequences of messages.

use core::time::Duration;
use std::collections::BTreeMap;

use proptest::prelude::*;
use spillway_rules::{Action, Endpoint, FlowState, FlowView, Verdict};
use spillway_wire::switch::{Kind, Status};

use crate::frames::{ACK, FIN, Frame, RST, SYN, Upper, read};
use crate::test_config::{
    client_mac, endpoint, place_of, place_v6_of, port_mac, router_mac, server_mac, service, service_v6,
};
use crate::world::{Message, World, client};

const CLIENTS: [&str; 3] = ["10.0.9.9:5000", "192.0.2.7:5000", "10.0.9.9:5001"];
const CLIENTS_V6: [&str; 2] = ["[fd00::9]:5000", "[2001:db8::7]:5000"];

/// A world in which flows of all clients are in this state: 0 no entry, 1 asked, 2 held, 3 owned by server 2.
fn world_in(state: usize) -> World {
    let mut world = World::new();
    for (client, is_ipv6) in
        CLIENTS.iter().map(|client| (client, false)).chain(CLIENTS_V6.iter().map(|client| (client, true)))
    {
        let client = endpoint(client);
        let (at, service) = if is_ipv6 { (place_v6_of(2), service_v6()) } else { (place_of(2), service()) };
        let about = |sender, kind| Message::new(sender, kind).client(client).service(service);
        let generation = |world: &World| world.entry_of(client).map_or(0, |entry| entry.generation);
        if state >= 1 {
            world.send(about(1, Kind::Prepare).site(at, server_mac(2))).relayed();
        }
        if state >= 2 {
            let prepared = about(2, Kind::Prepared).generation(generation(&world)).site(at, server_mac(2));
            world.send(prepared).relayed();
        }
        if state >= 3 {
            let own = about(2, Kind::Own).generation(generation(&world));
            assert_eq!(world.send(own).status(), Status::Ok);
        }
    }
    world
}

/// Segments of clients and servers, switched and routed.
fn segment() -> impl Strategy<Value = (u8, Frame)> {
    let flags = prop_oneof![Just(ACK), Just(SYN), Just(RST), Just(FIN | ACK), any::<u8>()];
    let shape = (any::<bool>(), any::<bool>(), any::<bool>(), 0..CLIENTS.len(), 0..=10_usize, 0..=3_usize);
    let extensions = proptest::collection::vec((prop_oneof![Just(0_u8), Just(43), Just(60)], 0..4_u16), 0..8);
    let payload = proptest::collection::vec(any::<u8>(), 0..70);
    (shape, flags, extensions, payload, any::<u32>(), any::<u32>(), any::<u8>(), 1..=4_u8).prop_map(
        |(shape, flags, extensions, payload, sequence, acknowledgement, hops, server)| {
            let (is_ipv6, is_from_client, is_routed, client, option_words, tags) = shape;
            let client = if is_ipv6 { CLIENTS_V6[client % CLIENTS_V6.len()] } else { CLIENTS[client] };
            let service_end = match (is_ipv6, is_from_client, server) {
                (false, true, _) | (false, false, 1) => service(),
                (true, true, _) | (true, false, 1) => service_v6(),
                (false, false, _) => place_of(server),
                (true, false, _) => place_v6_of(server),
            };
            let ends = (endpoint(client), service_end);
            let (ingress, macs, ends) = match (is_from_client, is_routed) {
                (true, false) => (0, (client_mac(), server_mac(1)), ends),
                (true, true) => (5, (router_mac(), port_mac(5)), ends),
                (false, false) => (server, (server_mac(server), client_mac()), (ends.1, ends.0)),
                (false, true) => (server, (server_mac(server), port_mac(server)), (ends.1, ends.0)),
            };
            let frame = Frame {
                hops,
                option_words,
                extensions,
                payload,
                vlan_tags: vec![(0x8100, 7); tags],
                upper: Upper::Tcp { flags, sequence, acknowledgement },
                ..Frame::tcp(macs, ends, flags)
            };
            (ingress, frame)
        },
    )
}

/// Where the checksums are: of the IPv4 header, if there is one, and of TCP.
fn checksum_offsets(frame: &Frame) -> Vec<usize> {
    let network = 14 + 4 * frame.vlan_tags.len();
    let length = frame.bytes().len();
    let tcp = length - 20 - frame.payload.len();
    let mut offsets = vec![tcp + 16];
    if frame.source.ip().is_ipv4() {
        offsets.push(network + 10);
    }
    offsets
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_checksum_is_correct_afterwards_iff_it_was_before(
        (ingress, frame) in segment(), state in 0..4_usize, damage in any::<u16>(), damaged in 0..3_usize,
    ) {
        let mut bytes = frame.bytes();
        let offsets = checksum_offsets(&frame);
        if let Some(at) = offsets.get(damaged).copied() {
            let check = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            // 0 and ffff are the same number, so that neither is a damage of the other.
            let other = check.wrapping_add(damage);
            prop_assume!(other != check && !(check == 0 && other == 0xffff) && !(check == 0xffff && other == 0));
            bytes[at..at + 2].copy_from_slice(&other.to_be_bytes());
        }
        let was_correct = read(&bytes).has_correct_checksums;
        prop_assert_eq!(was_correct, damaged >= offsets.len());
        let (decision, after) = world_in(state).receive(ingress, bytes.clone());
        if let Action::To(_) = decision.action {
            prop_assert_eq!(read(&after).has_correct_checksums, was_correct, "{:?}", decision);
        }
    }

    #[test]
    fn a_frame_without_entry_leaves_as_it_came(
        (ingress, frame) in segment(), state in 0..4_usize, port in 6000..7000_u16,
    ) {
        // A client without flows.
        let mut frame = frame;
        let other = |end: Endpoint| Endpoint::new(end.address(), port);
        let is_from_server = (1..=4).contains(&ingress);
        if is_from_server { frame.target = other(frame.target) } else { frame.source = other(frame.source) }
        let bytes = frame.bytes();
        let (decision, after) = world_in(state).receive(ingress, bytes.clone());
        if decision.verdict == Verdict::Routed {
            let (before, after) = (read(&bytes), read(&after));
            prop_assert_eq!((after.source, after.target, after.upper), (before.source, before.target, before.upper));
            prop_assert_eq!(after.hops + 1, before.hops);
        } else {
            prop_assert_eq!(after, bytes);
            let is_muted = is_from_server && ingress != 1;
            prop_assert_eq!(decision.verdict == Verdict::DropNotOwner, is_muted);
        }
    }

    #[test]
    fn any_bytes_on_any_port(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        head in proptest::option::of(0..6_usize), ingress in 0..64_u8, state in 0..4_usize,
    ) {
        const HEADS: [&[u8]; 6] = [
            &[2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 0, 12, 0x08, 0, 0x45],
            &[2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 0, 12, 0x86, 0xdd, 0x60],
            &[2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 0, 12, 0x81, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 9, 60],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 12, 0x08, 6, 0, 1, 8, 0, 6, 4],
            &[2, 0, 0, 0, 2, 1, 2, 0, 0, 0, 1, 1, 0x08, 0, 0x45, 0, 0, 156, 0, 0, 0, 0, 64, 17],
            &[2, 0, 0, 0, 2, 1, 2, 0, 0, 0, 1, 1, 0x08, 0, 0x4f, 0, 0, 156, 0, 0, 0, 0, 64, 6],
        ];
        if let Some(head) = head {
            let head = HEADS[head];
            let length = head.len().min(bytes.len());
            bytes[..length].copy_from_slice(&head[..length]);
        }
        let mut world = world_in(state);
        let before = world.switch.counters().iter().map(|(_, count)| count).sum::<u64>();
        let (_, after) = world.receive(ingress, bytes.clone());
        prop_assert_eq!(after.len(), bytes.len());
        prop_assert_eq!(world.switch.counters().iter().map(|(_, count)| count).sum::<u64>(), before + 1);
    }

    #[test]
    fn any_change_of_a_valid_frame(
        (ingress, frame) in segment(), state in 0..4_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in any::<prop::sample::Index>(),
    ) {
        let mut bytes = frame.bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(length.index(bytes.len() + 1));
        let (_, after) = world_in(state).receive(ingress, bytes.clone());
        prop_assert_eq!(after.len(), bytes.len());
    }
}

/// One step of a random run.
#[derive(Clone, Debug)]
enum Step {
    Message {
        sender: u8,
        kind: Kind,
        flow: usize,
        generation: Generation,
        site: u8,
        status: Status,
        lifetime_ms: u32,
    },
    /// Time passes with heartbeats of the servers in this set.
    Pass {
        ms: u64,
        alive: u8,
    },
    Segment {
        ingress: u8,
        frame: Box<Frame>,
    },
}

#[derive(Clone, Copy, Debug)]
enum Generation {
    Current,
    Replaced,
    Older,
    Any(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(Kind::Prepare), 4 => Just(Kind::Prepared), 2 => Just(Kind::Hold), 4 => Just(Kind::Own),
        1 => Just(Kind::Release), 1 => Just(Kind::Get), 1 => Just(Kind::Hello), 1 => Just(Kind::Heartbeat),
    ];
    let generation = prop_oneof![
        8 => Just(Generation::Current), 1 => Just(Generation::Replaced), 1 => Just(Generation::Older),
        1 => any::<u64>().prop_map(Generation::Any),
    ];
    let status = prop_oneof![6 => Just(Status::Ok), 1 => Just(Status::Full), 1 => Just(Status::Stale)];
    let lifetime = prop_oneof![Just(30_u32), Just(2_000), Just(60_000), Just(0)];
    let message = (0..=4_u8, kind, 0..CLIENTS.len(), generation, 0..=5_u8, status, lifetime).prop_map(
        |(sender, kind, flow, generation, site, status, lifetime_ms)| Step::Message {
            sender,
            kind,
            flow,
            generation,
            site,
            status,
            lifetime_ms,
        },
    );
    prop_oneof![
        12 => message,
        2 => (0..1500_u64, 0..16_u8).prop_map(|(ms, alive)| Step::Pass { ms, alive }),
        3 => segment().prop_map(|(ingress, frame)| Step::Segment { ingress, frame: Box::new(frame) }),
    ]
}

/// What holds for every flow in every run.
#[derive(Default)]
struct Invariants {
    /// The highest generation of each flow so far, entries that have ended included.
    highest: BTreeMap<Endpoint, u64>,
    before: BTreeMap<Endpoint, FlowView>,
}

impl Invariants {
    fn check(&mut self, world: &World) {
        let flows: BTreeMap<_, _> =
            world.switch.flows().into_iter().map(|flow| (flow.client, flow)).collect();
        for (client, flow) in &flows {
            assert_eq!(flow.target.is_some(), matches!(flow.state, FlowState::Asked | FlowState::Held));
            assert_ne!(flow.state, FlowState::None);
            let highest = self.highest.entry(*client).or_insert(0);
            let before = self.before.get(client);
            if before.is_some_and(|before| before.generation == flow.generation) {
                let before = before.unwrap();
                assert_eq!(flow.owner, before.owner, "an owner changes with a generation");
                let becomes_ready = (before.state, flow.state) == (FlowState::Asked, FlowState::Held);
                assert!(flow.state == before.state || becomes_ready, "a state changes with a generation");
            } else {
                assert!(flow.generation > *highest, "{client}: {} after {highest}", flow.generation);
            }
            *highest = flow.generation;
            assert!(exactly_one_is_heard(world, flow), "{flow:?}");
        }
        self.before = flows;
    }
}

/// Whether of all servers only the owner reaches the client.
fn exactly_one_is_heard(world: &World, flow: &FlowView) -> bool {
    let heard = |server: u8, from: Endpoint| {
        let macs = (server_mac(server), client_mac());
        let frame = Frame::tcp(macs, (from, flow.client), ACK);
        world.clone().receive(server, frame.bytes()).0.verdict == Verdict::FromOwner
    };
    // A *get* settles the entry of the copy, as each packet does.
    let mut settled = world.clone();
    settled.send(Message::new(4, Kind::Get).client(flow.client));
    let Some(flow) = settled.entry_of(flow.client) else { return true };
    (1..=4).all(|server| {
        [place_of(server), service()].into_iter().all(|from| {
            let is_owner = flow.owner.server.0 == server && flow.owner.at == from;
            heard(server, from) == is_owner
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn generations_grow_and_one_server_owns_each_flow(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new();
        let mut invariants = Invariants::default();
        for step in steps {
            match step {
                Step::Pass { ms, alive } => {
                    let alive: Vec<u8> = (1..=4).filter(|server| alive & 1 << (server - 1) != 0).collect();
                    let is_owner = |server: &u8| {
                        let mut later = world.clone();
                        later.pause(Duration::from_millis(10));
                        later.send(Message::new(*server, Kind::Heartbeat)).status() == Status::Ok
                    };
                    world.alive = alive.into_iter().filter(is_owner).collect();
                    world.pass(Duration::from_millis(ms));
                }
                Step::Segment { ingress, frame } => {
                    world.receive(ingress, frame.bytes());
                }
                Step::Message { sender, kind, flow, generation, site, status, lifetime_ms } => {
                    let client = endpoint(CLIENTS[flow]);
                    let entry = world.entry_of(client);
                    let current = entry.as_ref().map_or(0, |entry| entry.generation);
                    let generation = match generation {
                        Generation::Current => current,
                        Generation::Replaced => entry.and_then(|entry| entry.repeat_generation).unwrap_or(0),
                        Generation::Older => current.saturating_sub(1),
                        Generation::Any(generation) => generation,
                    };
                    let mut message = Message::new(sender, kind)
                        .client(client)
                        .generation(generation)
                        .lifetime_ms(lifetime_ms)
                        .status(status)
                        .load(1, 5, 1);
                    message = match site {
                        0 => message,
                        5 => message.site(service(), server_mac(sender.max(1))),
                        server if kind == Kind::Prepared => message.place(sender.max(server.min(1))),
                        server => message.place(server),
                    };
                    world.send(message);
                }
            }
            invariants.check(&world);
        }
    }

    #[test]
    fn of_two_racing_own_exactly_one_succeeds_from_any_state(
        steps in proptest::collection::vec((1..=4_u8, 1..=4_u8, any::<bool>()), 0..12), first in any::<bool>(),
    ) {
        let mut world = World::new();
        for (source, target, completes) in steps {
            world.send(Message::new(source, Kind::Prepare).generation(world.generation()).place(target));
            world.send(Message::new(target, Kind::Prepared).generation(world.generation()).place(target));
            if completes {
                world.send(Message::new(target, Kind::Own).generation(world.generation()));
            }
        }
        let Some(entry) = world.entry() else { return Ok(()) };
        let Some(target) = entry.target else { return Ok(()) };
        prop_assume!(entry.state == FlowState::Held && target.server != entry.owner.server);
        let (one, other) = (entry.owner.server.0, target.server.0);
        let order = if first { [one, other] } else { [other, one] };
        let succeeded = order
            .map(|server| world.send(Message::new(server, Kind::Own).generation(entry.generation)).status())
            .into_iter()
            .filter(|status| *status == Status::Ok)
            .count();
        prop_assert_eq!(succeeded, 1);
        prop_assert_eq!(world.entry().unwrap().owner.server.0, order[0]);
        prop_assert_eq!(world.entry().unwrap().client, client());
    }
}
