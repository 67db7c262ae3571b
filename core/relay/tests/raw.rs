//! Plain clients.

mod world;

use core::time::Duration;

use spillway_batch::{CloseReason, Id, Limits, RefuseReason, Scratch};
use spillway_relay::{Config, LinkDown, LinkState, Notice, Refusal, ServiceConfig};
use spillway_transport::{Application, Event, HostLimit, LostReason, Time};
use world::{Observed, World, config};

const CLIENT: &str = "10.9.0.1:5000";

fn notices(world: &mut World) -> Vec<Notice> {
    std::iter::from_fn(|| world.relay.poll_notice()).collect()
}

#[test]
fn a_request_and_its_reply() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    assert_eq!(
        world.transport.record(client).granted,
        64 * 1024,
        "at most what the relay can buffer when the link stalls"
    );
    world.data(client, b"get x\r\n");
    let observed = world.exchange();
    assert_eq!(
        observed,
        [Observed::Connect(1, CLIENT.parse().unwrap()), Observed::Data(1, b"get x\r\n".to_vec())]
    );
    world.server.accept(Id(1));
    assert_eq!(world.server.compose(Id(1), b"END\r\n"), 5);
    world.exchange();
    assert_eq!(world.transport.take(client), b"END\r\n");
    let status = world.relay.status();
    assert_eq!((status.clients, status.services[0].plain_clients), (1, 1));
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
        world.relay.handle(world.now, client, event, &mut world.transport);
    }
    world.relay.end_of_turn(world.now, &mut world.transport);
    let after = world.relay.status().services[0].traffic;
    assert_eq!(after.batches_sent - before.batches_sent, 1);
    assert_eq!(after.messages_sent - before.messages_sent, 10);
    // One record, with a sealed length and a tag.
    assert_eq!(after.bytes_sent - before.bytes_sent, 10 * (7 + 7) + 18 + 16);
}

#[test]
fn both_ends_finish_and_the_id_is_free() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.data(client, b"quit");
    world.event(client, Event::Finished);
    let observed = world.exchange();
    assert_eq!(observed[2..], [Observed::Finished(1)]);
    world.server.compose(Id(1), b"bye");
    world.server.finish(Id(1));
    world.exchange();
    assert_eq!(world.transport.take(client), b"bye");
    assert!(world.transport.record(client).finished);
    world.event(client, Event::Lost(LostReason::Closed));
    assert_eq!(world.exchange(), [Observed::Closed(1, CloseReason::Normal)]);
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
    world.transport.record(client).room = 4;
    world.server.compose(Id(1), b"0123456789");
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert_eq!(world.server.connections(), 0, "the relay has answered the close");
    assert_eq!(world.relay.client_statuses(None, 1).0[0].buffered, 6);
    assert_eq!(world.relay.buffered_bytes(), 256, "one piece of a backlog");
    assert!(!world.transport.record(client).finished);
    assert_eq!(world.transport.take(client), b"0123");
    world.transport.record(client).room = 100;
    world.event(client, Event::Room);
    assert!(world.transport.record(client).finished);
    assert_eq!(world.relay.buffered_bytes(), 0);
    world.data(client, b"too late");
    assert!(!world.transport.record(client).aborted, "the last replies may still be in flight");
    // The client reads everything and never closes.
    assert_eq!(world.transport.take(client), b"456789");
    world.now = world.now + Duration::from_secs(10);
    assert!(world.relay.poll_timeout().is_some_and(|at| at <= world.now));
    world.relay.handle_timeout(world.now, &mut world.transport);
    assert!(world.transport.record(client).aborted);
    assert_eq!(world.relay.clients(), 0);
}

