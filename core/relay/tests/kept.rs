//! Plain clients of a server that keeps replies until the clients' TCP has acknowledged them.

mod harness;

use std::time::Duration;

use harness::{Harness, Observed, config};
use spillway_batch::{CloseReason, Id, Limits};
use spillway_relay::Config;
use spillway_transport::{Application, Event, LostReason};

const CLIENT: &str = "10.1.0.7:5000";
const WINDOW: u32 = 1000;

fn config_with_kept_replies() -> Config {
    let mut config = config();
    config.services[0].acknowledges_replies = true;
    config
}

fn harness() -> Harness {
    Harness::with_server(
        config_with_kept_replies(),
        Limits { window_bytes: WINDOW, kept_bytes_max: 1000, ..Limits::default() },
    )
}

/// Offset and length of the replies that the server keeps.
fn kept(harness: &Harness) -> Option<(u64, usize)> {
    harness.server.unacknowledged(Id(1)).map(|all| (all.acknowledged, all.bytes.0.len() + all.bytes.1.len()))
}

/// Advances the time, and handles the timeouts that are due then.
fn advance_ms(harness: &mut Harness, ms: u64) {
    harness.now = harness.now + Duration::from_millis(ms);
    if harness.relay.poll_timeout().is_some_and(|at| at <= harness.now) {
        harness.relay.handle_timeout(harness.now, &mut harness.transport);
        harness.relay.end_of_turn(harness.now, &mut harness.transport);
    }
    harness.exchange();
}

#[test]
fn replies_are_kept_until_the_clients_tcp_has_acknowledged_them() {
    let mut harness = harness();
    let client = harness.client(0, CLIENT);
    assert!(harness.transport.record(client).watched, "the client's acknowledgements should be watched");
    harness.exchange();
    harness.server.compose(Id(1), &[1; 300]);
    harness.exchange();
    assert_eq!(kept(&harness), Some((0, 300)), "the server should keep replies that are not acknowledged");
    // A small acknowledgement is forwarded within 20 ms.
    harness.event(client, Event::Acknowledged { through: 100 });
    harness.event(client, Event::Acknowledged { through: 200 });
    harness.exchange();
    assert_eq!(kept(&harness), Some((0, 300)));
    advance_ms(&mut harness, 20);
    assert_eq!(kept(&harness), Some((200, 100)));
    // An acknowledgement of half the window is forwarded at once.
    harness.server.compose(Id(1), &[2; 900]);
    harness.exchange();
    harness.event(client, Event::Acknowledged { through: 700 });
    harness.exchange();
    assert_eq!(kept(&harness), Some((700, 500)));
}

#[test]
fn last_replies_are_kept_after_the_servers_close() {
    let mut harness = harness();
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.server.compose(Id(1), &[1; 300]);
    harness.server.close(Id(1), CloseReason::Normal);
    harness.exchange();
    assert!(harness.transport.record(client).finished, "the client should get the end");
    assert_eq!(
        (kept(&harness), harness.server.connections()),
        (Some((0, 300)), 1),
        "the last replies should be kept"
    );
    harness.event(client, Event::Acknowledged { through: 150 });
    advance_ms(&mut harness, 20);
    assert_eq!(kept(&harness), Some((150, 150)));
    harness.event(client, Event::Acknowledged { through: 300 });
    assert_eq!(
        harness.exchange(),
        [] as [Observed; 0],
        "the server's application has closed and should get no event"
    );
    assert_eq!((kept(&harness), harness.server.connections()), (None, 0), "the connection should be gone");
    harness.event(client, Event::Lost(LostReason::Closed));
    assert_eq!(harness.relay.status().services[0].links[0].connections, 0);
}

