//! Plain clients, step by step.

mod world;

use core::time::Duration;

use spillway_batch::{CloseReason, Id, Limits, RefuseReason, Scratch};
use spillway_relay::{Config, LinkDown, LinkState, Notice, Refusal, ServiceConfig};
use spillway_transport::{Application, Event, HostLimit, LostReason, Time};
use world::{Heard, World, config};

const CLIENT: &str = "10.9.0.1:5000";

fn notices(world: &mut World) -> Vec<Notice> {
    std::iter::from_fn(|| world.relay.poll_notice()).collect()
}

#[test]
fn a_request_and_its_reply() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    assert_eq!(
        world.wires.line(client).granted,
        64 * 1024,
        "no more than a stalled link could leave with us"
    );
    world.data(client, b"get x\r\n");
    let heard = world.exchange();
    assert_eq!(heard, [Heard::Connect(1, CLIENT.parse().unwrap()), Heard::Data(1, b"get x\r\n".to_vec())]);
    world.server.accept(Id(1));
    assert_eq!(world.server.compose(Id(1), b"END\r\n"), 5);
    world.exchange();
    assert_eq!(world.wires.take(client), b"END\r\n");
    let status = world.relay.status();
    assert_eq!((status.clients, status.services[0].raw_clients), (1, 1));
    assert_eq!(status.services[0].traffic.messages_sent, 1);
    assert_eq!(status.services[0].links[0].state, LinkState::Up);
}

#[test]
fn messages_of_one_turn_share_a_batch() {
    let mut world = World::new(config());
    let clients: Vec<_> = (1..=10).map(|port| world.client(0, &format!("10.9.0.1:{port}"))).collect();
    world.exchange();
    let before = world.relay.status().services[0].traffic;
    for client in clients {
        let event = Event::Data { end: 0, bytes: b"get x\r\n" };
        world.relay.handle(world.now, client, event, &mut world.wires);
    }
    world.relay.end_of_turn(world.now, &mut world.wires);
    let after = world.relay.status().services[0].traffic;
    assert_eq!(after.batches_sent - before.batches_sent, 1);
    assert_eq!(after.messages_sent - before.messages_sent, 10);
    // One record: its sealed length, and its tag.
    assert_eq!(after.bytes_sent - before.bytes_sent, 10 * (7 + 7) + 18 + 16);
}

#[test]
fn both_ends_finish_and_the_id_is_free() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.data(client, b"quit");
    world.event(client, Event::Finished);
    let heard = world.exchange();
    assert_eq!(heard[2..], [Heard::Finished(1)]);
    world.server.compose(Id(1), b"bye");
    world.server.finish(Id(1));
    world.exchange();
    assert_eq!(world.wires.take(client), b"bye");
    assert!(world.wires.line(client).finished);
    world.event(client, Event::Lost(LostReason::Closed));
    assert_eq!(world.exchange(), [Heard::Closed(1, CloseReason::Normal)]);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    let status = world.relay.status();
    assert_eq!((status.clients, status.services[0].links[0].connections), (0, 0));
    assert_eq!(world.server.connections(), 0);
}

#[test]
fn a_close_by_the_server_delivers_what_is_left() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    world.wires.line(client).room = 4;
    world.server.compose(Id(1), b"0123456789");
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert_eq!(world.server.connections(), 0, "the relay has answered the close");
    assert_eq!(world.relay.client_statuses(None, 1).0[0].buffered, 6);
    assert_eq!(world.relay.buffered_bytes(), 256, "the smallest piece");
    assert!(!world.wires.line(client).finished);
    assert_eq!(world.wires.take(client), b"0123");
    world.wires.line(client).room = 100;
    world.event(client, Event::Room);
    assert!(world.wires.line(client).finished);
    assert_eq!(world.relay.buffered_bytes(), 0);
    world.data(client, b"too late");
    assert!(!world.wires.line(client).aborted, "what it got may still be under way");
    // It takes what it gets and never closes.
    assert_eq!(world.wires.take(client), b"456789");
    world.now = world.now + Duration::from_secs(10);
    assert!(world.relay.poll_timeout().is_some_and(|at| at <= world.now));
    world.relay.handle_timeout(world.now, &mut world.wires);
    assert!(world.wires.line(client).aborted);
    assert_eq!(world.relay.clients(), 0);
}

