//! Both ends of a link, connected in memory: openings, closes, bounds, and misuse by a peer. `link_properties` has random
//! sequences of operations.

#[allow(dead_code, reason = "opening messages of sessions are for other test programs")]
mod pair;

use std::net::SocketAddr;

use pair::{CLIENT, Pair, Seen, helper_key, server_config};
use spillway_auth::Key;
use spillway_batch::{
    CLIENT_CONNECTIONS_MAX, CONTROL_BYTES_MAX, CloseReason, Control, Encryption, ForbiddenAddress, Id,
    Limits, LinkError, OpenError, RefuseReason, Role, ServerConfig,
};
use spillway_wire::preamble::Verdict;

fn client(port: u16) -> SocketAddr {
    SocketAddr::new(CLIENT, port)
}

#[test]
fn a_link_authenticates_and_carries_a_request_and_its_reply() {
    let mut pair = Pair::established();
    let id = pair.opener.open(client(5), None).unwrap();
    assert_eq!(pair.opener.compose(id, b"get x\r\n"), 7, "requests should be able to follow connect at once");
    pair.exchange();
    assert_eq!(
        pair.take_server_events(),
        [Seen::Connect(id, client(5)), Seen::Data(id, b"get x\r\n".to_vec())],
    );
    pair.server.accept(id);
    assert_eq!(pair.server.compose(id, b"END\r\n"), 5);
    pair.exchange();
    assert_eq!(pair.take_opener_events(), [Seen::Accepted(id), Seen::Data(id, b"END\r\n".to_vec())]);
    let info = pair.server.info(id).unwrap();
    assert_eq!((info.client, info.role), (client(5), Role::Helper));
    assert_eq!((info.bytes_received, info.bytes_sent), (7, 5));
}

#[test]
fn an_id_is_free_only_after_both_ends_have_closed() {
    let mut pair = Pair::established();
    let id = pair.open(5);
    pair.opener.finish(id);
    pair.opener.close(id, CloseReason::Normal);
    pair.exchange();
    assert_eq!(pair.take_server_events(), [Seen::Finished(id), Seen::Closed(id, CloseReason::Normal)]);
    assert_eq!((pair.opener.connections(), pair.server.connections()), (1, 1));
    assert_eq!(pair.server.compose(id, b"late"), 0, "no reply should be sent after the opener has closed");
    pair.server.close(id, CloseReason::Normal);
    pair.server.close(id, CloseReason::Normal);
    pair.exchange();
    assert_eq!((pair.opener.connections(), pair.server.connections()), (0, 0));
    assert_eq!(pair.take_opener_events(), [], "the end that closed first should not get a close event");
}

#[test]
fn both_ends_may_close_at_the_same_time() {
    let mut pair = Pair::established();
    let id = pair.open(5);
    pair.opener.close(id, CloseReason::Reset);
    pair.server.close(id, CloseReason::Normal);
    pair.exchange();
    assert_eq!((pair.opener.connections(), pair.server.connections()), (0, 0));
    assert_eq!(pair.take_server_events(), []);
    assert_eq!(pair.take_opener_events(), []);
}

#[test]
fn replies_in_flight_arrive_before_the_close() {
    let mut pair = Pair::established();
    let id = pair.open(5);
    pair.server.compose(id, b"bye");
    pair.server.close(id, CloseReason::Normal);
    pair.exchange();
    let events = pair.take_opener_events();
    assert_eq!(events, [Seen::Data(id, b"bye".to_vec()), Seen::Closed(id, CloseReason::Normal)]);
    pair.opener.close(id, CloseReason::Normal);
    pair.exchange();
    assert_eq!((pair.opener.connections(), pair.server.connections()), (0, 0));
}

#[test]
fn a_refused_connection_frees_its_id() {
    let mut pair = Pair::established();
    let id = pair.opener.open(client(5), None).unwrap();
    pair.opener.compose(id, b"x");
    pair.exchange();
    pair.opener.compose(id, b"more");
    pair.opener.close(id, CloseReason::Normal);
    pair.server.refuse(id, RefuseReason::Full);
    pair.exchange();
    assert_eq!(pair.take_opener_events(), [Seen::Refused(id, RefuseReason::Full)]);
    assert_eq!((pair.opener.connections(), pair.server.connections()), (0, 0));
    pair.take_server_events();
    let reopened = pair.open(6);
    pair.opener.compose(reopened, b"y");
    pair.exchange();
    assert_eq!(
        pair.take_server_events(),
        [Seen::Data(reopened, b"y".to_vec())],
        "data of the refused connection should not be delivered"
    );
}

