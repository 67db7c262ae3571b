//! Moves of connections to another stack, at every step and in any state, which must not affect their peers.

mod pair;
mod streams;

use std::net::SocketAddr;
use std::time::Duration;

use pair::{PORT, Pair, settings, settings_ipv6};
use proptest::prelude::*;
use spillway_tcp::{ExportError, Flow, ImportError, KeepAlive, Settings, Stack};
use spillway_transport::{Conn, Time, Transport};
use spillway_wire::state::{ConnectionState, StateError};
use streams::Streams;

fn rename(application: &mut Streams, from: Conn, to: Conn) {
    let stream = application.streams.remove(&from).expect("the stream of a moved connection");
    application.streams.insert(to, stream);
}

fn through_bytes(state: &ConnectionState) -> ConnectionState {
    let mut bytes = Vec::new();
    state.emit(&mut bytes);
    let parsed = ConnectionState::parse(&bytes).expect("a valid encoded state");
    assert_eq!(&parsed, state);
    parsed
}

/// Exports each connection of a host, encodes its state, and imports it again. Returns the number of connections.
fn move_all(pair: &mut Pair<Streams>, host: usize) -> u64 {
    pair.command(host, |now, application, stack| {
        let conns: Vec<_> = application.streams.keys().copied().collect();
        for conn in &conns {
            let state = stack.export(now, *conn).expect("an established connection");
            let moved = stack.import(now, &through_bytes(&state)).expect("import of an exported state");
            rename(application, *conn, moved);
        }
        conns.len() as u64
    })
}

/// Runs connections to their end; with `moves`, each connection moves after each step. Returns the number of moves.
fn run(length: u64, connections: usize, lost_in: Option<u64>, moves: bool) -> (Pair<Streams>, u64) {
    run_between([1, 2].map(settings), length, connections, lost_in, moves)
}

/// [`run`] with these settings of the hosts.
fn run_between(
    hosts: [Settings; 2],
    length: u64,
    connections: usize,
    lost_in: Option<u64>,
    moves: bool,
) -> (Pair<Streams>, u64) {
    let target = hosts[0].listeners[0].address;
    let mut pair = Pair::new(hosts, [Streams::new(length), Streams::new(length)]);
    pair.hosts[0].stack.set_listening(0, true);
    if let Some(lost_in) = lost_in {
        let mut state = 7_u64;
        pair.filter = Box::new(move |_, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            !(state >> 33).is_multiple_of(lost_in)
        });
    }
    for _ in 0..connections {
        pair.command(1, |now, _, stack| stack.connect(now, target)).expect("room for a connection");
    }
    let (mut moved, mut steps) = (0, 0_u64);
    while pair.hosts.iter().any(|host| host.application.completed < connections as u64) {
        pair.step(Duration::from_secs(10));
        steps += 1;
        assert!(steps < 2_000_000 && pair.now < Time(4_000_000_000_000), "the streams should end");
        if moves {
            moved += move_all(&mut pair, 0) + move_all(&mut pair, 1);
        }
    }
    (pair, moved)
}

#[test]
fn streams_survive_a_move_at_every_step() {
    let (pair, moved) = run(300_000, 3, None, true);
    // A stream of 300,000 bytes has over 200 segments, and each step moves all connections.
    assert!(moved > 150, "the run should have more moves than {moved}");
    assert!(pair.hosts.iter().all(|host| host.stack.connections() == 0), "no connection should be left");
}

#[test]
fn streams_survive_a_move_at_every_step_over_ipv6() {
    for lost_in in [None, Some(50), Some(10)] {
        let (pair, moved) = run_between([1, 2].map(settings_ipv6), 200_000, 3, lost_in, true);
        assert!(moved > 100, "the run should have more moves than {moved}");
        assert!(pair.hosts.iter().all(|host| host.stack.connections() == 0), "no connection should be left");
    }
}

#[test]
fn streams_survive_a_move_at_every_step_with_lost_frames() {
    for lost_in in [50, 20, 10] {
        let (_, moved) = run(200_000, 3, Some(lost_in), true);
        assert!(moved > 150, "the run should have more moves than {moved}");
    }
}

