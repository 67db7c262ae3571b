//! The program that holds packets of connections that move here: decisions by `BPF_PROG_TEST_RUN`, and packets on interfaces.

#[path = "../steer/frames.rs"]
mod frames;
mod interfaces;
mod link;
mod order;
mod wire;

use std::net::SocketAddr;

use frames::{Frame, SERVICE_VLAN, VLAN};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use spillway_bpf::{Budget, HeldFlows, HeldOutcome, Hold, HoldError, Release, Waiting};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const LOCAL: &str = "192.0.2.2:7000";
const PEER: &str = "198.51.100.7:40000";
const LOCAL_V6: &str = "[2001:db8::2]:7000";
const PEER_V6: &str = "[2001:db8::9]:40000";
/// Bytes before the packet in a frame without VLAN tags.
const ETHERNET_BYTES: usize = 14;
const BUDGET: Budget = Budget { frames_max: 100, bytes_max: 50_000 };

/// The loaded program; `None` without the privileges.
fn loaded(flows_max: u32, bytes_max: u32) -> Option<HeldFlows> {
    match HeldFlows::load(flows_max, bytes_max) {
        Err(error) if error.is_unprivileged() => {
            eprintln!("skipped: {error}");
            None
        }
        result => Some(result.unwrap_or_else(|error| panic!("{error}"))),
    }
}

fn hold(held: &mut HeldFlows, local: &str, peer: &str, budget: Budget) -> Result<Hold, HoldError> {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    held.hold(address(local), address(peer), budget)
}

/// A frame of the peer with this number of bytes after its ports.
fn frame(payload: usize) -> Vec<u8> {
    Frame { payload, ..Frame::tcp(PEER, LOCAL) }.bytes()
}

fn action(held: &HeldFlows, frame: &[u8]) -> u32 {
    held.test_run(frame, 1).unwrap().0
}

/// Releases a flow and returns its packets.
fn released(held: &mut HeldFlows, hold: Hold) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    assert_eq!(held.release(hold, |packet| packets.push(packet.to_vec())).unwrap(), Release::Released);
    packets
}

#[test]
fn only_the_packets_of_held_flows_are_held() {
    let Some(mut held) = loaded(8, 1 << 20) else { return };
    let tcp = Frame::tcp(PEER, LOCAL);
    let tcp_v6 = Frame::tcp(PEER_V6, LOCAL_V6);
    let extended = |extensions: &[(u8, u16)]| Frame { extensions: extensions.into(), ..tcp_v6.clone() };
    let held_frames = [
        (tcp.clone(), ETHERNET_BYTES),
        (Frame { payload: 1_000, ..tcp.clone() }, ETHERNET_BYTES),
        (Frame { option_words: 10, ..tcp.clone() }, ETHERNET_BYTES),
        (Frame { vlan_tags: vec![(SERVICE_VLAN, 5), (VLAN, 6)], ..tcp.clone() }, ETHERNET_BYTES + 8),
        (tcp_v6.clone(), ETHERNET_BYTES),
        (extended(&[(0, 0), (60, 3), (43, 1)]), ETHERNET_BYTES),
    ];
    let dropped_frames =
        [Frame { fragment_field: 0x2000, ..tcp.clone() }, extended(&[(44, 1)]), extended(&[(44, 0)])];
    let passed_frames = [
        Frame::udp(PEER, LOCAL),
        Frame::udp(PEER_V6, LOCAL_V6),
        Frame::tcp(LOCAL, PEER),
        Frame::tcp("198.51.100.7:40001", LOCAL),
        Frame::tcp("198.51.100.8:40000", LOCAL),
        Frame::tcp(PEER, "192.0.2.2:7001"),
        Frame::tcp(PEER, "192.0.2.3:7000"),
        Frame::tcp(PEER_V6, "[2001:db8::3]:7000"),
        Frame { protocol: 1, ..tcp.clone() },
        Frame { is_arp: true, ..tcp.clone() },
        Frame { fragment_field: 0x2001, ..tcp.clone() },
        Frame { vlan_tags: vec![(VLAN, 0); 4], ..tcp.clone() },
        extended(&[(60, 0); 8]),
        extended(&[(44, 8)]),
    ];
    let all = || held_frames.iter().map(|(frame, _)| frame).chain(&dropped_frames).chain(&passed_frames);
    for frame in all() {
        assert_eq!(action(&held, &frame.bytes()), XDP_PASS, "nothing is held: {frame:?}");
    }
    let [v4, v6] = [(LOCAL, PEER), (LOCAL_V6, PEER_V6)]
        .map(|(local, peer)| hold(&mut held, local, peer, BUDGET).unwrap());
    for frame in &passed_frames {
        assert_eq!(action(&held, &frame.bytes()), XDP_PASS, "{frame:?}");
    }
    for frame in held_frames.iter().map(|(frame, _)| frame).chain(&dropped_frames) {
        assert_eq!(action(&held, &frame.bytes()), XDP_DROP, "{frame:?}");
    }
    let counters = held.counters().unwrap();
    assert_eq!(counters.of(HeldOutcome::Held), held_frames.len() as u64);
    assert_eq!(counters.of(HeldOutcome::DropFragment), dropped_frames.len() as u64);
    for (hold, is_ipv4) in [(v4, true), (v6, false)] {
        let expected: Vec<_> = held_frames
            .iter()
            .filter(|(frame, _)| frame.source.is_ipv4() == is_ipv4)
            .map(|(frame, network)| frame.bytes()[*network..].to_vec())
            .collect();
        let bytes: usize = expected.iter().map(Vec::len).sum();
        let waiting = Waiting { frames: expected.len() as u64, bytes: bytes as u64, dropped_frames: 0 };
        assert_eq!(held.waiting(hold).unwrap(), waiting);
        assert_eq!(released(&mut held, hold), expected, "in the order of arrival, from the IP header on");
        assert_eq!(held.waiting(hold).unwrap(), Waiting::default());
    }
    for frame in all() {
        assert_eq!(action(&held, &frame.bytes()), XDP_PASS, "nothing is held any more: {frame:?}");
    }
}

