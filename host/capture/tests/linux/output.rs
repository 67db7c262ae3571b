//! A socket whose connection moves sends nothing: neither the captured one, whatever passes its filter on another CPU, nor the
//! restored one before it is live.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt;
use spillway_capture::{Captured, Injector, export, import};

use crate::cable::{Cable, Family, Seen, skipped, wait_until};
use crate::kernel::{blocked_packets, info, network_counter, permit_output, set_option, unacknowledged};
use crate::moving::{end, resumed};
use crate::stream::{Pattern, unread};

/// Bytes that the server writes: far more than it may send at first.
const REPLY: usize = 300_000;
/// Longer than the retransmission timeout of a new socket, and than the shortest time before a keep-alive probe.
const LONGER_THAN_TIMERS: Duration = Duration::from_millis(1_500);

fn with_connection(name: &str, work: impl Fn(&Cable, TcpStream, TcpStream) + Send + Sync) {
    for family in [Family::V4, Family::V6] {
        if skipped() {
            return;
        }
        let cable = Cable::new(&format!("{name}-{}", if family == Family::V4 { 4 } else { 6 }), family, &[]);
        cable.make_timeouts_long();
        let (client, server) = cable.connection(|_| {});
        let timeouts = cable.client_timeouts();
        cable.server.run_inside(|| work(&cable, client, server)).unwrap();
        assert_eq!(cable.client_timeouts(), timeouts);
        assert_eq!(cable.seen(), Seen::default());
    }
}

/// A captured connection with many unsent bytes, and a second descriptor of its socket. The cable holds the acknowledgements of
/// what was sent.
fn captured_with_unsent_bytes(cable: &Cable, server: TcpStream) -> (Captured, OwnedFd) {
    sockopt::set_socket_send_buffer_size(&server, 1 << 20).unwrap();
    let other = server.try_clone().unwrap().into();
    cable.hold();
    Pattern::new(2).write(&server, REPLY);
    let captured = export(server).unwrap();
    let sending = &captured.state().sending;
    assert!(sending.nxt - sending.una < REPLY as u64, "bytes are unsent");
    (captured, other)
}

/// Lets segments pass that would have passed the filter on another CPU.
fn detach_filter(other: &OwnedFd) {
    assert_eq!(set_option(other, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32), 0);
}

/// Gives the client's acknowledgements to the captured socket, whose window they open.
fn open_window(cable: &Cable, other: &OwnedFd) {
    let before = unacknowledged(other);
    detach_filter(other);
    cable.release();
    wait_until("acknowledgements arrive", || unacknowledged(other) < before);
}

#[test]
fn a_window_that_opens_behind_the_filter_lets_nothing_leave() {
    with_connection("cap-window", |cable, client, server| {
        let address = client.local_addr().unwrap();
        let (captured, other) = captured_with_unsent_bytes(cable, server);
        let (segments, unsent) = (cable.server_segments(address), info(&other).tcpi_notsent_bytes);
        open_window(cable, &other);
        assert!(info(&other).tcpi_snd_wnd > 0, "the window is open");
        assert_eq!(cable.server_segments(address), segments, "the captured socket sends nothing");
        assert_eq!(
            info(&other).tcpi_notsent_bytes,
            unsent,
            "no byte counts as sent that the state has as unsent"
        );
        let server = resumed(captured);
        Pattern::new(2).read(&client, REPLY);
        wait_until("all is acknowledged", || unacknowledged(&server) == 0);
    });
}

/// What the policy is for: bytes leave that the state has as unsent, and its new owner does not accept their acknowledgement.
#[test]
fn on_a_kernel_without_the_policy_bytes_leave_when_a_window_opens() {
    with_connection("cap-window-free", |cable, client, server| {
        let (captured, other) = captured_with_unsent_bytes(cable, server);
        let unsent = info(&other).tcpi_notsent_bytes;
        permit_output(&other);
        open_window(cable, &other);
        wait_until("unsent bytes leave", || info(&other).tcpi_notsent_bytes < unsent);
        let _server = resumed(captured);
        Pattern::new(2).read(&client, REPLY);
    });
}

