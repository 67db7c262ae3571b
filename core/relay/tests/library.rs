//! Library clients: a real client's end of a link, the relay, and a real server's end of a link.

mod harness;

use core::time::Duration;

use harness::{Harness, Observed, client_key, config};
use spillway_auth::Key;
use spillway_batch::{
    CloseReason, Connect, Control, Encryption, Id, KeyId, Kind, Limits, LinkError, LinkRandomness,
    OpenerConfig, OpenerEvent, OpenerLink, Opening, PolicyKind, Reconnect, RefuseReason, Role, Scratch,
};
use spillway_policy::Override;
use spillway_relay::{Config, Notice, ResetReason};
use spillway_transport::{Application, Conn, Event, LostReason};
use spillway_wire::session::{Position, SessionId};

const CLIENT: &str = "10.9.0.1:5000";

/// The client's end of its link, and the events and data that the client has received.
struct Client {
    conn: Conn,
    link: OpenerLink,
    observed: Vec<String>,
    data: Vec<u8>,
}

impl Client {
    fn connecting(harness: &mut Harness, key: Key, role: Role, limits: Limits) -> Client {
        Client::connecting_with_encryption(harness, key, role, limits, Encryption::Preferred)
    }

    fn connecting_with_encryption(
        harness: &mut Harness,
        key: Key,
        role: Role,
        limits: Limits,
        encryption: Encryption,
    ) -> Client {
        let conn = harness.client(1, CLIENT);
        let policy = PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 };
        let link = OpenerLink::new(
            &OpenerConfig { role, key, limits, policy, encryption },
            harness.now,
            LinkRandomness::from_random([3; LinkRandomness::BYTES]),
        );
        Client { conn, link, observed: Vec::new(), data: Vec::new() }
    }

    /// A client whose link is up.
    fn new(harness: &mut Harness) -> Client {
        let mut client = Client::connecting(harness, client_key(), Role::Client, Limits::default());
        client.exchange(harness).unwrap();
        assert_eq!(client.observed, ["established 1"]);
        client.observed.clear();
        client
    }

    /// A client without encryption, for tests that send their own frames.
    fn unencrypted(harness: &mut Harness) -> Client {
        let (key, limits) = (client_key(), Limits::default());
        let mut client =
            Client::connecting_with_encryption(harness, key, Role::Client, limits, Encryption::Off);
        client.exchange(harness).unwrap();
        client.observed.clear();
        client
    }

    fn open(&mut self) -> Id {
        self.link.open(CLIENT.parse().unwrap(), None).unwrap()
    }

    /// Exchanges bytes between the client and the relay until neither has output.
    fn exchange(&mut self, harness: &mut Harness) -> Result<(), LinkError> {
        loop {
            let batch = self.link.flush(harness.now);
            if let Some(batch) = &batch {
                harness.data(self.conn, batch.as_slice());
            }
            let bytes = harness.transport.take(self.conn);
            if bytes.is_empty() && batch.is_none() {
                return Ok(());
            }
            let mut scratch = Scratch::new();
            let mut input = self.link.unseal(harness.now, &bytes, &mut scratch);
            while let Some(event) = self.link.decompose(harness.now, &mut input)? {
                let event = match event {
                    OpenerEvent::Established { connections_max } => format!("established {connections_max}"),
                    OpenerEvent::Accepted { .. } => "accepted".into(),
                    OpenerEvent::Refused { reason, .. } => format!("refused {reason:?}"),
                    OpenerEvent::Data { bytes, .. } => {
                        self.data.extend_from_slice(bytes);
                        continue;
                    }
                    OpenerEvent::Acknowledged { through, .. } => format!("taken {through}"),
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

/// Advances the time in one step, and handles all timeouts at its end.
fn jump_ahead(harness: &mut Harness, time: Duration) {
    harness.now = harness.now + time;
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    harness.relay.end_of_turn(harness.now, &mut harness.transport);
}

fn connections(harness: &Harness) -> u32 {
    harness.relay.status().services[0].links[0].connections
}

#[test]
fn frames_are_relayed_with_the_id_rewritten() {
    let mut harness = Harness::new(config());
    // A plain client uses id 1.
    let plain = harness.client(0, "10.9.0.2:1");
    let mut client = Client::new(&mut harness);
    for round in 0..3_u32 {
        let id = client.open();
        assert_eq!(id, Id(1));
        assert_eq!(client.link.compose(id, b"get x"), 5);
        client.exchange(&mut harness).unwrap();
        let observed: Vec<Observed> = harness.exchange();
        let server_id = 2 + round;
        let connect = Observed::Connect(server_id, CLIENT.parse().unwrap());
        assert_eq!(observed[observed.len() - 2..], [connect, Observed::Data(server_id, b"get x".to_vec())]);
        harness.server.accept(Id(server_id));
        harness.server.compose(Id(server_id), b"END");
        harness.server.finish(Id(server_id));
        harness.exchange();
        client.exchange(&mut harness).unwrap();
        assert_eq!(client.observed, ["accepted", "finished"]);
        assert_eq!(client.data, b"END");
        client.link.finish(id);
        client.link.close(id, CloseReason::Normal);
        client.exchange(&mut harness).unwrap();
        let ends = [Observed::Finished(server_id), Observed::Closed(server_id, CloseReason::Normal)];
        assert_eq!(harness.exchange(), ends);
        assert_eq!(connections(&harness), 2, "the id should be in use until the server has closed");
        harness.server.close(Id(server_id), CloseReason::Normal);
        harness.exchange();
        client.exchange(&mut harness).unwrap();
        assert_eq!((connections(&harness), client.link.connections()), (1, 0));
        client.observed.clear();
        client.data.clear();
    }
    assert!(!harness.transport.record(plain).aborted, "the plain client should not be reset");
    assert_eq!(harness.relay.status().services[0].counters.library_connections, 3);
}

#[test]
fn credit_is_forwarded_end_to_end() {
    let limits = Limits { window_bytes: 1000, ..Limits::default() };
    let mut harness = Harness::with_server(config(), limits);
    let mut client = Client::new(&mut harness);
    let id = client.open();
    assert_eq!(
        client.link.compose(id, &[7; 5000]),
        1000,
        "the relay's welcome should grant the server's credit"
    );
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.server.consumed(Id(1), 600).unwrap();
    harness.exchange();
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.link.compose(id, &[7; 5000]), 600);
    // In the other direction, the client's window applies and not the relay's.
    let window = Limits::default().window_bytes as usize;
    assert_eq!(harness.server.compose(Id(1), &vec![1; 2 * window]), window);
    harness.exchange();
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.data.len(), window);
    client.link.consumed(id, window).unwrap();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    assert_eq!(harness.server.room(Id(1)), window);
}

#[test]
fn unauthenticated_clients_are_rejected_and_closed() {
    let wrong = Key::from_secret([9; 32]);
    for (key, role) in
        [(wrong, Role::Client), (client_key(), Role::Helper), (harness::helper_key(), Role::Helper)]
    {
        let mut harness = Harness::new(config());
        let mut client = Client::connecting(&mut harness, key, role, Limits::default());
        let error = client.exchange(&mut harness).unwrap_err();
        assert!(matches!(error, LinkError::RefusedByServer(_)), "the client should be refused: {error}");
        assert!(harness.transport.record(client.conn).finished, "the rejected client should be closed");
        assert_eq!(harness.relay.status().services[0].counters.refused.handshake, 1);
        harness.now = harness.now + Duration::from_secs(10);
        harness.relay.handle_timeout(harness.now, &mut harness.transport);
        assert_eq!(harness.relay.clients(), 0);
    }
    // A client that sends nothing.
    let mut harness = Harness::new(config());
    let silent = harness.client(1, CLIENT);
    assert_eq!(harness.relay.poll_timeout(), Some(harness.now + Duration::from_secs(5)));
    harness.now = harness.now + Duration::from_secs(5);
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    assert!(harness.transport.record(silent).aborted, "the silent peer should be reset");
    // Without keys, only loopback clients are accepted.
    let mut keyless = config();
    keyless.services[0].client_keys = None;
    let mut harness = Harness::new(keyless);
    let foreign = harness.client(1, CLIENT);
    assert!(harness.transport.record(foreign).aborted, "the peer at a foreign address should be reset");
    let local = harness.client(1, "127.0.0.1:5");
    assert!(!harness.transport.record(local).aborted, "the peer at an allowed address should stay");
}

/// Peers without a key that open connections and send nothing evict each other, but neither an authenticated client nor
/// one that has named its key.
#[test]
fn unauthenticated_peers_evict_only_each_other() {
    let mut harness = Harness::new(config());
    let mut established = Client::new(&mut harness);
    let mut beginning = Client::connecting(&mut harness, client_key(), Role::Client, Limits::default());
    let hello = beginning.link.flush(harness.now).unwrap();
    harness.data(beginning.conn, hello.as_slice());
    let open_unauthenticated =
        |harness: &mut Harness, host: usize, port: usize| harness.client(1, &format!("10.9.{host}.1:{port}"));
    let mut unauthenticated: Vec<Conn> =
        (0..1100).map(|port| open_unauthenticated(&mut harness, 0, 6000 + port)).collect();
    let waiting = |harness: &mut Harness, unauthenticated: &[Conn]| {
        unauthenticated.iter().filter(|conn| !harness.transport.record(**conn).aborted).count()
    };
    assert_eq!(
        waiting(&mut harness, &unauthenticated),
        1023,
        "1,024 should wait, including the client that has named its key"
    );
    harness.now = harness.now + Duration::from_secs(1);
    unauthenticated.extend((0..200).map(|host| open_unauthenticated(&mut harness, host, 5)));
    assert_eq!(waiting(&mut harness, &unauthenticated), 1023);
    assert_eq!(harness.relay.status().services[0].counters.refused.evicted, 277);
    beginning.exchange(&mut harness).unwrap();
    assert_eq!(beginning.observed, ["established 1"]);
    let id = established.open();
    established.link.compose(id, b"get x");
    established.exchange(&mut harness).unwrap();
    assert!(!harness.exchange().is_empty(), "the authenticated client should reach the server");
}

/// Silent peers without a key are evicted when clients reach the helper's limit.
#[test]
fn unauthenticated_peers_are_evicted_for_clients_at_the_limit() {
    let mut harness = Harness::new(Config { clients_max: 20, ..config() });
    let unauthenticated: Vec<Conn> =
        (0..20).map(|port| harness.client(1, &format!("10.9.7.1:{port}"))).collect();
    let waiting = |harness: &mut Harness| {
        unauthenticated.iter().filter(|conn| !harness.transport.record(**conn).aborted).count()
    };
    assert_eq!((waiting(&mut harness), harness.relay.clients()), (20, 20));
    let client = Client::new(&mut harness);
    let plain = harness.client(0, "10.9.0.2:7");
    assert!(
        !harness.transport.record(plain).aborted && !harness.transport.record(client.conn).aborted,
        "clients should not be evicted"
    );
    assert_eq!((waiting(&mut harness), harness.relay.clients()), (18, 20));
    let clients: Vec<Conn> = (0..19).map(|port| harness.client(0, &format!("10.9.0.3:{port}"))).collect();
    let refused = clients.iter().filter(|conn| harness.transport.record(**conn).aborted).count();
    assert_eq!(
        (waiting(&mut harness), refused, harness.relay.clients()),
        (0, 1, 20),
        "20 unauthenticated peers should be evicted, and the next client refused"
    );
}

/// A peer that connected while keys were configured cannot use the well-known loopback key after a reload removes them.
#[test]
fn removed_keys_give_no_access() {
    let mut harness = Harness::new(config());
    let mut client = Client::connecting(&mut harness, Key::loopback_only(), Role::Client, Limits::default());
    let mut keyless = config();
    keyless.services[0].client_keys = None;
    harness.relay.reconfigure(harness.now, keyless, Duration::ZERO, &mut harness.transport).unwrap();
    assert!(client.exchange(&mut harness).is_err(), "a removed key should be rejected");
    assert_eq!(harness.relay.status().services[0].counters.refused.handshake, 1);
}

#[test]
fn connects_with_a_foreign_address_or_server_are_refused() {
    let mut harness = Harness::new(config());
    for (client_address, server, reason) in [
        ("10.9.0.1:5001", None, "refused Forbidden"),
        ("10.9.0.9:5000", None, "refused Forbidden"),
        (CLIENT, Some("10.0.0.6:11411"), "refused UnknownServer"),
        (CLIENT, Some(harness::SERVER), "accepted"),
    ] {
        let mut client = Client::new(&mut harness);
        let server = server.map(|text: &str| text.parse().unwrap());
        client.link.open(client_address.parse().unwrap(), server).unwrap();
        client.exchange(&mut harness).unwrap();
        for observed in harness.exchange() {
            if let Observed::Connect(id, _) = observed {
                harness.server.accept(Id(id));
            }
        }
        harness.exchange();
        client.exchange(&mut harness).unwrap();
        assert_eq!(client.observed, [reason]);
    }
    let refused = harness.relay.status().services[0].counters.refused;
    assert_eq!((refused.foreign_address, refused.other_server), (2, 1));
}

#[test]
fn id_of_a_lost_client_is_in_use_until_the_server_has_closed() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness);
    client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.event(client.conn, Event::Lost(LostReason::Reset));
    assert_eq!(harness.exchange(), [Observed::Closed(1, CloseReason::Reset)]);
    assert_eq!((connections(&harness), harness.relay.clients()), (1, 0));
    harness.server.compose(Id(1), b"ignored");
    harness.server.close(Id(1), CloseReason::Reset);
    harness.exchange();
    assert_eq!(connections(&harness), 0);
}

