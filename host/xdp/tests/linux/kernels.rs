//! Kernels and stacks with other settings, slow readers, and many connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};
use spillway_transport::LostReason;
use spillway_xdp::FaultsOptions;

use crate::application::{MESSAGE_BYTES, Role};
use crate::rig::{PORT, Rig, Wire, ask, send_pattern, set_timeouts, take_pattern};
use crate::{CLEAN, both_ways, ended};

on_each_wire! {
    a_kernel_without_one_option_or_another,
    small_and_large_packets,
    a_kernel_that_reads_nothing_for_a_while,
    a_stack_whose_window_opens_slowly,
    what_is_gated_is_served_all_the_same,
    many_connections_in_bad_weather,
    the_stack_opens_a_thousand_connections,
    connections_by_cookies_work_like_others,
}

over_ipv6! {
    a_kernel_without_one_option_or_another,
    small_and_large_packets,
    a_kernel_that_reads_nothing_for_a_while,
    a_stack_whose_window_opens_slowly,
    what_is_gated_is_served_all_the_same,
    many_connections_in_bad_weather,
    the_stack_opens_a_thousand_connections,
    connections_by_cookies_work_like_others,
}

fn family_of(wire: Wire) -> AddressFamily {
    if wire.stack_address().is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn a_kernel_without_one_option_or_another(wire: Wire) {
    let (sack, stamps, scale) =
        ("net/ipv4/tcp_sack", "net/ipv4/tcp_timestamps", "net/ipv4/tcp_window_scaling");
    for sysctls in [
        &[(sack, "0")][..],
        &[(stamps, "0")],
        &[(scale, "0")],
        &[(sack, "0"), (stamps, "0"), (scale, "0")],
        &[("net/ipv4/tcp_ecn", "1")],
        &[("net/ipv4/tcp_recovery", "0"), ("net/ipv4/tcp_early_retrans", "0")],
    ] {
        let mut rig = Rig::with_sysctls(wire, "tcp-options", sysctls);
        let listener = rig.listen();
        let faults = FaultsOptions { seed: 9, loss: 0.01, reordering: 0.05, reordering_frames: 4, ..CLEAN };
        let target = listener.local_addr().unwrap();
        rig.start(vec![Role::Echo, Role::Source(1 << 20)], vec![(target, Role::Source(1 << 20))], faults);
        both_ways(&rig.connect(0), 1 << 20);
        assert_eq!(take_pattern(&rig.connect(1)), 1 << 20, "{sysctls:?}");
        let (theirs, _) = listener.accept().unwrap();
        set_timeouts(&theirs);
        assert_eq!(take_pattern(&theirs), 1 << 20, "{sysctls:?}");
        drop(theirs);
        let seen = ended(rig);
        assert_eq!(seen.tally.lost_by(LostReason::Closed), 3, "{sysctls:?}: {seen:?}");
    }
}

fn small_and_large_packets(wire: Wire) {
    // A frame of an AF_XDP socket holds 1,792 bytes. A veth with an XDP program refuses an MTU above 3,506.
    let large = if wire == Wire::Tap { ("9000", 9000) } else { ("3000", 1778) };
    let small = if wire == Wire::XdpIpv6 { ("1280", 1280) } else { ("576", 576) };
    for (theirs, ours) in [large, (small.0, 1500), ("1500", small.1), ("1400", large.1)] {
        let mut rig = Rig::new(wire, "tcp-mtu");
        rig.command(&["ip", "link", "set", "spw0", "mtu", theirs]);
        if wire != Wire::Tap {
            rig.command(&["ip", "link", "set", "spw1", "mtu", &ours.to_string()]);
        }
        rig.start_with(vec![Role::Echo], vec![], CLEAN, |settings| settings.mtu = ours);
        both_ways(&rig.connect(0), 4 << 20);
        let seen = ended(rig);
        assert_eq!(seen.counters.resets_sent + seen.counters.resets_received, 0, "{theirs}: {seen:?}");
    }
}

fn a_kernel_that_reads_nothing_for_a_while(wire: Wire) {
    const BYTES: u64 = 2 << 20;
    let mut rig = Rig::new(wire, "tcp-shut");
    rig.start(vec![Role::Source(BYTES)], vec![], CLEAN);
    let stream = rig
        .host
        .run_inside(|| {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(family_of(wire), SocketType::STREAM, flags, Some(ipproto::TCP)).unwrap();
            sockopt::set_socket_recv_buffer_size(&socket, 8192).unwrap();
            connect(&socket, &SocketAddr::from((wire.stack_address(), PORT))).unwrap();
            TcpStream::from(socket)
        })
        .unwrap();
    set_timeouts(&stream);
    // Time for some zero-window probes.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(take_pattern(&stream), BYTES);
    drop(stream);
    let seen = ended(rig);
    assert_eq!(seen.tally.lost_by(LostReason::Closed), 1, "{seen:?}");
}

fn a_stack_whose_window_opens_slowly(wire: Wire) {
    const BYTES: u64 = 300_000;
    let mut rig = Rig::new(wire, "tcp-slow");
    rig.start_with(vec![Role::Slow(4000), Role::Slow(100)], vec![], CLEAN, |settings| {
        settings.initial_window = 3000;
    });
    let stream = rig.connect(0);
    send_pattern(&stream, BYTES);
    assert_eq!(take_pattern(&stream), 0);
    drop(stream);
    // The application grants less than a segment at a time. Silly window syndrome must not occur.
    let stream = rig.connect(1);
    send_pattern(&stream, 20_000);
    assert_eq!(take_pattern(&stream), 0);
    drop(stream);
    let seen = ended(rig);
    assert_eq!(seen.tally.received, BYTES + 20_000, "{seen:?}");
    assert!(seen.counters.frames_received < 1500, "{seen:?}");
}

fn what_is_gated_is_served_all_the_same(wire: Wire) {
    for (gate_ms, rounds) in [(0, 200), (10, 50), (50, 20), (300, 5)] {
        let mut rig = Rig::new(wire, "tcp-gate");
        rig.start(vec![Role::Gated(Duration::from_millis(gate_ms))], vec![], CLEAN);
        let stream = rig.connect(0);
        for round in 0..rounds {
            ask(&stream, round * 500, 500);
        }
        drop(stream);
        both_ways(&rig.connect(0), 200_000);
        let again = rig.host.tcp_counters().unwrap()["Tcp:RetransSegs"];
        let seen = ended(rig);
        println!("gate of {gate_ms} ms: the kernel sent {again} segments again, {:?}", seen.counters);
        assert_eq!(seen.tally.lost_by(LostReason::Closed), 2, "{seen:?}");
        assert_eq!(seen.counters.resets_sent + seen.counters.resets_received, 0, "{seen:?}");
    }
}

fn many_connections_in_bad_weather(wire: Wire) {
    // For long searches: SPILLWAY_SEED is the seed.
    let seed = std::env::var("SPILLWAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let faults = FaultsOptions {
        seed,
        loss: 0.03,
        duplication: 0.03,
        reordering: 0.1,
        reordering_frames: 6,
        corruption: 0.003,
    };
    const BYTES: u64 = 100_000;
    let mut rig = Rig::new(wire, "tcp-weather");
    let listener = rig.listen();
    let target = listener.local_addr().unwrap();
    rig.start(vec![Role::Echo, Role::Source(BYTES)], vec![(target, Role::Ask(20)); 10], faults);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| both_ways(&rig.connect(0), BYTES));
            scope.spawn(|| assert_eq!(take_pattern(&rig.connect(1)), BYTES));
            scope.spawn(|| {
                let (mut theirs, _) = listener.accept().unwrap();
                set_timeouts(&theirs);
                let mut message = [0; MESSAGE_BYTES];
                for _ in 0..20 {
                    theirs.read_exact(&mut message).unwrap();
                    theirs.write_all(&message).unwrap();
                }
                assert_eq!(theirs.read(&mut message).unwrap(), 0);
            });
        }
    });
    let seen = ended(rig);
    assert_eq!(seen.tally.lost_by(LostReason::Closed), 30, "{seen:?}");
    let resets = (seen.counters.resets_received, seen.counters.resets_sent);
    assert_eq!(resets, (0, seen.counters.segments_unknown), "{seen:?}");
}

