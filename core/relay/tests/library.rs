//! Library clients, step by step: a real opener's end, the relay, a real server's end.

mod world;

use core::time::Duration;

use spillway_auth::Key;
use spillway_batch::{
    CloseReason, Connect, Control, Encryption, Fresh, Id, KeyId, Kind, Limits, LinkError, OpenerConfig,
    OpenerEvent, OpenerLink, Opening, PolicyKind, Reconnect, RefuseReason, Role, Scratch,
};
use spillway_policy::Override;
use spillway_relay::{Config, Cut, Notice};
use spillway_transport::{Application, Conn, Event, LostReason};
use spillway_wire::session::{Position, SessionId};
use world::{Heard, World, client_key, config};

const CLIENT: &str = "10.9.0.1:5000";

/// The client's own end of its link.
struct Client {
    conn: Conn,
    link: OpenerLink,
    heard: Vec<String>,
    got: Vec<u8>,
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
            Fresh::from_random([3; Fresh::BYTES]),
        );
        Client { conn, link, heard: Vec::new(), got: Vec::new() }
    }

    /// A client whose link is up.
    fn new(world: &mut World) -> Client {
        let mut client = Client::connecting(world, client_key(), Role::Client, Limits::default());
        client.exchange(world).unwrap();
        assert_eq!(client.heard, ["established 1"]);
        client.heard.clear();
        client
    }

    /// One whose link is not encrypted, for tests that put their own frames on it.
    fn plain(world: &mut World) -> Client {
        let (key, limits) = (client_key(), Limits::default());
        let mut client = Client::connecting_as(world, key, Role::Client, limits, Encryption::Off);
        client.exchange(world).unwrap();
        client.heard.clear();
        client
    }

    fn open(&mut self) -> Id {
        self.link.open(CLIENT.parse().unwrap(), None).unwrap()
    }

    /// Until neither the client nor the relay has more to say. The server is exchanged with apart.
    fn exchange(&mut self, world: &mut World) -> Result<(), LinkError> {
        loop {
            let batch = self.link.flush(world.now);
            if let Some(batch) = &batch {
                world.data(self.conn, batch.as_slice());
            }
            let bytes = world.wires.take(self.conn);
            if bytes.is_empty() && batch.is_none() {
                return Ok(());
            }
            let mut scratch = Scratch::new();
            let mut input = self.link.unseal(world.now, &bytes, &mut scratch);
            while let Some(event) = self.link.decompose(world.now, &mut input)? {
                let said = match event {
                    OpenerEvent::Established { connections_max } => format!("established {connections_max}"),
                    OpenerEvent::Accepted { .. } => "accepted".into(),
                    OpenerEvent::Refused { reason, .. } => format!("refused {reason:?}"),
                    OpenerEvent::Data { bytes, .. } => {
                        self.got.extend_from_slice(bytes);
                        continue;
                    }
                    OpenerEvent::Taken { through, .. } => format!("taken {through}"),
                    OpenerEvent::Finished { .. } => "finished".into(),
                    OpenerEvent::Closed { reason, .. } => format!("closed {reason:?}"),
                    OpenerEvent::Drain { deadline_ms } => format!("drain {deadline_ms}"),
                    OpenerEvent::RelayedData { bytes, .. } => {
                        self.got.extend_from_slice(bytes);
                        continue;
                    }
                    OpenerEvent::RelayedControl { control, .. } => format!("{:?}", control.kind()),
                };
                self.heard.push(said);
            }
        }
    }
}

fn later(world: &mut World, time: Duration) {
    world.now = world.now + time;
    world.relay.handle_timeout(world.now, &mut world.wires);
    world.relay.end_of_turn(world.now, &mut world.wires);
}

fn connections(world: &World) -> u32 {
    world.relay.status().services[0].links[0].connections
}

