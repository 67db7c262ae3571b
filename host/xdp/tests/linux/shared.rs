//! A stack that shares an interface and its address with a host's kernel. The client is another host.

mod bad_frames;
mod changes;
mod conformance;
mod errors;
mod interrupts;
mod neighbours;
mod noise;
mod pair;
mod programs;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_bpf::{Pass, Verdict};
use spillway_lab::Launch;
use spillway_parts::Random;
use spillway_transport::LostReason;
use spillway_xdp::{Adapter, Device, Socket, SocketError, SocketOptions, check_reserved, send};

use crate::application::{MESSAGE_BYTES, Role};
use crate::both_ways;
use crate::rig::{PATIENCE, ask};
use bad_frames::frames_that_are_too_long_cut_or_damaged_are_counted_and_not_answered;
use conformance::every_scenario_passes;
use errors::{a_path_with_a_smaller_mtu_is_found, icmp_errors_reach_the_stack};
use neighbours::the_kernel_resolves_neighbours;
use noise::{noise_frame, random_frame};
use pair::{
    CLIENT_END, Family, OURS, PORTS, Pair, SERVER_END, Stacks, THEIRS, run, start_kernel_echo, verdicts_of,
};

/// Makes two tests from each function: over IPv4 and over IPv6.
macro_rules! over_each_family {
    ($($test:ident,)*) => {
        mod ipv4 {
            $(#[test]
            fn $test() {
                super::$test(super::Family::V4);
            })*
        }

        mod ipv6 {
            $(#[test]
            fn $test() {
                super::$test(super::Family::V6);
            })*
        }
    };
}

over_each_family! {
    kernel_traffic_on_the_shared_address_is_undisturbed,
    the_kernel_refuses_connections_when_the_program_is_gone,
    many_bytes_go_both_ways,
    arbitrary_frames_do_no_harm,
    connections_of_both_queues_are_served,
    partial_checksums_are_recognised,
    the_stack_opens_connections_from_the_shared_address,
    icmp_errors_reach_the_stack,
    a_path_with_a_smaller_mtu_is_found,
    the_kernel_resolves_neighbours,
    every_scenario_passes,
    frames_that_are_too_long_cut_or_damaged_are_counted_and_not_answered,
}

/// Exchanges messages, at least one, with an echo server until `stop` is set. Returns their number.
fn exchange(stream: &TcpStream, stop: &AtomicBool) -> u64 {
    let mut messages = 0;
    while messages == 0 || !stop.load(Ordering::Relaxed) {
        ask(stream, messages * 100, 100);
        messages += 1;
    }
    messages
}

/// Ends the exchanges even if a check fails: otherwise the test would wait for them for ever.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn exchange_datagrams(socket: &UdpSocket, to: SocketAddr, stop: &AtomicBool) -> u64 {
    let (mut messages, mut answer) = (0_u64, [0; 8]);
    while messages == 0 || !stop.load(Ordering::Relaxed) {
        socket.send_to(&messages.to_be_bytes(), to).unwrap();
        let (length, _) = socket.recv_from(&mut answer).expect("UDP on the shared address lost a datagram");
        assert_eq!((length, u64::from_be_bytes(answer)), (8, messages));
        messages += 1;
    }
    messages
}

fn kernel_traffic_on_the_shared_address_is_undisturbed(family: Family) {
    let Some(pair) = Pair::of(family, "xdp-shared") else { return };
    start_kernel_echo(&pair.server);
    let theirs = pair.connect(THEIRS, PATIENCE).unwrap();
    let datagrams = pair.client.run_inside(|| UdpSocket::bind((family.client(), 0)).unwrap()).unwrap();
    datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
    let udp = SocketAddr::from((family.server(), THEIRS));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let tcp = scope.spawn(|| exchange(&theirs, &is_over));
        let udp = scope.spawn(|| exchange_datagrams(&datagrams, udp, &is_over));
        let end = EndOnDrop(&is_over);
        // The stack starts and ends three times beside the kernel's traffic.
        for life in 0..3 {
            let mut adapter = pair.adapter().unwrap();
            let stacks = Stacks::start(&pair, &mut adapter);
            let streams: Vec<_> = (0..20).map(|_| pair.connect(OURS, PATIENCE).unwrap()).collect();
            for round in 0..50 {
                streams.iter().for_each(|stream| ask(stream, round * 64, 64));
            }
            let server = family.server().to_string();
            let ping = Launch::new("ping").args(["-c", "20", "-i", "0.01", "-w", "10", &server]);
            let mut ping = pair.client.spawn(&ping).unwrap();
            assert!(ping.wait(PATIENCE).unwrap().success());
            let printed = ping.stdout().unwrap();
            assert!(printed.contains(" 0% packet loss"), "{printed}");
            let counters = verdicts_of(&adapter);
            assert!(counters.of(Verdict::ToEndpoint) > 20 * 50, "life {life}: {counters:?}");
            assert!(
                counters.of(Verdict::PassForeign) > 0 && counters.of(Verdict::PassOther) > 0,
                "{counters:?}"
            );
            assert_eq!(counters.of(Verdict::DropNoSocket), 0, "{counters:?}");
            drop(streams);
            drop(adapter);
            stacks.stop();
        }
        drop(end);
        let (tcp, udp) = (tcp.join().unwrap(), udp.join().unwrap());
        assert!(tcp > 100 && udp > 100, "{tcp} messages by TCP, {udp} by UDP");
    });
    pair.lab.close().unwrap();
}

