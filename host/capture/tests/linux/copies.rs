//! Segments that reach a captured socket, because they had passed the switch before it began to hold the flow: they are copied,
//! and no one waits for a retransmission timeout. Each loss that a simpler way has is shown, too.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::net::sockopt::{set_socket_recv_buffer_size, socket_recv_buffer_size};
use spillway_bpf::{Removal, RemovedSockets};
use spillway_capture::{
    Captured, Capturer, CopyCounters, CopyLimits, GRACE, Injector, Leaving, PeerPacket, Step, import,
};

use crate::cable::{Cable, Family, PATIENCE, Seen, skipped, wait_until};
use crate::kernel::{attach_dropping_filter, info, network_counter, set_option, unacknowledged};
use crate::programs::Filter;
use crate::stream::{Pattern, unread};

const CLOSE_WAIT: u8 = 8;
const CLOSED: u8 = 7;
/// Connections of each test.
const CONNECTIONS: usize = 20;
/// Bytes that the client sends while the connection moves.
const BYTES: usize = 5_000;
/// Segments of these bytes. The cable's interfaces merge none.
const SEGMENTS: u64 = 4;

fn copying() -> Capturer {
    Capturer::open().unwrap().copying(Filter::load(), CopyLimits::default())
}

/// Runs `work` for connections of a client to the first of two servers. It returns the server's end, wherever it is then. The
/// client must see nothing that it must not see.
fn with_two_servers(name: &str, work: impl Fn(&Cable, &TcpStream, TcpStream) -> TcpStream) {
    seen_of_two_servers(name, work).into_iter().for_each(|seen| assert_eq!(seen, Seen::default()));
}

/// As [`with_two_servers`]. Returns what the client has seen, for each family of addresses.
fn seen_of_two_servers(name: &str, work: impl Fn(&Cable, &TcpStream, TcpStream) -> TcpStream) -> Vec<Seen> {
    let mut seen = Vec::new();
    for family in [Family::V4, Family::V6] {
        if skipped() {
            return seen;
        }
        let suffix = if family == Family::V4 { 4 } else { 6 };
        let cable = Cable::with_two_servers(&format!("{name}-{suffix}"), family, &[]);
        cable.make_timeouts_long();
        for _ in 0..CONNECTIONS {
            let (client, server) = cable.connection(|_| {});
            let server = work(&cable, &client, server);
            finish(&cable, &client, server);
            cable.release_to(0);
        }
        seen.push(cable.seen());
    }
    seen
}

/// Ends a connection, so that no segment of it is on its way afterwards.
fn finish(cable: &Cable, mut client: &TcpStream, mut server: TcpStream) {
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    wait_until("the client acknowledges the end", || cable.client_segments_are_through());
}

/// Continues a captured connection at the second server, which the client's segments reach from now on.
fn take_over(cable: &Cable, captured: &Captured) -> TcpStream {
    let state = captured.state().clone();
    let work = || import(&state).unwrap().go_live(&Injector::open().unwrap()).unwrap();
    let live = cable.server_at(1).run_inside(work).unwrap();
    assert!(live.fault.is_none(), "{:?}", live.fault);
    let server = TcpStream::from(live.socket);
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server
}

/// Polls until there is nothing to forward now.
fn forwarded(leaving: &mut Leaving, now: Instant) -> Vec<PeerPacket> {
    let mut packets = Vec::new();
    while let Step::Forward(packet) = leaving.poll(now).unwrap() {
        packets.push(packet);
    }
    packets
}

fn inject(cable: &Cable, server: usize, packets: &[PeerPacket]) {
    let work = || {
        let injector = Injector::open().unwrap();
        packets.iter().for_each(|packet| injector.inject(packet).unwrap());
    };
    cable.server_at(server).run_inside(work).unwrap();
}

