//! Load queries and shedding.

mod harness;

use core::time::Duration;
use std::net::SocketAddr;

use harness::{Harness, client_key, config, helper_key};
use spillway_auth::{Key, prove_query, verify_load};
use spillway_batch::{
    Encryption, Id, LinkRandomness, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Role, Scratch,
};
use spillway_relay::{Config, LoadQueries, LoadReport, Notice};
use spillway_transport::{Application, Conn};
use spillway_wire::load::{LOAD_QUERY_BYTES, LoadQuery};
use spillway_wire::preamble::KeyId;

const CLIENT: &str = "10.9.0.1:5000";

fn query_for(server: Option<&str>) -> LoadQuery {
    let server = server.map(|address| address.parse().unwrap());
    LoadQuery { helpers_asked: 2, key: KeyId([0; 8]), nonce: [7; 16], server }
}

/// The relay's reply to these bytes at a listener.
fn send_datagram(harness: &mut Harness, listener: u16, from: &str, query: &[u8]) -> Option<Vec<u8>> {
    let mut reply = vec![0; query.len()];
    let now = harness.now;
    let length = harness.relay.handle_datagram(now, listener, from.parse().unwrap(), query, &mut reply);
    reply.truncate(length);
    (length > 0).then_some(reply)
}

fn query_load(harness: &mut Harness, server: Option<&str>) -> LoadReport {
    let query = prove_query(&client_key(), query_for(server));
    let bytes = send_datagram(harness, 1, CLIENT, &query).expect("a valid query should get a reply");
    assert!(bytes.len() <= query.len(), "a reply should not be longer than its query");
    verify_load(&client_key(), &[7; 16], &bytes).expect("the reply should be authentic")
}

fn query_counts(harness: &Harness) -> LoadQueries {
    harness.relay.status().services[0].counters.load_queries
}

#[test]
fn valid_queries_get_a_reply() {
    let mut harness = Harness::new(config());
    let idle_load = query_load(&mut harness, None);
    assert!(
        idle_load.accepts_clients() && idle_load.tentative > 0,
        "an idle helper should accept clients and expect the one that sent the query: {idle_load:?}"
    );
    assert!(
        query_load(&mut harness, Some(harness::SERVER)).accepts_clients(),
        "the link's server should be served"
    );
    assert!(query_load(&mut harness, Some("10.0.0.6:1")).down, "another server should be reported as down");
    assert_eq!(query_counts(&harness), LoadQueries { answered: 3, ..LoadQueries::default() });
}

#[test]
fn invalid_queries_get_no_reply_and_are_counted_by_reason() {
    let mut harness = Harness::new(config());
    let valid = prove_query(&client_key(), query_for(None));
    let mut altered = valid;
    altered[10] = 3;
    for (from, bytes) in [
        ("198.51.100.1:5000", valid.as_slice()),
        (CLIENT, &prove_query(&helper_key(), query_for(None))),
        (CLIENT, &prove_query(&Key::from_secret([9; 32]), query_for(None))),
        (CLIENT, &altered),
        (CLIENT, &valid[1..]),
        (CLIENT, &[0; LOAD_QUERY_BYTES]),
        (CLIENT, b""),
    ] {
        assert_eq!(send_datagram(&mut harness, 1, from, bytes), None);
    }
    let counted = LoadQueries { address: 1, key: 2, proof: 1, malformed: 3, ..LoadQueries::default() };
    assert_eq!(query_counts(&harness), counted);
    // Queries at a listener of plain clients and at an unused listener are not counted.
    assert_eq!(send_datagram(&mut harness, 0, CLIENT, &valid), None);
    assert_eq!(send_datagram(&mut harness, 77, CLIENT, &valid), None);
    assert_eq!(query_counts(&harness), counted);
    // A query gets no reply if the reply does not fit into the buffer.
    let now = harness.now;
    assert_eq!(harness.relay.handle_datagram(now, 1, CLIENT.parse().unwrap(), &valid, &mut [0; 10]), 0);
}

#[test]
fn replies_can_be_switched_off() {
    let mut config = config();
    config.load.answers = false;
    let mut harness = Harness::new(config);
    let query = prove_query(&client_key(), query_for(None));
    assert_eq!(send_datagram(&mut harness, 1, CLIENT, &query), None);
    assert_eq!(query_counts(&harness).off, 1);
}