fn many_bytes_go_both_ways(family: Family) {
    const BYTES: u64 = 16 << 20;
    let Some(pair) = Pair::of(family, "xdp-bulk") else { return };
    let mut adapter = pair.adapter().unwrap();
    let stacks = Stacks::start(&pair, &mut adapter);
    both_ways(&pair.connect(OURS, PATIENCE).unwrap(), BYTES);
    stacks.wait_until_idle();
    let (_, tally, counters) = stacks.stop().remove(0);
    assert_eq!((tally.opened, tally.received), (1, BYTES), "{tally:?}");
    assert_eq!((counters.frames_malformed, counters.resets_sent), (0, 0), "{counters:?}");
    pair.lab.close().unwrap();
}

fn the_kernel_refuses_connections_when_the_program_is_gone(family: Family) {
    let Some(pair) = Pair::of(family, "xdp-gone") else { return };
    let refused = pair.connect(OURS, PATIENCE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "before the program");
    let mut adapter = pair.adapter().unwrap();
    let stacks = Stacks::start(&pair, &mut adapter);
    ask(&pair.connect(OURS, PATIENCE).unwrap(), 0, 100);
    let refused = pair.connect(OURS + 1, PATIENCE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "a port of the kernel's");
    let refused = pair.connect(*PORTS.start(), PATIENCE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "a port of the stack's without a connection");

    // With the program attached, but without sockets, the client gets no answer and no reset of the kernel.
    drop(stacks.stop());
    let start = Instant::now();
    // A process that another test has just forked may have the socket, whose ring then gets the packet.
    while verdicts_of(&adapter).of(Verdict::DropNoSocket) == 0 {
        assert!(start.elapsed() < PATIENCE, "no packet finds the queue without a socket");
        let silent = pair.connect(OURS, Duration::from_millis(300)).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
    }
    drop(adapter);
    let refused = pair.connect(OURS, PATIENCE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "after the program");
    pair.lab.close().unwrap();
}

#[test]
fn an_interface_that_is_used_is_refused_with_a_reason() {
    let Some(pair) = Pair::new("xdp-used") else { return };
    let interface = SERVER_END;
    let enter = |name: &str| {
        pair.server
            .run_inside(|| Adapter::open(name, SocketOptions::default(), |_| Ok(())).map(drop))
            .unwrap()
    };
    let unknown = enter("no-such-if").unwrap_err().to_string();
    assert!(unknown.contains("no-such-if") && unknown.contains("ip link"), "{unknown}");
    let loopback = enter("lo").unwrap_err().to_string();
    assert!(loopback.contains("Ethernet"), "{loopback}");

    let other = Pass::load().unwrap();
    let attached = pair.server.run_inside(|| other.attach(interface).unwrap()).unwrap();
    let occupied = enter(interface).unwrap_err().to_string();
    let id = attached.program_id();
    assert!(occupied.contains(&format!("bpftool prog show id {id}")), "{occupied}");
    drop(attached);

    run(&pair.server, &format!("ip link set {interface} down"));
    let down = enter(interface).unwrap_err().to_string();
    assert!(down.contains(&format!("ip link set {interface} up")), "{down}");
    pair.lab.close().unwrap();
}