#[test]
fn copies_go_to_the_new_owner_and_no_one_waits() {
    with_two_servers("cap-copies", |cable, client, server| {
        let (start, before) = (Instant::now(), cable.client_timeouts());
        let other = server.try_clone().unwrap();
        let mut capturer = cable.server.run_inside(copying).unwrap();
        let captured = cable.server.run_inside(|| capturer.export(server).unwrap()).unwrap();
        let mut requests = Pattern::new(1);
        requests.write(client, BYTES);
        wait_until("the segments are copied", || {
            capturer.drain().unwrap();
            capturer.copy_counters().kept >= SEGMENTS
        });
        cable.hold();
        requests.write(client, BYTES);
        let server = take_over(cable, &captured);
        let mut leaving = captured.accepted();
        let packets = forwarded(&mut leaving, start);
        let first = &packets[0];
        assert_eq!(
            (first.peer(), first.local()),
            (client.local_addr().unwrap(), client.peer_addr().unwrap())
        );
        inject(cable, 1, &packets);
        cable.release_to(1);
        let mut taken = Pattern::new(1);
        taken.read(&server, 2 * BYTES);
        Pattern::new(2).write(&server, BYTES);
        Pattern::new(2).read(client, BYTES);
        assert_eq!(cable.client_timeouts(), before);

        // A segment that was on its way for long meets the old socket, which does not answer.
        cable.repeat_latest(0);
        wait_until("the late segment is copied", || {
            !forwarded(&mut leaving, start).is_empty() || info(&other).tcpi_state == CLOSED
        });
        assert_ne!(info(&other).tcpi_state, CLOSED);
        forwarded(&mut leaving, Instant::now() + GRACE);
        assert_eq!(leaving.poll(start).unwrap(), Step::Ended);
        assert_eq!(info(&other).tcpi_state, CLOSED);
        assert_eq!(capturer.copy_counters().unclaimed, 0);
        server
    });
}

/// The kernel gives a long segment to the socket's filter before it verifies the checksum.
#[test]
fn a_damaged_segment_does_not_go_to_the_new_owner() {
    with_two_servers("cap-damaged", |cable, client, server| {
        let (start, before) = (Instant::now(), cable.client_timeouts());
        let mut capturer = cable.server.run_inside(copying).unwrap();
        let captured = cable.server.run_inside(|| capturer.export(server).unwrap()).unwrap();
        cable.hold();
        let segments = cable.client_segments();
        Pattern::new(1).write(client, 1_000);
        wait_until("the client sends", || cable.client_segments() > segments);
        cable.send_latest_damaged(0);
        wait_until("the segment reaches the filter", || {
            capturer.drain().unwrap();
            capturer.copy_counters() != CopyCounters::default()
        });
        assert_eq!(capturer.copy_counters(), CopyCounters { damaged: 1, ..CopyCounters::default() });
        let server = take_over(cable, &captured);
        let mut leaving = captured.accepted();
        assert_eq!(forwarded(&mut leaving, start), []);
        cable.release_to(1);
        Pattern::new(1).read(&server, 1_000);
        assert_eq!(cable.client_timeouts(), before);
        server
    });
}

#[test]
fn a_filter_that_drops_makes_the_client_wait() {
    if skipped() {
        return;
    }
    let cable = Cable::with_two_servers("cap-drops", Family::V4, &[]);
    let (mut client, server) = cable.connection(|_| {});
    let before = waits(&cable);
    let work = || Capturer::open().unwrap().export(server).unwrap();
    let captured = cable.server.run_inside(work).unwrap();
    let segments = cable.client_segments();
    client.write_all(&Pattern::new(1).next(100)).unwrap();
    wait_until("the segment reaches the server", || cable.client_segments() > segments);
    let server = take_over(&cable, &captured);
    cable.release_to(1);
    let mut leaving = captured.accepted();
    assert_eq!(forwarded(&mut leaving, Instant::now()), []);
    // The client repeats the segment, but not before its timeout.
    Pattern::new(1).read(&server, 100);
    assert!(waits(&cable) > before);
}

/// Repetitions of the client after a timeout. The first one may be a probe for a loss at the end (RFC 8985 §7).
fn waits(cable: &Cable) -> u64 {
    cable.client_timeouts() + cable.client.run_inside(|| network_counter("TCPLossProbes")).unwrap()
}

/// A segment that was past the filter on another CPU. The filter is detached for a moment to get the same.
fn send_behind_the_filter(other: &OwnedFd, client: &TcpStream, bytes: &[u8]) {
    assert_eq!(set_option(other, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32), 0);
    let mut writer = client;
    writer.write_all(bytes).unwrap();
    wait_until("the client has an acknowledgement", || unacknowledged(client) == 0);
    attach_dropping_filter(other);
}

