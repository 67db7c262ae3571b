//! Plain clients.

mod harness;

use core::time::Duration;

use harness::{Harness, Observed, config};
use spillway_batch::{CloseReason, Id, Limits, RefuseReason, Scratch};
use spillway_relay::{Config, LinkDown, LinkState, Notice, Refusal, ServiceConfig};
use spillway_transport::{Application, Event, HostLimit, LostReason, Time};

const CLIENT: &str = "10.9.0.1:5000";

fn notices(harness: &mut Harness) -> Vec<Notice> {
    std::iter::from_fn(|| harness.relay.poll_notice()).collect()
}

#[test]
fn request_and_reply_are_forwarded() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    assert_eq!(
        harness.transport.record(client).granted,
        64 * 1024,
        "the grant should be what the relay can buffer while the link stalls"
    );
    harness.data(client, b"get x\r\n");
    let observed = harness.exchange();
    assert_eq!(
        observed,
        [Observed::Connect(1, CLIENT.parse().unwrap()), Observed::Data(1, b"get x\r\n".to_vec())]
    );
    harness.server.accept(Id(1));
    assert_eq!(harness.server.compose(Id(1), b"END\r\n"), 5);
    harness.exchange();
    assert_eq!(harness.transport.take(client), b"END\r\n");
    let status = harness.relay.status();
    assert_eq!((status.clients, status.services[0].plain_clients), (1, 1));
    assert_eq!(status.services[0].traffic.messages_sent, 1);
    assert_eq!(status.services[0].links[0].state, LinkState::Up);
}

#[test]
fn messages_of_one_turn_share_a_batch() {
    let mut harness = Harness::new(config());
    let clients: Vec<_> = (1..=10).map(|port| harness.client(0, &format!("10.9.0.1:{port}"))).collect();
    harness.exchange();
    let before = harness.relay.status().services[0].traffic;
    for client in clients {
        let event = Event::Data { end: 0, bytes: b"get x\r\n" };
        harness.relay.handle(harness.now, client, event, &mut harness.transport);
    }
    harness.relay.end_of_turn(harness.now, &mut harness.transport);
    let after = harness.relay.status().services[0].traffic;
    assert_eq!(after.batches_sent - before.batches_sent, 1);
    assert_eq!(after.messages_sent - before.messages_sent, 10);
    // Ten frames of 7 + 7 bytes in one record, with a sealed length of 18 bytes and a tag of 16.
    assert_eq!(after.bytes_sent - before.bytes_sent, 10 * (7 + 7) + 18 + 16);
}

#[test]
fn id_is_free_after_both_ends_have_closed() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.data(client, b"quit");
    harness.event(client, Event::Finished);
    let observed = harness.exchange();
    assert_eq!(observed[2..], [Observed::Finished(1)]);
    harness.server.compose(Id(1), b"bye");
    harness.server.finish(Id(1));
    harness.exchange();
    assert_eq!(harness.transport.take(client), b"bye");
    assert!(harness.transport.record(client).finished, "the client should get the end");
    harness.event(client, Event::Lost(LostReason::Closed));
    assert_eq!(harness.exchange(), [Observed::Closed(1, CloseReason::Normal)]);
    harness.server.close(Id(1), CloseReason::Normal);
    harness.exchange();
    let status = harness.relay.status();
    assert_eq!((status.clients, status.services[0].links[0].connections), (0, 0));
    assert_eq!(harness.server.connections(), 0);
}