/// A kernel answers data on a closed connection with a reset, and a client that only writes notices nothing else.
#[test]
fn data_after_the_servers_close_is_reset_once_all_replies_arrived() {
    for early in [true, false] {
        let mut world = World::new(config());
        let client = world.client(0, CLIENT);
        world.exchange();
        world.server.compose(Id(1), b"+OK\r\n");
        world.server.close(Id(1), CloseReason::Normal);
        world.exchange();
        assert!(world.transport.record(client).finished && world.transport.record(client).watched);
        if early {
            world.data(client, b"written before the last reply arrived");
            assert!(!world.transport.record(client).aborted, "a reset could overtake the last reply");
            world.event(client, Event::Acknowledged { through: 4 });
            assert!(!world.transport.record(client).aborted);
            world.event(client, Event::Acknowledged { through: 5 });
        } else {
            world.event(client, Event::Acknowledged { through: 5 });
            assert!(!world.transport.record(client).aborted, "the client has sent nothing after the close");
            world.data(client, b"written after it");
        }
        assert!(world.transport.record(client).aborted);
        assert_eq!(world.relay.clients(), 0);
    }
}

#[test]
fn a_client_without_a_grant_is_reset_too_when_it_writes_after_the_close() {
    let mut world = World::with_server(config(), Limits { window_bytes: 5, ..Limits::default() });
    let client = world.client(0, CLIENT);
    world.data(client, b"12345");
    world.exchange();
    assert_eq!(world.transport.record(client).granted, 5);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert_eq!(world.transport.record(client).granted, 6);
    world.data(client, b"6");
    assert!(world.transport.record(client).aborted);
}

/// Progress is measured by the client's acknowledgements, because the host may buffer bytes for a long time.
#[test]
fn a_slow_client_may_linger_while_it_makes_progress() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    world.server.compose(Id(1), &[1; 10_000]);
    world.server.close(Id(1), CloseReason::Normal);
    world.exchange();
    assert!(world.transport.record(client).finished && world.transport.record(client).watched);
    for through in [1000, 2000, 10_000, 10_000] {
        assert!(!world.transport.record(client).aborted);
        world.event(client, Event::Acknowledged { through });
        world.now = world.now + Duration::from_secs(10);
        world.relay.handle_timeout(world.now, &mut world.transport);
    }
    assert!(world.transport.record(client).aborted, "no progress in a whole period");
}

#[test]
fn a_reset_by_either_end_resets_the_other() {
    let mut world = World::new(config());
    let (first, second) = (world.client(0, CLIENT), world.client(0, "10.9.0.1:5001"));
    world.exchange();
    world.server.close(Id(1), CloseReason::Reset);
    world.exchange();
    assert!(world.transport.record(first).aborted && !world.transport.record(second).aborted);
    world.event(second, Event::Lost(LostReason::Reset));
    assert_eq!(world.exchange(), [Observed::Closed(2, CloseReason::Reset)]);
    world.server.close(Id(2), CloseReason::Reset);
    world.exchange();
    assert_eq!((world.relay.clients(), world.server.connections()), (0, 0));
}

#[test]
fn a_refusal_resets_the_client_with_a_notice() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    world.server.refuse(Id(1), RefuseReason::Full);
    world.exchange();
    assert!(world.transport.record(client).aborted);
    let why = Refusal::Server(RefuseReason::Full);
    let expected = Notice::ClientRefused { service: 0, client: CLIENT.parse().unwrap(), why };
    assert_eq!(notices(&mut world).last(), Some(&expected));
    assert_eq!(world.relay.status().services[0].counters.refused.server, 1);
}

#[test]
fn clients_are_admitted_by_address_and_number() {
    let mut world = World::new(Config { clients_max: 1, ..config() });
    let foreign = world.client(0, "8.8.8.8:1");
    assert!(world.transport.record(foreign).aborted);
    let mapped = world.client(0, "[::ffff:10.9.0.1]:7");
    assert!(!world.transport.record(mapped).aborted);
    let third = world.client(0, CLIENT);
    assert!(world.transport.record(third).aborted);
    let refused = world.relay.status().services[0].counters.refused;
    assert_eq!((refused.address, refused.clients_max, refused.total()), (1, 1, 2));
    assert_eq!(world.exchange(), [Observed::Connect(1, "10.9.0.1:7".parse().unwrap())]);
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
    assert_eq!(refused.total(), 43, "an unused listener is not counted");
}

