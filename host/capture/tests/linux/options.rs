//! Socket options travel beside the state.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt;
use spillway_capture::{Buffer, Injector, SocketOptions, export, import};
use spillway_wire::state::ConnectionState;

use crate::cable::{Cable, Family, skipped, wait_until};
use crate::kernel::info;
use crate::moving::{Moving, resumed};
use crate::stream::Pattern;

/// Bit of `tcpi_options`: timestamps in microseconds.
const MICROSECOND_STAMPS: u8 = 64;

#[test]
fn options_are_restored() {
    if skipped() {
        return;
    }
    let cable = Cable::new("cap-options", Family::V4, &[]);
    let (client, server) = cable.connection(|_| {});
    let work = || {
        sockopt::set_tcp_cork(&server, true).unwrap();
        sockopt::set_socket_keepalive(&server, true).unwrap();
        sockopt::set_tcp_keepidle(&server, Duration::from_secs(77)).unwrap();
        sockopt::set_tcp_keepintvl(&server, Duration::from_secs(11)).unwrap();
        sockopt::set_tcp_keepcnt(&server, 5).unwrap();
        sockopt::set_tcp_user_timeout(&server, 12_345).unwrap();
        sockopt::set_tcp_congestion(&server, "reno").unwrap();
        sockopt::set_socket_recv_buffer_size(&server, 300_000).unwrap();
        server.set_nonblocking(true).unwrap();
        let (moving, _) = Moving::new(&cable, server).step();
        let moved = &moving.stream;
        assert!(sockopt::tcp_nodelay(moved).unwrap() && sockopt::tcp_cork(moved).unwrap());
        assert!(sockopt::socket_keepalive(moved).unwrap());
        assert_eq!(sockopt::tcp_keepidle(moved).unwrap(), Duration::from_secs(77));
        assert_eq!(sockopt::tcp_keepintvl(moved).unwrap(), Duration::from_secs(11));
        assert_eq!(sockopt::tcp_keepcnt(moved).unwrap(), 5);
        assert_eq!(sockopt::tcp_user_timeout(moved).unwrap(), 12_345);
        assert_eq!(sockopt::tcp_congestion(moved).unwrap(), "reno");
        assert_eq!(sockopt::socket_recv_buffer_size(moved).unwrap(), 600_000);
        assert!(fcntl_getfl(moved).unwrap().contains(OFlags::NONBLOCK));

        // A second capture reads what the first import has set.
        let captured = export(moving.stream).unwrap();
        let options = captured.state().socket_options.clone().unwrap();
        assert_eq!(options.receive_buffer, Some(Buffer { bytes: 600_000, is_fixed: true }));
        assert!(options.send_buffer.is_some_and(|buffer| !buffer.is_fixed));
        drop(captured);
    };
    cable.server.run_inside(work).unwrap();
    drop(client);
}

/// Times that an application has set count, also while the socket sends no probes.
#[test]
fn times_of_probes_are_restored_while_they_are_off() {
    if skipped() {
        return;
    }
    let cable = Cable::new("cap-probes", Family::V4, &[]);
    let (_client, server) = cable.connection(|_| {});
    let work = || {
        sockopt::set_tcp_keepcnt(&server, 5).unwrap();
        let (moving, _) = Moving::new(&cable, server).step();
        assert_eq!(sockopt::tcp_keepcnt(&moving.stream).unwrap(), 5);
        assert_eq!(sockopt::tcp_keepidle(&moving.stream).unwrap(), Duration::from_secs(7_200));
        assert!(!sockopt::socket_keepalive(&moving.stream).unwrap());
        sockopt::set_tcp_keepcnt(&moving.stream, 9).unwrap();
        let (moving, _) = moving.step();
        assert_eq!(sockopt::tcp_keepcnt(&moving.stream).unwrap(), 9);
    };
    cable.server.run_inside(work).unwrap();
}

/// A restored socket has room for both queues and the window, which is more than the kernel needed for them before.
#[test]
fn buffers_do_not_grow_with_moves() {
    if skipped() {
        return;
    }
    let cable = Cable::new("cap-buffers", Family::V4, &[]);
    // The client's window is small: the server's send buffer fills.
    let (client, server) =
        cable.connection(|client| sockopt::set_socket_recv_buffer_size(client, 16 << 10).unwrap());
    let sizes = |stream: &TcpStream| {
        (sockopt::socket_send_buffer_size(stream).unwrap(), sockopt::socket_recv_buffer_size(stream).unwrap())
    };
    let work = || {
        let (mut requests, mut replies) =
            ((Pattern::new(1), Pattern::new(1)), (Pattern::new(2), Pattern::new(2)));
        let most = (largest_buffer("tcp_wmem"), largest_buffer("tcp_rmem"));
        let mut moving = Moving::new(&cable, server);
        for _ in 0..10 {
            moving.stream.set_nonblocking(true).unwrap();
            let mut written = 0;
            while let more @ 1.. = replies.0.write_some(&moving.stream, 1 << 20) {
                written += more;
            }
            moving.stream.set_nonblocking(false).unwrap();
            requests.0.write(&client, 10_000);
            let before = sizes(&moving.stream);
            (moving, _) = moving.step();
            let after = sizes(&moving.stream);
            let is_bounded = after.0 <= before.0.max(most.0) && after.1 <= before.1.max(most.1);
            assert!(is_bounded, "{before:?}, then {after:?}; the kernel enlarges buffers to {most:?}");
            replies.1.read(&client, written);
            requests.1.read(&moving.stream, 10_000);
        }
    };
    cable.server.run_inside(work).unwrap();
}

