//! Runs: requests that a server forwards unchanged, and the replies that it returns.

#[allow(dead_code, reason = "its events are for other test programs")]
mod pair;

use proptest::prelude::*;
use spillway_batch::{CloseReason, Id, Limits, LinkError, Received, ServerEvent};
use spillway_transport::Time;
use spillway_wire::{Control, Disassembler, HEADER_BYTES, Header, Kind, Piece};

const NOW: Time = Time::ZERO;

fn frame(id: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header { kind: Kind::Request, more: false, length: payload.len() as u16, id: Id(id) };
    [&header.emit()[..], payload].concat()
}

fn control(id: u32, control: Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    control.emit(Id(id), &mut bytes);
    bytes
}

/// A server's end with connections 1 to 3 open.
fn server(limits: Limits) -> spillway_batch::ServerLink {
    let mut server = pair::Pair::unencrypted(limits).server;
    let mut connects = Vec::new();
    for id in 1..=3 {
        connects
            .extend(control(id, pair::connect_control(format!("10.0.0.3:{}", 5000 + id).parse().unwrap())));
    }
    let mut input = connects.as_slice();
    for id in 1..=3 {
        let event = server.decompose_run(NOW, &mut input).unwrap();
        assert!(
            matches!(event, Some(Received::Event(ServerEvent::Connect { id: Id(opened), .. })) if opened == id),
            "the server should receive connect with the opened id: {event:?}"
        );
    }
    assert_eq!(server.decompose_run(NOW, &mut input), Ok(None));
    server
}

#[test]
fn a_run_contains_the_received_bytes_and_control_messages_are_events() {
    let mut server = server(Limits::default());
    let run = [frame(1, b"a"), frame(2, b"bb"), frame(1, b"ccc")].concat();
    let bytes = [run.clone(), control(2, Control::Finish(2)), frame(3, b"d")].concat();
    let mut input = bytes.as_slice();
    let event = server.decompose_run(NOW, &mut input).unwrap();
    let Some(Received::Run(taken)) = event else { panic!("{event:?}") };
    assert_eq!(taken, run);
    assert!(std::ptr::eq(taken.as_ptr(), bytes.as_ptr()), "the run should borrow from the caller's buffer");
    assert_eq!(
        server.decompose_run(NOW, &mut input),
        Ok(Some(Received::Event(ServerEvent::Finished { id: Id(2) })))
    );
    assert_eq!(server.decompose_run(NOW, &mut input), Ok(Some(Received::Run(&frame(3, b"d")))));
    assert_eq!(server.decompose_run(NOW, &mut input), Ok(None));
    assert_eq!(server.info(Id(1)).unwrap().bytes_received, 4);
    assert_eq!(server.counters().messages_received, 4);
}

#[test]
fn an_incomplete_frame_stays_in_the_input() {
    let frames = [frame(1, b"first"), frame(2, b"second")].concat();
    let first = frame(1, b"first").len();
    for cut in first..frames.len() {
        let mut server = server(Limits::default());
        let mut input = &frames[..cut];
        let event = server.decompose_run(NOW, &mut input).unwrap();
        assert_eq!(
            event,
            Some(Received::Run(&frames[..first])),
            "only the complete frames should be a run when the input is cut at {cut}"
        );
        assert_eq!(server.decompose_run(NOW, &mut input), Ok(None));
        assert_eq!(input, &frames[first..cut], "the incomplete frame should stay in the input");
        let mut input = &frames[first..];
        let event = server.decompose_run(NOW, &mut input).unwrap();
        assert_eq!(event, Some(Received::Run(&frames[first..])));
    }
}

#[test]
fn forwarded_bytes_count_as_consumed() {
    let limits = Limits { window_bytes: 100, ..Limits::default() };
    let mut server = server(limits);
    server.flush(NOW);
    let bytes = [frame(1, &[b'x'; 60]), frame(2, &[b'y'; 10])].concat();
    let mut input = bytes.as_slice();
    let Some(Received::Run(run)) = server.decompose_run(NOW, &mut input).unwrap() else {
        panic!("the frames should form a run")
    };
    assert_eq!(server.pending(), 0, "credit should not be sent before the run is forwarded");
    server.forwarded(run);
    let batch = server.flush(NOW).unwrap();
    assert_eq!(
        batch.as_slice(),
        control(1, Control::Credit(160)),
        "one credit should be sent after half the window"
    );
    // Forwarding more than was received does not grant credit.
    server.forwarded(&[frame(1, &[0; 5000]), frame(9, b"unknown")].concat());
    assert!(server.flush(NOW).is_none(), "no credit should be sent");
}

#[test]
fn credit_and_direction_are_checked_in_runs() {
    let limits = Limits { window_bytes: 10, ..Limits::default() };
    let mut server = server(limits);
    let bytes =
        [frame(1, b"0123456789"), frame(1, b"x"), frame(7, b"unknown"), frame(2, b""), frame(2, b"fine")]
            .concat();
    let mut input = bytes.as_slice();
    let mut next = || server.decompose_run(NOW, &mut input).unwrap();
    assert_eq!(next(), Some(Received::Run(&frame(1, b"0123456789"))));
    assert_eq!(
        next(),
        Some(Received::Event(ServerEvent::Closed { id: Id(1), reason: CloseReason::OverCredit }))
    );
    assert_eq!(next(), Some(Received::Run(&[frame(2, b""), frame(2, b"fine")].concat())));
    assert_eq!(
        (next(), server.counters().unknown_frames),
        (None, 1),
        "the unknown frame should be counted, and not returned"
    );
    let reply = Header { kind: Kind::Reply, more: false, length: 1, id: Id(1) };
    let bytes = [&reply.emit()[..], b"x"].concat();
    assert_eq!(server.decompose_run(NOW, &mut bytes.as_slice()), Err(LinkError::Direction(Kind::Reply)));
}

