//! Clients behind a load balancer that sends PROXY headers.

mod world;

use core::time::Duration;

use spillway_relay::{ClientKind, Config, Drained, Notice, ProxyFault, Refusal};
use spillway_transport::{Application, Conn, Event, LostReason};
use spillway_wire::ProxyError;
use world::{Observed, World, config};

const BALANCER: &str = "10.0.0.9:4000";
const LINE: &str = "PROXY TCP4 10.9.0.7 10.0.0.2 5555 11211\r\n";

fn with_balancer() -> Config {
    let mut config = config();
    config.services[0].proxy_from = vec!["10.0.0.9".parse().unwrap()];
    config
}

fn world() -> World {
    World::new(with_balancer())
}

fn refusals(world: &mut World) -> Vec<Refusal> {
    let of = |notice| match notice {
        Notice::ClientRefused { why, .. } => Some(why),
        _ => None,
    };
    std::iter::from_fn(|| world.relay.poll_notice()).filter_map(of).collect()
}

fn balancer(world: &mut World) -> Conn {
    world.client(0, BALANCER)
}

#[test]
fn the_server_sees_the_announced_address() {
    let mut world = world();
    let conn = balancer(&mut world);
    assert_eq!(world.transport.record(conn).granted, 4096, "the maximum of a header");
    assert_eq!(world.relay.client_statuses(None, 9).0[0].kind, ClientKind::Announcing);
    assert_eq!(world.exchange(), [], "no connection before the header");
    // The last bytes of the header arrive together with a request.
    let bytes = format!("{LINE}get x\r\n");
    let (head, tail) = bytes.as_bytes().split_at(20);
    world.data(conn, head);
    assert_eq!(world.exchange(), []);
    world.data(conn, tail);
    let client = "10.9.0.7:5555".parse().unwrap();
    assert_eq!(world.exchange(), [Observed::Connect(1, client), Observed::Data(1, b"get x\r\n".to_vec())]);
    let (clients, total) = world.relay.client_statuses(Some("cache"), 9);
    assert_eq!((clients[0].client, clients[0].via, total), (client, Some(BALANCER.parse().unwrap()), 1));
    assert_eq!((clients[0].bytes_in, clients[0].kind), (7, ClientKind::Plain));
    let status = world.relay.status();
    assert_eq!((status.clients, status.services[0].counters.announced), (1, 1));
    assert_eq!(status.services[0].counters.requests.bytes, 7, "the header does not count as requests");
}

#[test]
fn a_header_without_an_address_announces_the_balancers_own() {
    let mut world = world();
    let conn = balancer(&mut world);
    world.data(conn, b"PROXY UNKNOWN\r\n");
    assert_eq!(world.exchange(), [Observed::Connect(1, BALANCER.parse().unwrap())]);
    assert_eq!(world.relay.client_statuses(None, 9).0[0].via, None);
}

#[test]
fn a_header_from_an_untrusted_peer_is_a_request() {
    let mut world = world();
    let other = world.client(0, "10.0.0.8:4000");
    world.data(other, LINE.as_bytes());
    let connect = Observed::Connect(1, "10.0.0.8:4000".parse().unwrap());
    assert_eq!(world.exchange(), [connect, Observed::Data(1, LINE.as_bytes().to_vec())]);
}

#[test]
fn announced_addresses_must_be_allowed() {
    for address in ["TCP4 8.8.8.8", "TCP4 0.0.0.0", "TCP4 224.0.0.1", "TCP4 10.0.0.5", "TCP6 ::ffff:10.0.0.5"]
    {
        let mut world = world();
        let conn = balancer(&mut world);
        let target = if address.starts_with("TCP4") { "10.0.0.2" } else { "::1" };
        world.data(conn, format!("PROXY {address} {target} 5555 11211\r\nget x\r\n").as_bytes());
        assert_eq!(world.exchange(), [], "{address}");
        assert!(world.transport.record(conn).aborted, "{address}");
        assert_eq!(refusals(&mut world), [Refusal::Address], "{address}");
        assert_eq!(world.relay.clients(), 0);
    }
}

#[test]
fn a_trusted_balancer_must_send_a_valid_header_in_time() {
    for (bytes, why) in [
        (&b"get x\r\n"[..], ProxyFault::Header(ProxyError::Signature)),
        (b"PROXY TCP4 nobody\r\n", ProxyFault::Header(ProxyError::Line)),
        (&[b'P'; 1], ProxyFault::TimedOut),
        (&[], ProxyFault::TimedOut),
        (b"PROXY TCP4 10.9", ProxyFault::Ended),
    ] {
        let mut world = world();
        let conn = balancer(&mut world);
        if !bytes.is_empty() {
            world.data(conn, bytes);
        }
        match why {
            ProxyFault::TimedOut => {
                let due = world.relay.poll_timeout().expect("the timeout of the header");
                assert_eq!(due, world.now + Duration::from_secs(5));
                world.relay.handle_timeout(due, &mut world.transport);
            }
            ProxyFault::Ended => world.event(conn, Event::Finished),
            ProxyFault::Header(_) => {}
        }
        assert!(world.transport.record(conn).aborted, "{why}");
        assert_eq!(refusals(&mut world), [Refusal::ProxyHeader(why)]);
        let status = world.relay.status();
        assert_eq!((status.clients, status.services[0].counters.refused.proxy_header), (0, 1));
    }
}

#[test]
fn incomplete_headers_count_against_the_memory_bound() {
    let mut config = with_balancer();
    config.memory_bytes_max = 50;
    let mut world = World::new(config);
    let (first, second) = (balancer(&mut world), balancer(&mut world));
    world.data(first, &LINE.as_bytes()[..20]);
    assert!((20..=50).contains(&world.relay.buffered_bytes()));
    assert_eq!(world.relay.client_statuses(None, 9).0[0].buffered, 20);
    world.data(second, &LINE.as_bytes()[..40]);
    assert!(world.transport.record(second).aborted, "the second connection holds most");
    assert!(world.relay.buffered_bytes() <= 50);
    world.data(first, &LINE.as_bytes()[20..]);
    assert_eq!((world.relay.clients(), world.relay.buffered_bytes()), (1, 0));
}

#[test]
fn a_client_announced_during_a_drain_counts_as_failed() {
    let mut world = world();
    let conn = balancer(&mut world);
    assert!(world.relay.drain_service(world.now, "cache", Duration::from_secs(9), &mut world.transport));
    world.data(conn, LINE.as_bytes());
    assert_eq!(refusals(&mut world), [Refusal::Draining]);
    let failed = Drained { failed: 1, ..Drained::default() };
    assert_eq!(world.relay.status().services[0].drained, Some(failed));
}

#[test]
fn a_health_check_of_the_port_is_not_rejected() {
    let mut world = world();
    let conn = balancer(&mut world);
    world.event(conn, Event::Finished);
    world.event(conn, Event::Lost(LostReason::Closed));
    let conn = balancer(&mut world);
    world.event(conn, Event::Lost(LostReason::Reset));
    assert_eq!((refusals(&mut world), world.relay.clients()), (vec![], 0));
    assert_eq!(world.relay.status().services[0].counters.refused.total(), 0);
}
