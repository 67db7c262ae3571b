//! The scenarios, in the order of the contract's promises.

use alloc::boxed::Box;

use super::Side::{Accepting, Connecting};
use super::vocabulary::{RigExt, connect, connected, other, send_all, stream};
use super::{Probe, Rig, Scenario, Seen};
use crate::{Chunk, LostReason};

/// Every scenario with its name.
pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("p1_the_first_event_is_opened_or_lost", p1_the_first_event_is_opened_or_lost),
    ("p2_no_more_is_delivered_than_granted", p2_no_more_is_delivered_than_granted),
    ("p2_a_grant_within_an_event_takes_effect", p2_a_grant_within_an_event_takes_effect),
    ("p3_finished_needs_no_grant", p3_finished_needs_no_grant),
    ("p3_finished_comes_last_and_half_closes", p3_finished_comes_last_and_half_closes),
    ("p4_send_takes_as_many_bytes_as_fit", p4_send_takes_as_many_bytes_as_fit),
    ("p4_chunks_are_sent_in_order_or_returned_whole", p4_chunks_are_sent_in_order_or_returned_whole),
    ("p5_bytes_taken_before_finish_are_delivered", p5_bytes_taken_before_finish_are_delivered),
    ("p6_no_event_follows_an_abort", p6_no_event_follows_an_abort),
    ("p6_an_abort_within_an_event_resets_the_peer", p6_an_abort_within_an_event_resets_the_peer),
    ("p7_a_stale_connection_is_ignored", p7_a_stale_connection_is_ignored),
    ("p8_turns_end_and_timeouts_fire", p8_turns_end_and_timeouts_fire),
    ("p9_methods_do_not_call_back", p9_methods_do_not_call_back),
    ("listeners_open_and_close", listeners_open_and_close),
    (
        "acknowledged_is_reported_only_for_watched_connections",
        acknowledged_is_reported_only_for_watched_connections,
    ),
];

/// Promise 1, and the fields of `Opened`.
fn p1_the_first_event_is_opened_or_lost(rig: &mut dyn Rig) {
    let (connecting, accepting) = connected(rig);
    let target = rig.listener();
    let seen = rig.on(Connecting, |probe, _| probe.of(connecting));
    assert_eq!(seen, [Seen::Opened { peer: target, listener: None }]);
    let seen = rig.on(Accepting, |probe, _| probe.of(accepting));
    assert!(matches!(seen[..], [Seen::Opened { listener: Some(0), .. }]), "{seen:?}");

    let refusing = rig.refusing_address();
    let refused = connect(rig, refusing);
    rig.wait("Lost(Refused)", Connecting, |probe| !probe.of(refused).is_empty());
    rig.settle();
    let seen = rig.on(Connecting, |probe, _| probe.of(refused));
    assert_eq!(seen, [Seen::Lost(LostReason::Refused)]);
}

/// Promise 2: grants add up, and nothing is delivered beyond them.
fn p2_no_more_is_delivered_than_granted(rig: &mut dyn Rig) {
    let (connecting, accepting) = connected(rig);
    for (from, to, source, target) in
        [(Connecting, Accepting, connecting, accepting), (Accepting, Connecting, accepting, connecting)]
    {
        send_all(rig, from, source, 0, 1000);
        rig.settle();
        assert_eq!(
            rig.on(to, |probe, _| probe.received(target)),
            0,
            "no byte may be delivered without a grant"
        );
        rig.on(to, |probe, out| probe.grant(target, 10, out));
        rig.wait("10 bytes", to, |probe| probe.received(target) == 10);
        rig.settle();
        assert_eq!(rig.on(to, |probe, _| probe.received(target)), 10);
        rig.on(to, |probe, out| {
            probe.grant(target, 5, out);
            probe.grant(target, 7, out);
        });
        rig.wait("22 bytes", to, |probe| probe.received(target) == 22);
        // This grant is made before its bytes are sent. They arrive in several pieces.
        rig.on(to, |probe, out| probe.grant(target, 100_000, out));
        rig.wait("the first part", to, |probe| probe.received(target) == 1000);
        send_all(rig, from, source, 1000, 100_000);
        rig.wait("all granted bytes", to, |probe| probe.received(target) == 100_022);
        rig.settle();
        assert_eq!(rig.on(to, |probe, _| probe.received(target)), 100_022);
    }
}