#[test]
fn a_connection_without_credit_does_not_stop_others() {
    let limits = Limits { window_bytes: 1000, ..Limits::default() };
    let mut pair = Pair::with_limits(limits, limits);
    let (slow, quick) = (pair.open(1), pair.open(2));
    assert_eq!(pair.opener.compose(slow, &[1; 1500]), 1000);
    assert_eq!(pair.opener.compose(slow, &[1; 500]), 0);
    pair.exchange();
    assert_eq!(pair.opener.compose(quick, &[2; 500]), 500);
    pair.exchange();
    assert_eq!(pair.opener.poll_room(), None);
    pair.server.consumed(slow, 499).unwrap();
    pair.exchange();
    assert_eq!(pair.opener.poll_room(), None, "credit should be sent after half the window");
    pair.server.consumed(slow, 1).unwrap();
    pair.exchange();
    assert_eq!(pair.opener.poll_room(), Some(slow));
    assert_eq!(pair.opener.poll_room(), None);
    assert_eq!(pair.opener.compose(slow, &[1; 600]), 500);
}

#[test]
fn data_beyond_the_credit_closes_only_its_connection() {
    let mut pair = Pair::established();
    let id = pair.opener.open(client(1), None).unwrap();
    let other = pair.open(2);
    // Relayed frames bypass the opener's own check of credit.
    pair.opener.relay_data(id, &vec![7; 60_000], true);
    pair.exchange();
    pair.take_server_events();
    for _ in 0..5 {
        pair.opener.relay_data(id, &vec![7; 60_000], true);
    }
    pair.opener.compose(other, b"fine");
    pair.exchange();
    let events = pair.take_server_events();
    assert!(events.contains(&Seen::Closed(id, CloseReason::OverCredit)), "its connection should close");
    assert!(events.contains(&Seen::Data(other, b"fine".to_vec())), "the other connection should go on");
    pair.server.close(id, CloseReason::Normal);
    pair.exchange();
    let events = pair.take_opener_events();
    assert!(
        events.contains(&Seen::Closed(id, CloseReason::OverCredit)),
        "data beyond the credit should close its connection: {events:?}"
    );
}

#[test]
fn finish_with_a_wrong_offset_closes_the_connection() {
    let mut pair = Pair::established();
    let id = pair.open(1);
    pair.opener.compose(id, b"abc");
    pair.opener.relay_control(id, Control::Finish(4));
    pair.exchange();
    let events = pair.take_server_events();
    assert_eq!(events, [Seen::Data(id, b"abc".to_vec()), Seen::Closed(id, CloseReason::Protocol)]);
}

#[test]
fn data_after_finish_closes_the_connection() {
    let mut pair = Pair::established();
    let id = pair.open(1);
    pair.opener.finish(id);
    pair.opener.relay_data(id, b"more", true);
    pair.exchange();
    assert_eq!(pair.take_server_events(), [Seen::Finished(id), Seen::Closed(id, CloseReason::Protocol)]);
}

#[test]
fn compose_takes_no_bytes_at_the_bound_of_pending_bytes_until_a_batch_is_sent() {
    let limits = Limits { pending_bytes_max: 1000, ..Limits::default() };
    let mut pair = Pair::with_limits(limits, limits);
    let (first, second) = (pair.open(1), pair.open(2));
    assert_eq!(pair.server.compose(first, &[1; 2000]), 1000);
    assert_eq!(pair.server.compose(second, &[2; 10]), 0);
    assert_eq!(pair.server.poll_room(), None);
    pair.exchange();
    let with_room = [pair.server.poll_room(), pair.server.poll_room(), pair.server.poll_room()];
    assert_eq!(with_room, [Some(first), Some(second), None]);
}