/// The *reconnect* of a session. A relay reads only the addresses in it.
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
fn session_is_relayed_and_not_reset_when_its_client_is_lost() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness);
    let id = client.link.open_with_message(reconnect(CLIENT)).unwrap();
    client.exchange(&mut harness).unwrap();
    assert_eq!(harness.exchange(), [Observed::Session(1, Kind::Reconnect, CLIENT.parse().unwrap())]);
    harness.server.send_control(Id(1), Control::Credit(1 << 40));
    harness.server.compose(Id(1), b"a reply");
    harness.exchange();
    client.exchange(&mut harness).unwrap();
    assert_eq!((&client.observed[..], &client.data[..]), (&["Credit".to_owned()][..], &b"a reply"[..]));
    client.link.relay_data(id, b"a request", true);
    client.exchange(&mut harness).unwrap();
    assert_eq!(harness.exchange(), [Observed::Data(1, b"a request".to_vec())]);
    harness.event(client.conn, Event::Lost(LostReason::Reset));
    // Not a reset, because the session may resume on another carrier.
    assert_eq!(harness.exchange(), [Observed::Control(1, Control::Close(CloseReason::Lost))]);
    assert_eq!(connections(&harness), 1);
    harness.server.close(Id(1), CloseReason::Moved);
    harness.exchange();
    assert_eq!(connections(&harness), 0);
}

