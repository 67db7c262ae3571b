//! Load queries and shedding.

mod world;

use core::time::Duration;
use std::net::SocketAddr;

use spillway_auth::{Key, prove_ask, verify_load};
use spillway_batch::{
    Encryption, Id, LinkRandomness, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Role, Scratch,
};
use spillway_relay::{Config, Load, Notice, Questions};
use spillway_transport::{Application, Conn};
use spillway_wire::load::{ASK_BYTES, Ask};
use spillway_wire::preamble::KeyId;
use world::{World, client_key, config, helper_key};

const CLIENT: &str = "10.9.0.1:5000";

fn ask(server: Option<&str>) -> Ask {
    let server = server.map(|address| address.parse().unwrap());
    Ask { asked: 2, key: KeyId([0; 8]), nonce: [7; 16], server }
}

/// The relay's reply to these bytes at a listener.
fn answer(world: &mut World, listener: u16, from: &str, question: &[u8]) -> Option<Vec<u8>> {
    let mut room = vec![0; question.len()];
    let now = world.now;
    let length = world.relay.handle_datagram(now, listener, from.parse().unwrap(), question, &mut room);
    room.truncate(length);
    (length > 0).then_some(room)
}

fn load(world: &mut World, server: Option<&str>) -> Load {
    let question = prove_ask(&client_key(), ask(server));
    let bytes = answer(world, 1, CLIENT, &question).expect("an answer");
    assert!(bytes.len() <= question.len());
    verify_load(&client_key(), &[7; 16], &bytes).expect("a reply to this query")
}

fn questions(world: &World) -> Questions {
    world.relay.status().services[0].counters.questions
}

#[test]
fn clients_with_a_key_get_a_reply() {
    let mut world = World::new(config());
    let load_before = load(&mut world, None);
    assert!(load_before.takes_clients() && load_before.tentative > 0, "{load_before:?}");
    assert!(load(&mut world, Some(world::SERVER)).takes_clients());
    assert!(load(&mut world, Some("10.0.0.6:1")).down, "another server is not served here");
    assert_eq!(questions(&world), Questions { answered: 3, ..Questions::default() });
}

#[test]
fn invalid_queries_get_no_reply_and_are_counted_by_reason() {
    let mut world = World::new(config());
    let good = prove_ask(&client_key(), ask(None));
    let mut altered = good;
    altered[10] = 3;
    for (from, bytes) in [
        ("198.51.100.1:5000", good.as_slice()),
        (CLIENT, &prove_ask(&helper_key(), ask(None))),
        (CLIENT, &prove_ask(&Key::from_secret([9; 32]), ask(None))),
        (CLIENT, &altered),
        (CLIENT, &good[1..]),
        (CLIENT, &[0; ASK_BYTES]),
        (CLIENT, b""),
    ] {
        assert_eq!(answer(&mut world, 1, from, bytes), None);
    }
    let counted = Questions { address: 1, key: 2, proof: 1, malformed: 3, ..Questions::default() };
    assert_eq!(questions(&world), counted);
    // A listener of plain clients, and one that no service uses.
    assert_eq!(answer(&mut world, 0, CLIENT, &good), None);
    assert_eq!(answer(&mut world, 77, CLIENT, &good), None);
    assert_eq!(questions(&world), counted);
    // A reply buffer that is too small.
    let now = world.now;
    assert_eq!(world.relay.handle_datagram(now, 1, CLIENT.parse().unwrap(), &good, &mut [0; 10]), 0);
}

#[test]
fn replies_can_be_switched_off() {
    let mut config = config();
    config.load.answers = false;
    let mut world = World::new(config);
    let question = prove_ask(&client_key(), ask(None));
    assert_eq!(answer(&mut world, 1, CLIENT, &question), None);
    assert_eq!(questions(&world).off, 1);
}

#[test]
fn without_keys_only_loopback_is_answered() {
    let mut config = config();
    config.services[0].client_keys = None;
    let mut world = World::new(config);
    let question = prove_ask(&Key::loopback_only(), ask(None));
    assert_eq!(answer(&mut world, 1, CLIENT, &question), None);
    let bytes = answer(&mut world, 1, "127.0.0.1:5000", &question).expect("an answer");
    assert!(verify_load(&Key::loopback_only(), &[7; 16], &bytes).is_ok());
}

#[test]
fn the_reply_says_why_no_clients_are_accepted() {
    let mut world = World::new(Config { clients_max: 1, ..config() });
    world.client(0, "10.9.0.2:1");
    let load_at_bound = load(&mut world, None);
    assert!(load_at_bound.full && !load_at_bound.down && !load_at_bound.draining, "{load_at_bound:?}");
    assert_eq!(load_at_bound.connections, 1000);
    let now = world.now;
    world.relay.drain(now, Duration::from_secs(9), &mut world.transport);
    assert!(load(&mut world, None).draining);

    let mut world = World::new(config());
    let (now, off) = (world.now, (spillway_policy::Override::Off, None));
    world.relay.say(now, "cache", off, Duration::ZERO, &mut world.transport);
    assert!(load(&mut world, None).draining, "the override is off");

    let mut world = World::new(config());
    let link = world.link;
    world.event(link, spillway_transport::Event::Lost(spillway_transport::LostReason::Reset));
    assert!(load(&mut world, None).down, "without a link no client is served");
}