/// Promise 2: a grant within an event takes effect without another event on the connection.
fn p2_a_grant_within_an_event_takes_effect(rig: &mut dyn Rig) {
    let (connecting, accepting) = connected(rig);
    rig.on(Accepting, |probe, _| probe.regrant = true);
    send_all(rig, Connecting, connecting, 0, 50_000);
    rig.settle();
    rig.on(Accepting, |probe, out| probe.grant(accepting, 777, out));
    rig.wait("all bytes, 777 at a time", Accepting, |probe| probe.received(accepting) == 50_000);
}

/// Promise 3: the end of a stream without bytes is reported to a side that has granted nothing.
fn p3_finished_needs_no_grant(rig: &mut dyn Rig) {
    let (connecting, accepting) = connected(rig);
    rig.on(Connecting, |_, out| out.finish(connecting));
    rig.wait("Finished", Accepting, |probe| probe.saw(accepting, Seen::Finished));

    // A grant of exactly the bytes sent is enough for `Finished`.
    let (connecting, accepting) = connected(rig);
    send_all(rig, Connecting, connecting, 0, 1000);
    rig.on(Connecting, |_, out| out.finish(connecting));
    rig.settle();
    assert!(
        !rig.on(Accepting, |probe, _| probe.saw(accepting, Seen::Finished)),
        "Finished must not precede the bytes"
    );
    rig.on(Accepting, |probe, out| probe.grant(accepting, 999, out));
    rig.wait("all but the last byte", Accepting, |probe| probe.received(accepting) == 999);
    rig.settle();
    assert!(
        !rig.on(Accepting, |probe, _| probe.saw(accepting, Seen::Finished)),
        "Finished must not precede the last byte"
    );
    rig.on(Accepting, |probe, out| probe.grant(accepting, 1, out));
    rig.wait("Finished after the bytes", Accepting, |probe| probe.saw(accepting, Seen::Finished));
    assert_eq!(rig.on(Accepting, |probe, _| probe.received(accepting)), 1000);
}

/// Promise 3: bytes and `Finished` of one turn arrive in order; the other direction stays open.
fn p3_finished_comes_last_and_half_closes(rig: &mut dyn Rig) {
    rig.on(Accepting, |probe, _| (probe.grant_on_open, probe.regrant) = (100_000, true));
    rig.on(Connecting, |probe, _| (probe.grant_on_open, probe.regrant) = (100_000, true));
    for side in [Connecting, Accepting] {
        let (connecting, accepting) = connected(rig);
        let (source, target) =
            if side == Connecting { (connecting, accepting) } else { (accepting, connecting) };
        let bytes = stream(0, 3000);
        rig.on(side, |_, out| {
            assert_eq!(out.send(source, &bytes), bytes.len());
            out.finish(source);
            assert_eq!(out.send(source, b"late"), 0, "send after finish should take nothing");
        });
        rig.wait("Finished", other(side), |probe| probe.saw(target, Seen::Finished));
        assert_eq!(rig.on(other(side), |probe, _| probe.received(target)), 3000);
        send_all(rig, other(side), target, 0, 200_000);
        rig.wait("the other direction", side, |probe| probe.received(source) == 200_000);
        rig.on(other(side), |_, out| out.finish(target));
        rig.wait("Lost(Closed)", other(side), |probe| probe.saw(target, Seen::Lost(LostReason::Closed)));
        rig.wait("Lost(Closed)", side, |probe| probe.saw(source, Seen::Lost(LostReason::Closed)));
    }
}

