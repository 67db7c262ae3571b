//! Library clients: a real client's end of a link, the relay, and a real server's end of a link.

mod world;

use core::time::Duration;

use spillway_auth::Key;
use spillway_batch::{
    CloseReason, Connect, Control, Encryption, Id, KeyId, Kind, Limits, LinkError, LinkRandomness,
    OpenerConfig, OpenerEvent, OpenerLink, Opening, PolicyKind, Reconnect, RefuseReason, Role, Scratch,
};
use spillway_policy::Override;
use spillway_relay::{Config, Cut, Notice};
use spillway_transport::{Application, Conn, Event, LostReason};
use spillway_wire::session::{Position, SessionId};
use world::{Observed, World, client_key, config};

const CLIENT: &str = "10.9.0.1:5000";

/// The client's end of its link, with the events and the data that it received.
struct Client {
    conn: Conn,
    link: OpenerLink,
    observed: Vec<String>,
    data: Vec<u8>,
}

impl Client {
    fn connecting(world: &mut World, key: Key, role: Role, limits: Limits) -> Client {
        Client::connecting_as(world, key, role, limits, Encryption::Preferred)
    }

    fn connecting_as(
        world: &mut World,
        key: Key,
        role: Role,
        limits: Limits,
        encryption: Encryption,
    ) -> Client {
        let conn = world.client(1, CLIENT);
        let policy = PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 };
        let link = OpenerLink::new(
            &OpenerConfig { role, key, limits, policy, encryption },
            world.now,
            LinkRandomness::from_random([3; LinkRandomness::BYTES]),
        );
        Client { conn, link, observed: Vec::new(), data: Vec::new() }
    }

    /// A client whose link is up.
    fn new(world: &mut World) -> Client {
        let mut client = Client::connecting(world, client_key(), Role::Client, Limits::default());
        client.exchange(world).unwrap();
        assert_eq!(client.observed, ["established 1"]);
        client.observed.clear();
        client
    }

    /// A client without encryption, for tests that send their own frames.
    fn unencrypted(world: &mut World) -> Client {
        let (key, limits) = (client_key(), Limits::default());
        let mut client = Client::connecting_as(world, key, Role::Client, limits, Encryption::Off);
        client.exchange(world).unwrap();
        client.observed.clear();
        client
    }

    fn open(&mut self) -> Id {
        self.link.open(CLIENT.parse().unwrap(), None).unwrap()
    }

    /// Exchanges bytes between the client and the relay until neither has output.
    fn exchange(&mut self, world: &mut World) -> Result<(), LinkError> {
        loop {
            let batch = self.link.flush(world.now);
            if let Some(batch) = &batch {
                world.data(self.conn, batch.as_slice());
            }
            let bytes = world.transport.take(self.conn);
            if bytes.is_empty() && batch.is_none() {
                return Ok(());
            }
            let mut scratch = Scratch::new();
            let mut input = self.link.unseal(world.now, &bytes, &mut scratch);
            while let Some(event) = self.link.decompose(world.now, &mut input)? {
                let event = match event {
                    OpenerEvent::Established { connections_max } => format!("established {connections_max}"),
                    OpenerEvent::Accepted { .. } => "accepted".into(),
                    OpenerEvent::Refused { reason, .. } => format!("refused {reason:?}"),
                    OpenerEvent::Data { bytes, .. } => {
                        self.data.extend_from_slice(bytes);
                        continue;
                    }
                    OpenerEvent::Taken { through, .. } => format!("taken {through}"),
                    OpenerEvent::Finished { .. } => "finished".into(),
                    OpenerEvent::Closed { reason, .. } => format!("closed {reason:?}"),
                    OpenerEvent::Drain { deadline_ms } => format!("drain {deadline_ms}"),
                    OpenerEvent::RelayedData { bytes, .. } => {
                        self.data.extend_from_slice(bytes);
                        continue;
                    }
                    OpenerEvent::RelayedControl { control, .. } => format!("{:?}", control.kind()),
                };
                self.observed.push(event);
            }
        }
    }
}

fn later(world: &mut World, time: Duration) {
    world.now = world.now + time;
    world.relay.handle_timeout(world.now, &mut world.transport);
    world.relay.end_of_turn(world.now, &mut world.transport);
}