#[test]
fn moves_add_only_acknowledgements() {
    let frames = |moves| run(300_000, 1, None, moves).0.hosts[1].stack.counters().frames_sent;
    let (without_moves, with_moves) = (frames(false), frames(true));
    // A move may send a delayed acknowledgement early, but nothing else.
    assert!(
        with_moves <= without_moves * 2,
        "moves should at most double the frames: {without_moves} frames, {with_moves} with moves"
    );
}

fn established() -> (Pair<Streams>, Conn) {
    let mut pair = Pair::new([1, 2].map(settings), [Streams::new(5_000), Streams::new(5_000)]);
    pair.hosts[0].stack.set_listening(0, true);
    let target = SocketAddr::from(([10, 0, 0, 1], PORT));
    let conn = pair.command(1, |now, _, stack| stack.connect(now, target)).expect("room for a connection");
    assert_eq!(pair.hosts[1].stack.export(pair.now, conn), Err(ExportError::Opening));
    while pair.hosts[1].application.streams.is_empty() {
        pair.step(Duration::from_secs(1));
    }
    (pair, conn)
}

#[test]
fn another_stack_continues_a_connection_under_its_old_address() {
    let (mut pair, conn) = established();
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("an established connection");
    assert_eq!(pair.hosts[1].stack.export(pair.now, conn), Err(ExportError::Unknown));
    let mut other_stack = Stack::new(pair.now, settings(3)).expect("valid settings");
    let moved = other_stack.import(pair.now, &through_bytes(&state)).expect("room for a connection");
    assert_eq!(other_stack.check_import(pair.now, &state).err(), Some(ImportError::Present));
    assert_eq!(other_stack.import(pair.now, &state), Err(ImportError::Present));
    // Frames to the old host's Ethernet address go to the new stack, as a switch would send them.
    pair.hosts[1].stack = other_stack;
    rename(&mut pair.hosts[1].application, conn, moved);
    let (from, to) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]);
    pair.rewrite = Some(Box::new(move |host, frame: &mut [u8]| {
        if host == 0 && frame[..6] == from {
            frame[..6].copy_from_slice(&to);
        }
    }));
    while pair.hosts.iter().any(|host| host.application.completed == 0) {
        pair.step(Duration::from_secs(1));
        assert!(pair.now < Time(60_000_000_000), "the streams should end");
    }
}

#[test]
fn late_segments_at_the_old_stack_get_no_answer() {
    let (mut pair, conn) = established();
    pair.hosts[1].stack.export(pair.now, conn).expect("an established connection");
    pair.hosts[1].application.streams.clear();
    for _ in 0..20 {
        pair.step(Duration::from_millis(300));
    }
    assert_eq!(pair.hosts[1].stack.counters().resets_sent, 0);
    assert_eq!(pair.hosts[0].application.streams.len(), 1, "the peer's connection should stay open");
}

/// The flow of a connection between the hosts, as host 1 sees it.
fn flow_at_host_1(pair: &Pair<Streams>, conn: Conn) -> Flow {
    let local = pair.hosts[1].stack.local_address(conn).expect("a connection");
    Flow::new(local, SocketAddr::from(([10, 0, 0, 1], PORT))).expect("both ends of one family")
}

#[test]
fn segments_of_an_exported_connection_that_was_lost_elsewhere_are_answered_by_resets() {
    let (mut pair, conn) = established();
    let flow = flow_at_host_1(&pair, conn);
    pair.hosts[1].stack.export(pair.now, conn).expect("an established connection");
    let frame = retransmission(&mut pair);
    let (now, stack) = (pair.now, &mut pair.hosts[1].stack);
    stack.handle_frame(now, &frame);
    assert_eq!(stack.counters().resets_sent, 0);
    stack.end_exported(now, flow);
    stack.handle_frame(now, &frame);
    assert_eq!(stack.counters().resets_sent, 1);
}

#[test]
fn a_connection_that_has_come_back_does_not_end_with_its_export() {
    let (mut pair, conn) = established();
    let flow = flow_at_host_1(&pair, conn);
    move_all(&mut pair, 1);
    pair.hosts[1].stack.end_exported(pair.now, flow);
    while pair.hosts.iter().any(|host| host.application.completed == 0) {
        pair.step(Duration::from_secs(1));
        assert!(pair.now < Time(60_000_000_000), "the streams should end");
    }
    // One of the two ends is in TIME-WAIT now, and stays in it.
    pair.hosts[1].stack.end_exported(pair.now, flow);
    assert_eq!(pair.hosts.each_ref().map(|host| host.stack.counters().resets_sent), [0, 0]);
}