fn the_stack_opens_a_thousand_connections(wire: Wire) {
    const CONNECTIONS: usize = 1000;
    const ROUNDS: u64 = 3;
    let mut rig = Rig::new(wire, "tcp-opens");
    let listener = rig.listen();
    let target = listener.local_addr().unwrap();
    rig.start(vec![], vec![(target, Role::Ask(ROUNDS)); CONNECTIONS], CLEAN);
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| listener.accept().unwrap().0).collect();
    streams.iter().for_each(set_timeouts);
    let mut message = [0; MESSAGE_BYTES];
    for _ in 0..ROUNDS {
        for stream in &mut streams {
            stream.read_exact(&mut message).unwrap();
            stream.write_all(&message).unwrap();
        }
    }
    for stream in &mut streams {
        assert_eq!(stream.read(&mut message).unwrap(), 0);
    }
    drop(streams);
    let seen = ended(rig);
    assert_eq!(seen.tally.opened, CONNECTIONS as u64);
    assert_eq!(seen.tally.received, CONNECTIONS as u64 * ROUNDS * MESSAGE_BYTES as u64, "{seen:?}");
    assert_eq!(seen.tally.lost_by(LostReason::Closed), CONNECTIONS as u64, "{seen:?}");
}

fn connections_by_cookies_work_like_others(wire: Wire) {
    let mut rig = Rig::new(wire, "tcp-cookies");
    let faults = FaultsOptions { seed: 3, loss: 0.02, ..CLEAN };
    rig.start_with(vec![Role::Echo], vec![], faults, |settings| settings.half_open_max = 1);
    // All connect at once, so that more than one connection is half-open.
    let sockets: Vec<_> = rig
        .host
        .run_inside(|| {
            let begin = |_| {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket =
                    socket_with(family_of(wire), SocketType::STREAM, flags, Some(ipproto::TCP)).unwrap();
                let begun = connect(&socket, &SocketAddr::from((wire.stack_address(), PORT)));
                assert_eq!(begun, Err(rustix::io::Errno::INPROGRESS));
                TcpStream::from(socket)
            };
            (0..200).map(begin).collect()
        })
        .unwrap();
    for stream in &sockets {
        stream.set_nonblocking(false).unwrap();
        set_timeouts(stream);
    }
    std::thread::scope(|scope| {
        // In parallel, because the kernel's retries take seconds. The first message is one segment: a cookie
        // is valid only with the first sequence number after the SYN, and a lone second segment is reset.
        for some in sockets.chunks(20) {
            scope.spawn(|| {
                some.iter().for_each(|stream| ask(stream, 0, 64));
                some.iter().for_each(|stream| ask(stream, 64, 3000));
            });
        }
    });
    drop(sockets);
    let seen = ended(rig);
    assert!(seen.counters.cookies_accepted > 0, "{seen:?}");
    assert_eq!((seen.tally.opened, seen.counters.resets_sent), (200, 0), "{seen:?}");
}