fn p4_send_takes_as_many_bytes_as_fit(rig: &mut dyn Rig) {
    let (connecting, accepting) = connected(rig);
    let piece_bytes = 10_000;
    let mut sent = 0_u64;
    let mut is_full = false;
    // The peer does not read, so the transport must take fewer bytes at some time.
    while !is_full {
        let bytes = stream(sent, piece_bytes);
        let (room, taken) = rig.on(Connecting, |_, out| (out.room(connecting), out.send(connecting, &bytes)));
        assert!(taken <= room, "took {taken} bytes with room for {room}");
        assert_eq!(taken, room.min(piece_bytes), "send should take min(room, offered) bytes");
        sent += taken as u64;
        is_full = taken < piece_bytes;
        assert!(sent < 1 << 30, "buffering for a peer that does not read should be bounded");
        rig.step();
    }
    rig.settle();
    let room_events = |probe: &Probe| probe.of(connecting).iter().filter(|seen| **seen == Seen::Room).count();
    // The host may have taken bytes during `settle`: send until no further `Room` arrives.
    loop {
        let before = rig.on(Connecting, |probe, _| room_events(probe));
        sent += rig.on(Connecting, |_, out| out.send(connecting, &stream(sent, piece_bytes * 10))) as u64;
        rig.settle();
        if rig.on(Connecting, |probe, _| room_events(probe)) == before {
            break;
        }
    }
    let before = rig.on(Connecting, |probe, _| room_events(probe));
    rig.on(Accepting, |probe, out| {
        probe.regrant = true;
        probe.grant(accepting, 50_000, out);
    });
    rig.wait("Room", Connecting, |probe| room_events(probe) > before);
    assert!(
        rig.on(Connecting, |_, out| out.room(connecting)) > 0,
        "Room should be reported only when there is room"
    );
    send_all(rig, Connecting, connecting, sent, 300_000);
    rig.wait("every byte", Accepting, |probe| probe.received(accepting) == sent + 300_000);
    let deadline = rig.now() + rig.patience();
    while rig.on(Connecting, |_, out| out.queued(connecting)) > 0 {
        assert!(rig.now() < deadline, "bytes that have arrived should not stay queued");
        rig.step();
    }
}

/// Promise 4 for chunks: taken whole or returned whole, in order with `send`; buffers are returned for reuse.
fn p4_chunks_are_sent_in_order_or_returned_whole(rig: &mut dyn Rig) {
    let (connecting, accepting) = connected(rig);
    let chunk_bytes = 3 << 20;
    let taken =
        rig.on(Connecting, |_, out| out.send_chunk(connecting, Chunk::from(stream(0, chunk_bytes))).is_ok());
    assert!(taken, "an empty transport should take a chunk of any length");
    let mut sent = chunk_bytes as u64;
    let returned =
        rig.on(Connecting, |_, out| out.send_chunk(connecting, Chunk::from(stream(sent, chunk_bytes))).err());
    match returned {
        Some(chunk) => {
            assert_eq!(
                chunk.as_slice(),
                stream(sent, chunk_bytes),
                "a refused chunk should be returned whole"
            )
        }
        None => sent += chunk_bytes as u64,
    }
    rig.on(Accepting, |probe, out| {
        probe.regrant = true;
        probe.grant(accepting, 400_000, out);
    });
    rig.wait("the chunks of 3 MiB", Accepting, |probe| probe.received(accepting) == sent);
    rig.settle(); // until the acknowledgements have arrived
    // Each round sends bytes, a chunk, bytes and a chunk in one turn.
    for round in 0..50_u64 {
        #[expect(clippy::cast_possible_truncation, reason = "at most 50 rounds")]
        let (first, second) = (100 + round as usize, 1 + 37 * round as usize);
        let next = rig.on(Connecting, |_, out| {
            let mut offset = sent;
            for length in [first, second] {
                let bytes = stream(offset, length);
                assert_eq!(out.send(connecting, &bytes), length, "an idle connection should have room");
                offset += length as u64;
                let mut chunk = out.take_recycled_chunk().unwrap_or_default();
                assert!(chunk.is_empty(), "a recycled chunk should be empty");
                chunk.buffer().extend_from_slice(&stream(offset, length));
                out.send_chunk(connecting, chunk).expect("an idle connection should have room");
                offset += length as u64;
            }
            offset
        });
        sent = next;
        rig.wait("bytes and chunks in order", Accepting, |probe| probe.received(accepting) == sent);
    }
    assert!(
        rig.on(Connecting, |_, out| out.take_recycled_chunk().is_some()),
        "sent chunks should be returned for reuse"
    );
}

