//! Connections and sessions from *connect* to the end: the relay rewrites ids, forwards credit, refuses foreign
//! addresses, and keeps an id in use until both ends have closed.

use spillway_batch::{CloseReason, Control, Id, KeyId, Kind, Limits, Opening, Reconnect, RefuseReason};
use spillway_transport::{Event, LostReason};
use spillway_wire::session::{Position, SessionId};

use crate::client::{CLIENT, Client, connections};
use crate::harness::{Harness, Observed, SERVER, config};

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
fn connects_with_a_foreign_address_or_server_are_refused() {
    let mut harness = Harness::new(config());
    for (client_address, server, reason) in [
        ("10.9.0.1:5001", None, "refused Forbidden"),
        ("10.9.0.9:5000", None, "refused Forbidden"),
        (CLIENT, Some("10.0.0.6:11411"), "refused UnknownServer"),
        (CLIENT, Some(SERVER), "accepted"),
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