#[test]
fn remaining_replies_are_delivered_after_the_servers_close() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.transport.record(client).room = 4;
    harness.server.compose(Id(1), b"0123456789");
    harness.server.close(Id(1), CloseReason::Normal);
    harness.exchange();
    assert_eq!(harness.server.connections(), 0, "the relay should have answered the close");
    assert_eq!(harness.relay.client_statuses(None, 1).0[0].buffered, 6);
    assert_eq!(harness.relay.buffered_bytes(), 256, "the relay should hold the smallest piece of a backlog");
    assert!(!harness.transport.record(client).finished, "replies should come before the end");
    assert_eq!(harness.transport.take(client), b"0123");
    harness.transport.record(client).room = 100;
    harness.event(client, Event::Room);
    assert!(harness.transport.record(client).finished, "the client should get the end after all replies");
    assert_eq!(harness.relay.buffered_bytes(), 0);
    harness.data(client, b"too late");
    assert!(!harness.transport.record(client).aborted, "no reset should overtake the last replies");
    // The client reads everything and never closes.
    assert_eq!(harness.transport.take(client), b"456789");
    harness.now = harness.now + Duration::from_secs(10);
    assert!(harness.relay.poll_timeout().is_some_and(|at| at <= harness.now), "lingering should be over");
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    assert!(harness.transport.record(client).aborted, "the client should be reset after the linger time");
    assert_eq!(harness.relay.clients(), 0);
}

/// A kernel answers data on a closed connection with a reset. A client that never reads notices the close only by this
/// reset.
#[test]
fn data_after_the_servers_close_is_reset_once_all_replies_arrived() {
    for early in [true, false] {
        let mut harness = Harness::new(config());
        let client = harness.client(0, CLIENT);
        harness.exchange();
        harness.server.compose(Id(1), b"+OK\r\n");
        harness.server.close(Id(1), CloseReason::Normal);
        harness.exchange();
        assert!(
            harness.transport.record(client).finished && harness.transport.record(client).watched,
            "the client should get the end, and its acknowledgements be watched"
        );
        if early {
            harness.data(client, b"written before the last reply arrived");
            assert!(!harness.transport.record(client).aborted, "no reset should overtake the last reply");
            harness.event(client, Event::Acknowledged { through: 4 });
            assert!(!harness.transport.record(client).aborted, "no reset should come before the replies");
            harness.event(client, Event::Acknowledged { through: 5 });
        } else {
            harness.event(client, Event::Acknowledged { through: 5 });
            assert!(!harness.transport.record(client).aborted, "a client that sends nothing should stay");
            harness.data(client, b"written after it");
        }
        assert!(harness.transport.record(client).aborted, "the client should be reset after all replies");
        assert_eq!(harness.relay.clients(), 0);
    }
}

#[test]
fn client_that_used_its_grant_is_reset_when_it_writes_after_the_close() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 5, ..Limits::default() });
    let client = harness.client(0, CLIENT);
    harness.data(client, b"12345");
    harness.exchange();
    assert_eq!(harness.transport.record(client).granted, 5);
    harness.server.close(Id(1), CloseReason::Normal);
    harness.exchange();
    assert_eq!(harness.transport.record(client).granted, 6);
    harness.data(client, b"6");
    assert!(harness.transport.record(client).aborted, "the client should be reset");
}

/// Progress is measured by the client's acknowledgements, because the host may buffer bytes for a long time.
#[test]
fn lingering_client_is_kept_while_it_makes_progress() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.server.compose(Id(1), &[1; 10_000]);
    harness.server.close(Id(1), CloseReason::Normal);
    harness.exchange();
    assert!(
        harness.transport.record(client).finished && harness.transport.record(client).watched,
        "the client should get the end, and its acknowledgements be watched"
    );
    for through in [1000, 2000, 10_000, 10_000] {
        assert!(!harness.transport.record(client).aborted, "a client that makes progress should stay");
        harness.event(client, Event::Acknowledged { through });
        harness.now = harness.now + Duration::from_secs(10);
        harness.relay.handle_timeout(harness.now, &mut harness.transport);
    }
    assert!(harness.transport.record(client).aborted, "a client without progress should be reset");
}

#[test]
fn reset_by_either_end_resets_the_other() {
    let mut harness = Harness::new(config());
    let (first, second) = (harness.client(0, CLIENT), harness.client(0, "10.9.0.1:5001"));
    harness.exchange();
    harness.server.close(Id(1), CloseReason::Reset);
    harness.exchange();
    assert!(
        harness.transport.record(first).aborted && !harness.transport.record(second).aborted,
        "only the reset client should be reset"
    );
    harness.event(second, Event::Lost(LostReason::Reset));
    assert_eq!(harness.exchange(), [Observed::Closed(2, CloseReason::Reset)]);
    harness.server.close(Id(2), CloseReason::Reset);
    harness.exchange();
    assert_eq!((harness.relay.clients(), harness.server.connections()), (0, 0));
}