#[test]
fn a_flow_has_its_budget_and_no_more() {
    let Some(mut held) = loaded(8, 1 << 20) else { return };
    let packet_bytes = frame(16).len() - ETHERNET_BYTES;
    for (budget, fitting) in [
        (Budget { frames_max: 3, bytes_max: 10_000 }, 3),
        (Budget { frames_max: 100, bytes_max: 4 * packet_bytes as u32 }, 4),
        (Budget { frames_max: 100, bytes_max: 5 * packet_bytes as u32 - 1 }, 4),
        (Budget { frames_max: 0, bytes_max: 10_000 }, 0),
    ] {
        let before = held.counters().unwrap();
        let hold = hold(&mut held, LOCAL, PEER, budget).unwrap();
        for _ in 0..fitting + 2 {
            assert_eq!(action(&held, &frame(16)), XDP_DROP);
        }
        let waiting = held.waiting(hold).unwrap();
        assert_eq!((waiting.frames, waiting.dropped_frames), (fitting, 2), "{budget:?}");
        let after = held.counters().unwrap();
        let counted = |outcome| after.of(outcome) - before.of(outcome);
        assert_eq!((counted(HeldOutcome::Held), counted(HeldOutcome::DropOverBudget)), (fitting, 2));
        // Packets that were taken out of the ring count until they are injected.
        held.collect().unwrap();
        assert_eq!(action(&held, &frame(16)), XDP_DROP);
        assert_eq!(held.waiting(hold).unwrap().dropped_frames, 3);
        assert_eq!(released(&mut held, hold).len() as u64, fitting);
    }
}

#[test]
fn budgets_are_reserved_and_a_flow_cannot_take_the_room_of_another() {
    let Some(mut held) = loaded(3, 256 * 1024) else { return };
    let large = Budget { frames_max: 1_000, bytes_max: 200_000 };
    let first = hold(&mut held, LOCAL, PEER, large).unwrap();
    let error = hold(&mut held, LOCAL_V6, PEER_V6, large).unwrap_err();
    assert!(matches!(error, HoldError::NoRoom { needed_bytes: 223_000, .. }), "{error}");
    let small = Budget { frames_max: 10, bytes_max: 20_000 };
    let second = hold(&mut held, LOCAL_V6, PEER_V6, small).unwrap();
    // The first flow uses all that it may, and the second one still has its own.
    let long = frame(1_400);
    while held.waiting(first).unwrap().dropped_frames == 0 {
        assert_eq!(action(&held, &long), XDP_DROP);
    }
    let other = Frame { payload: 1_400, ..Frame::tcp(PEER_V6, LOCAL_V6) }.bytes();
    for _ in 0..10 {
        action(&held, &other);
    }
    assert_eq!(held.waiting(second).unwrap().frames, 10);
    assert_eq!(held.counters().unwrap().of(HeldOutcome::DropRingFull), 0);
    assert_eq!(released(&mut held, first).len(), 200_000 / (long.len() - ETHERNET_BYTES));
    assert_eq!(released(&mut held, second).len(), 10);
    hold(&mut held, LOCAL, PEER, large).expect("a release returns the room");
}