/// Size up to which the kernel enlarges buffers itself.
fn largest_buffer(sysctl: &str) -> usize {
    let sizes = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{sysctl}")).unwrap();
    sizes.split_whitespace().last().unwrap().parse().unwrap()
}

/// Waits while the child of another test, between `fork` and `exec`, has a copy of the listening socket before.
fn listen(address: SocketAddr) -> TcpListener {
    let mut listener = None;
    wait_until("the server listens", || {
        listener = TcpListener::bind(address).ok();
        listener.is_some()
    });
    listener.unwrap()
}

/// Repair mode clears SO_REUSEADDR, without which the listening socket of a restarted server could not be bound.
#[test]
fn a_listening_socket_can_be_bound_while_a_moved_connection_lives() {
    if skipped() {
        return;
    }
    let mut cable = Cable::new("cap-listen", Family::V4, &[]);
    let (client, server) = cable.connection(|_| {});
    let address = server.local_addr().unwrap();
    cable.stop_listening();
    let work = || {
        let (moving, _) = Moving::new(&cable, server).step();
        let _listener = listen(address);
        Pattern::new(1).write(&moving.stream, 1_000);
        Pattern::new(1).read(&client, 1_000);
        // The same with options of a connection that does not come from a kernel, and after a move that failed.
        let captured = export(moving.stream).unwrap();
        let state = ConnectionState { socket_options: None, ..captured.state().clone() };
        assert_eq!(captured.close_without_grace().unwrap(), []);
        let restored = import(&state).unwrap();
        let live = restored.go_live(&Injector::open().unwrap()).unwrap();
        drop(_listener);
        let listener = listen(address);
        let resumed = resumed(export(live.socket).unwrap());
        drop(listener);
        let _listener = listen(address);
        drop(resumed);
    };
    cable.server.run_inside(work).unwrap();
}

#[test]
fn a_missing_congestion_control_is_reported_and_replaced() {
    if skipped() {
        return;
    }
    let cable = Cable::new("cap-missing", Family::V4, &[]);
    let (client, server) = cable.connection(|_| {});
    let work = || {
        let default = sockopt::tcp_congestion(&server).unwrap();
        cable.hold();
        let captured = export(server).unwrap();
        let options = SocketOptions {
            congestion_control: Some("no-such".into()),
            has_microsecond_stamps: true,
            ..captured.state().socket_options.clone().unwrap()
        };
        let state = ConnectionState { socket_options: Some(options), ..captured.state().clone() };
        assert_eq!(captured.close_without_grace().unwrap(), []);
        let restored = import(&state).unwrap();
        assert!(!restored.has_congestion_control());
        let live = restored.go_live(&Injector::open().unwrap()).unwrap();
        cable.release();
        assert_eq!(sockopt::tcp_congestion(&live.socket).unwrap(), default);
        // The unit of timestamps is an option, too; kernels before 6.7 know only milliseconds.
        let has_unit = info(&live.socket).tcpi_options & MICROSECOND_STAMPS != 0;
        let captured = export(live.socket).unwrap();
        let options = captured.state().socket_options.as_ref().unwrap();
        assert_eq!(options.has_microsecond_stamps, has_unit);
        let (moving, _) = Moving::new(&cable, resumed(captured)).step();
        assert_eq!(info(&moving.stream).tcpi_options & MICROSECOND_STAMPS != 0, has_unit);
        Pattern::new(1).write(&moving.stream, 1_000);
        Pattern::new(1).read(&client, 1_000);
    };
    cable.server.run_inside(work).unwrap();
}

#[test]
fn an_ended_reading_direction_stays_ended() {
    use std::io::Read;
    if skipped() {
        return;
    }
    let cable = Cable::new("cap-reading", Family::V4, &[]);
    let (client, server) = cable.connection(|_| {});
    let work = || {
        server.shutdown(std::net::Shutdown::Read).unwrap();
        let (mut moving, _) = Moving::new(&cable, server).step();
        assert_eq!(moving.stream.read(&mut [0; 10]).unwrap(), 0);
        Pattern::new(1).write(&moving.stream, 1_000);
        Pattern::new(1).read(&client, 1_000);
    };
    cable.server.run_inside(work).unwrap();
}