fn connections(world: &World) -> u32 {
    world.relay.status().services[0].links[0].connections
}

#[test]
fn frames_are_relayed_with_the_id_rewritten() {
    let mut world = World::new(config());
    // A plain client uses id 1.
    let raw = world.client(0, "10.9.0.2:1");
    let mut client = Client::new(&mut world);
    for round in 0..3_u32 {
        let id = client.open();
        assert_eq!(id, Id(1));
        assert_eq!(client.link.compose(id, b"get x"), 5);
        client.exchange(&mut world).unwrap();
        let observed: Vec<Observed> = world.exchange();
        let server_id = 2 + round;
        let connect = Observed::Connect(server_id, CLIENT.parse().unwrap());
        assert_eq!(observed[observed.len() - 2..], [connect, Observed::Data(server_id, b"get x".to_vec())]);
        world.server.accept(Id(server_id));
        world.server.compose(Id(server_id), b"END");
        world.server.finish(Id(server_id));
        world.exchange();
        client.exchange(&mut world).unwrap();
        assert_eq!(client.observed, ["accepted", "finished"]);
        assert_eq!(client.data, b"END");
        client.link.finish(id);
        client.link.close(id, CloseReason::Normal);
        client.exchange(&mut world).unwrap();
        let ends = [Observed::Finished(server_id), Observed::Closed(server_id, CloseReason::Normal)];
        assert_eq!(world.exchange(), ends);
        assert_eq!(connections(&world), 2, "the id is in use until the server has closed");
        world.server.close(Id(server_id), CloseReason::Normal);
        world.exchange();
        client.exchange(&mut world).unwrap();
        assert_eq!((connections(&world), client.link.connections()), (1, 0));
        client.observed.clear();
        client.data.clear();
    }
    assert!(!world.transport.record(raw).aborted);
    assert_eq!(world.relay.status().services[0].counters.library_connections, 3);
}

#[test]
fn credit_is_end_to_end() {
    let limits = Limits { window_bytes: 1000, ..Limits::default() };
    let mut world = World::with_server(config(), limits);
    let mut client = Client::new(&mut world);
    let id = client.open();
    assert_eq!(client.link.compose(id, &[7; 5000]), 1000, "the server's credit, from the relay's welcome");
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.server.consumed(Id(1), 600).unwrap();
    world.exchange();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.link.compose(id, &[7; 5000]), 600);
    // In the other direction, the client's window applies and not the relay's.
    let window = Limits::default().window_bytes as usize;
    assert_eq!(world.server.compose(Id(1), &vec![1; 2 * window]), window);
    world.exchange();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.data.len(), window);
    client.link.consumed(id, window).unwrap();
    client.exchange(&mut world).unwrap();
    world.exchange();
    assert_eq!(world.server.room(Id(1)), window);
}

#[test]
fn clients_that_do_not_authenticate_are_rejected_and_closed() {
    let wrong = Key::from_secret([9; 32]);
    for (key, role) in
        [(wrong, Role::Client), (client_key(), Role::Helper), (world::helper_key(), Role::Helper)]
    {
        let mut world = World::new(config());
        let mut client = Client::connecting(&mut world, key, role, Limits::default());
        let error = client.exchange(&mut world).unwrap_err();
        assert!(matches!(error, LinkError::RefusedByServer(_)), "{error}");
        assert!(world.transport.record(client.conn).finished);
        assert_eq!(world.relay.status().services[0].counters.refused.handshake, 1);
        world.now = world.now + Duration::from_secs(10);
        world.relay.handle_timeout(world.now, &mut world.transport);
        assert_eq!(world.relay.clients(), 0);
    }
    // A client that sends nothing.
    let mut world = World::new(config());
    let silent = world.client(1, CLIENT);
    assert_eq!(world.relay.poll_timeout(), Some(world.now + Duration::from_secs(5)));
    world.now = world.now + Duration::from_secs(5);
    world.relay.handle_timeout(world.now, &mut world.transport);
    assert!(world.transport.record(silent).aborted);
    // Without keys, only loopback clients are accepted.
    let mut open = config();
    open.services[0].client_keys = None;
    let mut world = World::new(open);
    let foreign = world.client(1, CLIENT);
    assert!(world.transport.record(foreign).aborted);
    let local = world.client(1, "127.0.0.1:5");
    assert!(!world.transport.record(local).aborted);
}