/// Bytes that arrive behind the filter are not acknowledged, so the client would repeat them after its timeout: a socket that does
/// not move acknowledges them at once.
#[test]
fn acknowledgements_that_were_blocked_are_sent_by_a_socket_that_does_not_move() {
    with_connection("cap-unacked", |cable, mut client, server| {
        let address = client.local_addr().unwrap();
        let mut server = Some(server);
        // Two in a short time: the kernel answers only one segment without data in 500 ms.
        for number in 1..=2 {
            let other: OwnedFd = server.as_ref().unwrap().try_clone().unwrap().into();
            let captured = export(server.take().unwrap()).unwrap();
            let segments = cable.server_segments(address);
            detach_filter(&other);
            client.write_all(&Pattern::new(number).next(5_000)).unwrap();
            wait_until("late bytes arrive", || rustix::io::ioctl_fionread(&other).unwrap() == 5_000);
            assert_eq!(cable.server_segments(address), segments, "the captured socket sends nothing");
            assert_eq!(unacknowledged(&client), 5_000);
            let stream = resumed(captured);
            wait_until("the bytes are acknowledged", || unacknowledged(&client) == 0);
            Pattern::new(number).read(&stream, 5_000);
            server = Some(stream);
        }
        end(client, server.unwrap());
    });
}

/// Segments that reach a restored socket early are dropped: those of a client that does not wait are held elsewhere.
#[test]
fn a_restored_socket_is_silent_before_it_is_live() {
    for family in [Family::V4, Family::V6] {
        if skipped() {
            return;
        }
        let name = if family == Family::V4 { "cap-silent-4" } else { "cap-silent-6" };
        let cable = Cable::new(name, family, &[]);
        let (client, server) = cable.connection(|_| {});
        let address = client.local_addr().unwrap();
        let work = move |cable: &Cable| {
            sockopt::set_tcp_keepidle(&server, Duration::from_secs(1)).unwrap();
            sockopt::set_socket_keepalive(&server, true).unwrap();
            cable.hold();
            Pattern::new(2).write(&server, 5_000);
            let captured = export(server).unwrap();
            let state = captured.state().clone();
            assert_eq!((state.sending.nxt - state.sending.una, state.sending.queue.len()), (5_000, 5_000));
            assert_eq!(captured.close_without_grace().unwrap(), []);
            let restored = import(&state).unwrap();
            let segments = cable.server_segments(address);
            cable.release();
            let (challenges, blocked) = (network_counter("TCPChallengeACK"), blocked_packets());
            Pattern::new(1).write(&client, 1_000);
            wait_until("a segment reaches the server", || cable.client_segments_are_through());
            std::thread::sleep(LONGER_THAN_TIMERS);
            assert_eq!(cable.server_segments(address), segments, "the restored socket sends nothing");
            assert_eq!(network_counter("TCPChallengeACK"), challenges);
            assert!(blocked.is_none() || blocked_packets() > blocked, "a timer has tried to send");
            let live = restored.go_live(&Injector::open().unwrap()).unwrap();
            assert!(live.fault.is_none(), "{:?}", live.fault);
            let server = TcpStream::from(live.socket);
            server.set_read_timeout(Some(crate::cable::PATIENCE)).unwrap();
            Pattern::new(2).read(&client, 5_000);
            Pattern::new(1).read(&server, 1_000);
            wait_until("all is acknowledged", || unacknowledged(&server) == 0 && unread(&server) == 0);
            let mut more = Pattern::new(2).after(5_000);
            more.write(&server, 5_000);
            Pattern::new(2).after(5_000).read(&client, 5_000);
            end(client, server);
        };
        cable.server.run_inside(|| work(&cable)).unwrap();
        assert_eq!(cable.seen(), Seen::default());
    }
}
