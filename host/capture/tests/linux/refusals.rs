//! Sockets whose connections do not move are refused by name, and continue as before.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketType, send, socket, sockopt};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use spillway_capture::{CaptureError, Failed, Injector, Refusal, export, import};

use spillway_wire::state::QUEUE_BYTES_MAX;

use crate::cable::{Cable, Family, PATIENCE, run, skipped, wait_until};
use crate::kernel::{get_int, set_option};
use crate::moving::resumed;
use crate::stream::Pattern;

/// A connection over `lo`: the client's end, and the server's.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (client, server)
}

/// Runs a test in a new network namespace.
fn inside(name: &str, work: impl FnOnce(&Cable) + Send) {
    if !skipped() {
        let cable = Cable::new(name, Family::V4, &[]);
        cable.server.run_inside(|| work(&cable)).unwrap();
    }
}

fn refusal(socket: impl Into<OwnedFd>) -> (OwnedFd, Refusal) {
    match export(socket) {
        Err(Failed { kept, error: CaptureError::Refused(refusal) }) => (kept, refusal),
        Err(Failed { error, .. }) => panic!("not a refusal: {error}"),
        Ok(_) => panic!("the socket is not refused"),
    }
}

/// Checks that a connection is refused, and then as before: not in repair mode, with its options, and usable.
fn assert_refused(client: &TcpStream, server: TcpStream, expected: &Refusal) -> TcpStream {
    let before = SocketState::of(&server);
    let (kept, refusal) = refusal(server);
    assert_eq!(&refusal, expected);
    let server = TcpStream::from(kept);
    assert_eq!(SocketState::of(&server), before);
    assert_usable(client, &server);
    server
}

fn wait_for(stream: &TcpStream, event: PollFlags) {
    let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(stream, event)], Some(&timeout)).unwrap(), 1);
}

fn assert_usable(client: &TcpStream, server: &TcpStream) {
    Pattern::new(1).write(client, 3_000);
    Pattern::new(1).read(server, 3_000);
    Pattern::new(2).write(server, 3_000);
    Pattern::new(2).read(client, 3_000);
}

#[derive(Debug, PartialEq, Eq)]
struct SocketState {
    is_in_repair: libc::c_int,
    reuses_address: bool,
    filter: libc::c_int,
}

impl SocketState {
    fn of(stream: &TcpStream) -> SocketState {
        SocketState {
            is_in_repair: get_int(stream, libc::IPPROTO_TCP, libc::TCP_REPAIR),
            reuses_address: sockopt::socket_reuseaddr(stream).unwrap(),
            filter: crate::kernel::filter_length(stream),
        }
    }
}

#[test]
fn what_is_no_connection_of_tcp_is_refused() {
    inside("cap-no-tcp", |_| {
        assert_eq!(refusal(UdpSocket::bind("127.0.0.1:0").unwrap()).1, Refusal::NotTcp);
        assert_eq!(refusal(UnixStream::pair().unwrap().0).1, Refusal::NotTcp);
        assert_eq!(refusal(std::fs::File::open("/dev/null").unwrap()).1, Refusal::NotTcp);
        let (kept, refused) = refusal(TcpListener::bind("127.0.0.1:0").unwrap());
        assert_eq!(refused, Refusal::Listening);
        let listener = TcpListener::from(kept);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"x").unwrap();
        listener.accept().unwrap().0.read_exact(&mut [0]).unwrap();
    });
}

#[test]
fn an_opening_connection_is_refused() {
    inside("cap-opening", |_| {
        let opening = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::io::ioctl_fionbio(&opening, true).unwrap();
        // The address is on the cable, but no host has it.
        let absent: SocketAddr = "10.81.0.99:1".parse().unwrap();
        assert!(rustix::net::connect(&opening, &absent).is_err());
        assert_eq!(refusal(opening).1, Refusal::State("SYN-SENT"));
        let unconnected = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert_eq!(refusal(unconnected).1, Refusal::State("CLOSED"));
    });
}

#[test]
fn multipath_tcp_is_refused() {
    inside("cap-mptcp", |_| {
        let mptcp = Protocol::from_raw(std::num::NonZeroU32::new(libc::IPPROTO_MPTCP as u32).unwrap());
        let open = || socket(AddressFamily::INET, SocketType::STREAM, Some(mptcp));
        let Ok(listener) = open() else {
            eprintln!("skipped: this kernel has no Multipath TCP");
            return;
        };
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        rustix::net::bind(&listener, &any).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
        let client = open().unwrap();
        rustix::net::connect(&client, &address).unwrap();
        let server = rustix::net::accept(&listener).unwrap();
        let (kept, refused) = refusal(server);
        assert_eq!(refused, Refusal::Mptcp);
        assert_usable(&client.into(), &kept.into());
    });
}

