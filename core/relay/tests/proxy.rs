//! Clients behind a load balancer that sends PROXY headers.

mod harness;

use core::time::Duration;

use harness::{Harness, Observed, config};
use spillway_relay::{ClientKind, Config, Drained, Notice, ProxyFault, Refusal};
use spillway_transport::{Application, Conn, Event, LostReason};
use spillway_wire::ProxyError;

const BALANCER: &str = "10.0.0.9:4000";
const HEADER: &str = "PROXY TCP4 10.9.0.7 10.0.0.2 5555 11211\r\n";

fn with_balancer() -> Config {
    let mut config = config();
    config.services[0].proxy_from = vec!["10.0.0.9".parse().unwrap()];
    config
}

fn harness() -> Harness {
    Harness::new(with_balancer())
}

fn refusals(harness: &mut Harness) -> Vec<Refusal> {
    let refusal = |notice| match notice {
        Notice::ClientRefused { why, .. } => Some(why),
        _ => None,
    };
    std::iter::from_fn(|| harness.relay.poll_notice()).filter_map(refusal).collect()
}

fn connect_balancer(harness: &mut Harness) -> Conn {
    harness.client(0, BALANCER)
}

#[test]
fn server_gets_the_announced_address() {
    let mut harness = harness();
    let conn = connect_balancer(&mut harness);
    assert_eq!(
        harness.transport.record(conn).granted,
        4096,
        "the grant should be the maximum length of a header"
    );
    assert_eq!(harness.relay.client_statuses(None, 9).0[0].kind, ClientKind::AwaitingHeader);
    assert_eq!(harness.exchange(), [], "the relay should open no connection before the header");
    // The last bytes of the header arrive together with a request.
    let bytes = format!("{HEADER}get x\r\n");
    let (head, tail) = bytes.as_bytes().split_at(20);
    harness.data(conn, head);
    assert_eq!(harness.exchange(), []);
    harness.data(conn, tail);
    let client = "10.9.0.7:5555".parse().unwrap();
    assert_eq!(harness.exchange(), [Observed::Connect(1, client), Observed::Data(1, b"get x\r\n".to_vec())]);
    let (clients, total) = harness.relay.client_statuses(Some("cache"), 9);
    assert_eq!(
        (clients[0].client, clients[0].via, total),
        (client, Some(BALANCER.parse().unwrap()), 1),
        "the announced client should be listed with its balancer"
    );
    assert_eq!((clients[0].bytes_in, clients[0].kind), (7, ClientKind::Plain));
    let status = harness.relay.status();
    assert_eq!(
        (status.clients, status.services[0].counters.announced),
        (1, 1),
        "one announced client should be counted"
    );
    assert_eq!(status.services[0].counters.requests.bytes, 7, "the header should not count as requests");
}

#[test]
fn header_without_an_address_announces_the_balancers_own() {
    let mut harness = harness();
    let conn = connect_balancer(&mut harness);
    harness.data(conn, b"PROXY UNKNOWN\r\n");
    assert_eq!(harness.exchange(), [Observed::Connect(1, BALANCER.parse().unwrap())]);
    assert_eq!(harness.relay.client_statuses(None, 9).0[0].via, None);
}

#[test]
fn header_from_an_untrusted_peer_is_forwarded_as_a_request() {
    let mut harness = harness();
    let other = harness.client(0, "10.0.0.8:4000");
    harness.data(other, HEADER.as_bytes());
    let connect = Observed::Connect(1, "10.0.0.8:4000".parse().unwrap());
    assert_eq!(harness.exchange(), [connect, Observed::Data(1, HEADER.as_bytes().to_vec())]);
}