/// Peers without a key that open connections and send nothing evict each other, but neither authenticated clients nor
/// one that has named its key.
#[test]
fn strangers_replace_each_other_only() {
    let mut world = World::new(config());
    let mut established = Client::new(&mut world);
    let mut beginning = Client::connecting(&mut world, client_key(), Role::Client, Limits::default());
    let hello = beginning.link.flush(world.now).unwrap();
    world.data(beginning.conn, hello.as_slice());
    let stranger =
        |world: &mut World, host: usize, port: usize| world.client(1, &format!("10.9.{host}.1:{port}"));
    let mut strangers: Vec<Conn> = (0..1100).map(|port| stranger(&mut world, 0, 6000 + port)).collect();
    let waiting = |world: &mut World, strangers: &[Conn]| {
        strangers.iter().filter(|conn| !world.transport.record(**conn).aborted).count()
    };
    assert_eq!(waiting(&mut world, &strangers), 1023, "and the client that has named its key");
    world.now = world.now + Duration::from_secs(1);
    strangers.extend((0..200).map(|host| stranger(&mut world, host, 5)));
    assert_eq!(waiting(&mut world, &strangers), 1023);
    assert_eq!(world.relay.status().services[0].counters.refused.crowded, 277);
    beginning.exchange(&mut world).unwrap();
    assert_eq!(beginning.observed, ["established 1"]);
    let id = established.open();
    established.link.compose(id, b"get x");
    established.exchange(&mut world).unwrap();
    assert!(!world.exchange().is_empty());
}

/// Silent peers without a key are evicted when clients reach the helper's bound.
#[test]
fn strangers_are_evicted_for_clients_at_the_bound() {
    let mut world = World::new(Config { clients_max: 20, ..config() });
    let strangers: Vec<Conn> = (0..20).map(|port| world.client(1, &format!("10.9.7.1:{port}"))).collect();
    let waiting =
        |world: &mut World| strangers.iter().filter(|conn| !world.transport.record(**conn).aborted).count();
    assert_eq!((waiting(&mut world), world.relay.clients()), (20, 20));
    let client = Client::new(&mut world);
    let plain = world.client(0, "10.9.0.2:7");
    assert!(!world.transport.record(plain).aborted && !world.transport.record(client.conn).aborted);
    assert_eq!((waiting(&mut world), world.relay.clients()), (18, 20));
    let clients: Vec<Conn> = (0..19).map(|port| world.client(0, &format!("10.9.0.3:{port}"))).collect();
    let refused = clients.iter().filter(|conn| world.transport.record(**conn).aborted).count();
    assert_eq!(
        (waiting(&mut world), refused, world.relay.clients()),
        (0, 1, 20),
        "no stranger is left to evict"
    );
}

/// A peer that connected while keys were configured cannot use the well-known loopback key after a reload removes them.
#[test]
fn removed_keys_give_no_access() {
    let mut world = World::new(config());
    let mut client = Client::connecting(&mut world, Key::loopback_only(), Role::Client, Limits::default());
    let mut keyless = config();
    keyless.services[0].client_keys = None;
    world.relay.reconfigure(world.now, keyless, Duration::ZERO, &mut world.transport).unwrap();
    assert!(client.exchange(&mut world).is_err());
    assert_eq!(world.relay.status().services[0].counters.refused.handshake, 1);
}

#[test]
fn a_client_connects_with_its_own_address_and_to_this_server_only() {
    let mut world = World::new(config());
    for (client_address, server, reason) in [
        ("10.9.0.1:5001", None, "refused Forbidden"),
        ("10.9.0.9:5000", None, "refused Forbidden"),
        (CLIENT, Some("10.0.0.6:11411"), "refused UnknownServer"),
        (CLIENT, Some(world::SERVER), "accepted"),
    ] {
        let mut client = Client::new(&mut world);
        let server = server.map(|text: &str| text.parse().unwrap());
        client.link.open(client_address.parse().unwrap(), server).unwrap();
        client.exchange(&mut world).unwrap();
        for observed in world.exchange() {
            if let Observed::Connect(id, _) = observed {
                world.server.accept(Id(id));
            }
        }
        world.exchange();
        client.exchange(&mut world).unwrap();
        assert_eq!(client.observed, [reason]);
    }
    let refused = world.relay.status().services[0].counters.refused;
    assert_eq!((refused.not_its_own_address, refused.other_server), (2, 1));
}

