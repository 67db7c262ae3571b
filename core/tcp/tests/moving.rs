//! Connections move to another stack at every step, in any state, and their peers do not notice.

mod pair;
mod streams;

use std::net::SocketAddr;
use std::time::Duration;

use pair::{PORT, Pair, settings};
use proptest::prelude::*;
use spillway_tcp::{ExportError, ImportError, KeepAlive, Settings, Stack};
use spillway_transport::{Conn, Time, Transport};
use spillway_wire::state::{ConnectionState, StateError};
use streams::Streams;

fn rename(application: &mut Streams, from: Conn, to: Conn) {
    let stream = application.streams.remove(&from).expect("only what is known moves");
    application.streams.insert(to, stream);
}

fn through_bytes(state: &ConnectionState) -> ConnectionState {
    let mut bytes = Vec::new();
    state.emit(&mut bytes);
    let read = ConnectionState::parse(&bytes).expect("what was written is read");
    assert_eq!(&read, state);
    read
}

/// Exports each connection of a host and imports it again, as bytes; returns their number.
fn move_all(pair: &mut Pair<Streams>, host: usize) -> u64 {
    pair.command(host, |now, application, stack| {
        let conns: Vec<_> = application.streams.keys().copied().collect();
        for conn in &conns {
            let state = stack.export(now, *conn).expect("a connection that is known");
            let moved = stack.import(now, &through_bytes(&state)).expect("what left may come back");
            rename(application, *conn, moved);
        }
        conns.len() as u64
    })
}

fn run(length: u64, connections: usize, lost_in: Option<u64>, moves: bool) -> (Pair<Streams>, u64) {
    let mut pair = Pair::new([1, 2].map(settings), [Streams::new(length), Streams::new(length)]);
    pair.hosts[0].stack.set_listening(0, true);
    if let Some(lost_in) = lost_in {
        let mut state = 7_u64;
        pair.filter = Box::new(move |_, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            !(state >> 33).is_multiple_of(lost_in)
        });
    }
    for _ in 0..connections {
        let target = SocketAddr::from(([10, 0, 0, 1], PORT));
        pair.command(1, |now, _, stack| stack.connect(now, target)).expect("room");
    }
    let (mut moved, mut steps) = (0, 0_u64);
    while pair.hosts.iter().any(|host| host.application.completed < connections as u64) {
        pair.step(Duration::from_secs(10));
        steps += 1;
        assert!(steps < 2_000_000 && pair.now < Time(4_000_000_000_000), "it does not end");
        if moves {
            moved += move_all(&mut pair, 0) + move_all(&mut pair, 1);
        }
    }
    (pair, moved)
}

#[test]
fn at_every_turn_in_calm_weather() {
    let (pair, moved) = run(300_000, 3, None, true);
    assert!(moved > 150, "{moved}");
    assert!(pair.hosts.iter().all(|host| host.stack.connections() == 0));
}

#[test]
fn at_every_turn_where_frames_are_lost() {
    for lost_in in [50, 20, 10] {
        let (_, moved) = run(200_000, 3, Some(lost_in), true);
        assert!(moved > 150, "{moved}");
    }
}

#[test]
fn moves_cost_acknowledgements_at_most() {
    let frames = |moves| run(300_000, 1, None, moves).0.hosts[1].stack.counters().frames_sent;
    let (calm, moved) = (frames(false), frames(true));
    // A move sends an acknowledgement that would have been delayed, and no more.
    assert!(moved <= calm * 2, "{calm} frames, {moved} with moves");
}

fn established() -> (Pair<Streams>, Conn) {
    let mut pair = Pair::new([1, 2].map(settings), [Streams::new(5_000), Streams::new(5_000)]);
    pair.hosts[0].stack.set_listening(0, true);
    let target = SocketAddr::from(([10, 0, 0, 1], PORT));
    let conn = pair.command(1, |now, _, stack| stack.connect(now, target)).expect("room");
    assert_eq!(pair.hosts[1].stack.export(pair.now, conn), Err(ExportError::Opening));
    while pair.hosts[1].application.streams.is_empty() {
        pair.step(Duration::from_secs(1));
    }
    (pair, conn)
}

#[test]
fn another_stack_goes_on_with_it_under_the_old_address() {
    let (mut pair, conn) = established();
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("established");
    assert_eq!(pair.hosts[1].stack.export(pair.now, conn), Err(ExportError::Unknown));
    let mut other = Stack::new(pair.now, settings(3)).expect("settings that can be");
    let moved = other.import(pair.now, &through_bytes(&state)).expect("room");
    assert_eq!(other.import(pair.now, &state), Err(ImportError::Present));
    // Frames to the old host's Ethernet address go to the new stack, as a switch would send them.
    pair.hosts[1].stack = other;
    rename(&mut pair.hosts[1].application, conn, moved);
    let (from, to) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]);
    pair.rewrite = Some(Box::new(move |host, frame: &mut [u8]| {
        if host == 0 && frame[..6] == from {
            frame[..6].copy_from_slice(&to);
        }
    }));
    while pair.hosts.iter().any(|host| host.application.completed == 0) {
        pair.step(Duration::from_secs(1));
        assert!(pair.now < Time(60_000_000_000), "it does not end");
    }
}