#[test]
fn frames_pass_with_the_id_rewritten() {
    let mut world = World::new(config());
    // A plain client has taken id 1.
    let raw = world.client(0, "10.9.0.2:1");
    let mut client = Client::new(&mut world);
    for round in 0..3_u32 {
        let id = client.open();
        assert_eq!(id, Id(1));
        assert_eq!(client.link.compose(id, b"get x"), 5);
        client.exchange(&mut world).unwrap();
        let heard: Vec<Heard> = world.exchange();
        let there = 2 + round;
        let connect = Heard::Connect(there, CLIENT.parse().unwrap());
        assert_eq!(heard[heard.len() - 2..], [connect, Heard::Data(there, b"get x".to_vec())]);
        world.server.accept(Id(there));
        world.server.compose(Id(there), b"END");
        world.server.finish(Id(there));
        world.exchange();
        client.exchange(&mut world).unwrap();
        assert_eq!(client.heard, ["accepted", "finished"]);
        assert_eq!(client.got, b"END");
        client.link.finish(id);
        client.link.close(id, CloseReason::Normal);
        client.exchange(&mut world).unwrap();
        let ends = [Heard::Finished(there), Heard::Closed(there, CloseReason::Normal)];
        assert_eq!(world.exchange(), ends);
        assert_eq!(connections(&world), 2, "the id is used until the server has closed");
        world.server.close(Id(there), CloseReason::Normal);
        world.exchange();
        client.exchange(&mut world).unwrap();
        assert_eq!((connections(&world), client.link.connections()), (1, 0));
        client.heard.clear();
        client.got.clear();
    }
    assert!(!world.wires.line(raw).aborted);
    assert_eq!(world.relay.status().services[0].counters.library_connections, 3);
}

#[test]
fn credit_is_end_to_end() {
    let limits = Limits { window_bytes: 1000, ..Limits::default() };
    let mut world = World::with_server(config(), limits);
    let mut client = Client::new(&mut world);
    let id = client.open();
    assert_eq!(client.link.compose(id, &[7; 5000]), 1000, "the server's credit, told in the relay's welcome");
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.server.consumed(Id(1), 600).unwrap();
    world.exchange();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.link.compose(id, &[7; 5000]), 600);
    // The other way: the client's window, not the relay's.
    let window = Limits::default().window_bytes as usize;
    assert_eq!(world.server.compose(Id(1), &vec![1; 2 * window]), window);
    world.exchange();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.got.len(), window);
    client.link.consumed(id, window).unwrap();
    client.exchange(&mut world).unwrap();
    world.exchange();
    assert_eq!(world.server.room(Id(1)), window);
}

#[test]
fn who_does_not_authenticate_is_told_and_let_go() {
    let wrong = Key::from_secret([9; 32]);
    for (key, role) in
        [(wrong, Role::Client), (client_key(), Role::Helper), (world::helper_key(), Role::Helper)]
    {
        let mut world = World::new(config());
        let mut client = Client::connecting(&mut world, key, role, Limits::default());
        let error = client.exchange(&mut world).unwrap_err();
        assert!(matches!(error, LinkError::RefusedByServer(_)), "{error}");
        assert!(world.wires.line(client.conn).finished);
        assert_eq!(world.relay.status().services[0].counters.refused.handshake, 1);
        world.now = world.now + Duration::from_secs(10);
        world.relay.handle_timeout(world.now, &mut world.wires);
        assert_eq!(world.relay.clients(), 0);
    }
    // One that says nothing at all.
    let mut world = World::new(config());
    let silent = world.client(1, CLIENT);
    assert_eq!(world.relay.poll_timeout(), Some(world.now + Duration::from_secs(5)));
    world.now = world.now + Duration::from_secs(5);
    world.relay.handle_timeout(world.now, &mut world.wires);
    assert!(world.wires.line(silent).aborted);
    // Without keys, only loopback is trusted.
    let mut open = config();
    open.services[0].client_keys = None;
    let mut world = World::new(open);
    let foreign = world.client(1, CLIENT);
    assert!(world.wires.line(foreign).aborted);
    let local = world.client(1, "127.0.0.1:5");
    assert!(!world.wires.line(local).aborted);
}

