//! Acknowledgements of plain clients are forwarded to a server that keeps their replies.

mod world;

use std::time::Duration;

use spillway_batch::{CloseReason, Id, Limits};
use spillway_relay::Config;
use spillway_transport::{Application, Event, LostReason};
use world::{Observed, World, config};

const CLIENT: &str = "10.1.0.7:5000";
const WINDOW: u32 = 1000;

fn keeping() -> Config {
    let mut config = config();
    config.services[0].acknowledges_replies = true;
    config
}

fn world() -> World {
    World::with_server(keeping(), Limits { window_bytes: WINDOW, kept_bytes_max: 1000, ..Limits::default() })
}

/// Offset and length of the replies that the server keeps.
fn kept(world: &World) -> Option<(u64, usize)> {
    world.server.unacknowledged(Id(1)).map(|all| (all.acknowledged, all.bytes.0.len() + all.bytes.1.len()))
}

/// Advances the time, and handles the timeouts that are due then.
fn pass(world: &mut World, ms: u64) {
    world.now = world.now + Duration::from_millis(ms);
    if world.relay.poll_timeout().is_some_and(|at| at <= world.now) {
        world.relay.handle_timeout(world.now, &mut world.transport);
        world.relay.end_of_turn(world.now, &mut world.transport);
    }
    world.exchange();
}

#[test]
fn the_server_keeps_replies_until_the_clients_tcp_has_acknowledged_them() {
    let mut world = world();
    let client = world.client(0, CLIENT);
    assert!(world.transport.record(client).watched);
    world.exchange();
    world.server.compose(Id(1), &[1; 300]);
    world.exchange();
    assert_eq!(kept(&world), Some((0, 300)), "sent, but not acknowledged");
    // A small acknowledgement is forwarded within 20 ms.
    world.event(client, Event::Acknowledged { through: 100 });
    world.event(client, Event::Acknowledged { through: 200 });
    world.exchange();
    assert_eq!(kept(&world), Some((0, 300)));
    pass(&mut world, 20);
    assert_eq!(kept(&world), Some((200, 100)));
    // An acknowledgement of half the window is forwarded at once.
    world.server.compose(Id(1), &[2; 900]);
    world.exchange();
    world.event(client, Event::Acknowledged { through: 700 });
    world.exchange();
    assert_eq!(kept(&world), Some((700, 500)));
}

#[test]
fn after_the_servers_close_the_last_replies_are_kept_until_the_client_has_them() {
    let mut world = world();
    let client = world.client(0, CLIENT);
    world.exchange();
    world.server.compose(Id(1), &[1; 300]);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert!(world.transport.record(client).finished);
    assert_eq!((kept(&world), world.server.connections()), (Some((0, 300)), 1));
    world.event(client, Event::Acknowledged { through: 150 });
    pass(&mut world, 20);
    assert_eq!(kept(&world), Some((150, 150)));
    world.event(client, Event::Acknowledged { through: 300 });
    assert_eq!(world.exchange(), [] as [Observed; 0], "the application has closed before");
    assert_eq!((kept(&world), world.server.connections()), (None, 0));
    world.event(client, Event::Lost(LostReason::Closed));
    assert_eq!(world.relay.status().services[0].links[0].connections, 0);
}

#[test]
fn the_connection_ends_when_the_client_is_lost_or_never_acknowledges_the_rest() {
    for is_lost in [true, false] {
        let mut world = world();
        let client = world.client(0, CLIENT);
        world.exchange();
        world.server.compose(Id(1), &[1; 300]);
        world.server.close(Id(1), CloseReason::Normal);
        world.exchange();
        if is_lost {
            world.event(client, Event::Lost(LostReason::Reset));
            world.exchange();
        } else {
            pass(&mut world, 10_000);
        }
        assert_eq!(world.server.connections(), 0);
        assert_eq!(world.relay.status().services[0].links[0].connections, 0);
    }
}

#[test]
fn a_lingering_client_gets_the_rest_although_its_link_is_lost() {
    let mut world = world();
    let client = world.client(0, CLIENT);
    world.exchange();
    world.transport.record(client).room = 100;
    world.server.compose(Id(1), &[1; 300]);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    let link = world.link;
    world.event(link, Event::Lost(LostReason::Reset));
    assert!(!world.transport.record(client).aborted);
    assert_eq!(world.transport.take(client).len(), 100);
    world.transport.record(client).room = 1000;
    world.event(client, Event::Room);
    assert_eq!(world.transport.take(client).len(), 200);
    assert!(world.transport.record(client).finished);
    // The client's acknowledgements do not affect a connection with the same id on the next link.
    world.link_comes_up(Limits { window_bytes: WINDOW, kept_bytes_max: 1000, ..Limits::default() });
    world.client(0, CLIENT);
    world.exchange();
    world.server.compose(Id(1), &[2; 400]);
    world.exchange();
    world.event(client, Event::Acknowledged { through: 300 });
    pass(&mut world, 20);
    assert_eq!(kept(&world), Some((0, 400)));
}

#[test]
fn replies_are_not_kept_by_default() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    world.server.compose(Id(1), b"reply");
    world.exchange();
    assert!(!world.transport.record(client).watched);
    assert_eq!(kept(&world), None);
}

#[test]
fn the_gate_follows_the_requests_that_the_server_has_taken() {
    let mut world = world();
    let client = world.client(0, CLIENT);
    world.exchange();
    assert_eq!(world.transport.record(client).released, 0, "the client has sent nothing");
    world.data(client, &[1; 300]);
    assert_eq!(world.transport.record(client).released, 0, "the server has not taken the request");
    world.exchange();
    assert_eq!(world.transport.record(client).released, 300);
    world.event(client, Event::Finished);
    world.exchange();
    assert_eq!(world.transport.record(client).released, 301, "the end counts one");
}

#[test]
fn without_reports_of_taken_requests_the_gate_is_open() {
    let mut world = World::with_server(config(), Limits::default());
    let client = world.client(0, CLIENT);
    assert_eq!(world.transport.record(client).released, u64::MAX);
}

#[test]
fn the_servers_close_opens_the_gate() {
    let mut world = world();
    let client = world.client(0, CLIENT);
    world.exchange();
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert_eq!(world.transport.record(client).released, u64::MAX);
}

#[test]
fn a_balancers_header_is_acknowledged_at_once_and_counts_before_requests() {
    let mut config = keeping();
    config.services[0].proxy_from = vec!["10.0.0.9".parse().unwrap()];
    let mut world = World::with_server(config, Limits::default());
    let client = world.client(0, "10.0.0.9:4000");
    let header = b"PROXY TCP4 10.9.0.7 10.0.0.2 5555 11211\r\n";
    world.data(client, header);
    let before = header.len() as u64;
    assert_eq!(world.transport.record(client).released, before);
    world.data(client, b"get x\r\n");
    world.exchange();
    assert_eq!(world.transport.record(client).released, before + 7);
}
