//! Packets that a filtered socket does not accept.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_tcp_nodelay, socket_cookie};
use spillway_bpf::Stragglers;

use crate::{connected, isolated};

const PATIENCE: Duration = Duration::from_secs(30);

fn set_option(socket: &TcpStream, option: libc::c_int, value: libc::c_int) {
    // SAFETY: the value is a C int, and outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn attach(stragglers: &Stragglers, socket: &TcpStream) {
    stragglers.with_filter(|filter| set_option(socket, libc::SO_ATTACH_BPF, filter.as_raw_fd()));
}

/// Sequence number and payload of a packet.
fn segment(packet: &[u8]) -> (u32, &[u8]) {
    let header = match packet[0] >> 4 {
        4 => usize::from(packet[0] & 15) * 4,
        _ => 40,
    };
    let tcp = &packet[header..];
    (u32::from_be_bytes(*tcp[4..].first_chunk().unwrap()), &tcp[usize::from(tcp[12] >> 4) * 4..])
}

#[test]
fn a_filtered_socket_accepts_nothing_and_each_packet_is_copied() {
    let Some(mut stragglers) = isolated(Stragglers::load(4 << 20)) else { return };
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let (mut client, mut server) = connected(&listener);
        let cookie = socket_cookie(&server).unwrap();
        let sent: Vec<u8> = (0..=250).cycle().take(150_000).collect();
        set_tcp_nodelay(&client, true).unwrap();
        client.write_all(&sent[..10]).unwrap();
        server.read_exact(&mut [0; 10]).unwrap();
        attach(&stragglers, &server);
        client.set_nonblocking(true).unwrap();
        let mut written = 10;
        // The first write has more than a segment, and the kernel passes it on as one packet.
        while let Ok(bytes) = client.write(&sent[written..sent.len().min(written + 50_000)])
            && bytes > 0
        {
            written += bytes;
        }
        assert!(written > 10);
        server.set_nonblocking(true).unwrap();
        let (mut next, mut merged, start) = (None, 0, Instant::now());
        let mut kept = Vec::new();
        while kept.is_empty() || merged == 0 {
            assert!(start.elapsed() < PATIENCE, "{} bytes kept", kept.len());
            let Some(straggler) = stragglers.poll().unwrap() else { continue };
            assert_eq!(straggler.cookie, cookie);
            let (sequence, payload) = segment(&straggler.packet);
            // The client repeats what is not acknowledged.
            if *next.get_or_insert(sequence) == sequence {
                kept.extend_from_slice(payload);
                next = Some(sequence.wrapping_add(payload.len() as u32));
            }
            merged += usize::from(payload.len() > 1_500);
        }
        assert!(kept == sent[10..10 + kept.len()], "the copies are the packets' bytes");
        assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);

        set_option(&server, libc::SO_DETACH_FILTER, 0);
        server.set_nonblocking(false).unwrap();
        let mut received = vec![0; written - 10];
        server.read_exact(&mut received).unwrap();
        assert!(received == sent[10..written], "the client repeats what was not accepted");
        // Repetitions until the filter was removed.
        while stragglers.poll().unwrap().is_some() {}
    }
    assert_eq!(stragglers.dropped().unwrap(), 0);
}

#[test]
fn a_full_ring_drops_and_counts_packets() {
    let Some(mut stragglers) = isolated(Stragglers::load(0)) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let start = Instant::now();
    let mut sockets = Vec::new();
    while stragglers.dropped().unwrap() == 0 {
        assert!(start.elapsed() < PATIENCE);
        let (mut client, server) = connected(&listener);
        attach(&stragglers, &server);
        client.write_all(&[1; 20_000]).unwrap();
        sockets.push((client, server));
    }
    assert!((2..=128 * 1024 / 20_000 + 1).contains(&sockets.len()), "{}", sockets.len());
    let (client, server) = sockets.pop().unwrap();
    assert!(stragglers.poll().unwrap().is_some_and(|first| segment(&first.packet).1 == [1; 20_000]));
    drop((client, server));
}