#[test]
fn refusal_resets_the_client_with_a_notice() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.server.refuse(Id(1), RefuseReason::Full);
    harness.exchange();
    assert!(harness.transport.record(client).aborted, "the refused client should be reset");
    let why = Refusal::Server(RefuseReason::Full);
    let expected = Notice::ClientRefused { service: 0, client: CLIENT.parse().unwrap(), why };
    assert_eq!(notices(&mut harness).last(), Some(&expected));
    assert_eq!(harness.relay.status().services[0].counters.refused.server, 1);
}

#[test]
fn clients_are_rejected_by_address_and_above_the_limit() {
    let mut harness = Harness::new(Config { clients_max: 1, ..config() });
    let foreign = harness.client(0, "8.8.8.8:1");
    assert!(harness.transport.record(foreign).aborted, "the client at a foreign address should be reset");
    let mapped = harness.client(0, "[::ffff:10.9.0.1]:7");
    assert!(!harness.transport.record(mapped).aborted, "the client at a mapped address should stay");
    let third = harness.client(0, CLIENT);
    assert!(harness.transport.record(third).aborted, "the client above the limit should be reset");
    let refused = harness.relay.status().services[0].counters.refused;
    assert_eq!((refused.address, refused.clients_max, refused.total()), (1, 1, 2));
    assert_eq!(harness.exchange(), [Observed::Connect(1, "10.9.0.1:7".parse().unwrap())]);
}

#[test]
fn clients_rejected_by_the_host_are_counted_for_their_service() {
    let mut harness = Harness::new(config());
    for (limit, peers) in [(HostLimit::Connections, 1), (HostLimit::Descriptors, 40), (HostLimit::Memory, 2)]
    {
        harness.relay.handle_refused(0, limit, peers);
        harness.relay.handle_refused(u16::MAX, limit, peers);
    }
    let refused = harness.relay.status().services[0].counters.refused;
    assert_eq!((refused.connection_table, refused.descriptors, refused.host_memory), (1, 40, 2));
    assert_eq!(refused.total(), 43, "clients of an unused listener should not be counted");
}

#[test]
fn grants_follow_the_servers_credit() {
    let limits = Limits { window_bytes: 1000, ..Limits::default() };
    let mut harness = Harness::with_server(config(), limits);
    let client = harness.client(0, CLIENT);
    assert_eq!(harness.transport.record(client).granted, 1000);
    harness.data(client, &[b'x'; 600]);
    harness.data(client, &[b'x'; 400]);
    harness.exchange();
    assert_eq!(
        harness.transport.record(client).granted,
        1000,
        "without credit the client should get no grant"
    );
    harness.server.consumed(Id(1), 700).unwrap();
    harness.exchange();
    assert_eq!(harness.transport.record(client).granted, 1700);
    harness.data(client, &[b'x'; 700]);
    assert_eq!(harness.exchange().len(), 1);
}

#[test]
fn stalled_link_stops_grants_and_loses_no_byte() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 1 << 20, ..Limits::default() });
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.transport.record(harness.link).room = 10;
    let mut sent = Vec::new();
    for value in 0..16_u8 {
        let bytes = vec![value; 4096];
        harness.data(client, &bytes);
        sent.extend(bytes);
    }
    assert_eq!(
        harness.transport.record(client).granted,
        64 * 1024,
        "a client should get no grant while the link is stalled"
    );
    let mut received = Vec::new();
    for _ in 0..100 {
        for observed in harness.exchange() {
            if let Observed::Data(1, bytes) = observed {
                received.extend(bytes);
            }
        }
        harness.transport.record(harness.link).room = 5000;
        harness.event(harness.link, Event::Room);
    }
    assert_eq!(received, sent);
    assert_eq!(harness.transport.record(client).granted, 128 * 1024);
}

