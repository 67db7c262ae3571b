//! Migration of connections, also closing ones, between stacks (Capybara §3.3): it sends only owed segments.

use std::net::SocketAddr;

use spillway_tcp::ImportError;
use spillway_transport::LostReason;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::state::{Attachment, ConnectionState, Finish, Stage};

use crate::IS_IPV6;
use crate::trace::*;

/// The peer's bytes and its FIN have arrived behind a closed gate, and our FIN is acknowledged.
fn finished_behind_the_gate(we_finish_first: bool) -> Trace {
    let mut t = Trace::open_gated(syn().mss(1460));
    t.send_pattern(10);
    t.expect(data(1, 10));
    if we_finish_first {
        t.finish();
        t.expect(fin(11).ack(1));
        t.recv(bytes(1, "abc").fin().ack(11));
    } else {
        t.recv(bytes(1, "abc").fin().ack(11));
        t.discard_segments();
        t.finish();
        t.expect(fin(11).ack(1));
    }
    t.recv(ack(12).seq(5));
    t.discard();
    t
}

/// LAST-ACK and CLOSING with our FIN acknowledged: released bytes are acknowledged, but the FIN is not repeated.
#[test]
fn an_acknowledged_fin_is_not_repeated_after_a_move() {
    for we_finish_first in [false, true] {
        let mut t = finished_behind_the_gate(we_finish_first);
        t.export_and_import(|_| {});
        t.advance(secs(10));
        t.discard();
        t.export_and_import(|_| {});
        while let Some(seg) = t.peer().segments.pop_front() {
            assert!(ack(1).seq(12).agrees_with(&seg), "only this acknowledgement should be sent: {seg}");
        }
        t.release(4);
        t.expect(ack(5).seq(12));
        t.expect_lost(LostReason::Closed);
    }
}

/// In FIN-WAIT-2 the peer's FIN arrives behind the gate.
#[test]
fn a_fin_behind_the_gate_does_not_end_a_moved_connection() {
    let mut t = Trace::open_gated(syn().mss(1460));
    t.finish();
    t.expect(fin(1));
    t.recv(ack(2));
    t.recv(bytes(1, "abc").fin().ack(2));
    t.discard();
    t.export_and_import(|_| {});
    t.release(4);
    t.discard_segments();
    t.expect_lost(LostReason::Closed);
}

/// A peer that answers may keep its window closed for ever (MUST-37), also after a move.
#[test]
fn a_moved_connection_with_a_closed_window_is_not_given_up() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(2000);
    t.discard();
    t.recv(ack(1001).window(0));
    for _ in 0..20 {
        t.until_sent();
        t.expect(data(1001, 1000));
        t.recv(ack(1001).window(0));
        t.export_and_import(|_| {});
    }
    t.recv(ack(2001).window(5000));
    t.send_pattern(10);
    t.expect(data(2001, 10));
}

/// The window was closed before anything was sent.
#[test]
fn a_closed_window_is_probed_after_a_move() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(0));
    t.send_pattern(1000);
    for _ in 0..20 {
        t.until_sent();
        t.expect(ack(1).seq(0));
        t.recv(ack(1).window(0));
        t.export_and_import(|_| {});
    }
    t.recv(ack(1).window(1000));
    t.expect(data(1, 1000));
}

/// The acknowledgement is sent at once, because the state does not contain the time for which it was delayed.
#[test]
fn an_owed_acknowledgement_is_sent_after_a_move() {
    let mut t = Trace::open();
    t.export_and_import(|_| {});
    t.expect_nothing_sent();
    t.recv(bytes(1, "abc"));
    t.expect_nothing_sent();
    t.export_and_import(|_| {});
    t.expect(ack(4).seq(1));
}

#[test]
fn moves_do_not_delay_giving_up_a_dead_peer() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(1000);
    for _ in 0..12 {
        t.advance(secs(10));
        t.export_and_import(|_| {});
    }
    t.advance(secs(60));
    t.expect_lost(LostReason::TimedOut);
}

/// A connection whose peer has timestamps in the upper half of their range, after an import without TS.Recent.
fn moved_without_recent(has_header_prediction: bool) -> Trace {
    let options = syn().mss(1460).sack_ok(true).timestamp(0x9000_0000);
    let mut t = Trace::open_with(|settings| settings.has_header_prediction = has_header_prediction, options);
    t.export_and_import(|state| {
        let stamps = state.agreed.stamps.as_mut().expect("timestamps");
        assert_eq!(stamps.recent, Some(0x9000_0000));
        (stamps.recent, stamps.recent_age_ns) = (None, 0);
    });
    t
}