/// Strangers without a key hold connections and say nothing: they replace each other, and neither clients that have
/// authenticated nor one that is about to.
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
        strangers.iter().filter(|conn| !world.wires.line(**conn).aborted).count()
    };
    assert_eq!(waiting(&mut world, &strangers), 1023, "and the client that is about to authenticate");
    world.now = world.now + Duration::from_secs(1);
    strangers.extend((0..200).map(|host| stranger(&mut world, host, 5)));
    assert_eq!(waiting(&mut world, &strangers), 1023);
    assert_eq!(world.relay.status().services[0].counters.refused.crowded, 277);
    beginning.exchange(&mut world).unwrap();
    assert_eq!(beginning.heard, ["established 1"]);
    let id = established.open();
    established.link.compose(id, b"get x");
    established.exchange(&mut world).unwrap();
    assert!(!world.exchange().is_empty());
}

/// A helper that may have few clients: silent strangers do not use up its places.
#[test]
fn strangers_leave_when_clients_want_their_places() {
    let mut world = World::new(Config { clients_max: 20, ..config() });
    let strangers: Vec<Conn> = (0..20).map(|port| world.client(1, &format!("10.9.7.1:{port}"))).collect();
    let waiting =
        |world: &mut World| strangers.iter().filter(|conn| !world.wires.line(**conn).aborted).count();
    assert_eq!((waiting(&mut world), world.relay.clients()), (20, 20));
    let client = Client::new(&mut world);
    let plain = world.client(0, "10.9.0.2:7");
    assert!(!world.wires.line(plain).aborted && !world.wires.line(client.conn).aborted);
    assert_eq!((waiting(&mut world), world.relay.clients()), (18, 20));
    let clients: Vec<Conn> = (0..19).map(|port| world.client(0, &format!("10.9.0.3:{port}"))).collect();
    let refused = clients.iter().filter(|conn| world.wires.line(**conn).aborted).count();
    assert_eq!((waiting(&mut world), refused, world.relay.clients()), (0, 1, 20), "all others are clients");
}

/// It came while a key was needed. Without keys only loopback is served, with a key that everybody knows.
#[test]
fn keys_that_go_leave_no_open_door() {
    let mut world = World::new(config());
    let mut client = Client::connecting(&mut world, Key::loopback_only(), Role::Client, Limits::default());
    let mut keyless = config();
    keyless.services[0].client_keys = None;
    world.relay.reconfigure(world.now, keyless, Duration::ZERO, &mut world.wires).unwrap();
    assert!(client.exchange(&mut world).is_err());
    assert_eq!(world.relay.status().services[0].counters.refused.handshake, 1);
}

#[test]
fn a_client_speaks_for_itself_and_to_this_server() {
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
        for heard in world.exchange() {
            if let Heard::Connect(id, _) = heard {
                world.server.accept(Id(id));
            }
        }
        world.exchange();
        client.exchange(&mut world).unwrap();
        assert_eq!(client.heard, [reason]);
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
    assert_eq!(world.exchange(), [Heard::Closed(1, CloseReason::Reset)]);
    assert_eq!((connections(&world), world.relay.clients()), (1, 0));
    world.server.compose(Id(1), b"to nobody");
    world.server.close(Id(1), CloseReason::Reset);
    world.exchange();
    assert_eq!(connections(&world), 0);
}