#[test]
fn flows_are_bounded_and_each_is_held_once() {
    let Some(mut held) = loaded(3, 1 << 20) else { return };
    let tiny = Budget { frames_max: 1, bytes_max: 100 };
    let peers = ["198.51.100.7:1", "198.51.100.7:2", "198.51.100.7:3"];
    let holds = peers.map(|peer| hold(&mut held, LOCAL, peer, tiny).unwrap());
    let error = hold(&mut held, LOCAL, peers[0], tiny).unwrap_err();
    assert!(matches!(error, HoldError::Present { .. }), "{error}");
    let error = hold(&mut held, LOCAL, PEER, tiny).unwrap_err();
    assert!(matches!(error, HoldError::TooManyFlows { flows_max: 3 }), "{error}");
    assert!(held.forget(holds[1]).unwrap().is_empty());
    let last = hold(&mut held, LOCAL, PEER, tiny).unwrap();
    assert_eq!(action(&held, &Frame::tcp(peers[1], LOCAL).bytes()), XDP_PASS);
    assert_eq!(action(&held, &Frame::tcp(PEER, LOCAL).bytes()), XDP_DROP);
    // The slot has a new owner: the name of the former one means nothing.
    assert_eq!(held.release(holds[1], |_| panic!("another flow's packet")).unwrap(), Release::Released);
    assert!(held.forget(holds[1]).unwrap().is_empty());
    assert_eq!(released(&mut held, last).len(), 1);
}

#[test]
fn the_packets_of_a_failed_move_are_returned() {
    let Some(mut held) = loaded(8, 1 << 20) else { return };
    let first = hold(&mut held, LOCAL, PEER, BUDGET).unwrap();
    for payload in [10, 20] {
        action(&held, &frame(payload));
    }
    held.collect().unwrap();
    action(&held, &frame(30));
    let lengths = |packets: Vec<Vec<u8>>| packets.iter().map(Vec::len).collect::<Vec<_>>();
    let expected = |payloads: &[usize]| {
        payloads.iter().map(|payload| frame(*payload).len() - ETHERNET_BYTES).collect::<Vec<_>>()
    };
    assert_eq!(lengths(held.forget(first).unwrap()), expected(&[10, 20, 30]));
    assert_eq!(action(&held, &frame(10)), XDP_PASS);
    // A new hold of the same flow begins without packets.
    let second = hold(&mut held, LOCAL, PEER, BUDGET).unwrap();
    assert_ne!(first, second);
    action(&held, &frame(40));
    assert_eq!(lengths(released(&mut held, second)), expected(&[40]));
}

#[test]
fn packets_of_any_length_are_held_whole() {
    let Some(mut held) = loaded(1, 1 << 20) else { return };
    let budget = Budget { frames_max: 4_000, bytes_max: 900_000 };
    // Up to the longest frame of a test run.
    for payload in (0..3_000).step_by(7) {
        let hold = hold(&mut held, LOCAL, PEER, budget).unwrap();
        let mut frame = frame(payload);
        let from = frame.len() - payload;
        frame[from..].iter_mut().zip(1..).for_each(|(byte, number)| *byte = (number % 251) as u8);
        assert_eq!(action(&held, &frame), XDP_DROP);
        assert_eq!(released(&mut held, hold), [frame[ETHERNET_BYTES..].to_vec()]);
    }
}

/// Without CAP_PERFMON the verifier is stricter than for root.
#[test]
fn two_capabilities_suffice_to_load_and_use_the_program() {
    if loaded(1, 0).is_none() {
        return;
    }
    let work = || {
        let kept = CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).unwrap();
        let mut held = HeldFlows::load(1, 0).expect("CAP_NET_ADMIN and CAP_BPF should suffice");
        let hold = hold(&mut held, LOCAL, PEER, BUDGET).unwrap();
        assert!(released(&mut held, hold).is_empty());
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
}