/// `struct tcp_md5sig` of <linux/tcp.h>.
#[repr(C)]
#[derive(Clone, Copy)]
struct Md5Key {
    address: libc::sockaddr_in,
    rest_of_address: [u8; 112],
    flags: u8,
    prefix: u8,
    length: u16,
    interface: libc::c_int,
    key: [u8; 80],
}

fn add_md5_key(fd: &impl AsFd) -> bool {
    const TCP_MD5SIG: libc::c_int = 14;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let mut key = Md5Key {
        address,
        rest_of_address: [0; 112],
        flags: 0,
        prefix: 0,
        length: 3,
        interface: 0,
        key: [0; 80],
    };
    key.key[..3].copy_from_slice(b"key");
    set_option(fd, libc::IPPROTO_TCP, TCP_MD5SIG, &key) == 0
}

#[test]
fn signed_segments_are_refused() {
    inside("cap-md5", |_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if !add_md5_key(&listener) {
            eprintln!("skipped: this kernel has no TCP-MD5");
            return;
        }
        let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert!(add_md5_key(&client));
        rustix::net::connect(&client, &listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        assert_refused(&client.into(), server, &Refusal::Signed("TCP-MD5"));
    });
}

#[test]
fn members_of_a_sockmap_are_refused_until_they_are_removed() {
    inside("cap-sockmap", |_| {
        for kind in [MapType::Sockmap, MapType::Sockhash] {
            let options = libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
                ..Default::default()
            };
            let map = MapHandle::create(kind, Some("capture_test"), 4, 4, 1, &options).unwrap();
            let (client, server) = pair();
            map.update(&[0; 4], &server.as_raw_fd().to_ne_bytes(), MapFlags::ANY).unwrap();
            let server = assert_refused(&client, server, &Refusal::SocketMap);
            // With unread bytes the map's functions call those of TCP.
            (&client).write_all(b"unread").unwrap();
            wait_for(&server, PollFlags::IN);
            let (kept, refused) = refusal(server);
            assert_eq!(refused, Refusal::SocketMap);
            map.delete(&[0; 4]).unwrap();
            let mut server = resumed(export(kept).unwrap());
            server.read_exact(&mut [0; 6]).unwrap();
            assert_usable(&client, &server);
        }
    });
}

#[test]
fn members_of_a_reuse_port_group_are_refused_until_the_option_is_cleared() {
    inside("cap-reuseport", |_| {
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseport(&listener, true).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        rustix::net::bind(&listener, &any).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let listener = TcpListener::from(listener);
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        let server = assert_refused(&client, server, &Refusal::ReusePort);
        sockopt::set_socket_reuseport(&server, false).unwrap();
        let server = resumed(export(server).unwrap());
        assert_usable(&client, &server);
    });
}

#[test]
fn unread_urgent_data_is_refused() {
    inside("cap-urgent", |_| {
        let (client, server) = pair();
        send(&client, b"!", SendFlags::OOB).unwrap();
        wait_for(&server, PollFlags::PRI);
        assert_refused(&client, server, &Refusal::Urgent);
    });
}

/// The urgent byte was read, so POLLPRI is clear, but the bytes before it were not: no read passes its place.
#[test]
fn the_place_of_an_urgent_byte_that_was_read_is_refused_until_it_is_passed() {
    inside("cap-urgent-read", |_| {
        for has_fin in [false, true] {
            let (client, mut server) = pair();
            (&client).write_all(b"abc").unwrap();
            send(&client, b"X", SendFlags::OOB).unwrap();
            wait_for(&server, PollFlags::PRI);
            (&client).write_all(b"def").unwrap();
            let mut urgent = [0];
            rustix::net::recv(&server, &mut urgent[..], RecvFlags::OOB).unwrap();
            assert_eq!(urgent, *b"X");
            if has_fin {
                client.shutdown(std::net::Shutdown::Write).unwrap();
                wait_for(&server, PollFlags::RDHUP);
            }
            let (kept, refused) = refusal(server);
            assert_eq!(refused, Refusal::Urgent);
            server = kept.into();
            let mut read = [0; 6];
            server.read_exact(&mut read[..4]).unwrap();
            assert_eq!(read[..4], *b"abcd");
            let mut server = resumed(export(server).unwrap());
            server.read_exact(&mut read[4..]).unwrap();
            assert_eq!(read, *b"abcdef");
            if !has_fin {
                assert_usable(&client, &server);
            }
        }
    });
}

#[test]
fn filters_and_offsets_of_the_application_are_refused() {
    inside("cap-filter", |_| {
        let (client, server) = pair();
        crate::kernel::attach_accepting_filter(&server);
        let server = assert_refused(&client, server, &Refusal::Filter);
        assert_eq!(crate::kernel::filter_length(&server), 1, "the application's filter is still attached");
        let (client, server) = pair();
        if set_option(&server, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &5_i32) == 0 {
            assert_refused(&client, server, &Refusal::PeekOffset);
        }
    });
}