#[test]
fn grants_follow_the_servers_credit() {
    let limits = Limits { window_bytes: 1000, ..Limits::default() };
    let mut world = World::with_server(config(), limits);
    let client = world.client(0, CLIENT);
    assert_eq!(world.transport.record(client).granted, 1000);
    world.data(client, &[b'x'; 600]);
    world.data(client, &[b'x'; 400]);
    world.exchange();
    assert_eq!(world.transport.record(client).granted, 1000, "credit is used up");
    world.server.consumed(Id(1), 700).unwrap();
    world.exchange();
    assert_eq!(world.transport.record(client).granted, 1700);
    world.data(client, &[b'x'; 700]);
    assert_eq!(world.exchange().len(), 1);
}

#[test]
fn a_stalled_link_stops_grants_and_loses_nothing() {
    let mut world = World::with_server(config(), Limits { window_bytes: 1 << 20, ..Limits::default() });
    let client = world.client(0, CLIENT);
    world.exchange();
    world.transport.record(world.link).room = 10;
    let mut sent = Vec::new();
    for piece in 0..16_u8 {
        let bytes = vec![piece; 4096];
        world.data(client, &bytes);
        sent.extend(bytes);
    }
    assert_eq!(world.transport.record(client).granted, 64 * 1024, "no grant while the link is stalled");
    let mut received = Vec::new();
    for _ in 0..100 {
        for observed in world.exchange() {
            if let Observed::Data(1, bytes) = observed {
                received.extend(bytes);
            }
        }
        world.transport.record(world.link).room = 5000;
        world.event(world.link, Event::Room);
    }
    assert_eq!(received, sent);
    assert_eq!(world.transport.record(client).granted, 128 * 1024);
}

#[test]
fn a_client_that_does_not_read_is_bounded_by_its_window() {
    let mut world = World::new(Config { first_window_bytes: u32::MAX, ..config() });
    let (stalled, other) = (world.client(0, CLIENT), world.client(0, "10.9.0.1:5001"));
    world.exchange();
    world.transport.record(stalled).room = 0;
    let window = Limits::default().window_bytes as usize;
    let mut taken = 0;
    loop {
        let more = world.server.compose(Id(1), &vec![b'v'; window]);
        taken += more;
        if more == 0 {
            break;
        }
        world.exchange();
    }
    assert_eq!(taken, window);
    assert!((window..window + (16 << 10)).contains(&world.relay.buffered_bytes()));
    world.server.compose(Id(2), b"END\r\n");
    world.exchange();
    assert_eq!(world.transport.take(other), b"END\r\n");
    world.transport.record(stalled).room = window;
    world.event(stalled, Event::Room);
    world.exchange();
    assert_eq!(world.relay.buffered_bytes(), 0);
    assert!(world.server.compose(Id(1), b"more") == 4, "credit came back");
}

#[test]
fn a_lost_link_resets_its_clients_and_is_opened_again() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    notices(&mut world);
    world.event(world.link, Event::Lost(LostReason::Reset));
    assert!(world.transport.record(client).aborted);
    assert!(!world.transport.listening[&0]);
    let Some(Notice::LinkDown {
        why: LinkDown::Lost(LostReason::Reset),
        clients: 1,
        retry_in: Some(retry_in),
        ..
    }) = world.relay.poll_notice()
    else {
        panic!("a notice of the loss");
    };
    assert_eq!(world.relay.poll_timeout(), Some(world.now + retry_in));
    assert!(retry_in >= Duration::from_millis(25) && retry_in <= Duration::from_millis(50));
    let late = world.client(0, "10.9.0.1:5001");
    assert!(world.transport.record(late).aborted, "accepted by the host before the listener closed");
    world.link_comes_up(Limits::default());
    let client = world.client(0, CLIENT);
    assert!(!world.transport.record(client).aborted);
    let counters = world.relay.status().services[0].counters;
    assert_eq!((counters.links_up, counters.links_lost, counters.lost_with_link), (2, 1, 1));
}