#[test]
fn session_with_a_foreign_address_is_refused() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness);
    client.link.open_with_message(reconnect("10.9.0.9:5000")).unwrap();
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed, ["Refused"]);
    assert!(harness.exchange().is_empty(), "no session should reach the server");
}

#[test]
fn refusal_by_the_server_frees_the_id() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness);
    client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.server.refuse(Id(1), RefuseReason::Full);
    harness.exchange();
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed, ["refused Full"]);
    assert_eq!(connections(&harness), 0);
    client.open();
    client.exchange(&mut harness).unwrap();
    assert_eq!(
        harness.exchange(),
        [Observed::Connect(2, CLIENT.parse().unwrap())],
        "the link to the server should still be in use"
    );
}

#[test]
fn lost_link_resets_library_clients_with_a_connection() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness);
    client.open();
    client.exchange(&mut harness).unwrap();
    let idle = Client::new(&mut harness);
    harness.event(harness.link, Event::Lost(LostReason::Reset));
    assert!(harness.transport.record(client.conn).aborted, "the client should be reset with the link");
    assert!(
        !harness.transport.record(idle.conn).aborted,
        "a client without a connection on the lost link should stay"
    );
    assert_eq!(harness.relay.clients(), 1);
}

#[test]
fn client_whose_unread_replies_exceed_the_buffer_is_reset() {
    let mut harness = Harness::new(Config { connection_buffer_bytes: 100_000, ..config() });
    let endless_window = Limits { window_bytes: u32::MAX, ..Limits::default() };
    let mut client = Client::connecting(&mut harness, client_key(), Role::Client, endless_window);
    client.exchange(&mut harness).unwrap();
    client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.transport.record(client.conn).room = 0;
    let mut steps = 0;
    while !harness.transport.record(client.conn).aborted {
        assert!(harness.relay.buffered_bytes() <= 100_000, "replies should be buffered within the bound");
        harness.server.compose(Id(1), &[1; 10_000]);
        harness.exchange();
        steps += 1;
        // Ten replies of 10,000 bytes fill the buffer.
        assert!(steps < 20, "the client should be reset within 20 steps");
    }
    assert_eq!(harness.relay.buffered_bytes(), 0);
    let notices: Vec<Notice> = std::iter::from_fn(|| harness.relay.poll_notice()).collect();
    assert!(
        matches!(notices.last(), Some(Notice::ClientReset { why: ResetReason::Buffer, .. })),
        "the client should be reset because of its unread replies: {notices:?}"
    );
}