#[test]
fn a_lost_client_leaves_its_id_until_the_server_has_closed() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.event(client.conn, Event::Lost(LostReason::Reset));
    assert_eq!(world.exchange(), [Observed::Closed(1, CloseReason::Reset)]);
    assert_eq!((connections(&world), world.relay.clients()), (1, 0));
    world.server.compose(Id(1), b"ignored");
    world.server.close(Id(1), CloseReason::Reset);
    world.exchange();
    assert_eq!(connections(&world), 0);
}

/// The *reconnect* of a session. A relay reads its addresses only.
fn reconnect(client: &str) -> Control {
    let opening = Opening {
        session: SessionId([1; 16]),
        key: KeyId([2; 8]),
        epoch: 3,
        life: 1,
        position: Position::default(),
        proof: [4; 32],
    };
    Control::Reconnect(Reconnect { client: client.parse().unwrap(), server: None, opening })
}

#[test]
fn a_session_is_relayed_and_not_closed_when_its_client_is_lost() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    let id = client.link.open_relayed(reconnect(CLIENT)).unwrap();
    client.exchange(&mut world).unwrap();
    assert_eq!(world.exchange(), [Observed::Session(1, Kind::Reconnect, CLIENT.parse().unwrap())]);
    world.server.say(Id(1), Control::Credit(1 << 40));
    world.server.compose(Id(1), b"a reply");
    world.exchange();
    client.exchange(&mut world).unwrap();
    assert_eq!((&client.observed[..], &client.data[..]), (&["Credit".to_owned()][..], &b"a reply"[..]));
    client.link.relay_data(id, b"a request", true);
    client.exchange(&mut world).unwrap();
    assert_eq!(world.exchange(), [Observed::Data(1, b"a request".to_vec())]);
    world.event(client.conn, Event::Lost(LostReason::Reset));
    // Not a reset, because the session may resume on another carrier.
    assert_eq!(world.exchange(), [Observed::Control(1, Control::Close(CloseReason::Lost))]);
    assert_eq!(connections(&world), 1);
    world.server.close(Id(1), CloseReason::Moved);
    world.exchange();
    assert_eq!(connections(&world), 0);
}

#[test]
fn a_session_comes_from_its_clients_own_address() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    client.link.open_relayed(reconnect("10.9.0.9:5000")).unwrap();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.observed, ["Refused"]);
    assert!(world.exchange().is_empty());
}

#[test]
fn a_refusal_by_the_server_frees_the_id() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.server.refuse(Id(1), RefuseReason::Full);
    world.exchange();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.observed, ["refused Full"]);
    assert_eq!(connections(&world), 0);
    client.open();
    client.exchange(&mut world).unwrap();
    assert_eq!(world.exchange(), [Observed::Connect(2, CLIENT.parse().unwrap())], "on the same link");
}

#[test]
fn a_lost_server_link_resets_library_clients_too() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    client.open();
    client.exchange(&mut world).unwrap();
    let idle = Client::new(&mut world);
    world.event(world.link, Event::Lost(LostReason::Reset));
    assert!(world.transport.record(client.conn).aborted);
    assert!(!world.transport.record(idle.conn).aborted, "the client has no connection on the lost link");
    assert_eq!(world.relay.clients(), 1);
}

#[test]
fn absurd_credit_is_bounded_by_the_connection_buffer() {
    let mut world = World::new(Config { connection_buffer_bytes: 100_000, ..config() });
    let greedy = Limits { window_bytes: u32::MAX, ..Limits::default() };
    let mut client = Client::connecting(&mut world, client_key(), Role::Client, greedy);
    client.exchange(&mut world).unwrap();
    client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.transport.record(client.conn).room = 0;
    let mut steps = 0;
    while !world.transport.record(client.conn).aborted {
        assert!(world.relay.buffered_bytes() <= 100_000);
        world.server.compose(Id(1), &[1; 10_000]);
        world.exchange();
        steps += 1;
        assert!(steps < 20, "the client should have been cut");
    }
    assert_eq!(world.relay.buffered_bytes(), 0);
    let notices: Vec<Notice> = std::iter::from_fn(|| world.relay.poll_notice()).collect();
    assert!(matches!(notices.last(), Some(Notice::ClientReset { why: Cut::Buffer, .. })), "{notices:?}");
}

