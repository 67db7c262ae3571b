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
    ("p2_a_grant_within_an_event_counts", p2_a_grant_within_an_event_counts),
    ("p3_finished_needs_no_grant", p3_finished_needs_no_grant),
    ("p3_finished_comes_last_and_half_closes", p3_finished_comes_last_and_half_closes),
    ("p4_send_takes_what_there_is_room_for", p4_send_takes_what_there_is_room_for),
    ("p4_chunks_keep_their_order_and_come_back_whole", p4_chunks_keep_their_order_and_come_back_whole),
    ("p5_finish_delivers_what_was_taken", p5_finish_delivers_what_was_taken),
    ("p6_nothing_follows_an_abort", p6_nothing_follows_an_abort),
    ("p6_an_abort_within_an_event", p6_an_abort_within_an_event),
    ("p7_a_stale_connection_is_ignored", p7_a_stale_connection_is_ignored),
    ("p8_turns_end_and_timeouts_come", p8_turns_end_and_timeouts_come),
    ("p9_methods_do_not_call_back", p9_methods_do_not_call_back),
    ("listeners_open_and_close", listeners_open_and_close),
    ("acknowledged_is_reported_where_watched", acknowledged_is_reported_where_watched),
];

/// Promise 1, and the fields of `Opened`.
fn p1_the_first_event_is_opened_or_lost(rig: &mut dyn Rig) {
    let (ours, theirs) = connected(rig);
    let target = rig.listener();
    let seen = rig.on(Connecting, |probe, _| probe.of(ours));
    assert_eq!(seen, [Seen::Opened { peer: target, listener: None }]);
    let seen = rig.on(Accepting, |probe, _| probe.of(theirs));
    assert!(matches!(seen[..], [Seen::Opened { listener: Some(0), .. }]), "{seen:?}");

    let nobody = rig.nobody();
    let refused = connect(rig, nobody);
    rig.wait("the refusal", Connecting, |probe| !probe.of(refused).is_empty());
    rig.settle();
    let seen = rig.on(Connecting, |probe, _| probe.of(refused));
    assert_eq!(seen, [Seen::Lost(LostReason::Refused)]);
}

/// Promise 2: grants add up, and nothing is delivered beyond them.
fn p2_no_more_is_delivered_than_granted(rig: &mut dyn Rig) {
    let (ours, theirs) = connected(rig);
    for (from, to, source, target) in
        [(Connecting, Accepting, ours, theirs), (Accepting, Connecting, theirs, ours)]
    {
        send_all(rig, from, source, 0, 1000);
        rig.settle();
        assert_eq!(rig.on(to, |probe, _| probe.received(target)), 0, "delivered without a grant");
        rig.on(to, |probe, out| probe.grant(target, 10, out));
        rig.wait("10 bytes", to, |probe| probe.received(target) == 10);
        rig.settle();
        assert_eq!(rig.on(to, |probe, _| probe.received(target)), 10);
        rig.on(to, |probe, out| {
            probe.grant(target, 5, out);
            probe.grant(target, 7, out);
        });
        rig.wait("22 bytes", to, |probe| probe.received(target) == 22);
        // A grant before the bytes arrive, in several pieces.
        rig.on(to, |probe, out| probe.grant(target, 100_000, out));
        rig.wait("the first part", to, |probe| probe.received(target) == 1000);
        send_all(rig, from, source, 1000, 100_000);
        rig.wait("all that was granted", to, |probe| probe.received(target) == 100_022);
        rig.settle();
        assert_eq!(rig.on(to, |probe, _| probe.received(target)), 100_022);
    }
}

/// Promise 2: a grant within an event takes effect without another event on the connection.
fn p2_a_grant_within_an_event_counts(rig: &mut dyn Rig) {
    let (ours, theirs) = connected(rig);
    rig.on(Accepting, |probe, _| probe.regrant = true);
    send_all(rig, Connecting, ours, 0, 50_000);
    rig.settle();
    rig.on(Accepting, |probe, out| probe.grant(theirs, 777, out));
    rig.wait("all bytes, 777 at a time", Accepting, |probe| probe.received(theirs) == 50_000);
}