#[test]
fn acknowledged_bytes_reach_the_new_owner() {
    with_two_servers("cap-acked", |cable, client, server| {
        let before = cable.client_timeouts();
        let other: OwnedFd = server.try_clone().unwrap().into();
        let captured = cable.server.run_inside(|| copying().export(server).unwrap()).unwrap();
        send_behind_the_filter(&other, client, &Pattern::new(1).next(BYTES));
        cable.hold();
        let server = take_over(cable, &captured);
        let mut leaving = captured.accepted();
        let now = Instant::now();
        let first = forwarded(&mut leaving, now);
        inject(cable, 1, &first);
        cable.release_to(1);
        let mut taken = Pattern::new(1);
        taken.read(&server, BYTES);
        let Step::Wait(next) = leaving.poll(now).unwrap() else { panic!("the grace is not over") };
        let again = forwarded(&mut leaving, next);
        assert_eq!(again, first, "late bytes are repeated");
        inject(cable, 1, &again);
        let mut requests = taken;
        requests.write(client, BYTES);
        client.shutdown(Shutdown::Write).unwrap();
        taken.read(&server, BYTES);
        wait_until("the client's FIN arrives", || info(&server).tcpi_state == CLOSE_WAIT);
        assert_eq!(cable.client_timeouts(), before);
        forwarded(&mut leaving, Instant::now() + GRACE);
        assert_eq!(leaving.poll(Instant::now() + GRACE).unwrap(), Step::Ended);
        server
    });
}

/// The first packet with late bytes finds no room: the client never sends these bytes again, but the old host does.
#[test]
fn late_bytes_reach_an_owner_whose_receive_buffer_was_full() {
    let seen = seen_of_two_servers("cap-acked-full", |cable, client, server| {
        let before = cable.client_timeouts();
        let other: OwnedFd = server.try_clone().unwrap().into();
        let mut requests = Pattern::new(1);
        requests.write(client, BYTES);
        wait_until("the request arrives", || unread(&server) == BYTES as u64);
        let captured = cable.server.run_inside(|| copying().export(server).unwrap()).unwrap();
        send_behind_the_filter(&other, client, &requests.next(BYTES));
        requests.advance(BYTES);
        cable.hold();
        let server = take_over(cable, &captured);
        let dropped = || cable.server_at(1).run_inside(|| network_counter("TCPRcvQDrop")).unwrap();
        let before_full = dropped();
        let size = socket_recv_buffer_size(&server).unwrap() / 2;
        set_socket_recv_buffer_size(&server, 0).unwrap();
        let (mut leaving, now) = (captured.accepted(), Instant::now());
        inject(cable, 1, &forwarded(&mut leaving, now));
        wait_until("the packet is dropped", || dropped() > before_full);
        assert_eq!(unread(&server), BYTES as u64);
        // The kernel has advertised a closed window, which reading opens again.
        set_socket_recv_buffer_size(&server, size).unwrap();
        let mut taken = Pattern::new(1);
        taken.read(&server, BYTES);
        let Step::Wait(next) = leaving.poll(now).unwrap() else { panic!("the grace is not over") };
        inject(cable, 1, &forwarded(&mut leaving, next));
        cable.release_to(1);
        taken.read(&server, BYTES);
        requests.write(client, BYTES);
        taken.read(&server, BYTES);
        assert_eq!(cable.client_timeouts(), before);
        server
    });
    // The new owner answers a packet without room by its acknowledgement, which is before that of the late bytes.
    assert!(seen.iter().all(|seen| seen.resets == 0 && seen.clocks_back == 0), "{seen:?}");
}

/// Without the late bytes the connection never continues: the client has an acknowledgement of what the new owner lacks.
#[test]
fn acknowledged_bytes_that_are_not_forwarded_are_lost() {
    if skipped() {
        return;
    }
    let cable = Cable::with_two_servers("cap-acked-lost", Family::V4, &[]);
    let (mut client, server) = cable.connection(|_| {});
    let other: OwnedFd = server.try_clone().unwrap().into();
    let captured = cable.server.run_inside(|| copying().export(server).unwrap()).unwrap();
    send_behind_the_filter(&other, &client, &Pattern::new(1).next(100));
    cable.hold();
    let server = take_over(&cable, &captured);
    cable.release_to(1);
    client.write_all(b"next").unwrap();
    wait_until("bytes arrive behind a gap", || info(&server).tcpi_rcv_ooopack > 0);
    assert_eq!(unread(&server), 0);
    // The bytes are still here.
    let mut leaving = captured.accepted();
    inject(&cable, 1, &forwarded(&mut leaving, Instant::now()));
    Pattern::new(1).read(&server, 100);
    let mut next = [0; 4];
    (&server).read_exact(&mut next).unwrap();
    assert_eq!(&next, b"next");
}