#[test]
fn broken_frames_cut_only_their_client() {
    let mut world = World::new(config());
    let mut good = Client::new(&mut world);
    good.open();
    let bad = Client::new(&mut world);
    world.data(bad.conn, &[0x7f; 50]);
    assert!(world.transport.record(bad.conn).aborted);
    good.exchange(&mut world).unwrap();
    assert_eq!(world.exchange().len(), 1);
    assert_eq!(world.relay.status().services[0].counters.cut.protocol, 1);
}

#[test]
fn a_drain_is_sent_and_new_connections_are_refused() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    world.relay.drain(world.now, Duration::from_secs(30), &mut world.transport);
    client.open();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.observed, ["drain 30000", "refused Unavailable"]);
    assert_eq!(world.relay.status().services[0].counters.refused.draining, 1);
    world.event(client.conn, Event::Finished);
    world.event(client.conn, Event::Lost(LostReason::Closed));
    assert!(world.relay.is_drained());
}

#[test]
fn without_relief_library_clients_go_and_plain_ones_stay_until_the_override_ends() {
    let mut world = World::new(config());
    let (mut client, mut late) = (Client::new(&mut world), Client::new(&mut world));
    client.open();
    client.exchange(&mut world).unwrap();
    let (second, off) = (Duration::from_secs(1), (Override::Off, Some(Duration::from_secs(60))));
    assert!(!world.relay.say(world.now, "no such service", off, second, &mut world.transport));
    assert!(world.relay.say(world.now, "cache", off, second, &mut world.transport));
    late.open();
    late.exchange(&mut world).unwrap();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.observed, ["drain 1000"]);
    assert_eq!(late.observed, ["drain 1000", "refused Unavailable"]);
    let status = world.relay.status();
    assert_eq!((status.services[0].counters.refused.off, status.services[0].listening), (1, false));
    assert!(!world.relay.is_draining() && world.relay.poll_timeout() <= Some(world.now + 60 * second));

    world.now = world.now + 60 * second;
    world.relay.handle_timeout(world.now, &mut world.transport);
    assert!(world.relay.status().services[0].listening, "links stay open");
    late.open();
    late.exchange(&mut world).unwrap();
    assert_eq!(world.relay.status().services[0].counters.refused.off, 1);
}

/// A library client gets no grants while the server's link is stalled, and no byte is lost.
#[test]
fn a_stalled_link_stops_a_library_clients_grants() {
    let mut world = World::with_server(config(), Limits { window_bytes: 1 << 20, ..Limits::default() });
    let mut client = Client::new(&mut world);
    let id = client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.transport.record(world.link).room = 0;
    assert_eq!(client.link.compose(id, &[5; 5_000]), 5_000);
    client.exchange(&mut world).unwrap();
    let granted = world.transport.record(client.conn).granted;
    assert_eq!(client.link.compose(id, &[5; 50_000]), 50_000);
    client.exchange(&mut world).unwrap();
    assert_eq!(world.transport.record(client.conn).granted, granted);
    world.transport.record(world.link).room = 1 << 20;
    world.event(world.link, Event::Room);
    let received: usize = world
        .exchange()
        .iter()
        .map(|observed| if let Observed::Data(_, bytes) = observed { bytes.len() } else { 0 })
        .sum();
    assert_eq!(received, 55_000);
    assert!(world.transport.record(client.conn).granted > granted);
}