#[test]
fn replies_to_a_client_that_does_not_read_are_bounded_by_its_window() {
    let mut harness = Harness::new(Config { first_window_bytes: u32::MAX, ..config() });
    let (stalled, other) = (harness.client(0, CLIENT), harness.client(0, "10.9.0.1:5001"));
    harness.exchange();
    harness.transport.record(stalled).room = 0;
    let window = Limits::default().window_bytes as usize;
    let mut composed = 0;
    loop {
        let more = harness.server.compose(Id(1), &vec![b'v'; window]);
        composed += more;
        if more == 0 {
            break;
        }
        harness.exchange();
    }
    assert_eq!(composed, window);
    assert!(
        (window..window + (16 << 10)).contains(&harness.relay.buffered_bytes()),
        "replies should be buffered up to the window, and 16 KiB of overhead"
    );
    harness.server.compose(Id(2), b"END\r\n");
    harness.exchange();
    assert_eq!(harness.transport.take(other), b"END\r\n");
    harness.transport.record(stalled).room = window;
    harness.event(stalled, Event::Room);
    harness.exchange();
    assert_eq!(harness.relay.buffered_bytes(), 0);
    assert!(harness.server.compose(Id(1), b"more") == 4, "the server should have new credit");
}

#[test]
fn lost_link_resets_its_clients_and_is_opened_again() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    notices(&mut harness);
    harness.event(harness.link, Event::Lost(LostReason::Reset));
    assert!(harness.transport.record(client).aborted, "the client should be reset with the link");
    assert!(!harness.transport.listening[&0], "the service should not listen without a link");
    let Some(Notice::LinkDown {
        why: LinkDown::Lost(LostReason::Reset),
        clients: 1,
        retry_in: Some(retry_in),
        ..
    }) = harness.relay.poll_notice()
    else {
        panic!("the first notice should report the lost link");
    };
    assert_eq!(harness.relay.poll_timeout(), Some(harness.now + retry_in));
    assert!(
        retry_in >= Duration::from_millis(25) && retry_in <= Duration::from_millis(50),
        "the link should be opened again after 25 to 50 ms"
    );
    let late = harness.client(0, "10.9.0.1:5001");
    assert!(
        harness.transport.record(late).aborted,
        "a client that the host accepted before the listener closed should be reset"
    );
    harness.bring_link_up(Limits::default());
    let client = harness.client(0, CLIENT);
    assert!(!harness.transport.record(client).aborted, "the client of the new link should stay");
    let counters = harness.relay.status().services[0].counters;
    assert_eq!((counters.links_up, counters.links_lost, counters.lost_with_link), (2, 1, 1));
}

#[test]
fn failed_attempts_to_open_a_link_are_repeated() {
    let mut harness = Harness::new(config());
    harness.event(harness.link, Event::Finished);
    assert!(
        harness.transport.record(harness.link).aborted,
        "the relay should abort a link when the server finishes its stream"
    );
    harness.now = harness.relay.poll_timeout().unwrap();
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    let (first, _) = harness.transport.connects.remove(0);
    harness.now = harness.relay.poll_timeout().unwrap();
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    assert!(harness.transport.record(first).aborted, "the relay should abort at the connect timeout");
    harness.now = harness.relay.poll_timeout().unwrap();
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    let (second, peer) = harness.transport.connects.remove(0);
    harness.event(second, Event::Opened { peer, listener: None });
    harness.data(
        second,
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\nServer: none\r\n\r\n",
    );
    assert!(harness.transport.record(second).aborted, "bytes of another protocol should end the link");
    let failures: Vec<LinkDown> = notices(&mut harness)
        .iter()
        .filter_map(|notice| if let Notice::LinkDown { why, .. } = notice { Some(*why) } else { None })
        .collect();
    assert!(
        matches!(failures[..], [LinkDown::ClosedByServer, LinkDown::ConnectTimeout, LinkDown::Link(_)]),
        "each failed attempt should have its reason"
    );
}