#[test]
fn a_socket_that_does_not_move_gets_its_copies() {
    with_two_servers("cap-resume-copies", |cable, client, server| {
        let before = cable.client_timeouts();
        let work = || {
            let mut capturer = copying();
            let captured = capturer.export(server).unwrap();
            let mut requests = Pattern::new(1);
            requests.write(client, BYTES);
            wait_until("the segments are copied", || {
                capturer.drain().unwrap();
                capturer.copy_counters().kept >= SEGMENTS
            });
            let resumed = captured.resume(&Injector::open().unwrap()).unwrap();
            assert!(resumed.fault.is_none() && resumed.injected > 0, "{resumed:?}");
            let server = TcpStream::from(resumed.socket);
            requests.write(client, BYTES);
            Pattern::new(1).read(&server, 2 * BYTES);
            Pattern::new(2).write(&server, BYTES);
            Pattern::new(2).read(client, BYTES);
            server
        };
        let server = cable.server.run_inside(work).unwrap();
        assert_eq!(cable.client_timeouts(), before);
        server
    });
}

/// The switch may forget the old socket when the kernel has removed it, and nothing of it waits in TIME-WAIT.
#[test]
fn the_end_of_a_moved_socket_is_reported_by_its_cookie() {
    with_two_servers("cap-removed", |cable, _, server| {
        let mut removed = RemovedSockets::load(16).unwrap();
        cable.hold();
        let captured = cable.server.run_inside(|| copying().export(server).unwrap()).unwrap();
        removed.watch(captured.cookie()).unwrap();
        let server = take_over(cable, &captured);
        let mut leaving = captured.accepted();
        cable.release_to(1);
        assert_eq!(removed.poll().unwrap(), None, "the socket is still there");
        while leaving.poll(Instant::now() + GRACE).unwrap() != Step::Ended {}
        let mut removal = None;
        wait_until("the kernel has removed the socket", || {
            removal = removed.poll().unwrap();
            removal.is_some()
        });
        assert_eq!(removal, Some(Removal { cookie: leaving.cookie(), may_be_in_time_wait: false }));
        server
    });
}

/// Packets that the kernel has merged are longer than those of the network.
#[test]
fn merged_packets_are_injected_whole_or_in_pieces() {
    for family in [Family::V4, Family::V6] {
        if skipped() {
            return;
        }
        let suffix = if family == Family::V4 { 4 } else { 6 };
        let cable = Cable::new(&format!("cap-merged-{suffix}"), family, &[]);
        let work = || {
            let local = if family == Family::V4 { "127.0.0.1:0" } else { "[::1]:0" };
            let listener = std::net::TcpListener::bind(local).unwrap();
            for mtu in [65_536, 1_500] {
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let server = listener.accept().unwrap().0;
                server.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut capturer = copying();
                let captured = capturer.export(server).unwrap();
                client.write_all(&Pattern::new(1).next(60_000)).unwrap();
                wait_until("a packet is copied", || {
                    capturer.drain().unwrap();
                    capturer.copy_counters().kept > 0
                });
                crate::cable::run(&cable.server, &format!("ip link set lo mtu {mtu}"));
                let retransmitted = || info(&client).tcpi_total_retrans;
                let before = retransmitted();
                let resumed = captured.resume(&Injector::open().unwrap()).unwrap();
                assert!(resumed.fault.is_none(), "{:?}", resumed.fault);
                let server = TcpStream::from(resumed.socket);
                let longest = unread(&server);
                assert!(longest > 1_500, "{longest} bytes of copies, {before} retransmissions");
                Pattern::new(1).read(&server, 60_000);
                Pattern::new(2).write(&server, 1_000);
                Pattern::new(2).read(&client, 1_000);
                crate::cable::run(&cable.server, "ip link set lo mtu 65536");
            }
        };
        cable.server.run_inside(work).unwrap();
    }
}