#[test]
fn queries_without_keys_are_answered_on_loopback_only() {
    let mut config = config();
    config.services[0].client_keys = None;
    let mut harness = Harness::new(config);
    let query = prove_query(&Key::loopback_only(), query_for(None));
    assert_eq!(send_datagram(&mut harness, 1, CLIENT, &query), None);
    let bytes = send_datagram(&mut harness, 1, "127.0.0.1:5000", &query)
        .expect("a query from loopback should get a reply");
    assert!(
        verify_load(&Key::loopback_only(), &[7; 16], &bytes).is_ok(),
        "the reply should be proven with the loopback key"
    );
}

#[test]
fn reply_contains_the_reason_for_accepting_no_clients() {
    let mut harness = Harness::new(Config { clients_max: 1, ..config() });
    harness.client(0, "10.9.0.2:1");
    let load_at_bound = query_load(&mut harness, None);
    assert!(
        load_at_bound.full && !load_at_bound.down && !load_at_bound.draining,
        "a helper at its bound should report that it is full, and no other reason: {load_at_bound:?}"
    );
    assert_eq!(load_at_bound.connections, 1000);
    let now = harness.now;
    harness.relay.drain(now, Duration::from_secs(9), &mut harness.transport);
    assert!(query_load(&mut harness, None).draining, "a draining helper should say so");

    let mut harness = Harness::new(config());
    let (now, off) = (harness.now, (spillway_policy::Override::Off, None));
    harness.relay.set_override(now, "cache", off, Duration::ZERO, &mut harness.transport);
    assert!(query_load(&mut harness, None).draining, "override off should be reported as draining");

    let mut harness = Harness::new(config());
    let link = harness.link;
    harness.event(link, spillway_transport::Event::Lost(spillway_transport::LostReason::Reset));
    assert!(query_load(&mut harness, None).down, "a service without a link should be reported as down");
}

/// The client's end of its link, with an open connection.
struct Client {
    conn: Conn,
    link: OpenerLink,
    /// Deadlines of received *drain* messages, in milliseconds.
    drains: Vec<u32>,
}

impl Client {
    fn new(harness: &mut Harness, number: u16) -> Client {
        let address = SocketAddr::from(([10, 9, 0, 1], 5000 + number));
        let conn = harness.client(1, &address.to_string());
        let policy = PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 };
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
                harness.now,
                LinkRandomness::from_random([3; LinkRandomness::BYTES]),
            ),
            drains: Vec::new(),
        };
        client.exchange(harness);
        client.link.open(address, None).unwrap();
        client.exchange(harness);
        client
    }

    fn exchange(&mut self, harness: &mut Harness) {
        loop {
            let batch = self.link.flush(harness.now);
            if let Some(batch) = &batch {
                harness.data(self.conn, batch.as_slice());
            }
            let bytes = harness.transport.take(self.conn);
            if bytes.is_empty() && batch.is_none() {
                return;
            }
            let mut scratch = Scratch::new();
            let mut input = self.link.unseal(harness.now, &bytes, &mut scratch);
            while let Some(event) = self.link.decompose(harness.now, &mut input).unwrap() {
                if let OpenerEvent::Drain { deadline_ms } = event {
                    self.drains.push(deadline_ms);
                }
            }
        }
    }
}

/// Advances the time by one second, in which the thread uses this share of its core.
fn run_second(harness: &mut Harness, cpu: &mut Duration, share: f64) {
    for _ in 0..10 {
        harness.now = harness.now + Duration::from_millis(100);
        *cpu += Duration::from_secs_f64(share / 10.0);
        assert!(harness.relay.is_measurement_due(harness.now), "a measurement should be due each second");
        harness.relay.measured(harness.now, *cpu);
        let now = harness.now;
        harness.relay.end_of_turn(now, &mut harness.transport);
    }
}