/// Promise 3: `Finished` without bytes before it reaches a side that has granted nothing.
fn p3_finished_needs_no_grant(rig: &mut dyn Rig) {
    let (ours, theirs) = connected(rig);
    rig.on(Connecting, |_, out| out.finish(ours));
    rig.wait("Finished", Accepting, |probe| probe.saw(theirs, Seen::Finished));

    // A grant of exactly the bytes sent is enough for `Finished`.
    let (ours, theirs) = connected(rig);
    send_all(rig, Connecting, ours, 0, 1000);
    rig.on(Connecting, |_, out| out.finish(ours));
    rig.settle();
    assert!(!rig.on(Accepting, |probe, _| probe.saw(theirs, Seen::Finished)), "Finished before the bytes");
    rig.on(Accepting, |probe, out| probe.grant(theirs, 999, out));
    rig.wait("all but the last byte", Accepting, |probe| probe.received(theirs) == 999);
    rig.settle();
    assert!(
        !rig.on(Accepting, |probe, _| probe.saw(theirs, Seen::Finished)),
        "Finished before the last byte"
    );
    rig.on(Accepting, |probe, out| probe.grant(theirs, 1, out));
    rig.wait("Finished after the bytes", Accepting, |probe| probe.saw(theirs, Seen::Finished));
    assert_eq!(rig.on(Accepting, |probe, _| probe.received(theirs)), 1000);
}

/// Promise 3: bytes and `Finished` of one turn arrive in order; the other direction stays open.
fn p3_finished_comes_last_and_half_closes(rig: &mut dyn Rig) {
    rig.on(Accepting, |probe, _| (probe.grant_on_open, probe.regrant) = (100_000, true));
    rig.on(Connecting, |probe, _| (probe.grant_on_open, probe.regrant) = (100_000, true));
    for side in [Connecting, Accepting] {
        let (ours, theirs) = connected(rig);
        let (source, target) = if side == Connecting { (ours, theirs) } else { (theirs, ours) };
        let bytes = stream(0, 3000);
        rig.on(side, |_, out| {
            assert_eq!(out.send(source, &bytes), bytes.len());
            out.finish(source);
            assert_eq!(out.send(source, b"late"), 0, "send after finish");
        });
        rig.wait("Finished", other(side), |probe| probe.saw(target, Seen::Finished));
        assert_eq!(rig.on(other(side), |probe, _| probe.received(target)), 3000);
        send_all(rig, other(side), target, 0, 200_000);
        rig.wait("the other direction", side, |probe| probe.received(source) == 200_000);
        rig.on(other(side), |_, out| out.finish(target));
        rig.wait("the end", other(side), |probe| probe.saw(target, Seen::Lost(LostReason::Closed)));
        rig.wait("the end", side, |probe| probe.saw(source, Seen::Lost(LostReason::Closed)));
    }
}

fn p4_send_takes_what_there_is_room_for(rig: &mut dyn Rig) {
    let (ours, theirs) = connected(rig);
    let piece = 10_000;
    let mut sent = 0_u64;
    let mut short = false;
    // The peer does not read, so the room must come to an end.
    while !short {
        let bytes = stream(sent, piece);
        let (room, taken) = rig.on(Connecting, |_, out| (out.room(ours), out.send(ours, &bytes)));
        assert!(taken <= room, "took {taken} with room for {room}");
        assert_eq!(taken, room.min(piece), "took less than there was room for");
        sent += taken as u64;
        short = taken < piece;
        assert!(sent < 1 << 30, "unbounded buffering for a peer that does not read");
        rig.step();
    }
    rig.settle();
    let rooms = |probe: &Probe| probe.of(ours).iter().filter(|seen| **seen == Seen::Room).count();
    // The host may have taken more bytes meanwhile: fill the buffers until there is no more `Room`.
    loop {
        let before = rig.on(Connecting, |probe, _| rooms(probe));
        sent += rig.on(Connecting, |_, out| out.send(ours, &stream(sent, piece * 10))) as u64;
        rig.settle();
        if rig.on(Connecting, |probe, _| rooms(probe)) == before {
            break;
        }
    }
    let before = rig.on(Connecting, |probe, _| rooms(probe));
    rig.on(Accepting, |probe, out| {
        probe.regrant = true;
        probe.grant(theirs, 50_000, out);
    });
    rig.wait("Room", Connecting, |probe| rooms(probe) > before);
    assert!(rig.on(Connecting, |_, out| out.room(ours)) > 0, "Room without room");
    send_all(rig, Connecting, ours, sent, 300_000);
    rig.wait("every byte", Accepting, |probe| probe.received(theirs) == sent + 300_000);
    rig.wait("nothing queued", Connecting, |_| true);
    assert_eq!(rig.on(Connecting, |_, out| out.queued(ours)), 0);
}