#[test]
fn malformed_frames_reset_only_their_client() {
    let mut harness = Harness::new(config());
    let mut other = Client::new(&mut harness);
    other.open();
    let malformed = Client::new(&mut harness);
    harness.data(malformed.conn, &[0x7f; 50]);
    assert!(harness.transport.record(malformed.conn).aborted, "the malformed client should be reset");
    other.exchange(&mut harness).unwrap();
    assert_eq!(harness.exchange().len(), 1);
    assert_eq!(harness.relay.status().services[0].counters.reset.protocol, 1);
}

#[test]
fn drain_is_sent_to_clients_and_new_connections_are_refused() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness);
    harness.relay.drain(harness.now, Duration::from_secs(30), &mut harness.transport);
    client.open();
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed, ["drain 30000", "refused Unavailable"]);
    assert_eq!(harness.relay.status().services[0].counters.refused.draining, 1);
    harness.event(client.conn, Event::Finished);
    harness.event(client.conn, Event::Lost(LostReason::Closed));
    assert!(harness.relay.is_drained(), "the relay should be drained");
}

#[test]
fn override_off_drains_library_clients_and_keeps_plain_ones() {
    let mut harness = Harness::new(config());
    let (mut client, mut late) = (Client::new(&mut harness), Client::new(&mut harness));
    client.open();
    client.exchange(&mut harness).unwrap();
    let (second, off) = (Duration::from_secs(1), (Override::Off, Some(Duration::from_secs(60))));
    assert!(
        !harness.relay.set_override(harness.now, "no such service", off, second, &mut harness.transport),
        "an unknown service should not take the override"
    );
    assert!(
        harness.relay.set_override(harness.now, "cache", off, second, &mut harness.transport),
        "the known service should take the override"
    );
    late.open();
    late.exchange(&mut harness).unwrap();
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed, ["drain 1000"]);
    assert_eq!(late.observed, ["drain 1000", "refused Unavailable"]);
    let status = harness.relay.status();
    assert_eq!((status.services[0].counters.refused.off, status.services[0].listening), (1, false));
    assert!(
        !harness.relay.is_draining() && harness.relay.poll_timeout() <= Some(harness.now + 60 * second),
        "the override should end within a minute, without a drain"
    );

    harness.now = harness.now + 60 * second;
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    assert!(
        harness.relay.status().services[0].listening,
        "the service should listen again when the override ends"
    );
    late.open();
    late.exchange(&mut harness).unwrap();
    assert_eq!(harness.relay.status().services[0].counters.refused.off, 1);
}

