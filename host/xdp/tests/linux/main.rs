//! The user-level TCP stack with the kernel's TCP as its peer, over a TAP interface and over AF_XDP on veth.
//! The tests check every byte.

/// Makes two tests from each function: over TAP and over AF_XDP.
macro_rules! on_each_wire {
    ($($test:ident,)*) => {
        mod tap {
            $(#[test]
            fn $test() {
                if !$crate::rig::skipped() {
                    super::$test($crate::rig::Wire::Tap);
                }
            })*
        }

        mod xdp {
            $(#[test]
            fn $test() {
                if !$crate::rig::skipped() {
                    super::$test($crate::rig::Wire::Xdp);
                }
            })*
        }
    };
}

/// Makes a test from each function: IPv6 over AF_XDP.
macro_rules! over_ipv6 {
    ($($test:ident,)*) => {
        mod ipv6 {
            $(#[test]
            fn $test() {
                if !$crate::rig::skipped() {
                    super::$test($crate::rig::Wire::XdpIpv6);
                }
            })*
        }
    };
}

mod application;
mod kernels;
mod relay;
mod rig;
mod shared;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use application::{MESSAGE_BYTES, Role};
use rig::{
    PATIENCE, PORT, Rig, STACK_ADDRESS, StackResults, Wire, ask, connect, send_pattern, set_timeouts,
    take_pattern,
};
use spillway_transport::LostReason;
use spillway_xdp::FaultsOptions;

/// A wire without faults.
pub const CLEAN: FaultsOptions = FaultsOptions {
    seed: 0,
    loss: 0.0,
    duplication: 0.0,
    reordering: 0.0,
    reordering_frames: 0,
    corruption: 0.0,
};

/// Stops the rig. Checks that no byte was wrong and no connection is left or was given up.
pub fn ended(rig: Rig) -> StackResults {
    let seen = rig.stop();
    assert_eq!(seen.tally.wrong, 0, "{seen:?}");
    assert_eq!((seen.connections, seen.counters.given_up), (0, 0), "{seen:?}");
    seen
}

/// Checks that no frame was malformed and no connection reset, for tests without faults.
fn assert_undisturbed(seen: &StackResults) {
    let counters = &seen.counters;
    assert_eq!(counters.frames_malformed, 0, "{seen:?}");
    assert_eq!(counters.resets_sent + counters.resets_received, 0, "{seen:?}");
}

#[test]
fn a_wrong_byte_is_seen() {
    let mut bytes = [0; 200_000];
    application::fill(7, &mut bytes);
    assert!(application::is_right(7, &bytes));
    for place in [0, 99_999, 199_999] {
        bytes[place] ^= 0x80;
        assert!(!application::is_right(7, &bytes));
        bytes[place] ^= 0x80;
    }
    for shift in 1..100_000 {
        assert!(!application::is_right(7 + shift, &bytes[..1000]), "bytes lost, or twice: {shift}");
    }
}

on_each_wire! {
    the_kernel_finds_the_stack_and_is_answered,
    messages_go_to_and_fro,
    many_bytes_go_each_way_and_both_ways,
    either_end_may_finish_first,
    resets_and_refusals_are_understood,
    faults_of_the_network_cost_time_and_no_byte,
    ten_thousand_connections_at_once,
}

// Without the test of ping and ARP: over IPv6 the stack handles neither ping nor neighbour discovery.
over_ipv6! {
    messages_go_to_and_fro,
    many_bytes_go_each_way_and_both_ways,
    either_end_may_finish_first,
    resets_and_refusals_are_understood,
    faults_of_the_network_cost_time_and_no_byte,
    ten_thousand_connections_at_once,
}

fn the_kernel_finds_the_stack_and_is_answered(wire: Wire) {
    let mut rig = Rig::new(wire, "tcp-ping");
    rig.start(vec![Role::Echo], vec![], CLEAN);
    let printed = rig.command(&["ping", "-c", "5", "-i", "0.02", "-w", "20", &STACK_ADDRESS.to_string()]);
    assert!(printed.contains(" 0% packet loss"), "{printed}");
    let printed =
        rig.command(&["ping", "-c", "5", "-i", "0.02", "-s", "1472", "-M", "do", &STACK_ADDRESS.to_string()]);
    assert!(printed.contains(" 0% packet loss"), "{printed}");
    let printed = rig.command(&["ip", "neigh", "show", &STACK_ADDRESS.to_string()]);
    assert!(printed.contains("02:00:00:00:00:02"), "{printed}");
    assert_undisturbed(&ended(rig));
}