#[test]
fn announced_addresses_must_be_allowed() {
    for address in ["TCP4 8.8.8.8", "TCP4 0.0.0.0", "TCP4 224.0.0.1", "TCP4 10.0.0.5", "TCP6 ::ffff:10.0.0.5"]
    {
        let mut harness = harness();
        let conn = connect_balancer(&mut harness);
        let destination = if address.starts_with("TCP4") { "10.0.0.2" } else { "::1" };
        harness.data(conn, format!("PROXY {address} {destination} 5555 11211\r\nget x\r\n").as_bytes());
        assert_eq!(harness.exchange(), [], "a request announced from {address} should not be forwarded");
        assert!(
            harness.transport.record(conn).aborted,
            "the connection announced from {address} should be reset"
        );
        assert_eq!(
            refusals(&mut harness),
            [Refusal::Address],
            "the announced address {address} should be counted as refused"
        );
        assert_eq!(harness.relay.clients(), 0);
    }
}

#[test]
fn trusted_balancer_without_a_valid_header_in_time_is_reset() {
    for (bytes, why) in [
        (&b"get x\r\n"[..], ProxyFault::Header(ProxyError::Signature)),
        (b"PROXY TCP4 nobody\r\n", ProxyFault::Header(ProxyError::Line)),
        (&[b'P'; 1], ProxyFault::TimedOut),
        (&[], ProxyFault::TimedOut),
        (b"PROXY TCP4 10.9", ProxyFault::Ended),
    ] {
        let mut harness = harness();
        let conn = connect_balancer(&mut harness);
        if !bytes.is_empty() {
            harness.data(conn, bytes);
        }
        match why {
            ProxyFault::TimedOut => {
                let due = harness.relay.poll_timeout().expect("the header should have a timeout");
                assert_eq!(due, harness.now + Duration::from_secs(5));
                harness.relay.handle_timeout(due, &mut harness.transport);
            }
            ProxyFault::Ended => harness.event(conn, Event::Finished),
            ProxyFault::Header(_) => {}
        }
        assert!(harness.transport.record(conn).aborted, "the balancer's connection should be reset: {why}");
        assert_eq!(refusals(&mut harness), [Refusal::ProxyHeader(why)]);
        let status = harness.relay.status();
        assert_eq!(
            (status.clients, status.services[0].counters.refused.proxy_header),
            (0, 1),
            "the connection should be counted as refused"
        );
    }
}

#[test]
fn incomplete_headers_count_against_the_memory_bound() {
    let mut config = with_balancer();
    config.memory_bytes_max = 50;
    let mut harness = Harness::new(config);
    let (first, second) = (connect_balancer(&mut harness), connect_balancer(&mut harness));
    harness.data(first, &HEADER.as_bytes()[..20]);
    assert!((20..=50).contains(&harness.relay.buffered_bytes()), "the incomplete headers should count");
    assert_eq!(harness.relay.client_statuses(None, 9).0[0].buffered, 20);
    harness.data(second, &HEADER.as_bytes()[..40]);
    assert!(
        harness.transport.record(second).aborted,
        "the connection that holds most memory should be reset"
    );
    assert!(harness.relay.buffered_bytes() <= 50, "the headers should be within the bound");
    harness.data(first, &HEADER.as_bytes()[20..]);
    assert_eq!(
        (harness.relay.clients(), harness.relay.buffered_bytes()),
        (1, 0),
        "the announced client should be connected"
    );
}

#[test]
fn client_announced_during_a_drain_counts_as_failed() {
    let mut harness = harness();
    let conn = connect_balancer(&mut harness);
    assert!(
        harness.relay.drain_service(harness.now, "cache", Duration::from_secs(9), &mut harness.transport),
        "the drain should begin"
    );
    harness.data(conn, HEADER.as_bytes());
    assert_eq!(refusals(&mut harness), [Refusal::Draining]);
    let failed = Drained { failed: 1, ..Drained::default() };
    assert_eq!(harness.relay.status().services[0].drained, Some(failed));
}

#[test]
fn health_check_of_the_port_is_not_counted_as_rejected() {
    let mut harness = harness();
    let conn = connect_balancer(&mut harness);
    harness.event(conn, Event::Finished);
    harness.event(conn, Event::Lost(LostReason::Closed));
    let conn = connect_balancer(&mut harness);
    harness.event(conn, Event::Lost(LostReason::Reset));
    assert_eq!((refusals(&mut harness), harness.relay.clients()), (vec![], 0));
    assert_eq!(harness.relay.status().services[0].counters.refused.total(), 0);
}