/// A library client gets no grants while the server's link is stalled, and no byte is lost.
#[test]
fn stalled_link_stops_grants_of_library_clients() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 1 << 20, ..Limits::default() });
    let mut client = Client::new(&mut harness);
    let id = client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.transport.record(harness.link).room = 0;
    assert_eq!(client.link.compose(id, &[5; 5_000]), 5_000);
    client.exchange(&mut harness).unwrap();
    let granted = harness.transport.record(client.conn).granted;
    assert_eq!(client.link.compose(id, &[5; 50_000]), 50_000);
    client.exchange(&mut harness).unwrap();
    assert_eq!(harness.transport.record(client.conn).granted, granted);
    harness.transport.record(harness.link).room = 1 << 20;
    harness.event(harness.link, Event::Room);
    let received: usize = harness
        .exchange()
        .iter()
        .map(|observed| if let Observed::Data(_, bytes) = observed { bytes.len() } else { 0 })
        .sum();
    assert_eq!(received, 55_000);
    assert!(
        harness.transport.record(client.conn).granted > granted,
        "the client should be granted more after the stall"
    );
}

/// When the server refuses a connection, later bytes of the same turn wait behind those that could not be forwarded,
/// because the records of an encrypted link must be opened in order.
#[test]
fn bytes_after_a_refusal_are_handled_after_stored_ones() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 8 << 20, ..Limits::default() });
    let mut client = Client::new(&mut harness);
    let id = client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.transport.record(harness.link).room = 0;
    for _ in 0..60 {
        assert_eq!(client.link.compose(id, &[5; 100_000]), 100_000);
        client.exchange(&mut harness).unwrap();
    }
    let held = harness.relay.buffered_bytes();
    assert!(held > 1_000_000, "more than 1 MB should wait behind the link's batch, not {held} bytes");
    harness.server.refuse(Id(1), RefuseReason::Full);
    let refusal = harness.server.flush(harness.now).unwrap();
    assert_eq!(client.link.compose(id, &[5; 1_000]), 1_000);
    let latest = client.link.flush(harness.now).unwrap();
    harness.relay.handle(
        harness.now,
        harness.link,
        Event::Data { end: 0, bytes: refusal.as_slice() },
        &mut harness.transport,
    );
    harness.data(client.conn, latest.as_slice());
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed, ["refused Full"]);
    assert!(!harness.transport.record(client.conn).aborted, "the client's records should be opened in order");
}