/// Unknown segments to another address than the stack's own get no answer; those of a lost connection do.
#[test]
fn a_connection_at_an_imported_address_is_reset_after_its_loss_elsewhere() {
    let (mut pair, conn) = established();
    let flow = flow_at_host_1(&pair, conn);
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("an established connection");
    let mut other_stack = Stack::new(pair.now, settings(3)).expect("valid settings");
    let moved = other_stack.import(pair.now, &state).expect("room for a connection");
    other_stack.export(pair.now, moved).expect("an established connection");
    let mut frame = retransmission(&mut pair);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    other_stack.handle_frame(pair.now, &frame);
    assert_eq!(other_stack.counters().resets_sent, 0);
    other_stack.end_exported(pair.now, flow);
    other_stack.handle_frame(pair.now, &frame);
    assert_eq!(other_stack.counters().resets_sent, 1);
}

#[test]
fn repeated_moves_send_no_further_keep_alive() {
    let (mut pair, mut conn) = established();
    let keep_alive = KeepAlive { idle: Duration::from_secs(10), interval: Duration::from_secs(5), probes: 9 };
    let mut now = pair.now + Duration::from_secs(60);
    let mut slot = vec![0; 1514];
    let mut stack = Stack::new(pair.now, Settings { keep_alive: Some(keep_alive), ..settings(2) })
        .expect("valid settings");
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("an established connection");
    conn = stack.import(pair.now, &state).expect("room for a connection");
    let mut sent = 0;
    for _ in 0..100 {
        now = now + Duration::from_millis(1);
        stack.handle_timeout(now);
        while stack.poll_event().is_some() {}
        sent += std::iter::from_fn(|| stack.poll_transmit(now, &mut slot)).count();
        let state = stack.export(now, conn).expect("an established connection");
        conn = stack.import(now, &state).expect("room for a connection");
    }
    // One keep-alive probe, the owed acknowledgement and ARP requests, but no probe for each of the moves.
    assert!(sent < 10, "no keep-alive should be sent after each move: {sent} frames sent");
}

/// A connection with a gate, of which only the acknowledgement of the peer's FIN is missing, moves to a stack that has
/// never sent anything to the peer.
fn final_acknowledgement_is_sent_after_a_move(hosts: [Settings; 2]) {
    let mut gated = hosts[0].clone();
    gated.listeners[0].is_gated = true;
    let target = gated.listeners[0].address;
    let mut pair = Pair::new([gated.clone(), hosts[1].clone()], [Streams::new(100), Streams::new(100)]);
    pair.hosts[0].stack.set_listening(0, true);
    pair.command(1, |now, _, stack| stack.connect(now, target)).expect("room for a connection");
    while pair.now < Time(100_000_000) {
        pair.step(Duration::from_millis(1));
    }
    let conn = *pair.hosts[0].application.streams.keys().next().expect("the gate keeps the connection open");
    let state = pair.hosts[0].stack.export(pair.now, conn).expect("both ends have finished");
    let mut other_stack = Stack::new(pair.now, gated).expect("valid settings");
    let moved = other_stack.import(pair.now, &through_bytes(&state)).expect("room for a connection");
    pair.hosts[0].stack = other_stack;
    rename(&mut pair.hosts[0].application, conn, moved);
    pair.command(0, |_, _, stack| stack.release(moved, 101));
    while pair.hosts.iter().any(|host| host.application.completed == 0) {
        pair.step(Duration::from_secs(1));
        assert!(pair.now < Time(60_000_000_000), "the streams should end");
    }
    let retransmitted = pair.hosts[1].stack.counters().retransmitted;
    assert_eq!(retransmitted, 0, "the peer should not wait for the acknowledgement of its FIN");
}

#[test]
fn a_connection_that_ends_with_its_import_acknowledges_the_fin_of_a_peer_whose_next_hop_is_unknown() {
    final_acknowledgement_is_sent_after_a_move([1, 2].map(settings));
    final_acknowledgement_is_sent_after_a_move([1, 2].map(settings_ipv6));
}