/// Promise 4 for chunks: taken whole or returned whole, in order with `send`; buffers are returned for reuse.
fn p4_chunks_keep_their_order_and_come_back_whole(rig: &mut dyn Rig) {
    let (ours, theirs) = connected(rig);
    let huge = 3 << 20;
    let taken = rig.on(Connecting, |_, out| out.send_chunk(ours, Chunk::from(stream(0, huge))).is_ok());
    assert!(taken, "an empty transport takes a chunk of any length");
    let mut sent = huge as u64;
    let returned = rig.on(Connecting, |_, out| out.send_chunk(ours, Chunk::from(stream(sent, huge))).err());
    match returned {
        Some(chunk) => assert_eq!(chunk.as_slice(), stream(sent, huge), "a refused chunk is returned whole"),
        None => sent += huge as u64,
    }
    rig.on(Accepting, |probe, out| {
        probe.regrant = true;
        probe.grant(theirs, 400_000, out);
    });
    rig.wait("the huge chunk", Accepting, |probe| probe.received(theirs) == sent);
    rig.settle(); // Acknowledgements arrive too.
    // Bytes, chunk, bytes, chunk in one turn; repeated.
    for turn in 0..50_u64 {
        #[expect(clippy::cast_possible_truncation, reason = "a few hundred turns at most")]
        let (first, second) = (100 + turn as usize, 1 + 37 * turn as usize);
        let next = rig.on(Connecting, |_, out| {
            let mut at = sent;
            for length in [first, second] {
                let bytes = stream(at, length);
                assert_eq!(out.send(ours, &bytes), length, "room in an idle connection");
                at += length as u64;
                let mut chunk = out.take_recycled_chunk().unwrap_or_default();
                assert!(chunk.is_empty(), "a spent chunk is empty");
                chunk.buffer().extend_from_slice(&stream(at, length));
                out.send_chunk(ours, chunk).expect("room in an idle connection");
                at += length as u64;
            }
            at
        });
        sent = next;
        rig.wait("bytes and chunks in order", Accepting, |probe| probe.received(theirs) == sent);
    }
    assert!(
        rig.on(Connecting, |_, out| out.take_recycled_chunk().is_some()),
        "spent chunks are returned for reuse"
    );
}

fn p5_finish_delivers_what_was_taken(rig: &mut dyn Rig) {
    let (ours, theirs) = connected(rig);
    let length = 5 << 20;
    rig.on(Connecting, |_, out| {
        out.send_chunk(ours, Chunk::from(stream(0, length))).expect("an empty transport takes any chunk");
        out.finish(ours);
        assert!(out.send_chunk(ours, Chunk::from(stream(0, 1))).is_err(), "send_chunk after finish");
    });
    rig.on(Accepting, |probe, out| {
        probe.regrant = true;
        probe.grant(theirs, 30_000, out);
    });
    rig.wait("Finished", Accepting, |probe| probe.saw(theirs, Seen::Finished));
    assert_eq!(rig.on(Accepting, |probe, _| probe.received(theirs)), length as u64);
    // The connection is not freed while one direction is open.
    rig.settle();
    assert!(!rig.on(Connecting, |probe, _| probe.saw(ours, Seen::Lost(LostReason::Closed))));
    rig.on(Accepting, |_, out| out.finish(theirs));
    rig.wait("the end", Connecting, |probe| probe.saw(ours, Seen::Lost(LostReason::Closed)));
    rig.wait("the end", Accepting, |probe| probe.saw(theirs, Seen::Lost(LostReason::Closed)));
}