#[test]
fn ids_above_the_servers_bound_fail_the_link() {
    let limits = Limits { connections_max: 3, ..Limits::default() };
    let mut pair = Pair::with_limits(Limits::default(), limits);
    for port in 1..=3 {
        pair.open(port);
    }
    assert_eq!(pair.opener.open(client(4), None), Err(OpenError::Full));
    pair.opener.relay_control(Id(4), pair::connect_control(client(4)));
    assert_eq!(
        pair.try_exchange(),
        Err(LinkError::Id(Id(4))),
        "an id above the bound in the welcome should fail the link"
    );
}

#[test]
fn connect_for_an_id_in_use_fails_the_link() {
    let mut pair = Pair::established();
    let id = pair.open(1);
    pair.opener.relay_control(id, pair::connect_control(client(2)));
    assert_eq!(pair.try_exchange(), Err(LinkError::Id(id)));
}

#[test]
fn a_forged_client_address_is_refused_and_reported() {
    let mut pair = Pair::established();
    let forged: SocketAddr = "203.0.113.7:99".parse().unwrap();
    let id = pair.opener.open(forged, None).unwrap();
    pair.opener.compose(id, b"flush_all\r\n");
    pair.exchange();
    assert_eq!(pair.take_server_events(), [Seen::Forbidden(forged, ForbiddenAddress::OutsideRanges)]);
    assert_eq!(pair.take_opener_events(), [Seen::Refused(id, RefuseReason::Forbidden)]);
}

#[test]
fn unknown_keys_are_rejected_with_their_id() {
    let unknown_key = Key::from_secret([9; 32]);
    let mut pair = Pair::new(Role::Helper, unknown_key.clone(), server_config(Limits::default()));
    let error = pair.try_exchange().unwrap_err();
    assert_eq!(error, LinkError::UnknownKey { role: Role::Helper, key: unknown_key.id() });
    assert_eq!(pair.deliver_to_opener(), Err(LinkError::RefusedByServer(Verdict::Key)));

    let mut pair = Pair::new(Role::Client, helper_key(), server_config(Limits::default()));
    let error = pair.try_exchange().unwrap_err();
    assert_eq!(error, LinkError::UnknownKey { role: Role::Client, key: helper_key().id() });
}

#[test]
fn a_server_without_the_key_is_rejected() {
    // The altered byte stands for a proof with another key.
    let mut pair = Pair::new(Role::Helper, helper_key(), server_config(Limits::default()));
    pair.alter_to_opener = Some(40); // a byte of the proof in *welcome*
    assert_eq!(pair.try_exchange(), Err(LinkError::WrongProof));
}

#[test]
fn an_altered_proof_of_the_opener_is_refused() {
    let mut pair = Pair::new(Role::Helper, helper_key(), server_config(Limits::default()));
    pair.alter_to_server = Some(36 + 31); // the last byte of the proof, which follows *hello*
    assert_eq!(pair.try_exchange(), Err(LinkError::WrongProof));
}

#[test]
fn a_silent_peer_or_another_protocol_fails_the_link() {
    let mut pair = Pair::new(Role::Helper, helper_key(), server_config(Limits::default()));
    let deadline = pair.server.poll_timeout().unwrap();
    assert_eq!(pair.server.handle_timeout(deadline), Err(LinkError::HandshakeTimeout));
    let mut pair = Pair::new(Role::Helper, helper_key(), server_config(Limits::default()));
    let mut other_protocol = &b"GET / HTTP/1.1\r\nHost: cache.example.com\r\n\r\n"[..];
    assert!(
        matches!(pair.server.decompose(pair.now, &mut other_protocol), Err(LinkError::Preamble(_))),
        "another protocol should fail the link"
    );
    assert_eq!(
        pair.server.decompose(pair.now, &mut other_protocol),
        Ok(None),
        "a failed link should not return events"
    );
}

#[test]
fn frames_from_the_wrong_side_fail_the_link() {
    let mut pair = Pair::established();
    let id = pair.open(1);
    pair.opener.relay_control(id, Control::Accepted);
    assert!(matches!(pair.try_exchange(), Err(LinkError::Direction(_))), "the direction should be checked");
}