/// A retransmission of host 0, whose peer's stack has exported the connection.
fn retransmission(pair: &mut Pair<Streams>) -> Vec<u8> {
    let frames = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let recorded = frames.clone();
    pair.hosts[1].application.streams.clear();
    pair.filter = Box::new(move |host, frame| {
        if host == 0 && frame[12..14] == [8, 0] {
            recorded.borrow_mut().push(frame.to_vec());
        }
        false
    });
    for _ in 0..20 {
        pair.step(Duration::from_secs(1));
    }
    frames.borrow().last().expect("a retransmission of the peer").clone()
}

#[test]
fn segments_of_an_imported_and_aborted_connection_are_answered_by_resets() {
    let (mut pair, conn) = established();
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("an established connection");
    let mut other_stack = Stack::new(pair.now, settings(3)).expect("valid settings");
    let moved = other_stack.import(pair.now, &state).expect("room for a connection");
    other_stack.abort(moved);
    let mut slot = vec![0; 1514];
    while other_stack.poll_transmit(pair.now, &mut slot).is_some() {} // all frames are lost
    assert_eq!(other_stack.counters().resets_sent, 1);
    let mut frame = retransmission(&mut pair);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    other_stack.handle_frame(pair.now, &frame);
    assert_eq!(other_stack.counters().resets_sent, 2);
}

#[test]
fn an_altered_encoded_state_is_refused() {
    let (mut pair, conn) = established();
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("an established connection");
    let mut bytes = Vec::new();
    state.emit(&mut bytes);
    for at in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 1 << (at % 8);
        assert!(
            ConnectionState::parse(&altered).is_err(),
            "an encoded state with byte {at} altered should be refused"
        );
        assert_eq!(ConnectionState::parse(&bytes[..at]), Err(StateError::Truncated));
    }
}

/// The state of a connection with bytes in flight in both directions, some of them lost, and the frames sent to it.
fn busy() -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut pair = Pair::new([1, 2].map(settings), [Streams::new(90_000), Streams::new(90_000)]);
    pair.hosts[0].stack.set_listening(0, true);
    let target = SocketAddr::from(([10, 0, 0, 1], PORT));
    let conn = pair.command(1, |now, _, stack| stack.connect(now, target)).expect("room for a connection");
    let frames = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let (recorded, mut count) = (frames.clone(), 0_u64);
    pair.filter = Box::new(move |host, frame| {
        count += 1;
        if host == 0 {
            recorded.borrow_mut().push(frame.to_vec());
        }
        count < 20 || !count.is_multiple_of(7)
    });
    while frames.borrow().len() < 40 {
        pair.step(Duration::from_secs(1));
    }
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("an established connection");
    let mut bytes = Vec::new();
    state.emit(&mut bytes);
    let frames = frames.borrow().clone();
    (bytes, frames)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_altered_state_with_a_valid_checksum_is_refused_or_runs(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let (mut bytes, frames) = BUSY.with(Clone::clone);
        // Only fields before and after the send queue are changed: in the queue any bytes are valid.
        let end = bytes.len() - 8;
        for (at, byte) in changes {
            let at = at.index(400);
            let at = if at < 150 { 16 + at } else { end + 149 - at };
            bytes[at] = byte;
        }
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_be_bytes());
        let Ok(state) = ConnectionState::parse(&bytes) else { return Ok(()) };
        let mut now = Time(5_000_000_000);
        let mut stack = Stack::new(now, settings(2)).expect("valid settings");
        let Ok(conn) = stack.import(now, &state) else { return Ok(()) };
        stack.grant(conn, 50_000);
        let mut slot = vec![0; stack.frame_bytes_max()];
        for frame in frames {
            stack.handle_frame(now, &frame);
            stack.send(conn, b"more");
            while stack.poll_event().is_some() {}
            let sent = (0..2000).take_while(|_| stack.poll_transmit(now, &mut slot).is_some()).count();
            prop_assert!(sent < 2000, "the stack should stop sending");
            now = stack.poll_timeout().unwrap_or(now).max(now + Duration::from_millis(1));
            stack.handle_timeout(now);
        }
    }
}

std::thread_local! {
    static BUSY: (Vec<u8>, Vec<Vec<u8>>) = busy();
}