/// As a kernel answers who writes to a closed connection: one that only writes would notice nothing else.
#[test]
fn who_writes_after_the_server_s_close_is_reset_once_everything_has_arrived() {
    for early in [true, false] {
        let mut world = World::new(config());
        let client = world.client(0, CLIENT);
        world.exchange();
        world.server.compose(Id(1), b"+OK\r\n");
        world.server.close(Id(1), CloseReason::Normal);
        world.exchange();
        assert!(world.wires.line(client).finished && world.wires.line(client).watched);
        if early {
            world.data(client, b"written before it heard of the close");
            assert!(!world.wires.line(client).aborted, "a reset could overtake the last reply");
            world.event(client, Event::Acknowledged { through: 4 });
            assert!(!world.wires.line(client).aborted);
            world.event(client, Event::Acknowledged { through: 5 });
        } else {
            world.event(client, Event::Acknowledged { through: 5 });
            assert!(!world.wires.line(client).aborted, "it has done nothing wrong");
            world.data(client, b"written after it");
        }
        assert!(world.wires.line(client).aborted);
        assert_eq!(world.relay.clients(), 0);
    }
}

#[test]
fn one_whose_grant_is_used_up_is_still_heard_after_the_close() {
    let mut world = World::with_server(config(), Limits { window_bytes: 5, ..Limits::default() });
    let client = world.client(0, CLIENT);
    world.data(client, b"12345");
    world.exchange();
    assert_eq!(world.wires.line(client).granted, 5);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert_eq!(world.wires.line(client).granted, 6);
    world.data(client, b"6");
    assert!(world.wires.line(client).aborted);
}

/// What the host has taken may be far from the client: its TCP's acknowledgements tell.
#[test]
fn a_slow_client_may_take_its_time_after_the_servers_close() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    world.server.compose(Id(1), &[1; 10_000]);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert!(world.wires.line(client).finished && world.wires.line(client).watched);
    for through in [1000, 2000, 10_000, 10_000] {
        assert!(!world.wires.line(client).aborted);
        world.event(client, Event::Acknowledged { through });
        world.now = world.now + Duration::from_secs(10);
        world.relay.handle_timeout(world.now, &mut world.wires);
    }
    assert!(world.wires.line(client).aborted, "no progress in a whole period");
}

#[test]
fn a_reset_by_either_end_resets_the_other() {
    let mut world = World::new(config());
    let (first, second) = (world.client(0, CLIENT), world.client(0, "10.9.0.1:5001"));
    world.exchange();
    world.server.close(Id(1), CloseReason::Reset);
    world.exchange();
    assert!(world.wires.line(first).aborted && !world.wires.line(second).aborted);
    world.event(second, Event::Lost(LostReason::Reset));
    assert_eq!(world.exchange(), [Heard::Closed(2, CloseReason::Reset)]);
    world.server.close(Id(2), CloseReason::Reset);
    world.exchange();
    assert_eq!((world.relay.clients(), world.server.connections()), (0, 0));
}

#[test]
fn a_refusal_resets_the_client_and_says_why() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    world.server.refuse(Id(1), RefuseReason::Full);
    world.exchange();
    assert!(world.wires.line(client).aborted);
    let why = Refusal::Server(RefuseReason::Full);
    let expected = Notice::ClientRefused { service: 0, client: CLIENT.parse().unwrap(), why };
    assert_eq!(notices(&mut world).last(), Some(&expected));
    assert_eq!(world.relay.status().services[0].counters.refused.server, 1);
}

#[test]
fn clients_are_taken_by_address_and_number() {
    let mut world = World::new(Config { clients_max: 1, ..config() });
    let foreign = world.client(0, "8.8.8.8:1");
    assert!(world.wires.line(foreign).aborted);
    let mapped = world.client(0, "[::ffff:10.9.0.1]:7");
    assert!(!world.wires.line(mapped).aborted);
    let third = world.client(0, CLIENT);
    assert!(world.wires.line(third).aborted);
    let refused = world.relay.status().services[0].counters.refused;
    assert_eq!((refused.address, refused.clients_max, refused.total()), (1, 1, 2));
    assert_eq!(world.exchange(), [Heard::Connect(1, "10.9.0.1:7".parse().unwrap())]);
}

#[test]
fn clients_that_the_host_refuses_are_counted_for_their_service() {
    let mut world = World::new(config());
    for (limit, peers) in [(HostLimit::Connections, 1), (HostLimit::Descriptors, 40), (HostLimit::Memory, 2)]
    {
        world.relay.handle_refused(0, limit, peers);
        world.relay.handle_refused(u16::MAX, limit, peers);
    }
    let refused = world.relay.status().services[0].counters.refused;
    assert_eq!((refused.connection_table, refused.descriptors, refused.host_memory), (1, 40, 2));
    assert_eq!(refused.total(), 43, "nobody is counted who came in at no service");
}