/// Kernels do not reveal TS.Recent. With 0 in its place, PAWS would refuse the segments of half of all peers.
#[test]
fn an_unknown_recent_timestamp_is_taken_from_the_first_acceptable_segment() {
    for has_header_prediction in [true, false] {
        let mut t = moved_without_recent(has_header_prediction);
        t.send_pattern(1);
        let seg = t.next();
        assert_eq!(seg.echo, Some(0), "nothing is known to echo");
        t.recv(bytes(1, "abc").ack(2).timestamp(0x9000_0010));
        t.expect_data("abc");
        t.advance(ms(40));
        t.expect(ack(4).echo(0x9000_0010));
        t.recv(bytes(4, "old").ack(2).timestamp(0x9000_000f));
        t.expect(ack(4).echo(0x9000_0010));
        t.expect_nothing();
        assert_eq!(t.counters().old_timestamps, 1, "PAWS should work again");
    }
}

#[test]
fn an_invented_recent_timestamp_would_refuse_the_peers_segments() {
    let options = syn().mss(1460).sack_ok(true).timestamp(0x9000_0000);
    let mut t = Trace::open_with(|_| {}, options);
    t.export_and_import(|state| {
        state.agreed.stamps.as_mut().expect("timestamps").recent = Some(0);
    });
    t.recv(bytes(1, "abc").timestamp(0x9000_0010));
    assert_eq!(t.counters().old_timestamps, 1);
}

/// The first segment after the import is out of order (RFC 7323 §4.3): its timestamp is not kept.
#[test]
fn an_unknown_recent_timestamp_is_not_taken_from_a_segment_out_of_order() {
    let mut t = moved_without_recent(true);
    t.recv(bytes(4, "def").timestamp(0x9000_0010));
    t.expect(ack(1).echo(0));
    t.export_and_import(|state| {
        assert_eq!(state.agreed.stamps.expect("timestamps").recent, None, "still unknown after another move");
    });
    t.recv(bytes(1, "abc").timestamp(0x9000_0008));
    t.expect_data("abc");
    t.expect_data("def");
    t.expect(ack(7).echo(0x9000_0008));
}

/// Kernels do not reveal SND.WL2: the window then comes from the next segment, whatever its numbers are.
#[test]
fn without_the_last_window_update_the_next_segment_sets_the_window() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.recv(bytes(1, "abc").window(2000));
    t.expect_data("abc");
    t.export_and_import(|state| {
        assert!(state.sending.window_update.is_some());
        state.sending.window_update = None;
    });
    t.discard();
    t.recv(ack(1).seq(4).window(1000));
    t.export_and_import(|state| assert_eq!(state.sending.window_update, Some((4, 1))));
    t.send_pattern(3000);
    t.expect(data(1, 1000));
    t.expect_nothing_sent();
}

/// A stack passes the attachment by: it is the application's.
#[test]
fn an_attachment_does_not_affect_the_import() {
    let mut t = Trace::open();
    let attachment = Attachment::new("test", vec![7; 100]).expect("a valid attachment");
    t.export_and_import(|state| {
        assert_eq!(state.attachment, None);
        state.attachment = Some(attachment);
    });
    t.recv(bytes(1, "abc"));
    t.expect_data("abc");
}

/// The queue of an imported connection shares the memory of the state, also when it moves again.
#[test]
fn queued_bytes_move_without_a_copy() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(1000));
    t.send_pattern(40_000);
    t.discard();
    let first = |state: &ConnectionState| state.sending.queue.chunks()[0].as_ptr();
    let conn = t.peer().conn.expect("an open connection");
    let state = t.stack.export(t.now, conn).expect("an established connection");
    let conn = t.stack.import(t.now, &state).expect("room for a connection");
    let again = t.stack.export(t.now, conn).expect("an established connection");
    assert!(std::ptr::eq(first(&state), first(&again)) && again == state);
    t.peer().conn = t.stack.import(t.now, &again).ok();
    t.announce_mac();
    t.recv(ack(501).window(1000));
    t.discard();
    t.export_and_import(|state| {
        assert!(
            std::ptr::eq(first(state), first(&again).wrapping_add(500)),
            "without the acknowledged bytes"
        );
        assert_eq!(state.sending.queue.len(), 39_500);
    });
    t.recv(ack(1001).window(1000));
    t.expect(data(1501, 500));
}

type Change = fn(&mut ConnectionState);