/// When the server refuses a connection, later bytes of the same turn wait behind those that could not be forwarded,
/// because the records of an encrypted link must be opened in order.
#[test]
fn bytes_after_a_refusal_do_not_overtake_those_that_wait() {
    let mut world = World::with_server(config(), Limits { window_bytes: 8 << 20, ..Limits::default() });
    let mut client = Client::new(&mut world);
    let id = client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.transport.record(world.link).room = 0;
    for _ in 0..60 {
        assert_eq!(client.link.compose(id, &[5; 100_000]), 100_000);
        client.exchange(&mut world).unwrap();
    }
    let held = world.relay.buffered_bytes();
    assert!(held > 1_000_000, "bytes beyond the link's batch wait: {held}");
    world.server.refuse(Id(1), RefuseReason::Full);
    let refusal = world.server.flush(world.now).unwrap();
    assert_eq!(client.link.compose(id, &[5; 1_000]), 1_000);
    let later = client.link.flush(world.now).unwrap();
    world.relay.handle(
        world.now,
        world.link,
        Event::Data { end: 0, bytes: refusal.as_slice() },
        &mut world.transport,
    );
    world.data(client.conn, later.as_slice());
    client.exchange(&mut world).unwrap();
    assert_eq!(client.observed, ["refused Full"]);
    assert!(!world.transport.record(client.conn).aborted, "the client's records were opened in order");
}

/// The first part of an incomplete record counts as memory of its client, which can be closed for it.
#[test]
fn an_incomplete_record_counts_as_its_clients_memory() {
    let mut world = World::new(Config { memory_bytes_max: 20_000, ..config() });
    let begin = |world: &mut World, bytes: usize| {
        let mut client = Client::new(world);
        let id = client.open();
        assert_eq!(client.link.compose(id, &vec![5; bytes]), bytes);
        let batch = client.link.flush(world.now).unwrap();
        let (first, rest) = batch.as_slice().split_at(bytes - 100);
        world.data(client.conn, first);
        (client.conn, rest.to_vec())
    };
    let (honest, rest) = begin(&mut world, 9_000);
    begin(&mut world, 5_000);
    let held = world.relay.buffered_bytes();
    assert!((14_000..18_000).contains(&held), "{held} bytes are counted");
    world.data(honest, &rest);
    world.exchange();
    let held = world.relay.buffered_bytes();
    assert!((5_000..7_000).contains(&held), "a complete record is forwarded: {held}");
    let (largest, _) = begin(&mut world, 15_000);
    assert!(world.transport.record(largest).aborted && !world.transport.record(honest).aborted);
    assert_eq!(world.relay.status().services[0].counters.cut.memory, 1);
}

/// Clients that withhold the ends of their records are closed before a client whose reply has waited for a short time.
#[test]
fn withheld_records_are_closed_before_replies_that_are_being_read() {
    let mut world =
        World::new(Config { memory_bytes_max: 100_000, first_window_bytes: 64 * 1024, ..config() });
    let honest = world.client(0, "10.9.0.2:6000");
    world.exchange();
    let begin = |world: &mut World| {
        let mut client = Client::new(world);
        let id = client.open();
        assert_eq!(client.link.compose(id, &[5; 15_000]), 15_000);
        let batch = client.link.flush(world.now).unwrap();
        world.data(client.conn, &batch.as_slice()[..14_000]);
        client.conn
    };
    let withholding: Vec<Conn> = (0..5).map(|_| begin(&mut world)).collect();
    world.pass(Duration::from_millis(10));
    // This client holds most memory, but for the shortest time.
    world.transport.record(honest).room = 0;
    assert_eq!(world.server.compose(Id(1), &[b'v'; 30_000]), 30_000);
    world.exchange();
    assert!(!world.transport.record(honest).aborted);
    assert!(withholding.iter().any(|conn| world.transport.record(*conn).aborted));
}

/// A client that withholds the end of a record is closed even while memory is sufficient.
#[test]
fn a_client_that_withholds_the_end_of_a_record_is_closed() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    let id = client.open();
    assert_eq!(client.link.compose(id, &[5; 15_000]), 15_000);
    let batch = client.link.flush(world.now).unwrap();
    let (first, rest) = batch.as_slice().split_at(14_000);
    world.data(client.conn, &first[..13_999]);
    world.pass(Duration::from_secs(6));
    world.data(client.conn, &first[13_999..]);
    assert!(!world.transport.record(client.conn).aborted);
    world.pass(Duration::from_secs(5));
    assert!(world.transport.record(client.conn).aborted, "{} bytes were withheld", rest.len());
    assert_eq!(world.relay.buffered_bytes(), 0);
    // A client that completes its records stays.
    let mut client = Client::new(&mut world);
    let id = client.open();
    for _ in 0..5 {
        assert_eq!(client.link.compose(id, &[5; 15_000]), 15_000);
        let batch = client.link.flush(world.now).unwrap();
        let (first, rest) = batch.as_slice().split_at(14_000);
        world.data(client.conn, first);
        world.pass(Duration::from_secs(4));
        world.data(client.conn, rest);
    }
    assert!(!world.transport.record(client.conn).aborted);
}