fn messages_go_to_and_fro(wire: Wire) {
    let mut rig = Rig::new(wire, "tcp-fro");
    let listener = rig.listen();
    let target = listener.local_addr().unwrap();
    rig.start(vec![Role::Echo], vec![(target, Role::Ask(1000))], CLEAN);

    // The stack sends messages, and the kernel returns them.
    let (mut theirs, from) = listener.accept().unwrap();
    set_timeouts(&theirs);
    assert_eq!(from.ip(), wire.stack_address());
    let mut message = [0; MESSAGE_BYTES];
    for _ in 0..1000 {
        theirs.read_exact(&mut message).unwrap();
        theirs.write_all(&message).unwrap();
    }
    assert_eq!(theirs.read(&mut message).unwrap(), 0, "the stack should close after 1000 messages");
    drop(theirs);

    // The kernel sends messages, and the stack returns them.
    let stream = rig.connect(0);
    stream.set_nodelay(true).unwrap();
    let mut offset = 0;
    for bytes in (0..1000).map(|round| 1 + round * 7 % 3000) {
        ask(&stream, offset, bytes);
        offset += bytes as u64;
    }
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&stream).read(&mut message).unwrap(), 0);
    let seen = ended(rig);
    assert_undisturbed(&seen);
    assert_eq!((seen.tally.opened, seen.tally.received), (2, offset + 1000 * MESSAGE_BYTES as u64));
    assert_eq!(seen.tally.lost_by(LostReason::Closed), 2, "{seen:?}");
}

fn many_bytes_go_each_way_and_both_ways(wire: Wire) {
    const BYTES: u64 = 32 << 20;
    let mut rig = Rig::new(wire, "tcp-bulk");
    rig.start(vec![Role::Sink, Role::Source(BYTES), Role::Echo], vec![], CLEAN);
    let stream = rig.connect(0);
    send_pattern(&stream, BYTES);
    assert_eq!(take_pattern(&stream), 0);
    assert_eq!(take_pattern(&rig.connect(1)), BYTES);
    both_ways(&rig.connect(2), BYTES);
    let seen = ended(rig);
    assert_eq!(seen.tally.received, 2 * BYTES);
    assert_eq!(seen.counters.resets_sent + seen.counters.resets_received, 0, "{seen:?}");
}

/// Sends the pattern to an echo and checks what returns, both at the same time.
pub fn both_ways(stream: &TcpStream, bytes: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(stream, bytes));
        assert_eq!(take_pattern(stream), bytes);
    });
}

fn either_end_may_finish_first(wire: Wire) {
    let mut rig = Rig::new(wire, "tcp-half");
    rig.start(vec![Role::Source(100_000), Role::Sink], vec![], CLEAN);
    // The stack finishes first, and the kernel continues to send.
    let stream = rig.connect(0);
    assert_eq!(take_pattern(&stream), 100_000);
    send_pattern(&stream, 3_000_000);
    // The kernel finishes before it reads.
    let stream = rig.connect(0);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(take_pattern(&stream), 100_000);
    // The kernel finishes at once without sending data.
    let stream = rig.connect(1);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(take_pattern(&stream), 0);
    let seen = ended(rig);
    assert_undisturbed(&seen);
    assert_eq!((seen.tally.received, seen.tally.lost_by(LostReason::Closed)), (3_000_000, 3), "{seen:?}");
}

fn resets_and_refusals_are_understood(wire: Wire) {
    let mut rig = Rig::new(wire, "tcp-reset");
    let listener = rig.listen();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let listener = rig.listen();
    let target = listener.local_addr().unwrap();
    rig.start(vec![Role::Echo, Role::Abort], vec![(nobody, Role::Sink), (target, Role::Sink)], CLEAN);

    // The kernel resets: SO_LINGER with a timeout of 0.
    let (theirs, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&theirs, Some(std::time::Duration::ZERO)).unwrap();
    drop(theirs);
    let stream = rig.connect(0);
    ask(&stream, 0, 100);
    rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
    drop(stream);
    // The stack resets.
    let mut stream = rig.connect(1);
    stream.write_all(b"x").unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // The stack refuses.
    let target = SocketAddr::from((wire.stack_address(), PORT + 2));
    let refused = rig.host.run_inside(|| TcpStream::connect_timeout(&target, PATIENCE)).unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // Resets do not affect later connections.
    ask(&rig.connect(0), 0, 100);

    let seen = ended(rig);
    let lost = |reason| seen.tally.lost_by(reason);
    assert_eq!((lost(LostReason::Refused), lost(LostReason::Reset)), (1, 2), "{seen:?}");
    assert_eq!((seen.counters.resets_received, seen.counters.resets_sent), (3, 2), "{seen:?}");
}