#[test]
fn what_comes_late_where_it_was_is_met_with_silence() {
    let (mut pair, conn) = established();
    pair.hosts[1].stack.export(pair.now, conn).expect("established");
    pair.hosts[1].application.streams.clear();
    for _ in 0..20 {
        pair.step(Duration::from_millis(300));
    }
    assert_eq!(pair.hosts[1].stack.counters().resets_sent, 0);
    assert_eq!(pair.hosts[0].application.streams.len(), 1, "the peer waits");
}

#[test]
fn a_silent_peer_is_not_asked_anew_at_each_arrival() {
    let (mut pair, mut conn) = established();
    let keep_alive = KeepAlive { idle: Duration::from_secs(10), interval: Duration::from_secs(5), probes: 9 };
    let mut now = pair.now + Duration::from_secs(60);
    let mut slot = vec![0; 1514];
    let mut stack =
        Stack::new(pair.now, Settings { keep_alive: Some(keep_alive), ..settings(2) }).expect("may be");
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("established");
    conn = stack.import(pair.now, &state).expect("room");
    let mut asked = 0;
    for _ in 0..100 {
        now = now + Duration::from_millis(1);
        stack.handle_timeout(now);
        while stack.poll_event().is_some() {}
        asked += std::iter::from_fn(|| stack.poll_transmit(now, &mut slot)).count();
        let state = stack.export(now, conn).expect("established");
        conn = stack.import(now, &state).expect("room");
    }
    // One keep-alive probe, the acknowledgement that is owed, and ARP requests.
    assert!(asked < 10, "{asked}");
}

#[test]
fn what_comes_for_one_that_was_broken_off_elsewhere_is_refused() {
    let (mut pair, conn) = established();
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("established");
    let mut other = Stack::new(pair.now, settings(3)).expect("settings that can be");
    let moved = other.import(pair.now, &state).expect("room");
    other.abort(moved);
    let mut slot = vec![0; 1514];
    while other.poll_transmit(pair.now, &mut slot).is_some() {} // all of them are lost
    assert_eq!(other.counters().resets_sent, 1);
    let frames = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let kept = frames.clone();
    pair.hosts[1].application.streams.clear();
    pair.filter = Box::new(move |host, frame| {
        if host == 0 && frame[12..14] == [8, 0] {
            kept.borrow_mut().push(frame.to_vec());
        }
        false
    });
    for _ in 0..20 {
        pair.step(Duration::from_secs(1));
    }
    let mut frame = frames.borrow().last().expect("the peer says it again").clone();
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    other.handle_frame(pair.now, &frame);
    assert_eq!(other.counters().resets_sent, 2);
}

#[test]
fn a_state_that_was_altered_is_refused() {
    let (mut pair, conn) = established();
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("established");
    let mut bytes = Vec::new();
    state.emit(&mut bytes);
    for at in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 1 << (at % 8);
        assert!(ConnectionState::parse(&altered).is_err(), "byte {at}");
        assert_eq!(ConnectionState::parse(&bytes[..at]), Err(StateError::Length));
    }
}

/// The state of a connection with bytes in flight in both directions, some of them lost, and the frames sent to it.
fn busy() -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut pair = Pair::new([1, 2].map(settings), [Streams::new(90_000), Streams::new(90_000)]);
    pair.hosts[0].stack.set_listening(0, true);
    let target = SocketAddr::from(([10, 0, 0, 1], PORT));
    let conn = pair.command(1, |now, _, stack| stack.connect(now, target)).expect("room");
    let frames = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let (kept, mut count) = (frames.clone(), 0_u64);
    pair.filter = Box::new(move |host, frame| {
        count += 1;
        if host == 0 {
            kept.borrow_mut().push(frame.to_vec());
        }
        count < 20 || !count.is_multiple_of(7)
    });
    while frames.borrow().len() < 40 {
        pair.step(Duration::from_secs(1));
    }
    let state = pair.hosts[1].stack.export(pair.now, conn).expect("established");
    let mut bytes = Vec::new();
    state.emit(&mut bytes);
    let frames = frames.borrow().clone();
    (bytes, frames)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_altered_state_is_refused_or_goes_on_without_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let (mut bytes, frames) = BUSY.with(Clone::clone);
        // Changes the fields before and after the queue, whose bytes may be any.
        let end = bytes.len() - 8;
        for (at, to) in changes {
            let at = at.index(400);
            let at = if at < 150 { 16 + at } else { end + 149 - at };
            bytes[at] = to;
        }
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_be_bytes());
        let Ok(state) = ConnectionState::parse(&bytes) else { return Ok(()) };
        let mut now = Time(5_000_000_000);
        let mut stack = Stack::new(now, settings(2)).expect("settings that can be");
        let Ok(conn) = stack.import(now, &state) else { return Ok(()) };
        stack.grant(conn, 50_000);
        let mut slot = vec![0; stack.frame_bytes_max()];
        for frame in frames {
            stack.handle_frame(now, &frame);
            stack.send(conn, b"more");
            while stack.poll_event().is_some() {}
            let sent = (0..2000).take_while(|_| stack.poll_transmit(now, &mut slot).is_some()).count();
            prop_assert!(sent < 2000, "it does not stop sending");
            now = stack.poll_timeout().unwrap_or(now).max(now + Duration::from_millis(1));
            stack.handle_timeout(now);
        }
    }
}

std::thread_local! {
    static BUSY: (Vec<u8>, Vec<Vec<u8>>) = busy();
}