/// First words of a session, as a relay sees them: it looks at the addresses only.
fn first_words(client: &str) -> Control {
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
fn a_session_passes_and_is_not_closed_when_its_client_is_lost() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    let id = client.link.open_relayed(first_words(CLIENT)).unwrap();
    client.exchange(&mut world).unwrap();
    assert_eq!(world.exchange(), [Heard::Session(1, Kind::Reconnect, CLIENT.parse().unwrap())]);
    world.server.say(Id(1), Control::Credit(1 << 40));
    world.server.compose(Id(1), b"a reply");
    world.exchange();
    client.exchange(&mut world).unwrap();
    assert_eq!((&client.heard[..], &client.got[..]), (&["Credit".to_owned()][..], &b"a reply"[..]));
    client.link.relay_data(id, b"a request", true);
    client.exchange(&mut world).unwrap();
    assert_eq!(world.exchange(), [Heard::Data(1, b"a request".to_vec())]);
    world.event(client.conn, Event::Lost(LostReason::Reset));
    // Not a reset: the session may go on elsewhere.
    assert_eq!(world.exchange(), [Heard::Control(1, Control::Close(CloseReason::Lost))]);
    assert_eq!(connections(&world), 1);
    world.server.close(Id(1), CloseReason::Moved);
    world.exchange();
    assert_eq!(connections(&world), 0);
}

#[test]
fn a_session_comes_from_its_clients_own_address() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    client.link.open_relayed(first_words("10.9.0.9:5000")).unwrap();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.heard, ["Refused"]);
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
    assert_eq!(client.heard, ["refused Full"]);
    assert_eq!(connections(&world), 0);
    client.open();
    client.exchange(&mut world).unwrap();
    assert_eq!(world.exchange(), [Heard::Connect(2, CLIENT.parse().unwrap())], "the same link goes on");
}

#[test]
fn a_lost_server_link_resets_library_clients_too() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    client.open();
    client.exchange(&mut world).unwrap();
    let idle = Client::new(&mut world);
    world.event(world.link, Event::Lost(LostReason::Reset));
    assert!(world.wires.line(client.conn).aborted);
    assert!(!world.wires.line(idle.conn).aborted, "it has nothing on that link");
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
    world.wires.line(client.conn).room = 0;
    let mut steps = 0;
    while !world.wires.line(client.conn).aborted {
        assert!(world.relay.buffered_bytes() <= 100_000);
        world.server.compose(Id(1), &[1; 10_000]);
        world.exchange();
        steps += 1;
        assert!(steps < 20, "it should have been cut");
    }
    assert_eq!(world.relay.buffered_bytes(), 0);
    let notices: Vec<Notice> = std::iter::from_fn(|| world.relay.poll_notice()).collect();
    assert!(matches!(notices.last(), Some(Notice::ClientCut { why: Cut::Buffer, .. })), "{notices:?}");
}

#[test]
fn broken_frames_cut_only_their_client() {
    let mut world = World::new(config());
    let mut good = Client::new(&mut world);
    good.open();
    let bad = Client::new(&mut world);
    world.data(bad.conn, &[0x7f; 50]);
    assert!(world.wires.line(bad.conn).aborted);
    good.exchange(&mut world).unwrap();
    assert_eq!(world.exchange().len(), 1);
    assert_eq!(world.relay.status().services[0].counters.cut.protocol, 1);
}

#[test]
fn a_drain_is_told_and_new_connections_are_refused() {
    let mut world = World::new(config());
    let mut client = Client::new(&mut world);
    world.relay.drain(world.now, Duration::from_secs(30), &mut world.wires);
    client.open();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.heard, ["drain 30000", "refused Unavailable"]);
    assert_eq!(world.relay.status().services[0].counters.refused.draining, 1);
    world.event(client.conn, Event::Finished);
    world.event(client.conn, Event::Lost(LostReason::Closed));
    assert!(world.relay.is_drained());
}