/// The first part of an incomplete record counts as memory of its client, which can be closed for it.
#[test]
fn client_with_the_largest_incomplete_record_is_closed_at_the_memory_limit() {
    let mut harness = Harness::new(Config { memory_bytes_max: 20_000, ..config() });
    let send_part_of_record = |harness: &mut Harness, bytes: usize| {
        let mut client = Client::new(harness);
        let id = client.open();
        assert_eq!(client.link.compose(id, &vec![5; bytes]), bytes);
        let batch = client.link.flush(harness.now).unwrap();
        let (first, rest) = batch.as_slice().split_at(bytes - 100);
        harness.data(client.conn, first);
        (client.conn, rest.to_vec())
    };
    let (complete, rest) = send_part_of_record(&mut harness, 9_000);
    send_part_of_record(&mut harness, 5_000);
    let held = harness.relay.buffered_bytes();
    assert!((14_000..18_000).contains(&held), "both incomplete records should be counted: {held} bytes");
    harness.data(complete, &rest);
    harness.exchange();
    let held = harness.relay.buffered_bytes();
    assert!((5_000..7_000).contains(&held), "a complete record should be forwarded, not held: {held} bytes");
    let (largest, _) = send_part_of_record(&mut harness, 15_000);
    assert!(
        harness.transport.record(largest).aborted && !harness.transport.record(complete).aborted,
        "only the client with the largest incomplete record should be closed"
    );
    assert_eq!(harness.relay.status().services[0].counters.reset.memory, 1);
}

/// The reader's reply has waited for a shorter time than the clients have withheld the ends of their records.
#[test]
fn clients_that_withhold_records_are_closed_before_readers() {
    let mut harness =
        Harness::new(Config { memory_bytes_max: 100_000, first_window_bytes: 64 * 1024, ..config() });
    let reader = harness.client(0, "10.9.0.2:6000");
    harness.exchange();
    let send_part_of_record = |harness: &mut Harness| {
        let mut client = Client::new(harness);
        let id = client.open();
        assert_eq!(client.link.compose(id, &[5; 15_000]), 15_000);
        let batch = client.link.flush(harness.now).unwrap();
        harness.data(client.conn, &batch.as_slice()[..14_000]);
        client.conn
    };
    let withholding: Vec<Conn> = (0..5).map(|_| send_part_of_record(&mut harness)).collect();
    harness.advance(Duration::from_millis(10));
    // This client holds most memory, but for the shortest time.
    harness.transport.record(reader).room = 0;
    assert_eq!(harness.server.compose(Id(1), &[b'v'; 30_000]), 30_000);
    harness.exchange();
    assert!(!harness.transport.record(reader).aborted, "the reader should stay");
    assert!(
        withholding.iter().any(|conn| harness.transport.record(*conn).aborted),
        "a client that withholds a record should be closed"
    );
}

/// A client that withholds the end of a record is closed even while memory is sufficient.
#[test]
fn client_that_withholds_the_end_of_a_record_is_closed() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness);
    let id = client.open();
    assert_eq!(client.link.compose(id, &[5; 15_000]), 15_000);
    let batch = client.link.flush(harness.now).unwrap();
    let (first, rest) = batch.as_slice().split_at(14_000);
    harness.data(client.conn, &first[..13_999]);
    harness.advance(Duration::from_secs(6));
    harness.data(client.conn, &first[13_999..]);
    assert!(!harness.transport.record(client.conn).aborted, "the client should stay until the timeout");
    harness.advance(Duration::from_secs(5));
    assert!(
        harness.transport.record(client.conn).aborted,
        "a client that withholds {} bytes should be reset",
        rest.len()
    );
    assert_eq!(harness.relay.buffered_bytes(), 0);
    // A client that completes its records stays.
    let mut client = Client::new(&mut harness);
    let id = client.open();
    for _ in 0..5 {
        assert_eq!(client.link.compose(id, &[5; 15_000]), 15_000);
        let batch = client.link.flush(harness.now).unwrap();
        let (first, rest) = batch.as_slice().split_at(14_000);
        harness.data(client.conn, first);
        harness.advance(Duration::from_secs(4));
        harness.data(client.conn, rest);
    }
    assert!(
        !harness.transport.record(client.conn).aborted,
        "the client that completes its record should stay"
    );
}