#[test]
fn overload_sheds_a_few_library_clients_at_a_time_and_no_plain_ones() {
    let mut harness = Harness::new(config());
    let plain = harness.client(0, "10.9.0.2:1");
    let mut clients: Vec<Client> = (0..100).map(|number| Client::new(&mut harness, number)).collect();
    let mut cpu = Duration::ZERO;
    harness.relay.measured(harness.now, cpu);
    for _ in 0..12 {
        run_second(&mut harness, &mut cpu, 0.3);
    }
    // The new clients will not have been connected for `SheddingSettings::age_min`, 10 s.
    clients.extend((100..110).map(|number| Client::new(&mut harness, number)));
    while harness.relay.poll_notice().is_some() {}
    let mut shed = Vec::new();
    for _ in 0..8 {
        run_second(&mut harness, &mut cpu, 1.0);
        clients.iter_mut().for_each(|client| client.exchange(&mut harness));
        shed.push(clients.iter().filter(|client| !client.drains.is_empty()).count());
    }
    assert_eq!(shed[..3], [0, 0, 0], "3 s of high load should shed no client");
    assert!(
        shed.windows(2).all(|pair| pair[1] - pair[0] <= 4),
        "at most four clients should be shed at a time: {shed:?}"
    );
    // 3 % of 100 to 110 clients in each of the 5 s after the patience of 3 s.
    assert!((9..=16).contains(&shed[7]), "9 to 16 clients should be shed after 8 s: {shed:?}");
    assert!(
        clients.iter().all(|client| client.drains.is_empty() || client.drains == [10_000]),
        "each client should be shed once"
    );
    assert!(clients[100..].iter().all(|client| client.drains.is_empty()), "young clients should not be shed");
    assert!(
        !harness.transport.record(plain).aborted && !harness.transport.record(plain).finished,
        "the plain client should stay"
    );
    let status = harness.relay.status();
    assert_eq!(status.services[0].counters.shed, shed[7] as u64);
    assert!(
        status.load.full && status.load.cpu > 950,
        "an overloaded thread should report that it is full: {:?}",
        status.load
    );
    let notice = std::iter::from_fn(|| harness.relay.poll_notice())
        .find(|notice| matches!(notice, Notice::Shed { .. }));
    assert!(
        matches!(notice, Some(Notice::Shed { clients: 3, load_percent: 95.. })),
        "three clients should be shed: {notice:?}"
    );

    // After the overload the relay reports *full* for `SheddingSettings::hold`, 10 s.
    run_second(&mut harness, &mut cpu, 0.2);
    assert!(query_load(&mut harness, None).full, "the thread should be full");
    for _ in 0..12 {
        run_second(&mut harness, &mut cpu, 0.2);
    }
    assert!(query_load(&mut harness, None).accepts_clients(), "the thread should accept clients again");
    assert_eq!(harness.relay.status().services[0].counters.shed, shed[7] as u64);
}

/// Connections that do not authenticate must not make a helper shed more of its clients.
#[test]
fn share_of_clients_to_shed_counts_authenticated_clients_only() {
    let mut harness = Harness::new(config());
    let mut clients: Vec<Client> = (0..30).map(|number| Client::new(&mut harness, number)).collect();
    let mut cpu = Duration::ZERO;
    harness.relay.measured(harness.now, cpu);
    for _ in 0..12 {
        run_second(&mut harness, &mut cpu, 0.3);
    }
    for number in 0..200 {
        harness.client(1, &format!("10.9.{number}.2:1"));
    }
    let mut shed = Vec::new();
    for _ in 0..8 {
        run_second(&mut harness, &mut cpu, 1.0);
        clients.iter_mut().for_each(|client| client.exchange(&mut harness));
        shed.push(clients.iter().filter(|client| !client.drains.is_empty()).count());
    }
    assert!(
        shed[7] > 0 && shed.windows(2).all(|pair| pair[1] - pair[0] <= 1),
        "one of 30 clients should be shed at a time: {shed:?}"
    );
}

#[test]
fn shedding_can_be_switched_off() {
    let mut config = config();
    config.load.shedding = None;
    let mut harness = Harness::new(config);
    let mut client = Client::new(&mut harness, 0);
    let mut cpu = Duration::ZERO;
    for _ in 0..20 {
        run_second(&mut harness, &mut cpu, 1.0);
    }
    client.exchange(&mut harness);
    assert!(
        client.drains.is_empty() && query_load(&mut harness, None).accepts_clients(),
        "no client should be shed"
    );
}

#[test]
fn shed_client_is_served_until_it_leaves() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness, 0);
    harness.exchange();
    let mut cpu = Duration::ZERO;
    harness.relay.measured(harness.now, cpu);
    for _ in 0..16 {
        run_second(&mut harness, &mut cpu, 1.0);
    }
    client.exchange(&mut harness);
    assert_eq!(client.drains, [10_000]);
    assert_eq!(client.link.compose(Id(1), b"get x"), 5);
    client.exchange(&mut harness);
    let observed = harness.exchange();
    assert!(
        observed
            .iter()
            .any(|observed| matches!(observed, harness::Observed::Data(_, bytes) if bytes == b"get x")),
        "the shed client should be served"
    );
}
