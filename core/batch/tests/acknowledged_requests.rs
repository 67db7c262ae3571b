//! A server confirms received requests by *acknowledge* to a helper that has enabled this.

#[allow(dead_code, reason = "its events are for other test programs")]
mod pair;

use pair::{Pair, Seen};
use spillway_batch::{CloseReason, Control, Id, Limits, Received};
use spillway_wire::session::Acknowledge;

/// Opens a connection whose replies the server keeps until they are acknowledged. This also enables acknowledgements of
/// requests.
fn open_acknowledged(pair: &mut Pair, port: u16) -> Id {
    let client = std::net::SocketAddr::from(([10, 0, 0, 9], port));
    let id = pair.opener.open_kept(client, None).unwrap();
    pair.exchange();
    pair.take_opener_events();
    pair.take_server_events();
    id
}

#[test]
fn requests_are_acknowledged_once_for_each_input() {
    let mut pair = Pair::established();
    assert!(
        pair.opener.acknowledges_requests(),
        "the server should acknowledge requests on a link of this version"
    );
    let (first, second) = (open_acknowledged(&mut pair, 1), open_acknowledged(&mut pair, 2));
    for bytes in [b"abc".as_slice(), b"defgh"] {
        pair.opener.compose(first, bytes);
        pair.opener.compose(second, b"x");
    }
    pair.exchange();
    let mut events = pair.take_opener_events();
    events.sort_by_key(|seen| matches!(seen, Seen::Acknowledged(id, ..) if *id == second));
    assert_eq!(events, [Seen::Acknowledged(first, 8, false), Seen::Acknowledged(second, 2, false)]);
    pair.exchange();
    assert!(
        pair.take_opener_events().is_empty(),
        "an acknowledgement should not be repeated without new requests"
    );
}

#[test]
fn finish_is_acknowledged() {
    let mut pair = Pair::established();
    let id = open_acknowledged(&mut pair, 1);
    pair.opener.compose(id, b"abc");
    pair.opener.finish(id);
    pair.exchange();
    assert_eq!(pair.take_opener_events(), [Seen::Acknowledged(id, 3, true)]);
}

#[test]
fn requests_are_acknowledged_only_if_the_helper_requests_it() {
    let mut pair = Pair::established();
    let id = pair.open(5); // without acknowledgements
    pair.opener.compose(id, b"abc");
    pair.exchange();
    assert!(pair.take_opener_events().is_empty(), "no acknowledgement should be sent");
}

#[test]
fn bytes_that_have_not_arrived_are_not_acknowledged() {
    let mut pair = Pair::unencrypted(Limits::default());
    let id = open_acknowledged(&mut pair, 1);
    pair.opener.compose(id, &[7; 100]);
    let mut batch = pair.opener.flush(pair.now).unwrap();
    let mut input = &batch.as_slice()[..57]; // the frame header of 7 bytes, 50 bytes of data
    while pair.server.decompose(pair.now, &mut input).unwrap().is_some() {}
    pair.deliver_to_opener().unwrap();
    assert_eq!(pair.take_opener_events(), [Seen::Acknowledged(id, 50, false)]);
    batch.advance(57);
    let mut input = batch.as_slice();
    while pair.server.decompose(pair.now, &mut input).unwrap().is_some() {}
    pair.deliver_to_opener().unwrap();
    assert_eq!(pair.take_opener_events(), [Seen::Acknowledged(id, 100, false)]);
}

#[test]
fn runs_are_acknowledged() {
    let mut pair = Pair::unencrypted(Limits::default());
    let id = open_acknowledged(&mut pair, 1);
    pair.opener.compose(id, b"abc");
    pair.opener.compose(id, b"de");
    let batch = pair.opener.flush(pair.now).unwrap();
    let mut input = batch.as_slice();
    assert!(
        matches!(pair.server.decompose_run(pair.now, &mut input), Ok(Some(Received::Run(_)))),
        "the frames should be one run"
    );
    assert_eq!(pair.server.decompose_run(pair.now, &mut input), Ok(None));
    pair.deliver_to_opener().unwrap();
    assert_eq!(pair.take_opener_events(), [Seen::Acknowledged(id, 5, false)]);
}

#[test]
fn an_acknowledgement_of_unsent_requests_closes_the_connection() {
    for (received, finish_received) in [(4, false), (3, true)] {
        let mut pair = Pair::established();
        let id = open_acknowledged(&mut pair, 1);
        pair.opener.compose(id, b"abc");
        let acknowledge = Acknowledge { received, finish_received, requests_answer: false };
        pair.server.send_control(id, Control::Acknowledge(acknowledge));
        pair.deliver_to_opener().unwrap();
        assert_eq!(pair.take_opener_events(), [Seen::Closed(id, CloseReason::Protocol)]);
    }
}