#[test]
fn batches_wait_for_their_interval() {
    let mut pair = Pair::established();
    let id = pair.open(1);
    let first = pair.now;
    pair.opener.compose(id, b"a");
    assert!(pair.opener.poll_transmit(first).is_none(), "the batch should wait for its interval");
    let due = pair.opener.poll_timeout().unwrap();
    assert!(due > first, "the second batch should wait");
    assert!(pair.opener.poll_transmit(due).is_some(), "the second batch should leave when it is due");
    assert_eq!(pair.opener.poll_timeout(), None);
    pair.opener.compose(id, &[b'x'; 40_000]);
    assert!(pair.opener.poll_transmit(due).is_some(), "a full batch should leave at once");
}

#[test]
fn a_drain_of_the_server_is_reported_at_the_opener() {
    let mut pair = Pair::established();
    pair.server.drain(1500);
    pair.exchange();
    assert_eq!(pair.take_opener_events(), [Seen::Drain(1500)]);
}

#[test]
fn the_default_configuration_rejects_all_keys() {
    let mut pair = Pair::new(Role::Helper, Key::loopback_only(), ServerConfig::default().into());
    assert!(matches!(pair.try_exchange(), Err(LinkError::UnknownKey { .. })), "each key should be rejected");
}

fn frames(controls: impl IntoIterator<Item = (Id, Control)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (id, control) in controls {
        control.emit(id, &mut bytes);
    }
    bytes
}

/// The peer sends *connect* messages that are refused, and does not read the answers.
#[test]
fn a_link_is_not_read_while_too_many_answers_wait() {
    let mut pair = Pair::unencrypted(Limits::default());
    let connect = pair::connect_control("203.0.113.7:1".parse().unwrap());
    let batch = frames((0..1000).map(|_| (Id(1), connect)));
    let mut rounds = 0;
    while pair.server.may_read() {
        let mut input = batch.as_slice();
        while pair.server.decompose(pair.now, &mut input).unwrap().is_some() {}
        rounds += 1;
        // A bound on the loop only: far more rounds than fill `CONTROL_BYTES_MAX`.
        assert!(rounds < 100, "reading should stop within 100 rounds");
    }
    assert!(
        pair.server.pending() < CONTROL_BYTES_MAX + batch.len(),
        "reading should stop when answers fill their bound, after the batch being read"
    );
    assert!(pair.server.flush(pair.now).is_some(), "the answers should be sent");
    assert!(pair.server.may_read(), "reading should continue when the answers are sent");
}

#[test]
fn only_the_first_drain_of_the_whole_link_is_reported() {
    let mut pair = Pair::unencrypted(Limits::default());
    let id = pair.open(5);
    pair.take_server_events();
    let drain = Control::Drain { deadline_ms: 7 };
    let batch = frames([(id, drain), (Id(99), drain), (Id::LINK, drain), (Id::LINK, drain)]);
    let (mut input, mut events) = (batch.as_slice(), Vec::new());
    while let Some(event) = pair.server.decompose(pair.now, &mut input).unwrap() {
        events.push(format!("{event:?}"));
    }
    assert_eq!(events, ["Drain { deadline_ms: 7 }"]);
}

#[test]
fn a_clients_link_has_at_most_16_connections() {
    let client_key = Key::from_secret([77; 32]);
    let mut config = (*server_config(Limits::default())).clone();
    config.encryption = Encryption::Off; // the test sends its own frame
    config.ring.accept(Role::Client, client_key.clone());
    let mut pair = Pair::new(Role::Client, client_key, std::sync::Arc::new(config));
    pair.exchange();
    let opened = (0..100).map_while(|_| pair.opener.open(pair::HELPER, None).ok()).count();
    assert_eq!(opened, CLIENT_CONNECTIONS_MAX as usize);
    pair.exchange();
    let batch = frames([(Id(CLIENT_CONNECTIONS_MAX + 1), pair::connect_control(pair::HELPER))]);
    let error = pair.server.decompose(pair.now, &mut batch.as_slice()).unwrap_err();
    assert_eq!(error, LinkError::Id(Id(CLIENT_CONNECTIONS_MAX + 1)));
}