#[test]
fn messages_of_sessions_are_events() {
    let mut server = server(Limits::default());
    let reconnect = pair::reconnect_control("10.0.0.3:5009".parse().unwrap());
    let bytes = [control(4, reconnect), frame(1, b"plain"), frame(4, b"session")].concat();
    let mut input = bytes.as_slice();
    let mut next = || server.decompose_run(NOW, &mut input).unwrap();
    assert!(
        matches!(next(), Some(Received::Event(ServerEvent::Session { id: Id(4), .. }))),
        "a message of sessions should be an event"
    );
    assert_eq!(next(), Some(Received::Run(&frame(1, b"plain"))));
    assert_eq!(next(), Some(Received::Event(ServerEvent::Carried { id: Id(4), bytes: b"session" })));
    assert_eq!(next(), None);
}

#[test]
fn replies_without_credit_are_returned_in_order() {
    let mut server = server(Limits::default());
    server.flush(NOW);
    let reply = |id, payload: &[u8]| {
        let header = Header { kind: Kind::Reply, more: false, length: payload.len() as u16, id: Id(id) };
        [&header.emit()[..], payload].concat()
    };
    // Each client grants 1000 bytes of credit.
    let (first, second) = ([b'a'; 990], [b'b'; 30]);
    let run = [reply(1, &first), reply(2, b"x"), reply(1, &second), reply(1, b"last"), reply(9, b"unknown")]
        .concat();
    let mut rest = Vec::new();
    server.compose_run(&run, &mut rest);
    assert_eq!(rest, [reply(1, &second[10..]), reply(1, b"last")].concat());
    let batch = server.flush(NOW).unwrap();
    assert_eq!(batch.as_slice(), [reply(1, &first), reply(2, b"x"), reply(1, &second[..10])].concat());
    server.decompose_run(NOW, &mut control(1, Control::Credit(5000)).as_slice()).unwrap();
    assert_eq!(server.poll_room(), Some(Id(1)));
    let waiting = std::mem::take(&mut rest);
    server.compose_run(&waiting, &mut rest);
    assert!(rest.is_empty(), "no byte should be returned after credit arrived");
    // Consecutive frames of one connection are merged.
    assert_eq!(server.flush(NOW).unwrap().as_slice(), reply(1, &[&second[10..], b"last"].concat()));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(
        parts in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..40),
                (0_u32..6, 0_usize..100).prop_map(|(id, length)| frame(id, &vec![7; length])),
                (0_u32..6, any::<u64>()).prop_map(|(id, offset)| control(id, Control::Finish(offset))),
            ],
            0..30,
        ),
    ) {
        let mut server = server(Limits::default());
        let bytes = parts.concat();
        let mut input = bytes.as_slice();
        while let Ok(Some(received)) = server.decompose_run(NOW, &mut input) {
            if let Received::Run(run) = received {
                prop_assert!(!run.is_empty(), "a run should have bytes");
                server.forwarded(run);
            }
        }
        let mut rest = Vec::new();
        server.compose_run(&bytes, &mut rest);
        server.forwarded(&bytes);
    }

    /// Runs contain the bytes that `decompose` would return, however the input is split.
    #[test]
    fn runs_contain_the_bytes_that_decompose_returns(
        messages in proptest::collection::vec((1_u32..=5, 0_usize..300, any::<bool>()), 1..60),
        cuts in proptest::collection::vec(1_usize..700, 1..20),
    ) {
        let mut bytes = Vec::new();
        for (number, (id, length, is_credit)) in messages.into_iter().enumerate() {
            if is_credit {
                bytes.extend(control(id, Control::Credit(number as u64)));
            } else {
                bytes.extend(frame(id, &vec![number as u8; length]));
            }
        }
        let (mut by_frame, mut by_run) = (server(Limits::default()), server(Limits::default()));
        let mut expected = vec![Vec::new(); 6];
        let mut input = bytes.as_slice();
        while let Some(event) = by_frame.decompose(NOW, &mut input).unwrap() {
            if let ServerEvent::Data { id, bytes } = event {
                expected[id.0 as usize].extend_from_slice(bytes);
            }
        }
        let mut received = vec![Vec::new(); 6];
        let (mut input_bytes, mut offset, mut cuts) = (Vec::new(), 0, cuts.into_iter().cycle());
        while offset < bytes.len() {
            let end = bytes.len().min(offset + cuts.next().unwrap());
            input_bytes.extend_from_slice(&bytes[offset..end]);
            offset = end;
            let mut input = input_bytes.as_slice();
            while let Some(event) = by_run.decompose_run(NOW, &mut input).unwrap() {
                let Received::Run(mut run) = event else { continue };
                let mut disassembler = Disassembler::new();
                while let Some(piece) = disassembler.next(&mut run).unwrap() {
                    let Piece::Data { id, bytes, .. } = piece else { panic!("{piece:?}") };
                    received[id.0 as usize].extend_from_slice(bytes);
                }
                prop_assert!(disassembler.is_between_frames(), "a run should end with a complete frame");
            }
            input_bytes = input.to_vec();
        }
        prop_assert!(
            input_bytes.is_empty() || input_bytes.len() < HEADER_BYTES,
            "only an incomplete header should stay in the input"
        );
        prop_assert_eq!(received, expected);
        prop_assert_eq!(by_run.counters(), by_frame.counters());
    }
}