fn frames(controls: impl IntoIterator<Item = Control>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for control in controls {
        control.emit(Id(1), &mut bytes);
    }
    bytes
}

/// A client that requests refused connections without end and does not read the refusals is not read any more.
#[test]
fn refusals_that_nobody_reads_stop_their_client_only() {
    let mut world = World::new(config());
    let mut good = Client::new(&mut world);
    let mut flooder = Client::unencrypted(&mut world);
    let id = flooder.open();
    flooder.link.close(id, CloseReason::Reset);
    drop(flooder.link.flush(world.now));
    world.transport.record(flooder.conn).room = 0;
    let elsewhere = Connect { client: "10.1.1.1:1".parse().unwrap(), server: None, credit: 0, session: None };
    let batch = frames((0..1000).map(|_| Control::Connect(elsewhere)));
    let (mut sent, mut rounds) = (0, 0);
    for _ in 0..1000 {
        while sent + batch.len() as u64 <= world.transport.record(flooder.conn).granted {
            world.data(flooder.conn, &batch);
            sent += batch.len() as u64;
            rounds += 1;
            assert!(rounds < 100, "the flooder is still read");
        }
        // A flood of control messages is throttled: give it time.
        later(&mut world, Duration::from_secs(2));
    }
    let held = world.relay.buffered_bytes();
    assert!(held < 256 * 1024, "{held}");
    let id = good.open();
    good.link.compose(id, b"get x");
    good.exchange(&mut world).unwrap();
    assert!(
        world
            .exchange()
            .iter()
            .any(|observed| matches!(observed, Observed::Data(_, bytes) if bytes == b"get x"))
    );
    // When the client reads, it is read again.
    let granted = world.transport.record(flooder.conn).granted;
    world.transport.record(flooder.conn).room = 1 << 20;
    world.event(flooder.conn, Event::Room);
    assert!(world.transport.record(flooder.conn).granted > granted);
    assert_eq!(world.relay.buffered_bytes(), 0);
}

#[test]
fn repeated_credit_is_forwarded_once_in_a_batch() {
    let mut world = World::new(config());
    let mut client = Client::unencrypted(&mut world);
    client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    let before = world.relay.status().services[0].traffic.bytes_sent;
    for round in 0..50 {
        let batch = frames((0..1000).map(|step| Control::Credit((1 << 20) + round * 1000 + step)));
        world.transport.record(client.conn).granted += batch.len() as u64;
        world.data(client.conn, &batch);
    }
    world.exchange();
    let sent = world.relay.status().services[0].traffic.bytes_sent - before;
    // Each message is in a record of its own, with a sealed length and a tag.
    assert!(sent <= 50 * (15 + 18 + 16), "{sent} bytes of credit");
    assert_eq!(world.server.room(Id(1)), (1 << 20) + 49_999);
}