fn frames(controls: impl IntoIterator<Item = Control>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for control in controls {
        control.emit(Id(1), &mut bytes);
    }
    bytes
}

/// The client requests connections that the helper refuses, and does not read the refusals.
#[test]
fn client_that_does_not_read_refusals_is_no_longer_read() {
    let mut harness = Harness::new(config());
    let mut other = Client::new(&mut harness);
    let mut flooder = Client::unencrypted(&mut harness);
    let id = flooder.open();
    flooder.link.close(id, CloseReason::Reset);
    drop(flooder.link.flush(harness.now));
    harness.transport.record(flooder.conn).room = 0;
    let foreign = Connect { client: "10.1.1.1:1".parse().unwrap(), server: None, credit: 0, session: None };
    let batch = frames((0..1000).map(|_| Control::Connect(foreign)));
    let (mut sent, mut rounds) = (0, 0);
    for _ in 0..1000 {
        while sent + batch.len() as u64 <= harness.transport.record(flooder.conn).granted {
            harness.data(flooder.conn, &batch);
            sent += batch.len() as u64;
            rounds += 1;
            assert!(rounds < 100, "the client that does not read should not be read without limit");
        }
        // The relay throttles a flood of control messages: let the allowance recover.
        jump_ahead(&mut harness, Duration::from_secs(2));
    }
    let held = harness.relay.buffered_bytes();
    assert!(held < 256 * 1024, "the relay should buffer little: {held} bytes");
    let id = other.open();
    other.link.compose(id, b"get x");
    other.exchange(&mut harness).unwrap();
    assert!(
        harness
            .exchange()
            .iter()
            .any(|observed| matches!(observed, Observed::Data(_, bytes) if bytes == b"get x")),
        "another client's request should be forwarded"
    );
    // When the client reads its refusals, the relay reads the client's requests again.
    let granted = harness.transport.record(flooder.conn).granted;
    harness.transport.record(flooder.conn).room = 1 << 20;
    harness.event(flooder.conn, Event::Room);
    assert!(harness.transport.record(flooder.conn).granted > granted, "the client should be read again");
    assert_eq!(harness.relay.buffered_bytes(), 0);
}

#[test]
fn repeated_credit_is_forwarded_once_in_a_batch() {
    let mut harness = Harness::new(config());
    let mut client = Client::unencrypted(&mut harness);
    client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    let before = harness.relay.status().services[0].traffic.bytes_sent;
    for round in 0..50 {
        let batch = frames((0..1000).map(|step| Control::Credit((1 << 20) + round * 1000 + step)));
        harness.transport.record(client.conn).granted += batch.len() as u64;
        harness.data(client.conn, &batch);
    }
    harness.exchange();
    let sent = harness.relay.status().services[0].traffic.bytes_sent - before;
    // One message of 15 bytes for each batch, in a record with a sealed length of 18 bytes and a tag of 16.
    assert!(
        sent <= 50 * (15 + 18 + 16),
        "each batch should have one credit message: {sent} bytes in 50 batches"
    );
    assert_eq!(harness.server.room(Id(1)), (1 << 20) + 49_999);
}

/// A flood of control messages is read at the pace of its client's allowance, and another client's requests at once.
#[test]
fn a_flood_of_control_messages_is_read_slowly_and_other_clients_at_once() {
    let mut harness = Harness::new(config());
    let mut flooder = Client::unencrypted(&mut harness);
    flooder.open();
    flooder.exchange(&mut harness).unwrap();
    let other = harness.client(0, "10.9.0.1:4000");
    harness.exchange();
    let empty = [1, 0, 0, 0, 0, 0, 1].repeat(512);
    let unknown = [1, 0, 1, 0, 0, 0, 9, b'x'].repeat(512);
    let credit = frames((0..512).map(|_| Control::Credit(1 << 20)));
    let mut sent = harness.transport.record(flooder.conn).granted - 64 * 1024;
    for flood in [empty, unknown, credit] {
        let (began_at, before) = (harness.now, sent);
        while harness.now < began_at + Duration::from_secs(10) {
            while harness.transport.record(flooder.conn).granted >= sent + flood.len() as u64 {
                harness.data(flooder.conn, &flood);
                sent += flood.len() as u64;
                assert!(sent - before < 1 << 20, "the flooder should be throttled");
            }
            jump_ahead(&mut harness, Duration::from_millis(20));
            harness.data(other, b"get x\r\n");
            let observed = harness.exchange();
            assert!(
                observed.contains(&Observed::Data(2, b"get x\r\n".to_vec())),
                "the other client's request should be forwarded at once: {observed:?}"
            );
        }
        // Reading a throttled client pauses for 1 s at most; then the client is granted 64 KiB.
        let read = sent - before;
        assert!(
            (100_000..11 * 65_536).contains(&read),
            "100,000 to 720,896 bytes should be read in ten seconds, not {read}"
        );
        assert!(!harness.transport.record(flooder.conn).aborted, "the flooder should not be reset");
    }
    // Data is not throttled.
    jump_ahead(&mut harness, Duration::from_secs(2));
    let bytes = [7; 60_000];
    let id = Id(1);
    for _ in 0..20 {
        assert_eq!(flooder.link.compose(id, &bytes), bytes.len());
        flooder.exchange(&mut harness).unwrap();
        harness.exchange();
        harness.server.consumed(Id(1), bytes.len()).unwrap();
        harness.exchange();
        flooder.exchange(&mut harness).unwrap();
    }
    assert_eq!(harness.relay.poll_timeout(), None, "the throttle timer should not run");
}