fn p5_bytes_taken_before_finish_are_delivered(rig: &mut dyn Rig) {
    let (connecting, accepting) = connected(rig);
    let length = 5 << 20;
    rig.on(Connecting, |_, out| {
        out.send_chunk(connecting, Chunk::from(stream(0, length)))
            .expect("an empty transport should take any chunk");
        out.finish(connecting);
        assert!(
            out.send_chunk(connecting, Chunk::from(stream(0, 1))).is_err(),
            "send_chunk after finish should return the chunk"
        );
    });
    rig.on(Accepting, |probe, out| {
        probe.regrant = true;
        probe.grant(accepting, 30_000, out);
    });
    rig.wait("Finished", Accepting, |probe| probe.saw(accepting, Seen::Finished));
    assert_eq!(rig.on(Accepting, |probe, _| probe.received(accepting)), length as u64);
    // The connection must not be freed while one direction is open.
    rig.settle();
    assert!(!rig.on(Connecting, |probe, _| probe.saw(connecting, Seen::Lost(LostReason::Closed))));
    rig.on(Accepting, |_, out| out.finish(accepting));
    rig.wait("Lost(Closed)", Connecting, |probe| probe.saw(connecting, Seen::Lost(LostReason::Closed)));
    rig.wait("Lost(Closed)", Accepting, |probe| probe.saw(accepting, Seen::Lost(LostReason::Closed)));
}

/// Promise 6: an abort causes no event at this side and a reset at the other, whatever was in flight.
fn p6_no_event_follows_an_abort(rig: &mut dyn Rig) {
    for side in [Connecting, Accepting] {
        let (connecting, accepting) = connected(rig);
        let (source, target) =
            if side == Connecting { (connecting, accepting) } else { (accepting, connecting) };
        rig.on(side, |probe, out| probe.grant(source, 1000, out));
        send_all(rig, other(side), target, 0, 500);
        let bytes = stream(0, 100);
        rig.on(side, |probe, out| {
            out.send(source, &bytes);
            probe.abort(source, out);
        });
        rig.wait("Lost(Reset)", other(side), |probe| {
            probe.of(target).iter().any(|seen| matches!(seen, Seen::Lost(_)))
        });
        assert!(rig.on(other(side), |probe, _| probe.saw(target, Seen::Lost(LostReason::Reset))));
        rig.settle();
    }
    // An abort before the connection is established.
    let target = rig.listener();
    let early = connect(rig, target);
    rig.on(Connecting, |probe, out| probe.abort(early, out));
    rig.settle();
}

fn p6_an_abort_within_an_event_resets_the_peer(rig: &mut dyn Rig) {
    let (connecting, accepting) = connected(rig);
    rig.on(Accepting, |probe, out| {
        probe.grant(accepting, 1_000_000, out);
        probe.react(Box::new(|_, conn, seen, probe, out| {
            if matches!(seen, Seen::Data { .. }) {
                probe.abort(conn, out);
            }
        }));
    });
    let bytes = stream(0, 200_000);
    rig.on(Connecting, |_, out| out.send(connecting, &bytes));
    rig.wait("Lost(Reset)", Connecting, |probe| probe.saw(connecting, Seen::Lost(LostReason::Reset)));
    rig.on(Accepting, |probe, _| {
        probe.react(Box::new(|_, conn, seen, probe, out| {
            if matches!(seen, Seen::Opened { .. }) {
                probe.abort(conn, out);
            }
        }));
    });
    let (connecting, _) = connected(rig);
    rig.wait("Lost(Reset)", Connecting, |probe| probe.saw(connecting, Seen::Lost(LostReason::Reset)));
    rig.settle();
}