#[test]
fn without_relief_library_clients_go_and_plain_ones_stay_until_the_word_is_over() {
    let mut world = World::new(config());
    let (mut client, mut late) = (Client::new(&mut world), Client::new(&mut world));
    client.open();
    client.exchange(&mut world).unwrap();
    let (second, off) = (Duration::from_secs(1), (Override::Off, Some(Duration::from_secs(60))));
    assert!(!world.relay.say(world.now, "no such service", off, second, &mut world.wires));
    assert!(world.relay.say(world.now, "cache", off, second, &mut world.wires));
    late.open();
    late.exchange(&mut world).unwrap();
    client.exchange(&mut world).unwrap();
    assert_eq!(client.heard, ["drain 1000"]);
    assert_eq!(late.heard, ["drain 1000", "refused Unavailable"]);
    let status = world.relay.status();
    assert_eq!((status.services[0].counters.refused.off, status.services[0].listening), (1, false));
    assert!(!world.relay.is_draining() && world.relay.poll_timeout() <= Some(world.now + 60 * second));

    world.now = world.now + 60 * second;
    world.relay.handle_timeout(world.now, &mut world.wires);
    assert!(world.relay.status().services[0].listening, "links stayed");
    late.open();
    late.exchange(&mut world).unwrap();
    assert_eq!(world.relay.status().services[0].counters.refused.off, 1);
}

/// A stalled server's link: a library client gets no new grants, then everything arrives.
#[test]
fn a_stalled_link_stops_a_library_clients_grants() {
    let mut world = World::with_server(config(), Limits { window_bytes: 1 << 20, ..Limits::default() });
    let mut client = Client::new(&mut world);
    let id = client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.wires.line(world.link).room = 0;
    assert_eq!(client.link.compose(id, &[5; 5_000]), 5_000);
    client.exchange(&mut world).unwrap();
    let granted = world.wires.line(client.conn).granted;
    assert_eq!(client.link.compose(id, &[5; 50_000]), 50_000);
    client.exchange(&mut world).unwrap();
    assert_eq!(world.wires.line(client.conn).granted, granted);
    world.wires.line(world.link).room = 1 << 20;
    world.event(world.link, Event::Room);
    let got: usize = world
        .exchange()
        .iter()
        .map(|heard| if let Heard::Data(_, bytes) = heard { bytes.len() } else { 0 })
        .sum();
    assert_eq!(got, 55_000);
    assert!(world.wires.line(client.conn).granted > granted);
}

/// Bytes that could not be forwarded wait at the helper. When the server refuses the connection, later bytes of the same
/// turn still wait behind them: an encrypted link's records must be opened in order.
#[test]
fn bytes_after_a_refusal_do_not_overtake_those_that_wait() {
    let mut world = World::with_server(config(), Limits { window_bytes: 8 << 20, ..Limits::default() });
    let mut client = Client::new(&mut world);
    let id = client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.wires.line(world.link).room = 0;
    for _ in 0..60 {
        assert_eq!(client.link.compose(id, &[5; 100_000]), 100_000);
        client.exchange(&mut world).unwrap();
    }
    let held = world.relay.buffered_bytes();
    assert!(held > 1_000_000, "what the link's batch cannot take waits: {held}");
    world.server.refuse(Id(1), RefuseReason::Full);
    let refusal = world.server.flush(world.now).unwrap();
    assert_eq!(client.link.compose(id, &[5; 1_000]), 1_000);
    let later = client.link.flush(world.now).unwrap();
    world.relay.handle(
        world.now,
        world.link,
        Event::Data { end: 0, bytes: refusal.as_slice() },
        &mut world.wires,
    );
    world.data(client.conn, later.as_slice());
    client.exchange(&mut world).unwrap();
    assert_eq!(client.heard, ["refused Full"]);
    assert!(!world.wires.line(client.conn).aborted, "nothing was wrong with what the client sent");
}

/// A client that sends the first part of a record only makes the helper hold that part: it counts, and the client that
/// holds most is closed when memory is short.
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
    assert!(world.wires.line(largest).aborted && !world.wires.line(honest).aborted);
    assert_eq!(world.relay.status().services[0].counters.cut.memory, 1);
}

/// Clients that withhold the ends of their records are closed before one whose reply waits since a moment ago.
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
    // More than all of them hold, but only just now.
    world.wires.line(honest).room = 0;
    assert_eq!(world.server.compose(Id(1), &[b'v'; 30_000]), 30_000);
    world.exchange();
    assert!(!world.wires.line(honest).aborted);
    assert!(withholding.iter().any(|conn| world.wires.line(*conn).aborted));
}