/// Data beyond the server's credit closes the connection at the helper, and is not relayed.
#[test]
fn data_over_credit_ends_at_the_helper() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 1000, ..Limits::default() });
    let mut client = Client::unencrypted(&mut harness);
    let id = client.open();
    assert_eq!(client.link.compose(id, &[1; 1000]), 1000);
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    let mut frame = vec![1, 0, 1];
    frame.extend_from_slice(&1_u32.to_be_bytes());
    frame.push(b'x');
    for _ in 0..100 {
        harness.data(client.conn, &frame);
    }
    let observed = harness.exchange();
    assert_eq!(observed, [Observed::Closed(1, CloseReason::OverCredit)]);
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed.last().map(String::as_str), Some("closed OverCredit"));
    assert_eq!(harness.relay.status().services[0].counters.connections_broken, 1);
    // The ids are free when both ends have closed.
    client.link.close(id, CloseReason::Normal);
    harness.server.close(Id(1), CloseReason::Normal);
    harness.exchange();
    assert_eq!(connections(&harness), 0);
    client.open();
    client.exchange(&mut harness).unwrap();
    assert!(
        matches!(harness.exchange()[..], [Observed::Connect(..)]),
        "the connection should reach the server"
    );
}

#[test]
fn drain_from_a_client_is_a_protocol_error() {
    let mut harness = Harness::new(config());
    let mut client = Client::unencrypted(&mut harness);
    client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.data(client.conn, &frames([Control::Drain { deadline_ms: 0 }]));
    assert!(harness.transport.record(client.conn).aborted, "the client should be reset");
    assert_eq!(harness.exchange(), [Observed::Closed(1, CloseReason::Reset)]);
}

/// Library clients that send only parts of long records are closed at the memory bound.
#[test]
fn incomplete_records_count_against_the_memory_limit() {
    let limit = 200_000;
    let mut harness = Harness::new(Config { memory_bytes_max: limit, ..config() });
    let mut complete = Client::new(&mut harness);
    let id = complete.open();
    let mut withholding = Vec::new();
    for _ in 0..40 {
        let mut client = Client::new(&mut harness);
        let id = client.open();
        client.link.compose(id, &[b'x'; 16_000]);
        let batch = client.link.flush(harness.now).unwrap();
        // The record's length and half of its bytes.
        harness.data(client.conn, &batch.as_slice()[..8_000]);
        assert!(
            harness.relay.status().buffered_bytes <= limit,
            "incomplete records should count against the memory limit: {}",
            harness.relay.status().buffered_bytes
        );
        withholding.push(client.conn);
    }
    let closed = withholding.iter().filter(|conn| harness.transport.record(**conn).aborted).count();
    // An incomplete record holds the memory of a whole one, 16,000 bytes: 12 of 40 fit 200,000.
    assert!((25..=30).contains(&closed), "25 to 30 of 40 clients should be closed, not {closed}");
    assert_eq!(harness.relay.status().services[0].counters.reset.memory, closed as u64);
    complete.link.compose(id, b"get x");
    complete.exchange(&mut harness).unwrap();
    assert!(
        harness
            .exchange()
            .iter()
            .any(|observed| matches!(observed, Observed::Data(_, bytes) if bytes == b"get x")),
        "another client's request should be forwarded"
    );
}