/// A flood of control messages is read at the pace of its client's allowance, and another client's requests at once.
#[test]
fn a_flood_of_control_messages_is_read_slowly_and_other_clients_at_once() {
    let mut world = World::new(config());
    let mut flooder = Client::unencrypted(&mut world);
    flooder.open();
    flooder.exchange(&mut world).unwrap();
    let other = world.client(0, "10.9.0.1:4000");
    world.exchange();
    let empty = [1, 0, 0, 0, 0, 0, 1].repeat(512);
    let unknown = [1, 0, 1, 0, 0, 0, 9, b'x'].repeat(512);
    let credit = frames((0..512).map(|_| Control::Credit(1 << 20)));
    let mut sent = world.transport.record(flooder.conn).granted - 64 * 1024;
    for flood in [empty, unknown, credit] {
        let (begun, before) = (world.now, sent);
        while world.now < begun + Duration::from_secs(10) {
            while world.transport.record(flooder.conn).granted >= sent + flood.len() as u64 {
                world.data(flooder.conn, &flood);
                sent += flood.len() as u64;
                assert!(sent - before < 1 << 20, "the flooder is not throttled");
            }
            later(&mut world, Duration::from_millis(20));
            world.data(other, b"get x\r\n");
            let observed = world.exchange();
            assert!(observed.contains(&Observed::Data(2, b"get x\r\n".to_vec())), "{observed:?}");
        }
        // A grant larger than the allowance is read once in a second.
        let read = sent - before;
        assert!((100_000..11 * 65_536).contains(&read), "{read} bytes in ten seconds");
        assert!(!world.transport.record(flooder.conn).aborted);
    }
    // Data is not throttled.
    later(&mut world, Duration::from_secs(2));
    let bytes = [7; 60_000];
    let id = Id(1);
    for _ in 0..20 {
        assert_eq!(flooder.link.compose(id, &bytes), bytes.len());
        flooder.exchange(&mut world).unwrap();
        world.exchange();
        world.server.consumed(Id(1), bytes.len()).unwrap();
        world.exchange();
        flooder.exchange(&mut world).unwrap();
    }
    assert_eq!(world.relay.poll_timeout(), None, "no throttle timer runs");
}

/// Data beyond the server's credit closes the connection at the helper, and is not relayed.
#[test]
fn data_over_credit_ends_at_the_helper() {
    let mut world = World::with_server(config(), Limits { window_bytes: 1000, ..Limits::default() });
    let mut client = Client::unencrypted(&mut world);
    let id = client.open();
    assert_eq!(client.link.compose(id, &[1; 1000]), 1000);
    client.exchange(&mut world).unwrap();
    world.exchange();
    let mut frame = vec![1, 0, 1];
    frame.extend_from_slice(&1_u32.to_be_bytes());
    frame.push(b'x');
    for _ in 0..100 {
        world.data(client.conn, &frame);
    }
    let observed = world.exchange();
    assert_eq!(observed, [Observed::Closed(1, CloseReason::OverCredit)]);
    client.exchange(&mut world).unwrap();
    assert_eq!(client.observed.last().map(String::as_str), Some("closed OverCredit"));
    assert_eq!(world.relay.status().services[0].counters.connections_broken, 1);
    // The ids are free when both ends have closed.
    client.link.close(id, CloseReason::Normal);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert_eq!(connections(&world), 0);
    client.open();
    client.exchange(&mut world).unwrap();
    assert!(matches!(world.exchange()[..], [Observed::Connect(..)]));
}

#[test]
fn a_drain_from_a_client_is_a_protocol_error() {
    let mut world = World::new(config());
    let mut client = Client::unencrypted(&mut world);
    client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.data(client.conn, &frames([Control::Drain { deadline_ms: 0 }]));
    assert!(world.transport.record(client.conn).aborted);
    assert_eq!(world.exchange(), [Observed::Closed(1, CloseReason::Reset)]);
}

/// Library clients that send only parts of long records are closed at the memory bound.
#[test]
fn records_of_which_the_rest_does_not_come_count_against_the_memory() {
    let limit = 200_000;
    let mut world = World::new(Config { memory_bytes_max: limit, ..config() });
    let mut honest = Client::new(&mut world);
    let id = honest.open();
    let mut withholding = Vec::new();
    for _ in 0..40 {
        let mut client = Client::new(&mut world);
        let id = client.open();
        client.link.compose(id, &[b'x'; 16_000]);
        let batch = client.link.flush(world.now).unwrap();
        // The record's length and half of its bytes.
        world.data(client.conn, &batch.as_slice()[..8_000]);
        assert!(world.relay.status().buffered_bytes <= limit, "{}", world.relay.status().buffered_bytes);
        withholding.push(client.conn);
    }
    let closed = withholding.iter().filter(|conn| world.transport.record(**conn).aborted).count();
    assert!((25..=30).contains(&closed), "{closed} of 40 were closed");
    assert_eq!(world.relay.status().services[0].counters.cut.memory, closed as u64);
    honest.link.compose(id, b"get x");
    honest.exchange(&mut world).unwrap();
    assert!(
        world
            .exchange()
            .iter()
            .any(|observed| matches!(observed, Observed::Data(_, bytes) if bytes == b"get x"))
    );
}