#[test]
fn contradictory_states_are_refused() {
    const FAR: u64 = 1 << 61;
    let changes: [(&str, Change); 25] = [
        ("a port of 0", |state| state.peer.set_port(0)),
        ("a port of 0", |state| state.local.set_port(0)),
        ("an unknown listener", |state| state.listener = Some(2)),
        ("the range in flight", |state| state.sending.una = 0),
        ("the range in flight", |state| state.sending.nxt = state.sending.una - 1),
        ("the range in flight", |state| state.sending.nxt = FAR),
        ("more bytes sent than queued", |state| state.sending.nxt += 1),
        ("the peer's window scale", |state| state.sending.scale = 15),
        ("the peer's window", |state| state.sending.window = 1 << 31),
        ("the largest window of the peer", |state| state.sending.window_largest = state.sending.window - 1),
        ("the largest window of the peer", |state| state.sending.window_largest = FAR),
        ("the segment of the peer's window", |state| {
            state.sending.window_update = Some((1, state.sending.nxt + 1))
        }),
        ("a stage that contradicts our FIN", |state| state.stage = Stage::FinWait1),
        ("a stage that contradicts our FIN", |state| state.sending.finish = Finish::Unacknowledged),
        ("more bytes reported than acknowledged", |state| state.sending.reported_acknowledged = 500),
        ("a number beyond 2^61", |state| state.receiving.edge = FAR),
        ("RCV.NXT", |state| state.receiving.next = 0),
        ("our window scale", |state| state.receiving.scale = 15),
        ("more bytes received than granted", |state| state.receiving.granted = 2),
        ("bytes after the peer's FIN", |state| state.receiving.fin = Some(2)),
        ("a stage that contradicts the peer's FIN", |state| {
            state.receiving.fin = Some(state.receiving.next - 1)
        }),
        ("a FIN reported that has not arrived", |state| state.receiving.reported_finished = true),
        ("the acknowledgement sent last", |state| state.receiving.acknowledged = state.receiving.next + 1),
        ("a piece out of order", |state| state.receiving.late = vec![(1, vec![0].into())]),
        ("a segment size", |state| state.agreed.mss = 87),
    ];
    for (field, change) in changes {
        let mut t = Trace::open_timestamps();
        t.recv(bytes(1, "abc"));
        t.send_pattern(100);
        let conn = t.peer().conn.expect("an open connection");
        let mut state = t.stack.export(t.now, conn).expect("an established connection");
        change(&mut state);
        assert_eq!(t.stack.import(t.now, &state), Err(ImportError::Contradiction(field)));
        assert_eq!(t.stack.connections(), 0);
    }
}

#[test]
fn states_beyond_the_limits_of_the_stack_are_refused() {
    let mut t = Trace::new(|settings| settings.reassembly_bytes_max = 10);
    t.establish(syn());
    let conn = t.peer().conn.expect("an open connection");
    let state = t.stack.export(t.now, conn).expect("an established connection");
    let mut large = state.clone();
    large.receiving.late = vec![(5, vec![0; 11].into())];
    let refused = Err(ImportError::TooMuch("bytes out of order"));
    assert_eq!(t.stack.import(t.now, &large), refused);
    let mut t = Trace::new(|settings| settings.reassembly_total_max = 10);
    let refused = Err(ImportError::TooMuch("bytes out of order of all connections"));
    assert_eq!(t.stack.import(t.now, &large), refused);
    assert!(t.stack.import(t.now, &state).is_ok(), "the state should be imported");
}

/// Late segments get no answer. A newer SYN (RFC 6191) is not late: its sender has ended the old connection.
#[test]
fn a_newer_syn_after_an_export_opens_a_new_connection() {
    for options in [syn(), syn().timestamp(PEER_CLOCK)] {
        let mut t = Trace::open_with(|_| {}, options.clone());
        let conn = t.peer().conn.expect("an open connection");
        t.stack.export(t.now, conn).expect("an established connection");
        t.advance(secs(1));
        for late in [options.clone(), bytes(1, "abc"), fin(1), ack(0).seq(0), rst(1), syn_ack()] {
            t.recv(late);
            t.expect_nothing();
        }
        t.peer().initial = t.peers[0].initial.wrapping_add(100_000);
        t.peer().nxt = 0;
        t.establish(if options.timestamp.is_some() { syn().timestamp(PEER_CLOCK + 1000) } else { syn() });
    }
}

/// An exported connection may come back although a forged SYN has opened a half-open one.
#[test]
fn a_forged_syn_does_not_prevent_the_import() {
    let mut t = Trace::open();
    let conn = t.peer().conn.expect("an open connection");
    let state = t.stack.export(t.now, conn).expect("an established connection");
    let forged = t.frame_of(syn().mss(1460).seq(5000));
    t.stack.handle_frame(t.now, &forged);
    assert_eq!(t.stack.connections(), 1, "the SYN should have opened a half-open connection");
    t.peer().conn = t.stack.import(t.now, &state).ok();
    t.announce_mac();
    t.recv(bytes(1, "abc"));
    t.expect_data("abc");
    assert_eq!(t.stack.connections(), 1);
    for index in 1..1025 {
        t.select_peer(index).recv(syn());
    }
    assert_eq!(t.counters().cookies_sent, 0, "the forged SYN should not count as half-open any more");
}

