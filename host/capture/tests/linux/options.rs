//! Socket options travel beside the state.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt;
use spillway_capture::{Buffer, Injector, SocketOptions, export, import};

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
        let options = captured.options().clone();
        assert_eq!(options.receive_buffer, Some(Buffer { bytes: 600_000, is_fixed: true }));
        assert!(options.send_buffer.is_some_and(|buffer| !buffer.is_fixed));
        drop(captured);
    };
    cable.server.run_inside(work).unwrap();
    drop(client);
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
        let state = captured.state().clone();
        assert_eq!(captured.close_without_grace().unwrap(), []);
        let restored = import(&state, &SocketOptions::default()).unwrap();
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
            ..captured.options().clone()
        };
        let state = captured.state().clone();
        assert_eq!(captured.close_without_grace().unwrap(), []);
        let restored = import(&state, &options).unwrap();
        assert!(!restored.has_congestion_control());
        let live = restored.go_live(&Injector::open().unwrap()).unwrap();
        cable.release();
        assert_eq!(sockopt::tcp_congestion(&live.socket).unwrap(), default);
        // The unit of timestamps is an option, too; kernels before 6.7 know only milliseconds.
        let has_unit = info(&live.socket).tcpi_options & MICROSECOND_STAMPS != 0;
        let captured = export(live.socket).unwrap();
        assert_eq!(captured.options().has_microsecond_stamps, has_unit);
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