/// They are closed when nothing comes of the rest, also while there is memory enough.
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
    assert!(!world.wires.line(client.conn).aborted);
    world.pass(Duration::from_secs(5));
    assert!(world.wires.line(client.conn).aborted, "{} bytes did not come", rest.len());
    assert_eq!(world.relay.buffered_bytes(), 0);
    // One whose records are whole stays.
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
    assert!(!world.wires.line(client.conn).aborted);
}

fn frames(controls: impl IntoIterator<Item = Control>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for control in controls {
        control.emit(Id(1), &mut bytes);
    }
    bytes
}

/// A client asks for connections which are refused, for ever, and does not read the answers.
#[test]
fn refusals_that_nobody_reads_stop_their_client_only() {
    let mut world = World::new(config());
    let mut good = Client::new(&mut world);
    let mut rude = Client::plain(&mut world);
    let id = rude.open();
    rude.link.close(id, CloseReason::Reset);
    drop(rude.link.flush(world.now));
    world.wires.line(rude.conn).room = 0;
    let elsewhere = Connect { client: "10.1.1.1:1".parse().unwrap(), server: None, credit: 0, session: None };
    let batch = frames((0..1000).map(|_| Control::Connect(elsewhere)));
    let (mut sent, mut rounds) = (0, 0);
    for _ in 0..1000 {
        while sent + batch.len() as u64 <= world.wires.line(rude.conn).granted {
            world.data(rude.conn, &batch);
            sent += batch.len() as u64;
            rounds += 1;
            assert!(rounds < 100, "it is read for ever");
        }
        // Such a flood is read slowly in any case.
        later(&mut world, Duration::from_secs(2));
    }
    let held = world.relay.buffered_bytes();
    assert!(held < 256 * 1024, "{held}");
    let id = good.open();
    good.link.compose(id, b"get x");
    good.exchange(&mut world).unwrap();
    assert!(world.exchange().iter().any(|heard| matches!(heard, Heard::Data(_, bytes) if bytes == b"get x")));
    // It reads, and is read.
    let granted = world.wires.line(rude.conn).granted;
    world.wires.line(rude.conn).room = 1 << 20;
    world.event(rude.conn, Event::Room);
    assert!(world.wires.line(rude.conn).granted > granted);
    assert_eq!(world.relay.buffered_bytes(), 0);
}

/// Credit that a client repeats for ever reaches the server once in a batch.
#[test]
fn repeated_credit_is_forwarded_once_in_a_batch() {
    let mut world = World::new(config());
    let mut client = Client::plain(&mut world);
    client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    let before = world.relay.status().services[0].traffic.bytes_sent;
    for round in 0..50 {
        let batch = frames((0..1000).map(|step| Control::Credit((1 << 20) + round * 1000 + step)));
        world.wires.line(client.conn).granted += batch.len() as u64;
        world.data(client.conn, &batch);
    }
    world.exchange();
    let sent = world.relay.status().services[0].traffic.bytes_sent - before;
    // Each in a record of its own: a sealed length, and a tag.
    assert!(sent <= 50 * (15 + 18 + 16), "{sent} bytes of credit");
    assert_eq!(world.server.room(Id(1)), (1 << 20) + 49_999);
}