fn faults_of_the_network_cost_time_and_no_byte(wire: Wire) {
    for (name, faults) in [
        ("loss of 1 %", FaultsOptions { seed: 1, loss: 0.01, ..CLEAN }),
        ("loss of 5 %", FaultsOptions { seed: 2, loss: 0.05, ..CLEAN }),
        ("duplication", FaultsOptions { seed: 3, duplication: 0.1, ..CLEAN }),
        ("reordering", FaultsOptions { seed: 4, reordering: 0.2, reordering_frames: 8, ..CLEAN }),
        ("corruption", FaultsOptions { seed: 5, corruption: 0.01, ..CLEAN }),
        (
            "everything",
            FaultsOptions {
                seed: 6,
                loss: 0.02,
                duplication: 0.05,
                reordering: 0.1,
                reordering_frames: 5,
                corruption: 0.005,
            },
        ),
    ] {
        let mut rig = Rig::new(wire, "tcp-faults");
        rig.start(vec![Role::Sink, Role::Source(2 << 20), Role::Echo], vec![], faults);
        let stream = rig.connect(0);
        send_pattern(&stream, 2 << 20);
        assert_eq!(take_pattern(&stream), 0, "{name}");
        assert_eq!(take_pattern(&rig.connect(1)), 2 << 20, "{name}");
        both_ways(&rig.connect(2), 1 << 20);
        let stream = rig.connect(2);
        for round in 0..100 {
            ask(&stream, round * 100, 100);
        }
        drop(stream);
        let seen = ended(rig);
        // Only late segments are answered with resets: the connection of a duplicated last acknowledgement no
        // longer exists (RFC 9293 §3.10.7.1).
        let counters = &seen.counters;
        let resets = (counters.resets_received, counters.resets_sent);
        assert_eq!(resets, (0, counters.segments_unknown), "{name}: {seen:?}");
        let faulted = seen.faulted;
        let some = faulted.lost + faulted.duplicated + faulted.reordered + faulted.corrupted;
        assert!(some > 10, "{name}: {seen:?}");
        println!("{name}: {faulted:?}, {counters:?}");
    }
}

fn ten_thousand_connections_at_once(wire: Wire) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX).min(65_536);
    let raised = rustix::process::Rlimit { current: Some(most), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let steps: Vec<usize> =
        [300, 1_000, 10_000].into_iter().filter(|all| (*all as u64) < most - 500).collect();

    let mut rig = Rig::new(wire, "tcp-many");
    rig.start(vec![Role::Echo], vec![], CLEAN);
    let mut streams = Vec::new();
    for all in &steps {
        let more = *all - streams.len();
        streams
            .extend(rig.host.run_inside(|| (0..more).map(|_| connect(wire, 0)).collect::<Vec<_>>()).unwrap());
        // First one request at a time, then all requests before any reply is read.
        streams.iter().for_each(|stream| ask(stream, 0, 64));
        let mut message = [0; 64];
        application::fill(64, &mut message);
        streams.iter_mut().for_each(|stream| stream.write_all(&message).unwrap());
        for stream in &mut streams {
            let mut answer = [0; 64];
            stream.read_exact(&mut answer).unwrap();
            assert!(answer == message);
        }
        streams.iter().for_each(|stream| stream.shutdown(Shutdown::Write).unwrap());
        streams.iter().for_each(|stream| assert_eq!(take_pattern(stream), 0));
        streams.clear();
    }
    let seen = ended(rig);
    let all: usize = steps.iter().sum();
    assert_eq!(seen.tally.opened, all as u64, "{seen:?}");
    assert_eq!(seen.counters.resets_sent + seen.counters.resets_received, 0, "{seen:?}");
}