#[test]
fn a_queue_has_one_socket_and_is_free_after_its_end() {
    let Some(pair) = Pair::new("xdp-busy") else { return };
    let mut adapter = pair.adapter().unwrap();
    let interface = adapter.interface().clone();
    let open = || pair.server.run_inside(|| Socket::open(&interface, 0, SocketOptions::default())).unwrap();
    let sockets = adapter.take_sockets();
    let error = open().unwrap_err();
    assert!(matches!(&error, SocketError::Bind { queue: 0, .. }), "{error}");
    assert!(error.to_string().contains("another AF_XDP socket has it"), "{error}");
    drop(sockets);
    for _ in 0..5 {
        open().expect("the queue is free, or will be soon");
    }
    pair.lab.close().unwrap();
}

#[test]
fn packets_of_opened_connections_can_be_awaited_alone() {
    let Some(pair) = Pair::new("xdp-opened") else { return };
    let mut adapter = pair.adapter().unwrap();
    let mut socket = adapter.take_sockets().remove(0);
    let is_readable = |fd: BorrowedFd<'_>| {
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    };
    // Without a stack, connections to either port time out.
    let brief = Duration::from_millis(50);
    pair.connect(OURS, brief).unwrap_err();
    assert!(is_readable(socket.as_fd()), "a SYN for the listener should wait");
    assert!(
        !is_readable(socket.opened_fd().unwrap()),
        "the listener's SYN should not end a wait for opened connections"
    );
    pair.connect(*PORTS.start(), brief).unwrap_err();
    assert!(is_readable(socket.opened_fd().unwrap()), "a packet to a port of opened connections should wait");
    let mut ports = Vec::new();
    while let Some(frame) = socket.receive().unwrap() {
        ports.push(u16::from_be_bytes([frame[36], frame[37]]));
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports, [OURS, *PORTS.start()]);
    assert!(!is_readable(socket.as_fd()) && !is_readable(socket.opened_fd().unwrap()));
    drop((socket, adapter));
    pair.lab.close().unwrap();
}

/// As under load, the receiver never finds the receive ring empty. Its entries must become free nevertheless.
#[test]
fn a_ring_that_is_never_empty_does_not_fill_up() {
    const OPTIONS: SocketOptions = SocketOptions { frames: 64, has_opened_ring: false };
    const FRAMES: usize = 1000;
    const WAITING: usize = 8;
    let Some(pair) = Pair::new("xdp-ring") else { return };
    let mut adapter = pair.adapter().unwrap();
    let interface = adapter.interface().clone();
    drop(adapter.take_sockets());
    let mut receiver = pair.server.run_inside(|| Socket::open(&interface, 0, OPTIONS).unwrap()).unwrap();
    adapter.steer().set_socket(0, receiver.as_fd()).unwrap();
    let mut sender = pair
        .client
        .run_inside(|| Adapter::open(CLIENT_END, SocketOptions::default(), |_| Ok(())).unwrap())
        .unwrap();
    let mut socket = sender.take_sockets().remove(0);
    let frame = random_frame(Family::V4, &mut Random::new(5), interface.mac.0);
    for number in 0..FRAMES {
        let start = Instant::now();
        let is_patient = || assert!(start.elapsed() < PATIENCE, "frame {number} does not arrive");
        while !send(&mut socket, &frame).unwrap() {
            is_patient();
        }
        while verdicts_of(&adapter).of(Verdict::ToEndpoint) <= number as u64 {
            is_patient();
        }
        if number >= WAITING {
            while receiver.receive().unwrap().is_none() {
                is_patient();
            }
            receiver.flush().unwrap();
        }
    }
    let statistics = receiver.statistics().unwrap();
    assert_eq!((statistics.ring_full, statistics.fill_ring_empty), (0, 0), "{statistics:?}");
    drop((receiver, adapter));
    pair.lab.close().unwrap();
}