/// The client's end of its link, with an open connection.
struct Client {
    conn: Conn,
    link: OpenerLink,
    /// Deadlines of received *drain* messages, in milliseconds.
    drains: Vec<u32>,
}

impl Client {
    fn new(world: &mut World, number: u16) -> Client {
        let address = SocketAddr::from(([10, 9, 0, 1], 5000 + number));
        let conn = world.client(1, &address.to_string());
        let policy = PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 };
        let config = OpenerConfig {
            role: Role::Client,
            key: client_key(),
            limits: Default::default(),
            policy,
            encryption: Encryption::Preferred,
        };
        let mut client = Client {
            conn,
            link: OpenerLink::new(
                &config,
                world.now,
                LinkRandomness::from_random([3; LinkRandomness::BYTES]),
            ),
            drains: Vec::new(),
        };
        client.exchange(world);
        client.link.open(address, None).unwrap();
        client.exchange(world);
        client
    }

    fn exchange(&mut self, world: &mut World) {
        loop {
            let batch = self.link.flush(world.now);
            if let Some(batch) = &batch {
                world.data(self.conn, batch.as_slice());
            }
            let bytes = world.transport.take(self.conn);
            if bytes.is_empty() && batch.is_none() {
                return;
            }
            let mut scratch = Scratch::new();
            let mut input = self.link.unseal(world.now, &bytes, &mut scratch);
            while let Some(event) = self.link.decompose(world.now, &mut input).unwrap() {
                if let OpenerEvent::Drain { deadline_ms } = event {
                    self.drains.push(deadline_ms);
                }
            }
        }
    }
}

/// Advances the time by one second, in which the thread uses `share` of its core.
fn second(world: &mut World, cpu: &mut Duration, share: f64) {
    for _ in 0..10 {
        world.now = world.now + Duration::from_millis(100);
        *cpu += Duration::from_secs_f64(share / 10.0);
        assert!(world.relay.is_measurement_due(world.now));
        world.relay.measured(world.now, *cpu);
        let now = world.now;
        world.relay.end_of_turn(now, &mut world.transport);
    }
}

#[test]
fn overload_sheds_library_clients_a_few_at_a_time_and_no_plain_ones() {
    let mut world = World::new(config());
    let plain = world.client(0, "10.9.0.2:1");
    let mut clients: Vec<Client> = (0..100).map(|number| Client::new(&mut world, number)).collect();
    let mut cpu = Duration::ZERO;
    world.relay.measured(world.now, cpu);
    for _ in 0..12 {
        second(&mut world, &mut cpu, 0.3);
    }
    // These clients are too young to be shed.
    clients.extend((100..110).map(|number| Client::new(&mut world, number)));
    while world.relay.poll_notice().is_some() {}
    let mut shed = Vec::new();
    for _ in 0..8 {
        second(&mut world, &mut cpu, 1.0);
        clients.iter_mut().for_each(|client| client.exchange(&mut world));
        shed.push(clients.iter().filter(|client| !client.drains.is_empty()).count());
    }
    assert_eq!(shed[..3], [0, 0, 0], "a short peak is not an overload");
    assert!(shed.windows(2).all(|pair| pair[1] - pair[0] <= 4), "a few at a time: {shed:?}");
    assert!((9..=16).contains(&shed[7]), "{shed:?}");
    assert!(clients.iter().all(|client| client.drains.is_empty() || client.drains == [10_000]), "once");
    assert!(clients[100..].iter().all(|client| client.drains.is_empty()), "young clients stay");
    assert!(!world.transport.record(plain).aborted && !world.transport.record(plain).finished);
    let status = world.relay.status();
    assert_eq!(status.services[0].counters.shed, shed[7] as u64);
    assert!(status.load.full && status.load.cpu > 950, "{:?}", status.load);
    let notice = std::iter::from_fn(|| world.relay.poll_notice()).find(|n| matches!(n, Notice::Shed { .. }));
    assert!(matches!(notice, Some(Notice::Shed { clients: 3, load_percent: 95.. })), "{notice:?}");

    // After the overload, clients are not accepted again at once.
    second(&mut world, &mut cpu, 0.2);
    assert!(load(&mut world, None).full);
    for _ in 0..12 {
        second(&mut world, &mut cpu, 0.2);
    }
    assert!(load(&mut world, None).takes_clients());
    assert_eq!(world.relay.status().services[0].counters.shed, shed[7] as u64);
}

#[test]
fn shedding_can_be_switched_off() {
    let mut config = config();
    config.load.shedding = None;
    let mut world = World::new(config);
    let mut client = Client::new(&mut world, 0);
    let mut cpu = Duration::ZERO;
    for _ in 0..20 {
        second(&mut world, &mut cpu, 1.0);
    }
    client.exchange(&mut world);
    assert!(client.drains.is_empty() && load(&mut world, None).takes_clients());
}

#[test]
fn a_client_that_was_shed_is_served_until_it_leaves() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world, 0);
    world.exchange();
    let mut cpu = Duration::ZERO;
    world.relay.measured(world.now, cpu);
    for _ in 0..16 {
        second(&mut world, &mut cpu, 1.0);
    }
    client.exchange(&mut world);
    assert_eq!(client.drains, [10_000]);
    assert_eq!(client.link.compose(Id(1), b"get x"), 5);
    client.exchange(&mut world);
    let observed = world.exchange();
    assert!(
        observed
            .iter()
            .any(|observed| matches!(observed, world::Observed::Data(_, bytes) if bytes == b"get x"))
    );
}