/// Promise 6: an abort causes no event at this side and a reset at the other, whatever was in flight.
fn p6_nothing_follows_an_abort(rig: &mut dyn Rig) {
    for side in [Connecting, Accepting] {
        let (ours, theirs) = connected(rig);
        let (source, target) = if side == Connecting { (ours, theirs) } else { (theirs, ours) };
        rig.on(side, |probe, out| probe.grant(source, 1000, out));
        send_all(rig, other(side), target, 0, 500);
        let bytes = stream(0, 100);
        rig.on(side, |probe, out| {
            out.send(source, &bytes);
            probe.abort(source, out);
        });
        rig.wait("the reset", other(side), |probe| {
            probe.of(target).iter().any(|seen| matches!(seen, Seen::Lost(_)))
        });
        assert!(rig.on(other(side), |probe, _| probe.saw(target, Seen::Lost(LostReason::Reset))));
        rig.settle();
    }
    // Before the connection was established.
    let target = rig.listener();
    let early = connect(rig, target);
    rig.on(Connecting, |probe, out| probe.abort(early, out));
    rig.settle();
}

fn p6_an_abort_within_an_event(rig: &mut dyn Rig) {
    let (ours, theirs) = connected(rig);
    rig.on(Accepting, |probe, out| {
        probe.grant(theirs, 1_000_000, out);
        probe.react(Box::new(|_, conn, seen, probe, out| {
            if matches!(seen, Seen::Data { .. }) {
                probe.abort(conn, out);
            }
        }));
    });
    let bytes = stream(0, 200_000);
    rig.on(Connecting, |_, out| out.send(ours, &bytes));
    rig.wait("the reset", Connecting, |probe| probe.saw(ours, Seen::Lost(LostReason::Reset)));
    rig.on(Accepting, |probe, _| {
        probe.react(Box::new(|_, conn, seen, probe, out| {
            if matches!(seen, Seen::Opened { .. }) {
                probe.abort(conn, out);
            }
        }));
    });
    let (ours, _) = connected(rig);
    rig.wait("the reset", Connecting, |probe| probe.saw(ours, Seen::Lost(LostReason::Reset)));
    rig.settle();
}

/// Promise 7: no method called with a stale connection affects the one that reuses its slot.
fn p7_a_stale_connection_is_ignored(rig: &mut dyn Rig) {
    let (stale, _) = connected(rig);
    rig.on(Connecting, |probe, out| probe.abort(stale, out));
    rig.settle();
    let mut reused = false;
    for _ in 0..8 {
        let (ours, theirs) = connected(rig);
        assert_ne!(ours, stale, "each use of a slot has its own generation");
        reused |= ours.slot == stale.slot;
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
        rig.on(Accepting, |probe, out| probe.grant(theirs, 1000, out));
        send_all(rig, Connecting, ours, 0, 100);
        send_all(rig, Accepting, theirs, 0, 100);
        rig.wait("the connection works", Accepting, |probe| probe.received(theirs) == 100);
        rig.settle();
        assert_eq!(rig.on(Connecting, |probe, _| probe.received(ours)), 0, "a stale grant counted");
        assert!(!rig.on(Accepting, |probe, _| probe.saw(theirs, Seen::Finished)), "a stale finish counted");
    }
    assert!(reused, "freed slots are reused soon, so that they stay dense");
}