/// The server's credit bounds what a client is granted; credit that comes opens it again.
#[test]
fn grants_follow_the_servers_credit() {
    let limits = Limits { window_bytes: 1000, ..Limits::default() };
    let mut world = World::with_server(config(), limits);
    let client = world.client(0, CLIENT);
    assert_eq!(world.wires.line(client).granted, 1000);
    world.data(client, &[b'x'; 600]);
    world.data(client, &[b'x'; 400]);
    world.exchange();
    assert_eq!(world.wires.line(client).granted, 1000, "credit is used up");
    world.server.consumed(Id(1), 700).unwrap();
    world.exchange();
    assert_eq!(world.wires.line(client).granted, 1700);
    world.data(client, &[b'x'; 700]);
    assert_eq!(world.exchange().len(), 1);
}

/// A link that takes nothing: the client's grant is used up and not renewed, and all is delivered in the end.
#[test]
fn a_stalled_link_stops_grants_and_loses_nothing() {
    let mut world = World::with_server(config(), Limits { window_bytes: 1 << 20, ..Limits::default() });
    let client = world.client(0, CLIENT);
    world.exchange();
    world.wires.line(world.link).room = 10;
    let mut sent = Vec::new();
    for piece in 0..16_u8 {
        let bytes = vec![piece; 4096];
        world.data(client, &bytes);
        sent.extend(bytes);
    }
    assert_eq!(world.wires.line(client).granted, 64 * 1024, "no grant while the link is stalled");
    let mut got = Vec::new();
    for _ in 0..100 {
        for heard in world.exchange() {
            if let Heard::Data(1, bytes) = heard {
                got.extend(bytes);
            }
        }
        world.wires.line(world.link).room = 5000;
        world.event(world.link, Event::Room);
    }
    assert_eq!(got, sent);
    assert_eq!(world.wires.line(client).granted, 128 * 1024);
}

/// A plain client that does not read is bounded by its window and harms nobody.
#[test]
fn a_client_that_does_not_read_is_bounded_by_its_window() {
    let mut world = World::new(Config { first_window_bytes: u32::MAX, ..config() });
    let (deaf, other) = (world.client(0, CLIENT), world.client(0, "10.9.0.1:5001"));
    world.exchange();
    world.wires.line(deaf).room = 0;
    let window = Limits::default().window_bytes as usize;
    let mut taken = 0;
    loop {
        let part = world.server.compose(Id(1), &vec![b'v'; window]);
        taken += part;
        if part == 0 {
            break;
        }
        world.exchange();
    }
    assert_eq!(taken, window);
    assert!((window..window + (16 << 10)).contains(&world.relay.buffered_bytes()));
    world.server.compose(Id(2), b"END\r\n");
    world.exchange();
    assert_eq!(world.wires.take(other), b"END\r\n");
    world.wires.line(deaf).room = window;
    world.event(deaf, Event::Room);
    world.exchange();
    assert_eq!(world.relay.buffered_bytes(), 0);
    assert!(world.server.compose(Id(1), b"more") == 4, "credit came back");
}

#[test]
fn a_lost_link_resets_its_clients_and_comes_back() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    notices(&mut world);
    world.event(world.link, Event::Lost(LostReason::Reset));
    assert!(world.wires.line(client).aborted);
    assert!(!world.wires.listening[&0]);
    let Some(Notice::LinkDown {
        why: LinkDown::Lost(LostReason::Reset),
        clients: 1,
        retry_in: Some(retry_in),
        ..
    }) = world.relay.poll_notice()
    else {
        panic!("the loss is told");
    };
    assert_eq!(world.relay.poll_timeout(), Some(world.now + retry_in));
    assert!(retry_in >= Duration::from_millis(25) && retry_in <= Duration::from_millis(50));
    let late = world.client(0, "10.9.0.1:5001");
    assert!(world.wires.line(late).aborted, "it came in before the listener closed");
    world.link_comes_up(Limits::default());
    let client = world.client(0, CLIENT);
    assert!(!world.wires.line(client).aborted);
    let counters = world.relay.status().services[0].counters;
    assert_eq!((counters.links_up, counters.links_lost, counters.lost_with_link), (2, 1, 1));
}

