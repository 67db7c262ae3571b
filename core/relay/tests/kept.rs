//! Acknowledgements of plain clients, passed on to a server that keeps their replies.

mod world;

use std::time::Duration;

use spillway_batch::{CloseReason, Id, Limits};
use spillway_relay::Config;
use spillway_transport::{Application, Event, LostReason};
use world::{Heard, World, config};

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

/// From which offset on the server keeps how much.
fn kept(world: &World) -> Option<(u64, usize)> {
    world.server.unacknowledged(Id(1)).map(|all| (all.acknowledged, all.bytes.0.len() + all.bytes.1.len()))
}

/// The relay's timers that are due by then.
fn pass(world: &mut World, ms: u64) {
    world.now = world.now + Duration::from_millis(ms);
    if world.relay.poll_timeout().is_some_and(|at| at <= world.now) {
        world.relay.handle_timeout(world.now, &mut world.wires);
        world.relay.end_of_turn(world.now, &mut world.wires);
    }
    world.exchange();
}

#[test]
fn the_server_lets_go_what_the_clients_tcp_has() {
    let mut world = world();
    let client = world.client(0, CLIENT);
    assert!(world.wires.line(client).watched);
    world.exchange();
    world.server.compose(Id(1), &[1; 300]);
    world.exchange();
    assert_eq!(kept(&world), Some((0, 300)), "sent to the client is not enough");
    // A little of it: told within 20 ms.
    world.event(client, Event::Acknowledged { through: 100 });
    world.event(client, Event::Acknowledged { through: 200 });
    world.exchange();
    assert_eq!(kept(&world), Some((0, 300)));
    pass(&mut world, 20);
    assert_eq!(kept(&world), Some((200, 100)));
    // Half of what the server keeps: told at once.
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
    assert!(world.wires.line(client).finished);
    assert_eq!((kept(&world), world.server.connections()), (Some((0, 300)), 1));
    world.event(client, Event::Acknowledged { through: 150 });
    pass(&mut world, 20);
    assert_eq!(kept(&world), Some((150, 150)));
    world.event(client, Event::Acknowledged { through: 300 });
    assert_eq!(world.exchange(), [] as [Heard; 0], "the application has closed long ago");
    assert_eq!((kept(&world), world.server.connections()), (None, 0));
    world.event(client, Event::Lost(LostReason::Closed));
    assert_eq!(world.relay.status().services[0].links[0].connections, 0);
}

#[test]
fn a_client_that_is_lost_or_never_takes_the_rest_leaves_nothing_behind() {
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
fn a_client_that_leaves_gets_the_rest_although_its_link_is_lost() {
    let mut world = world();
    let client = world.client(0, CLIENT);
    world.exchange();
    world.wires.line(client).room = 100;
    world.server.compose(Id(1), &[1; 300]);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    let link = world.link;
    world.event(link, Event::Lost(LostReason::Reset));
    assert!(!world.wires.line(client).aborted);
    assert_eq!(world.wires.take(client).len(), 100);
    world.wires.line(client).room = 1000;
    world.event(client, Event::Room);
    assert_eq!(world.wires.take(client).len(), 200);
    assert!(world.wires.line(client).finished);
    // The next link's connections are not meant by what it acknowledges.
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
fn nothing_is_watched_or_kept_where_nobody_asked() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    world.server.compose(Id(1), b"reply");
    world.exchange();
    assert!(!world.wires.line(client).watched);
    assert_eq!(kept(&world), None);
}

#[test]
fn a_clients_gate_opens_as_the_server_takes_its_requests() {
    let mut world = world();
    let client = world.client(0, CLIENT);
    world.exchange();
    assert_eq!(world.wires.line(client).released, 0, "nothing has come");
    world.data(client, &[1; 300]);
    assert_eq!(world.wires.line(client).released, 0, "the server does not have it yet");
    world.exchange();
    assert_eq!(world.wires.line(client).released, 300);
    world.event(client, Event::Finished);
    world.exchange();
    assert_eq!(world.wires.line(client).released, 301, "the end counts one");
}

#[test]
fn where_nobody_tells_what_is_taken_the_gate_is_open() {
    let mut world = World::with_server(config(), Limits::default());
    let client = world.client(0, CLIENT);
    assert_eq!(world.wires.line(client).released, u64::MAX);
}

#[test]
fn a_server_that_has_closed_opens_the_gate() {
    let mut world = world();
    let client = world.client(0, CLIENT);
    world.exchange();
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert_eq!(world.wires.line(client).released, u64::MAX);
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
    assert_eq!(world.wires.line(client).released, before);
    world.data(client, b"get x\r\n");
    world.exchange();
    assert_eq!(world.wires.line(client).released, before + 7);
}
