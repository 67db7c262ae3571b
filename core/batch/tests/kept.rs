//! Replies that are kept until the client's TCP has acknowledged them.

#[allow(dead_code, reason = "its events are for other test programs")]
mod pair;

use pair::{Pair, Seen};
use proptest::prelude::*;
use spillway_batch::{CloseReason, Control, Id, Limits, RefuseReason};
use spillway_wire::session::Acknowledge;

fn kept(pair: &Pair, id: Id) -> Option<(u64, Vec<u8>)> {
    let all = pair.server.unacknowledged(id)?;
    Some((all.acknowledged, [all.bytes.0, all.bytes.1].concat()))
}

fn with_kept_max(kept_bytes_max: usize) -> Pair {
    Pair::with_limits(Limits::default(), Limits { kept_bytes_max, ..Limits::default() })
}

/// Opens a connection whose helper reports its client's acknowledgements.
fn open(pair: &mut Pair) -> Id {
    let id = pair.open(5_000);
    pair.opener.acknowledge(id, 0);
    pair.exchange();
    id
}

#[test]
fn replies_are_kept_only_if_the_helper_requests_it() {
    let mut pair = Pair::established();
    let id = pair.open(5_000);
    assert_eq!(pair.server.compose(id, b"before"), 6);
    pair.exchange();
    assert_eq!(kept(&pair, id), None);
    pair.opener.acknowledge(id, 2);
    pair.exchange();
    assert_eq!(kept(&pair, id), Some((6, Vec::new())), "earlier replies should not be kept");
    pair.server.compose(id, b"after");
    assert_eq!(kept(&pair, id), Some((6, b"after".to_vec())));
}

#[test]
fn the_first_reply_is_kept_after_an_acknowledge_before_connect() {
    let mut pair = Pair::established();
    let id = pair.opener.open_kept("10.0.0.9:7".parse().unwrap(), None).unwrap();
    let other = pair.opener.open("10.0.0.9:8".parse().unwrap(), None).unwrap();
    pair.exchange();
    // The application may reply before any request arrives.
    pair.server.compose(id, b"welcome");
    pair.server.compose(other, b"welcome");
    assert_eq!(
        (kept(&pair, id), kept(&pair, other)),
        (Some((0, b"welcome".to_vec())), None),
        "only the first connection should keep replies"
    );
}

#[test]
fn an_acknowledge_before_connect_applies_to_the_next_connection_only() {
    let client = "10.0.0.9:7".parse().unwrap();
    let request_to_keep = |received| {
        Control::Acknowledge(Acknowledge { received, finish_received: false, requests_answer: false })
    };
    let (plain, session) = (pair::connect_control(client), pair::reconnect_control(client));
    let cases: [(&[(u32, Control)], bool); 6] = [
        (&[(5, request_to_keep(0)), (5, plain)], true),
        (&[(6, request_to_keep(0)), (5, request_to_keep(0)), (5, plain)], true),
        (&[(5, request_to_keep(0)), (6, request_to_keep(0)), (5, plain)], false),
        (&[(5, request_to_keep(0)), (6, plain), (5, plain)], false),
        (&[(5, request_to_keep(0)), (5, session), (5, plain)], false),
        // A late *acknowledge* of a connection that has ended: its offset is not 0.
        (&[(5, request_to_keep(9)), (5, plain)], false),
    ];
    for (messages, is_kept) in cases {
        let mut pair = Pair::unencrypted(Limits::default());
        for (id, control) in messages {
            let mut bytes = Vec::new();
            control.emit(Id(*id), &mut bytes);
            pair.server.decompose(pair.now, &mut bytes.as_slice()).unwrap();
            if *control == session {
                pair.server.refuse(Id(*id), RefuseReason::Gone);
            }
        }
        assert!(pair.server.is_open(Id(5)), "the connection should be open");
        assert_eq!(
            kept(&pair, Id(5)).is_some(),
            is_kept,
            "only an acknowledge just before connect should keep replies: {messages:?}"
        );
    }
}