fn p8_turns_end_and_timeouts_come(rig: &mut dyn Rig) {
    let (ours, theirs) = connected(rig);
    for side in [Connecting, Accepting] {
        let (turns, open) = rig.on(side, |probe, _| (probe.turns, probe.in_group()));
        assert!(turns > 0 && !open, "end_of_turn follows each group of events");
    }
    let start = rig.now();
    for micros in [0, 150, 3000] {
        let asked = rig.now() + core::time::Duration::from_micros(micros);
        let before = rig.on(Accepting, |probe, _| {
            probe.timeout = Some(asked);
            probe.timeouts.len()
        });
        rig.wait("the timeout", Accepting, |probe| probe.timeouts.len() > before);
        rig.on(Accepting, |probe, _| assert!(probe.timeouts[before] >= asked && probe.timeout.is_none()));
    }
    assert!(rig.now() >= start);
    // Neither timeouts nor data starve each other.
    rig.on(Accepting, |probe, out| {
        probe.regrant = true;
        probe.grant(theirs, 10_000, out);
        probe.timeout = Some(start);
    });
    let before = rig.on(Accepting, |probe, _| probe.timeouts.len());
    send_all(rig, Connecting, ours, 0, 100_000);
    rig.wait("the timeout", Accepting, |probe| probe.timeouts.len() > before);
    rig.wait("the data", Accepting, |probe| probe.received(theirs) == 100_000);
}

/// Promise 9: the probe panics when it is re-entered, so this scenario calls every method within events.
fn p9_methods_do_not_call_back(rig: &mut dyn Rig) {
    let nobody = rig.nobody();
    rig.on(Accepting, |probe, _| {
        probe.react(Box::new(move |now, conn, seen, probe, out| match seen {
            Seen::Opened { .. } => {
                probe.grant(conn, 5000, out);
                out.watch_acknowledged(conn, true);
                assert_eq!(out.send(conn, &stream(0, 100)), 100);
                out.send_chunk(conn, Chunk::from(stream(100, 100))).expect("room");
                let refused = out.connect(now, nobody).expect("room for a connection");
                out.release(conn, 10);
                out.set_listening(0, false);
                probe.abort(refused, out);
                let _ = (out.room(conn), out.queued(conn), out.take_recycled_chunk());
            }
            Seen::Data { .. } => out.finish(conn),
            _ => {}
        }));
    });
    let (ours, theirs) = connected(rig);
    rig.on(Connecting, |probe, out| probe.grant(ours, 1000, out));
    rig.wait("the answer", Connecting, |probe| probe.received(ours) == 200);
    send_all(rig, Connecting, ours, 0, 100);
    rig.wait("Finished", Connecting, |probe| probe.saw(ours, Seen::Finished));
    rig.on(Connecting, |_, out| out.finish(ours));
    rig.wait("the end", Connecting, |probe| probe.saw(ours, Seen::Lost(LostReason::Closed)));
    rig.wait("the end", Accepting, |probe| probe.saw(theirs, Seen::Lost(LostReason::Closed)));
}

/// Listeners start closed; while closed, the host refuses; established connections do not notice.
fn listeners_open_and_close(rig: &mut dyn Rig) {
    let target = rig.listener();
    let refused = |rig: &mut dyn Rig| {
        let conn = connect(rig, target);
        rig.wait("the refusal", Connecting, |probe| probe.saw(conn, Seen::Lost(LostReason::Refused)));
    };
    refused(rig);
    let (ours, theirs) = connected(rig);
    for _ in 0..3 {
        rig.on(Accepting, |_, out| {
            out.set_listening(0, false);
            out.set_listening(0, false);
            // An index without a listener is ignored.
            out.set_listening(7, true);
        });
        refused(rig);
        let (_, second) = connected(rig);
        assert_ne!(second, theirs);
    }
    rig.on(Accepting, |probe, out| probe.grant(theirs, 1000, out));
    send_all(rig, Connecting, ours, 0, 1000);
    rig.wait("the first connection's bytes", Accepting, |probe| probe.received(theirs) == 1000);
}

/// `Acknowledged` events come only for watched connections, up to all bytes sent.
fn acknowledged_is_reported_where_watched(rig: &mut dyn Rig) {
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
    rig.wait("the end", Connecting, |probe| probe.saw(unwatched, Seen::Lost(LostReason::Closed)));
    assert_eq!(rig.on(Connecting, |probe, _| probe.acknowledged(unwatched)), 3500);
}