/// A client that sends hardly anything but control messages: a flood of them is read at the pace of its allowance, while
/// another client's requests pass.
#[test]
fn a_flood_of_control_messages_is_read_slowly_and_other_clients_at_once() {
    let mut world = World::new(config());
    let mut flooder = Client::plain(&mut world);
    flooder.open();
    flooder.exchange(&mut world).unwrap();
    let other = world.client(0, "10.9.0.1:4000");
    world.exchange();
    let empty = [1, 0, 0, 0, 0, 0, 1].repeat(512);
    let unknown = [1, 0, 1, 0, 0, 0, 9, b'x'].repeat(512);
    let credit = frames((0..512).map(|_| Control::Credit(1 << 20)));
    let mut sent = world.wires.line(flooder.conn).granted - 64 * 1024;
    for flood in [empty, unknown, credit] {
        let (begun, before) = (world.now, sent);
        while world.now < begun + Duration::from_secs(10) {
            while world.wires.line(flooder.conn).granted >= sent + flood.len() as u64 {
                world.data(flooder.conn, &flood);
                sent += flood.len() as u64;
                assert!(sent - before < 1 << 20, "it is read without a pause");
            }
            later(&mut world, Duration::from_millis(20));
            world.data(other, b"get x\r\n");
            let heard = world.exchange();
            assert!(heard.contains(&Heard::Data(2, b"get x\r\n".to_vec())), "{heard:?}");
        }
        // A grant may be larger than the allowance: it is read once in a second then.
        let read = sent - before;
        assert!((100_000..11 * 65_536).contains(&read), "{read} bytes in ten seconds");
        assert!(!world.wires.line(flooder.conn).aborted);
    }
    // Data is read as before.
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
    assert_eq!(world.relay.poll_timeout(), None, "it is not looked at any more");
}

/// What a client sends beyond the server's credit ends its connection at the helper, and is not relayed.
#[test]
fn data_over_credit_ends_at_the_helper() {
    let mut world = World::with_server(config(), Limits { window_bytes: 1000, ..Limits::default() });
    let mut client = Client::plain(&mut world);
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
    let heard = world.exchange();
    assert_eq!(heard, [Heard::Closed(1, CloseReason::OverCredit)]);
    client.exchange(&mut world).unwrap();
    assert_eq!(client.heard.last().map(String::as_str), Some("closed OverCredit"));
    assert_eq!(world.relay.status().services[0].counters.connections_broken, 1);
    // The ids are free again when both have answered.
    client.link.close(id, CloseReason::Normal);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert_eq!(connections(&world), 0);
    client.open();
    client.exchange(&mut world).unwrap();
    assert!(matches!(world.exchange()[..], [Heard::Connect(..)]));
}

#[test]
fn a_client_cannot_say_that_its_helper_goes_away() {
    let mut world = World::new(config());
    let mut client = Client::plain(&mut world);
    client.open();
    client.exchange(&mut world).unwrap();
    world.exchange();
    world.data(client.conn, &frames([Control::Drain { deadline_ms: 0 }]));
    assert!(world.wires.line(client.conn).aborted);
    assert_eq!(world.exchange(), [Heard::Closed(1, CloseReason::Reset)]);
}

/// Library clients that send a part of a long record each, and nothing more: it counts, and they are closed for it.
#[test]
fn records_of_which_the_rest_does_not_come_count_against_the_memory() {
    let limit = 200_000;
    let mut world = World::new(Config { memory_bytes_max: limit, ..config() });
    let mut honest = Client::new(&mut world);
    let id = honest.open();
    let mut deaf = Vec::new();
    for _ in 0..40 {
        let mut client = Client::new(&mut world);
        let id = client.open();
        client.link.compose(id, &[b'x'; 16_000]);
        let batch = client.link.flush(world.now).unwrap();
        // The length of the record, and half of it.
        world.data(client.conn, &batch.as_slice()[..8_000]);
        assert!(world.relay.status().buffered_bytes <= limit, "{}", world.relay.status().buffered_bytes);
        deaf.push(client.conn);
    }
    let closed = deaf.iter().filter(|conn| world.wires.line(**conn).aborted).count();
    assert!((25..=30).contains(&closed), "{closed} of 40 were closed");
    assert_eq!(world.relay.status().services[0].counters.cut.memory, closed as u64);
    honest.link.compose(id, b"get x");
    honest.exchange(&mut world).unwrap();
    assert!(world.exchange().iter().any(|heard| matches!(heard, Heard::Data(_, bytes) if bytes == b"get x")));
}