#[test]
fn two_links_share_the_clients() {
    let base = config();
    let service = ServiceConfig { links: 2, ..base.services[0].clone() };
    let mut harness = Harness::new(Config { services: vec![service], ..base });
    let first = harness.link;
    harness.bring_link_up(Limits::default());
    for port in 1..=4 {
        harness.client(0, &format!("10.9.0.1:{port}"));
    }
    let connections: Vec<u32> =
        harness.relay.status().services[0].links.iter().map(|link| link.connections).collect();
    assert_eq!(connections, [2, 2]);
    harness.event(first, Event::Lost(LostReason::TimedOut));
    assert!(harness.transport.listening[&0], "the relay should listen while one link is up");
    assert_eq!(harness.relay.clients(), 2);
}

#[test]
fn drain_ends_with_the_last_client_or_at_the_deadline() {
    for leaves in [true, false] {
        let mut harness = Harness::new(config());
        let client = harness.client(0, CLIENT);
        harness.exchange();
        harness.relay.drain(harness.now, Duration::from_secs(30), &mut harness.transport);
        assert!(!harness.transport.listening[&0], "a draining service should not listen");
        assert!(harness.relay.is_draining() && !harness.relay.is_drained(), "a client should delay the end");
        harness.data(client, b"still served");
        assert_eq!(harness.exchange().len(), 1);
        if leaves {
            harness.event(client, Event::Lost(LostReason::Closed));
        } else {
            assert_eq!(harness.relay.poll_timeout(), Some(harness.now + Duration::from_secs(30)));
            harness.now = harness.now + Duration::from_secs(30);
            harness.relay.handle_timeout(harness.now, &mut harness.transport);
            harness.relay.end_of_turn(harness.now, &mut harness.transport);
            assert!(harness.transport.record(client).aborted, "the client should be reset at the deadline");
        }
        assert!(
            harness.relay.is_drained() && harness.transport.record(harness.link).finished,
            "the drain should end, and the link with it"
        );
        let last = harness.transport.take(harness.link);
        let mut scratch = Scratch::new();
        let mut input = harness.server.unseal(harness.now, &last, &mut scratch);
        assert!(
            harness.server.decompose(harness.now, &mut input).unwrap().is_some(),
            "the client's *close* should be sent"
        );
        assert_eq!(harness.relay.poll_timeout(), None);
    }
}

#[test]
fn first_timeout_is_due_at_once() {
    let relay = spillway_relay::Relay::new(config(), Box::new(|bytes| bytes.fill(0))).unwrap();
    assert_eq!(relay.poll_timeout(), Some(Time::ZERO));
}

#[test]
fn acknowledgements_are_forwarded_if_the_server_keeps_replies() {
    let base = config();
    let service = ServiceConfig { acknowledges_replies: true, ..base.services[0].clone() };
    let mut harness = Harness::new(Config::new(vec![service]));
    let client = harness.client(0, CLIENT);
    assert!(harness.transport.record(client).watched, "the client's acknowledgements should be watched");
    harness.exchange();
    let kept = |harness: &Harness| {
        let all = harness.server.unacknowledged(Id(1)).unwrap();
        (all.acknowledged, [all.bytes.0, all.bytes.1].concat())
    };
    assert_eq!(kept(&harness), (0, Vec::new()));
    harness.server.accept(Id(1));
    harness.server.compose(Id(1), b"first second");
    harness.exchange();
    assert_eq!(
        kept(&harness),
        (0, b"first second".to_vec()),
        "the server should keep a reply that is not acknowledged"
    );
    for (through, left) in [(6, "second"), (12, "")] {
        harness.event(client, Event::Acknowledged { through });
        // Small acknowledgements are forwarded within 20 ms.
        harness.now = harness.now + Duration::from_millis(20);
        harness.relay.handle_timeout(harness.now, &mut harness.transport);
        harness.relay.end_of_turn(harness.now, &mut harness.transport);
        harness.exchange();
        assert_eq!(kept(&harness), (through, left.as_bytes().to_vec()));
    }
}

#[test]
fn acknowledgements_are_not_watched_by_default() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    assert!(
        !harness.transport.record(client).watched && harness.server.unacknowledged(Id(1)).is_none(),
        "acknowledgements should be neither watched nor kept"
    );
}