#[test]
fn a_queue_that_no_state_can_have_is_refused() {
    inside("cap-queue", |_| {
        let (client, server) = pair();
        sockopt::set_socket_send_buffer_size_force(&server, 256 << 20).unwrap();
        server.set_nonblocking(true).unwrap();
        let chunk = vec![0; 1 << 20];
        let mut written = 0;
        while crate::kernel::unacknowledged(&server) <= QUEUE_BYTES_MAX as u32 {
            written += (&server).write(&chunk).unwrap();
        }
        let (kept, refused) = refusal(server);
        assert!(matches!(refused, Refusal::Queue(bytes) if bytes as usize > QUEUE_BYTES_MAX));
        // The captured socket's window was closed for a moment: the peer gets all bytes.
        let server = TcpStream::from(kept);
        server.shutdown(std::net::Shutdown::Write).unwrap();
        let mut received = 0;
        let mut bytes = vec![1; 1 << 20];
        loop {
            match (&client).read(&mut bytes).unwrap() {
                0 => break,
                length => received += length,
            }
        }
        assert_eq!(received, written);
    });
}

#[test]
fn explicit_congestion_notification_is_refused() {
    inside("cap-ecn", |cable| {
        run(&cable.server, "sysctl -qw net.ipv4.tcp_ecn=1");
        let (client, server) = pair();
        assert_refused(&client, server, &Refusal::Ecn);
    });
}

#[test]
fn sockets_of_one_interface_are_refused() {
    inside("cap-interface", |_| {
        let (client, server) = pair();
        assert_eq!(set_option(&server, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b"lo\0"), 0);
        assert_refused(&client, server, &Refusal::Interface);
    });
    if !skipped() {
        let cable = Cable::new("cap-link-local", Family::V6, &[]);
        let work = || {
            run(&cable.server, "ip addr add dev lo fe80::7/64 nodad");
            let index = crate::kernel::interface_index(c"lo");
            let listener = TcpListener::bind(format!("[fe80::7%{index}]:0")).unwrap();
            // The address's route appears some time after it.
            let mut client = None;
            wait_until("the client connects", || {
                client = TcpStream::connect(listener.local_addr().unwrap()).ok();
                client.is_some()
            });
            let (client, server) = (client.unwrap(), listener.accept().unwrap().0);
            assert_refused(&client, server, &Refusal::Interface);
        };
        cable.server.run_inside(work).unwrap();
    }
}

#[test]
fn sockets_of_another_namespace_are_refused() {
    inside("cap-namespace", |cable| {
        let (client, server) = pair();
        let (kept, refused) = cable.client.run_inside(|| refusal(server)).unwrap();
        assert_eq!(refused, Refusal::NotFound);
        assert_usable(&client, &kept.into());
    });
}

/// IPv4 connections of an IPv6 socket are those of IPv4.
#[test]
fn mapped_addresses_are_converted() {
    if skipped() {
        return;
    }
    let cable = Cable::new("cap-mapped", Family::V6, &[]);
    let work = || {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let address: SocketAddr = ([127, 0, 0, 1], listener.local_addr().unwrap().port()).into();
        let client = TcpStream::connect(address).unwrap();
        let captured = export(listener.accept().unwrap().0).unwrap();
        assert_eq!((captured.state().local, captured.state().peer), (address, client.local_addr().unwrap()));
        let state = captured.state().clone();
        assert_eq!(captured.close_without_grace().unwrap(), []);
        let live = import(&state).unwrap().go_live(&Injector::open().unwrap()).unwrap();
        assert_usable(&client, &live.socket.into());
    };
    cable.server.run_inside(work).unwrap();
}

#[test]
fn a_process_without_the_capability_is_told_so() {
    inside("cap-capability", |_| {
        let (client, server) = pair();
        let captured = export(pair().1).unwrap();
        let injector = Injector::open().unwrap();
        let own = capabilities(None).unwrap();
        let fewer = own.permitted - CapabilitySet::NET_ADMIN - CapabilitySet::NET_RAW;
        set_capabilities(None, CapabilitySets { effective: fewer, permitted: fewer, ..own }).unwrap();
        let Failed { kept, error } = export(server).unwrap_err();
        assert!(matches!(error, CaptureError::Permission), "{error}");
        let imported = import(captured.state());
        assert!(matches!(imported, Err(CaptureError::Permission)));
        assert!(matches!(Injector::open(), Err(CaptureError::PermissionToInject)));
        assert!(matches!(captured.resume(&injector).unwrap_err().error, CaptureError::Permission));
        assert_usable(&client, &kept.into());
    });
}

/// A filter of system calls answers as such kernels do.
#[test]
fn a_kernel_without_repair_mode_is_named() {
    inside("cap-no-repair", |_| {
        let (client, server) = pair();
        crate::kernel::deny_repair_mode_to_this_thread();
        let Failed { kept, error } = export(server).unwrap_err();
        assert!(matches!(error, CaptureError::NoRepairMode), "{error}");
        assert_usable(&client, &kept.into());
    });
}