/// Frames with random bytes, while a connection exchanges messages.
fn arbitrary_frames_do_no_harm(family: Family) {
    const FRAMES: usize = 20_000;
    let Some(pair) = Pair::of(family, "xdp-noise") else { return };
    let mut adapter = pair.adapter().unwrap();
    let interface = adapter.interface().clone();
    let stacks = Stacks::start(&pair, &mut adapter);
    let stream = pair.connect(OURS, PATIENCE).unwrap();
    // An AF_XDP socket on the client's interface sends the frames.
    let mut noise = pair
        .client
        .run_inside(|| Adapter::open(CLIENT_END, SocketOptions::default(), |_| Ok(())).unwrap())
        .unwrap();
    let mut socket = noise.take_sockets().remove(0);
    let mut random = Random::new(77);
    for number in 0..FRAMES {
        let frame = noise_frame(family, &mut random, interface.mac.0);
        let start = Instant::now();
        while !send(&mut socket, &frame).unwrap() {
            assert!(start.elapsed() < PATIENCE, "the socket never has room");
        }
        // Also empties the veth's ring, which holds 256 frames.
        if number % 100 == 0 {
            ask(&stream, number as u64, 100);
        }
    }
    ask(&stream, FRAMES as u64, 1000);
    let counters = verdicts_of(&adapter);
    assert!(counters.of(Verdict::ToEndpoint) > FRAMES as u64 / 8, "{counters:?}");
    drop(stream);
    let (_, _, seen) = stacks.stop().remove(0);
    // All frames that were steered to the stack are malformed, except those of the connection.
    assert!(seen.frames_malformed > FRAMES as u64 / 8, "{seen:?}");
    pair.lab.close().unwrap();
}

fn connections_of_both_queues_are_served(family: Family) {
    let Some(pair) = Pair::with(family, "xdp-queues", 2) else { return };
    let mut adapter = pair.adapter().unwrap();
    assert_eq!(adapter.interface().queues, 2);
    pair.introduce(); // otherwise the first SYN waits for ARP, and its retransmission arrives at another queue
    let stacks = Stacks::start(&pair, &mut adapter);
    let streams: Vec<_> = (0..40).map(|_| pair.connect(OURS, PATIENCE).unwrap()).collect();
    streams.iter().for_each(|stream| ask(stream, 0, 1000));
    assert_eq!(verdicts_of(&adapter).of(Verdict::DropNoSocket), 0);
    drop(streams);
    stacks.stop();
    pair.lab.close().unwrap();
}

#[test]
fn ports_that_the_kernel_may_choose_are_refused_with_the_command() {
    let Some(pair) = Pair::new("xdp-ports") else { return };
    let check =
        || pair.server.run_inside(|| check_reserved(&PORTS).map_err(|error| error.to_string())).unwrap();
    let error = check().unwrap_err();
    let (_, rest) = error.split_once('`').unwrap();
    let (command, _) = rest.split_once('`').unwrap();
    run(&pair.server, command);
    assert_eq!(check(), Ok(()));
    pair.lab.close().unwrap();
}

/// With `tx on` the client's kernel sends partial checksums, which a veth does not complete.
fn partial_checksums_are_recognised(family: Family) {
    let Some(pair) = Pair::of(family, "xdp-partial") else { return };
    pair.introduce();
    run(&pair.client, &format!("ethtool -K {CLIENT_END} tx on"));
    let mut adapter = pair.adapter().unwrap();
    let stacks = Stacks::start(&pair, &mut adapter);
    let silent = pair.connect(OURS, Duration::from_millis(300)).unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::TimedOut);
    let (_, _, counters) = stacks.stop().remove(0);
    assert!(counters.partial_checksums > 0, "{counters:?}");
    pair.lab.close().unwrap();
}

/// The kernel's neighbour tables have no entries for the peers before.
fn the_stack_opens_connections_from_the_shared_address(family: Family) {
    let Some(pair) = Pair::of(family, "xdp-opens") else { return };
    let ((behind, route), client) = (family.far(), family.client());
    run(&pair.client, &format!("ip addr add dev {CLIENT_END} {}", family.address_arguments(behind)));
    run(&pair.server, &format!("ip route add {route} via {client}"));
    start_kernel_echo(&pair.client);
    let mut adapter = pair.adapter().unwrap();
    let to_open = vec![
        (SocketAddr::from((client, THEIRS)), Role::Ask(200)),
        (SocketAddr::from((behind, THEIRS)), Role::Ask(200)),
        (SocketAddr::from((client, 1)), Role::Ask(1)),
    ];
    let stacks = Stacks::opening(&pair, &mut adapter, to_open);
    stacks.wait_until_idle();
    let (_, tally, counters) = stacks.stop().remove(0);
    assert_eq!((tally.opened, tally.received), (2, 2 * 200 * MESSAGE_BYTES as u64), "{tally:?}");
    assert_eq!((tally.lost_by(LostReason::Closed), tally.lost_by(LostReason::Refused)), (2, 1), "{tally:?}");
    assert_eq!(counters.resets_sent, 0, "{counters:?}");
    assert!(verdicts_of(&adapter).of(Verdict::ToRange) > 400);
    pair.lab.close().unwrap();
}