/// Promise 7: a method called with a stale `Conn` does not affect the connection that reuses its slot.
fn p7_a_stale_connection_is_ignored(rig: &mut dyn Rig) {
    let (stale, _) = connected(rig);
    rig.on(Connecting, |probe, out| probe.abort(stale, out));
    rig.settle();
    let mut reused = false;
    for _ in 0..8 {
        let (connecting, accepting) = connected(rig);
        assert_ne!(connecting, stale, "a reused slot should have another generation");
        reused |= connecting.slot == stale.slot;
        rig.on(Connecting, |_, out| {
            assert_eq!(out.room(stale), 0);
            assert_eq!(out.queued(stale), 0);
            assert_eq!(out.send(stale, b"stale"), 0);
            assert!(out.send_chunk(stale, Chunk::from(stream(0, 5))).is_err());
            out.grant(stale, 1000);
            out.watch_acknowledged(stale, true);
            out.release(stale, 1000);
            out.finish(stale);
            out.abort(stale);
        });
        rig.on(Accepting, |probe, out| probe.grant(accepting, 1000, out));
        send_all(rig, Connecting, connecting, 0, 100);
        send_all(rig, Accepting, accepting, 0, 100);
        rig.wait("the connection works", Accepting, |probe| probe.received(accepting) == 100);
        rig.settle();
        assert_eq!(
            rig.on(Connecting, |probe, _| probe.received(connecting)),
            0,
            "a grant for a stale Conn must have no effect"
        );
        assert!(
            !rig.on(Accepting, |probe, _| probe.saw(accepting, Seen::Finished)),
            "a finish for a stale Conn must have no effect"
        );
    }
    assert!(reused, "freed slots should be reused soon, so that slots stay dense");
}

fn p8_turns_end_and_timeouts_fire(rig: &mut dyn Rig) {
    let (connecting, accepting) = connected(rig);
    for side in [Connecting, Accepting] {
        let (turns, has_events_in_turn) = rig.on(side, |probe, _| (probe.turns, probe.has_events_in_turn()));
        assert!(turns > 0 && !has_events_in_turn, "end_of_turn should follow the events of each turn");
    }
    let start = rig.now();
    for micros in [0, 150, 3000] {
        let requested = rig.now() + core::time::Duration::from_micros(micros);
        let before = rig.on(Accepting, |probe, _| {
            probe.timeout = Some(requested);
            probe.timeouts.len()
        });
        rig.wait("the timeout", Accepting, |probe| probe.timeouts.len() > before);
        rig.on(Accepting, |probe, _| {
            assert!(
                probe.timeouts[before] >= requested && probe.timeout.is_none(),
                "handle_timeout should be called once, not before the requested time"
            );
        });
    }
    assert!(rig.now() >= start);
    // Neither timeouts nor data may wait until the other is exhausted.
    rig.on(Accepting, |probe, out| {
        probe.regrant = true;
        probe.grant(accepting, 10_000, out);
        probe.timeout = Some(start);
    });
    let before = rig.on(Accepting, |probe, _| probe.timeouts.len());
    send_all(rig, Connecting, connecting, 0, 100_000);
    rig.wait("the timeout", Accepting, |probe| probe.timeouts.len() > before);
    rig.wait("the data", Accepting, |probe| probe.received(accepting) == 100_000);
}

