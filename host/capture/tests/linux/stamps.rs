//! TS.Recent, which a BPF program reads.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use spillway_capture::{Captured, Capturer, Step};
use spillway_wire::Bytes;
use spillway_wire::packet::checksum::pseudo_v4;
use spillway_wire::packet::ipv4;
use spillway_wire::packet::tcp::{Header, Timestamps};

use crate::cable::{Cable, Family, skipped, wait_until};
use crate::kernel::set_option;
use crate::moving::resumed;
use crate::programs::Stamps;
use crate::stream::{Pattern, unread};

fn export(server: TcpStream) -> Captured {
    Capturer::open().unwrap().reading_stamps(Stamps::load()).export(server).unwrap()
}

#[test]
fn a_state_has_the_latest_timestamp_of_the_peer() {
    for family in [Family::V4, Family::V6] {
        if skipped() {
            return;
        }
        let cable = Cable::new(if family == Family::V4 { "cap-ts-4" } else { "cap-ts-6" }, family, &[]);
        let (client, mut server) = cable.connection(|_| {});
        let work = || {
            let mut requests = Pattern::new(1);
            for _ in 0..20 {
                // The clock of the peer has milliseconds.
                std::thread::sleep(Duration::from_millis(2));
                requests.write(&client, 100);
                wait_until("the request arrives", || unread(&server) == 100);
                let captured = export(server);
                let stamps = captured.state().agreed.stamps.unwrap();
                assert_eq!((stamps.recent, stamps.recent.is_some()), (cable.client_clock(), true));
                // The user-level stack takes the timestamp, and has it when it exports the connection.
                let moved = crate::stack::through_stack(captured.state());
                assert_eq!(moved.agreed.stamps.unwrap().recent, stamps.recent);
                server = resumed(captured);
                Pattern::new(1).after(requests.position() - 100).read(&server, 100);
            }
        };
        cable.server.run_inside(work).unwrap();
    }
}

#[test]
fn connections_without_timestamps_have_none() {
    if skipped() {
        return;
    }
    let cable = Cable::new("cap-ts-none", Family::V4, &[("net/ipv4/tcp_timestamps", "0")]);
    let (_client, server) = cable.connection(|_| {});
    let captured = cable.server.run_inside(|| export(server)).unwrap();
    assert_eq!(captured.state().agreed.stamps, None);
}

/// The user-level stack takes them, which drops segments without a timestamp.
#[test]
fn late_bytes_have_the_latest_timestamp() {
    if skipped() {
        return;
    }
    let cable = Cable::new("cap-ts-late", Family::V4, &[]);
    let (mut client, server) = cable.connection(|_| {});
    let other: OwnedFd = server.try_clone().unwrap().into();
    let captured = cable.server.run_inside(|| export(server)).unwrap();
    let state = captured.state().clone();
    let stamps = state.agreed.stamps.unwrap();
    assert_eq!(set_option(&other, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32), 0);
    client.write_all(b"late").unwrap();
    wait_until("late bytes arrive", || rustix::io::ioctl_fionread(&other).unwrap() == 4);
    let Step::Forward(packet) = captured.accepted().poll(Instant::now()).unwrap() else {
        panic!("late bytes are forwarded");
    };
    let (head, _, segment) = ipv4::Header::parse(packet.bytes()).unwrap();
    let pseudo = pseudo_v4(head.source, head.target, head.protocol, head.payload_bytes.into());
    let (header, _, data) = Header::parse(segment, pseudo).unwrap();
    assert_eq!(data, b"late");
    let expected = Timestamps { value: stamps.recent.unwrap(), echo: stamps.clock };
    assert_eq!(header.options.timestamps, Some(expected));
    let received = crate::stack::after_packet(&state, &packet).receiving;
    assert_eq!(received.late, [(state.receiving.next, Bytes::from_static(b"late"))]);
}