/// The connection is closed for its peer, too.
#[test]
fn a_closed_connection_is_not_imported_again() {
    let mut t = Trace::open();
    let conn = t.peer().conn.expect("an open connection");
    let state = t.stack.export(t.now, conn).expect("an established connection");
    t.peer().conn = t.stack.import(t.now, &state).ok();
    t.announce_mac();
    t.finish();
    t.recv(fin(1).ack(2));
    assert_eq!(t.stack.import(t.now, &state), Err(ImportError::Present));
    t.advance(secs(61));
    assert!(
        t.stack.import(t.now, &state).is_ok(),
        "the state should be imported, because TIME-WAIT has ended"
    );
}

/// What was true at the check may have changed at the import.
#[test]
fn a_checked_connection_is_imported_later_if_nothing_has_taken_its_place() {
    let mut t = Trace::new(|settings| settings.connections_max = 3);
    t.establish(syn());
    t.grant(65_535);
    let state = t.stack.export(t.now, t.conn()).expect("an established connection");
    let [first, second, third] =
        [(); 3].map(|()| t.stack.check_import(t.now, &state).expect("a state that can be imported"));
    assert_eq!(t.stack.connections(), 0, "a check adds no connection");
    (1..4).for_each(|client| t.select_peer(client).establish(syn()));
    assert_eq!(t.stack.import_checked(t.now, first), Err(ImportError::Full));
    (1..3).for_each(|client| t.select_peer(client).abort());
    t.advance(secs(1));
    t.select_peer(0).peer().conn = t.stack.import_checked(t.now, second).ok();
    assert_eq!(t.stack.import_checked(t.now, third), Err(ImportError::Present));
    t.announce_mac();
    t.recv(bytes(1, "abc"));
    t.expect_data("abc");
}

/// The station of the switch from which segments arrive at a one-way place.
const SWITCH_MAC: Mac = Mac([2, 0, 0, 0, 0, 77]);

/// A connection that has moved to a place whose segments come from a switch on another host.
fn moved_one_way() -> Trace {
    let place = SocketAddr::from((STACK, UNGATED_PORT));
    let mut t = Trace::open_with(|settings| settings.one_way_at = Some(place), syn().mss(1460));
    t.peer().is_checked = false;
    t.export_and_import(|_| {});
    t.peer().segments.clear();
    t
}

fn recv_from_switch(t: &mut Trace, seg: Seg) {
    let mut frame = t.frame_of(seg);
    frame[6..12].copy_from_slice(&SWITCH_MAC.0);
    t.last_segment_to = Mac::ZERO;
    t.recv_frame(&frame);
}

/// The switch's station would not carry replies on to the client.
#[test]
fn all_replies_from_a_one_way_place_go_to_the_next_hop() {
    let mut t = moved_one_way();
    recv_from_switch(&mut t, data(1, 1000));
    t.advance(ms(40));
    assert_eq!(t.last_segment_to, PEER_MAC, "an acknowledgement");
    t.finish();
    recv_from_switch(&mut t, seg().seq(1001).ack(2).fin());
    assert_eq!(t.last_segment_to, PEER_MAC, "the acknowledgement of the peer's FIN");
    recv_from_switch(&mut t, seg().seq(1001).ack(2).fin());
    assert_eq!(t.last_segment_to, PEER_MAC, "the same, in TIME-WAIT");
    let resets = t.counters().resets_sent;
    t.peer().port += 1;
    recv_from_switch(&mut t, ack(2).seq(1001));
    assert_eq!((t.counters().resets_sent, t.last_segment_to), (resets + 1, PEER_MAC), "a reset");
}

/// The reset waits until its next hop answers, and is dropped after three requests (RFC 1122 §2.3.2.1): it does not ask for ever.
#[test]
fn a_reply_whose_next_hop_does_not_answer_is_dropped() {
    if IS_IPV6 {
        return; // the driver resolves
    }
    let mut t = moved_one_way();
    t.peer().ip = either("10.0.0.99", "fd00::99");
    t.peer().port += 1;
    recv_from_switch(&mut t, ack(2).seq(1001));
    t.advance(secs(20));
    assert_eq!((t.other_frames.len(), t.last_segment_to), (3, Mac::ZERO), "three requests and no reset");
    assert_eq!(t.counters().replies_dropped, 1);
}