/// Promise 9: every method is called within events; the probe panics if one calls back into the application.
fn p9_methods_do_not_call_back(rig: &mut dyn Rig) {
    let refusing = rig.refusing_address();
    rig.on(Accepting, |probe, _| {
        probe.react(Box::new(move |now, conn, seen, probe, out| match seen {
            Seen::Opened { .. } => {
                probe.grant(conn, 5000, out);
                out.watch_acknowledged(conn, true);
                assert_eq!(out.send(conn, &stream(0, 100)), 100);
                out.send_chunk(conn, Chunk::from(stream(100, 100)))
                    .expect("a new connection should have room");
                out.want_room(conn);
                let refused =
                    out.connect(now, refusing).expect("the transport should have room for a connection");
                out.release(conn, 10);
                out.set_listening(0, false);
                probe.abort(refused, out);
                let _ = (out.room(conn), out.queued(conn), out.take_recycled_chunk());
                let _ = (out.held(conn), out.held_by_all());
            }
            Seen::Data { .. } => out.finish(conn),
            _ => {}
        }));
    });
    let (connecting, accepting) = connected(rig);
    rig.on(Connecting, |probe, out| probe.grant(connecting, 1000, out));
    rig.wait("the answer", Connecting, |probe| probe.received(connecting) == 200);
    send_all(rig, Connecting, connecting, 0, 100);
    rig.wait("Finished", Connecting, |probe| probe.saw(connecting, Seen::Finished));
    rig.on(Connecting, |_, out| out.finish(connecting));
    rig.wait("Lost(Closed)", Connecting, |probe| probe.saw(connecting, Seen::Lost(LostReason::Closed)));
    rig.wait("Lost(Closed)", Accepting, |probe| probe.saw(accepting, Seen::Lost(LostReason::Closed)));
}

/// Listeners start closed; the host refuses connections to a closed listener; established connections are unaffected.
fn listeners_open_and_close(rig: &mut dyn Rig) {
    let target = rig.listener();
    let refused = |rig: &mut dyn Rig| {
        let conn = connect(rig, target);
        rig.wait("Lost(Refused)", Connecting, |probe| probe.saw(conn, Seen::Lost(LostReason::Refused)));
    };
    refused(rig);
    let (connecting, accepting) = connected(rig);
    for _ in 0..3 {
        rig.on(Accepting, |_, out| {
            out.set_listening(0, false);
            out.set_listening(0, false);
            // An index without a listener is ignored.
            out.set_listening(7, true);
        });
        refused(rig);
        let (_, second) = connected(rig);
        assert_ne!(second, accepting);
    }
    rig.on(Accepting, |probe, out| probe.grant(accepting, 1000, out));
    send_all(rig, Connecting, connecting, 0, 1000);
    rig.wait("the first connection's bytes", Accepting, |probe| probe.received(accepting) == 1000);
}

/// `Acknowledged` events come only for watched connections, up to all bytes sent.
fn acknowledged_is_reported_only_for_watched_connections(rig: &mut dyn Rig) {
    let (watched, first) = connected(rig);
    let (unwatched, second) = connected(rig);
    rig.on(Connecting, |_, out| out.watch_acknowledged(watched, true));
    rig.on(Accepting, |probe, out| {
        probe.grant(first, 100_000, out);
        probe.grant(second, 100_000, out);
    });
    for turn in 1..=3 {
        send_all(rig, Connecting, watched, (turn - 1) * 1000, 1000);
        send_all(rig, Connecting, unwatched, (turn - 1) * 1000, 1000);
        rig.wait("Acknowledged", Connecting, |probe| probe.acknowledged(watched) == turn * 1000);
    }
    rig.settle();
    assert_eq!(rig.on(Connecting, |probe, _| probe.acknowledged(unwatched)), 0);
    // Bytes sent before watching count too; after switching off there are no more events.
    rig.on(Connecting, |_, out| {
        out.watch_acknowledged(unwatched, true);
        out.watch_acknowledged(watched, false);
    });
    send_all(rig, Connecting, watched, 3000, 1000);
    rig.wait("Acknowledged, watched late", Connecting, |probe| probe.acknowledged(unwatched) == 3000);
    rig.settle();
    assert_eq!(rig.on(Connecting, |probe, _| probe.acknowledged(watched)), 3000);
    // `Lost` follows the last acknowledgement.
    rig.on(Connecting, |_, out| {
        out.send(unwatched, &stream(3000, 500));
        out.finish(unwatched);
    });
    rig.on(Accepting, |_, out| out.finish(second));
    rig.wait("Lost(Closed)", Connecting, |probe| probe.saw(unwatched, Seen::Lost(LostReason::Closed)));
    assert_eq!(rig.on(Connecting, |probe, _| probe.acknowledged(unwatched)), 3500);
}