#[test]
fn replies_are_kept_after_the_servers_close_until_the_helper_closes() {
    let mut pair = Pair::established();
    let id = pair.opener.open_kept("10.0.0.9:7".parse().unwrap(), None).unwrap();
    pair.exchange();
    pair.server.compose(id, b"bye");
    pair.server.close(id, CloseReason::Normal);
    pair.exchange();
    pair.opener.acknowledge(id, 2);
    pair.exchange();
    assert_eq!(kept(&pair, id), Some((2, b"e".to_vec())));
    pair.opener.close(id, CloseReason::Normal);
    pair.exchange();
    assert_eq!(
        (kept(&pair, id), pair.server.connections()),
        (None, 0),
        "the closed connection should be gone"
    );
}

#[test]
fn a_server_that_keeps_no_replies_ignores_acknowledgements() {
    let mut pair = with_kept_max(0);
    let id = open(&mut pair);
    pair.server.compose(id, b"reply");
    pair.opener.acknowledge(id, 3);
    pair.exchange();
    assert_eq!(kept(&pair, id), None);
    assert!(pair.server.is_open(id), "the connection should stay open");
}

#[test]
fn bytes_are_kept_until_acknowledged_and_outdated_acknowledgements_are_ignored() {
    let mut pair = Pair::established();
    let id = open(&mut pair);
    pair.server.compose(id, b"abcdef");
    pair.exchange();
    for (through, kept_text) in [(2, "cdef"), (1, "cdef"), (2, "cdef"), (5, "f"), (6, "")] {
        pair.opener.acknowledge(id, through);
        pair.exchange();
        let expected = kept_text.as_bytes();
        assert_eq!(kept(&pair, id), Some((6 - expected.len() as u64, expected.to_vec())));
    }
}

#[test]
fn a_full_buffer_stops_compose_until_an_acknowledgement() {
    let mut pair = with_kept_max(8);
    let id = open(&mut pair);
    assert_eq!(pair.server.compose(id, b"0123456789"), 8);
    assert_eq!(
        (pair.server.compose(id, b"89"), pair.server.room(id)),
        (0, 0),
        "a full buffer should take nothing"
    );
    pair.exchange();
    assert_eq!(pair.server.poll_room(), None, "the connection should wait for an acknowledgement");
    pair.opener.acknowledge(id, 3);
    pair.exchange();
    assert_eq!(pair.server.poll_room(), Some(id));
    assert_eq!(pair.server.compose(id, b"89"), 2);
}

#[test]
fn an_acknowledgement_of_unsent_replies_closes_the_connection() {
    let mut pair = Pair::established();
    let (id, other) = (open(&mut pair), pair.open(6_000));
    pair.server.compose(id, b"abc");
    pair.exchange();
    pair.opener.acknowledge(id, 4);
    pair.exchange();
    assert_eq!(pair.take_server_events(), [Seen::Closed(id, CloseReason::Protocol)]);
    assert!(pair.server.is_open(other), "the other connection should stay open");
}

#[test]
fn kept_replies_are_discarded_when_the_connection_ends() {
    let mut pair = Pair::established();
    let id = open(&mut pair);
    pair.server.compose(id, b"abc");
    pair.exchange();
    pair.server.close(id, CloseReason::Normal);
    assert_eq!(
        kept(&pair, id),
        Some((0, b"abc".to_vec())),
        "replies should be kept until the helper has closed"
    );
    pair.opener_closes.insert(id);
    pair.exchange();
    assert_eq!(kept(&pair, id), None);
}

proptest! {
    #[test]
    fn exactly_the_unacknowledged_bytes_are_kept_within_the_bound(
        steps in proptest::collection::vec((0_usize..40, 0_u64..40), 1..80),
        bytes_max in 1_usize..60,
    ) {
        let mut pair = with_kept_max(bytes_max);
        let id = open(&mut pair);
        let (mut composed, mut acknowledged) = (Vec::new(), 0_u64);
        for (number, (length, more)) in steps.into_iter().enumerate() {
            let taken = pair.server.compose(id, &vec![number as u8; length]);
            composed.extend(std::iter::repeat_n(number as u8, taken));
            pair.exchange();
            acknowledged = (acknowledged + more).min(composed.len() as u64);
            pair.opener.acknowledge(id, acknowledged);
            pair.exchange();
            let expected = composed[acknowledged as usize..].to_vec();
            prop_assert!(expected.len() <= bytes_max, "kept bytes should be within the bound");
            prop_assert_eq!(kept(&pair, id), Some((acknowledged, expected)));
        }
    }
}