#[test]
fn a_server_that_does_not_answer_is_tried_again() {
    let mut world = World::new(config());
    world.event(world.link, Event::Finished);
    assert!(world.wires.line(world.link).aborted, "a link has no half");
    world.now = world.relay.poll_timeout().unwrap();
    world.relay.handle_timeout(world.now, &mut world.wires);
    let (first, _) = world.wires.connects.remove(0);
    world.now = world.relay.poll_timeout().unwrap();
    world.relay.handle_timeout(world.now, &mut world.wires);
    assert!(world.wires.line(first).aborted, "the connect timeout");
    world.now = world.relay.poll_timeout().unwrap();
    world.relay.handle_timeout(world.now, &mut world.wires);
    let (second, peer) = world.wires.connects.remove(0);
    world.event(second, Event::Opened { peer, listener: None });
    world.data(
        second,
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\nServer: none\r\n\r\n",
    );
    assert!(world.wires.line(second).aborted, "this is no link");
    let told: Vec<LinkDown> = notices(&mut world)
        .iter()
        .filter_map(|notice| if let Notice::LinkDown { why, .. } = notice { Some(*why) } else { None })
        .collect();
    assert!(matches!(told[..], [LinkDown::ClosedByServer, LinkDown::ConnectTimeout, LinkDown::Link(_)]));
}

#[test]
fn two_links_share_the_clients() {
    let base = config();
    let service = ServiceConfig { links: 2, ..base.services[0].clone() };
    let mut world = World::new(Config { services: vec![service], ..base });
    let first = world.link;
    world.link_comes_up(Limits::default());
    for port in 1..=4 {
        world.client(0, &format!("10.9.0.1:{port}"));
    }
    let connections: Vec<u32> =
        world.relay.status().services[0].links.iter().map(|link| link.connections).collect();
    assert_eq!(connections, [2, 2]);
    world.event(first, Event::Lost(LostReason::TimedOut));
    assert!(world.wires.listening[&0], "one link is left");
    assert_eq!(world.relay.clients(), 2);
}

#[test]
fn a_drain_ends_when_the_clients_are_gone_or_its_time_is_up() {
    for leave in [true, false] {
        let mut world = World::new(config());
        let client = world.client(0, CLIENT);
        world.exchange();
        world.relay.drain(world.now, Duration::from_secs(30), &mut world.wires);
        assert!(!world.wires.listening[&0]);
        assert!(world.relay.is_draining() && !world.relay.is_drained());
        world.data(client, b"still served");
        assert_eq!(world.exchange().len(), 1);
        if leave {
            world.event(client, Event::Lost(LostReason::Closed));
        } else {
            assert_eq!(world.relay.poll_timeout(), Some(world.now + Duration::from_secs(30)));
            world.now = world.now + Duration::from_secs(30);
            world.relay.handle_timeout(world.now, &mut world.wires);
            world.relay.end_of_turn(world.now, &mut world.wires);
            assert!(world.wires.line(client).aborted);
        }
        assert!(world.relay.is_drained() && world.wires.line(world.link).finished);
        let last = world.wires.take(world.link);
        let mut scratch = Scratch::new();
        let mut input = world.server.unseal(world.now, &last, &mut scratch);
        assert!(world.server.decompose(world.now, &mut input).unwrap().is_some(), "the close is told");
        assert_eq!(world.relay.poll_timeout(), None);
    }
}

#[test]
fn the_first_timeout_is_due_at_once() {
    let relay = spillway_relay::Relay::new(config(), Box::new(|bytes| bytes.fill(0))).unwrap();
    assert_eq!(relay.poll_timeout(), Some(Time::ZERO));
}

#[test]
fn what_a_client_s_tcp_acknowledges_is_passed_on_where_that_is_wanted() {
    let base = config();
    let service = ServiceConfig { acknowledges_replies: true, ..base.services[0].clone() };
    let mut world = World::new(Config::new(vec![service]));
    let client = world.client(0, CLIENT);
    assert!(world.wires.line(client).watched);
    world.exchange();
    let kept = |world: &World| {
        let all = world.server.unacknowledged(Id(1)).unwrap();
        (all.acknowledged, [all.bytes.0, all.bytes.1].concat())
    };
    assert_eq!(kept(&world), (0, Vec::new()));
    world.server.accept(Id(1));
    world.server.compose(Id(1), b"first second");
    world.exchange();
    assert_eq!(kept(&world), (0, b"first second".to_vec()), "the host has it, the client has not");
    for (through, left) in [(6, "second"), (12, "")] {
        world.event(client, Event::Acknowledged { through });
        // Little at a time is told within 20 ms.
        world.now = world.now + Duration::from_millis(20);
        world.relay.handle_timeout(world.now, &mut world.wires);
        world.relay.end_of_turn(world.now, &mut world.wires);
        world.exchange();
        assert_eq!(kept(&world), (through, left.as_bytes().to_vec()));
    }
}

#[test]
fn nobody_watches_acknowledgements_otherwise() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    assert!(!world.wires.line(client).watched && world.server.unacknowledged(Id(1)).is_none());
}