#[test]
fn a_server_that_does_not_answer_is_tried_again() {
    let mut world = World::new(config());
    world.event(world.link, Event::Finished);
    assert!(world.transport.record(world.link).aborted, "a link ends when the server finishes its stream");
    world.now = world.relay.poll_timeout().unwrap();
    world.relay.handle_timeout(world.now, &mut world.transport);
    let (first, _) = world.transport.connects.remove(0);
    world.now = world.relay.poll_timeout().unwrap();
    world.relay.handle_timeout(world.now, &mut world.transport);
    assert!(world.transport.record(first).aborted, "the connect timeout");
    world.now = world.relay.poll_timeout().unwrap();
    world.relay.handle_timeout(world.now, &mut world.transport);
    let (second, peer) = world.transport.connects.remove(0);
    world.event(second, Event::Opened { peer, listener: None });
    world.data(
        second,
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\nServer: none\r\n\r\n",
    );
    assert!(world.transport.record(second).aborted, "the bytes are not of the link protocol");
    let failures: Vec<LinkDown> = notices(&mut world)
        .iter()
        .filter_map(|notice| if let Notice::LinkDown { why, .. } = notice { Some(*why) } else { None })
        .collect();
    assert!(matches!(failures[..], [LinkDown::ClosedByServer, LinkDown::ConnectTimeout, LinkDown::Link(_)]));
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
    assert!(world.transport.listening[&0], "one link is left");
    assert_eq!(world.relay.clients(), 2);
}

#[test]
fn a_drain_ends_with_the_last_client_or_at_its_deadline() {
    for leave in [true, false] {
        let mut world = World::new(config());
        let client = world.client(0, CLIENT);
        world.exchange();
        world.relay.drain(world.now, Duration::from_secs(30), &mut world.transport);
        assert!(!world.transport.listening[&0]);
        assert!(world.relay.is_draining() && !world.relay.is_drained());
        world.data(client, b"still served");
        assert_eq!(world.exchange().len(), 1);
        if leave {
            world.event(client, Event::Lost(LostReason::Closed));
        } else {
            assert_eq!(world.relay.poll_timeout(), Some(world.now + Duration::from_secs(30)));
            world.now = world.now + Duration::from_secs(30);
            world.relay.handle_timeout(world.now, &mut world.transport);
            world.relay.end_of_turn(world.now, &mut world.transport);
            assert!(world.transport.record(client).aborted);
        }
        assert!(world.relay.is_drained() && world.transport.record(world.link).finished);
        let last = world.transport.take(world.link);
        let mut scratch = Scratch::new();
        let mut input = world.server.unseal(world.now, &last, &mut scratch);
        assert!(world.server.decompose(world.now, &mut input).unwrap().is_some(), "the close was sent");
        assert_eq!(world.relay.poll_timeout(), None);
    }
}

#[test]
fn the_first_timeout_is_due_at_once() {
    let relay = spillway_relay::Relay::new(config(), Box::new(|bytes| bytes.fill(0))).unwrap();
    assert_eq!(relay.poll_timeout(), Some(Time::ZERO));
}

#[test]
fn acknowledgements_are_forwarded_if_the_service_keeps_replies() {
    let base = config();
    let service = ServiceConfig { acknowledges_replies: true, ..base.services[0].clone() };
    let mut world = World::new(Config::new(vec![service]));
    let client = world.client(0, CLIENT);
    assert!(world.transport.record(client).watched);
    world.exchange();
    let kept = |world: &World| {
        let all = world.server.unacknowledged(Id(1)).unwrap();
        (all.acknowledged, [all.bytes.0, all.bytes.1].concat())
    };
    assert_eq!(kept(&world), (0, Vec::new()));
    world.server.accept(Id(1));
    world.server.compose(Id(1), b"first second");
    world.exchange();
    assert_eq!(kept(&world), (0, b"first second".to_vec()), "the client has not acknowledged the reply");
    for (through, left) in [(6, "second"), (12, "")] {
        world.event(client, Event::Acknowledged { through });
        // Small acknowledgements are forwarded within 20 ms.
        world.now = world.now + Duration::from_millis(20);
        world.relay.handle_timeout(world.now, &mut world.transport);
        world.relay.end_of_turn(world.now, &mut world.transport);
        world.exchange();
        assert_eq!(kept(&world), (through, left.as_bytes().to_vec()));
    }
}

#[test]
fn acknowledgements_are_not_watched_by_default() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    assert!(!world.transport.record(client).watched && world.server.unacknowledged(Id(1)).is_none());
}