#[test]
fn connection_ends_when_the_client_is_lost_or_does_not_acknowledge() {
    for is_lost in [true, false] {
        let mut harness = harness();
        let client = harness.client(0, CLIENT);
        harness.exchange();
        harness.server.compose(Id(1), &[1; 300]);
        harness.server.close(Id(1), CloseReason::Normal);
        harness.exchange();
        if is_lost {
            harness.event(client, Event::Lost(LostReason::Reset));
            harness.exchange();
        } else {
            advance_ms(&mut harness, 10_000);
        }
        assert_eq!(harness.server.connections(), 0);
        assert_eq!(harness.relay.status().services[0].links[0].connections, 0);
    }
}

#[test]
fn lingering_client_gets_the_rest_although_its_link_is_lost() {
    let mut harness = harness();
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.transport.record(client).room = 100;
    harness.server.compose(Id(1), &[1; 300]);
    harness.server.close(Id(1), CloseReason::Normal);
    harness.exchange();
    let link = harness.link;
    harness.event(link, Event::Lost(LostReason::Reset));
    assert!(!harness.transport.record(client).aborted, "the client should not be reset");
    assert_eq!(harness.transport.take(client).len(), 100);
    harness.transport.record(client).room = 1000;
    harness.event(client, Event::Room);
    assert_eq!(harness.transport.take(client).len(), 200);
    assert!(harness.transport.record(client).finished, "the client should get the end");
    // The client's acknowledgements do not affect a connection with the same id on the next link.
    harness.bring_link_up(Limits { window_bytes: WINDOW, kept_bytes_max: 1000, ..Limits::default() });
    harness.client(0, CLIENT);
    harness.exchange();
    harness.server.compose(Id(1), &[2; 400]);
    harness.exchange();
    harness.event(client, Event::Acknowledged { through: 300 });
    advance_ms(&mut harness, 20);
    assert_eq!(kept(&harness), Some((0, 400)));
}

#[test]
fn replies_are_not_kept_by_default() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.server.compose(Id(1), b"reply");
    harness.exchange();
    assert!(!harness.transport.record(client).watched, "acknowledgements should not be watched");
    assert_eq!(kept(&harness), None);
}

#[test]
fn gate_opens_up_to_the_requests_that_the_server_has_taken() {
    let mut harness = harness();
    let client = harness.client(0, CLIENT);
    harness.exchange();
    assert_eq!(
        harness.transport.record(client).released,
        0,
        "nothing should be released before the client has sent a request"
    );
    harness.data(client, &[1; 300]);
    assert_eq!(
        harness.transport.record(client).released,
        0,
        "a request should be released only when the server has taken it"
    );
    harness.exchange();
    assert_eq!(harness.transport.record(client).released, 300);
    harness.event(client, Event::Finished);
    harness.exchange();
    assert_eq!(
        harness.transport.record(client).released,
        301,
        "the end of the stream should count as one byte"
    );
}

#[test]
fn gate_is_open_if_the_server_does_not_report_taken_requests() {
    let mut harness = Harness::with_server(config(), Limits::default());
    let client = harness.client(0, CLIENT);
    assert_eq!(harness.transport.record(client).released, u64::MAX);
}

#[test]
fn servers_close_opens_the_gate() {
    let mut harness = harness();
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.server.close(Id(1), CloseReason::Normal);
    harness.exchange();
    assert_eq!(harness.transport.record(client).released, u64::MAX);
}

#[test]
fn proxy_header_passes_the_gate_and_precedes_the_requests() {
    let mut config = config_with_kept_replies();
    config.services[0].proxy_from = vec!["10.0.0.9".parse().unwrap()];
    let mut harness = Harness::with_server(config, Limits::default());
    let client = harness.client(0, "10.0.0.9:4000");
    let header = b"PROXY TCP4 10.9.0.7 10.0.0.2 5555 11211\r\n";
    harness.data(client, header);
    let header_bytes = header.len() as u64;
    assert_eq!(harness.transport.record(client).released, header_bytes);
    harness.data(client, b"get x\r\n");
    harness.exchange();
    assert_eq!(harness.transport.record(client).released, header_bytes + 7);
}
