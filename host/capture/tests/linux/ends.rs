//! Connections of which one end has finished, and captures that end without a move.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use spillway_capture::{CaptureError, Failed, Injector, Refusal, Step, export, import};
use spillway_wire::state::Stage;

use crate::cable::{Cable, Family, skipped, wait_until};
use crate::kernel::{info, set_option, unacknowledged};
use crate::moving::{Moving, assert_unseen, resumed};
use crate::stream::{Pattern, unread};

const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const CLOSE_WAIT: u8 = 8;
const CLOSED: u8 = 7;

/// Checks of a leaving socket, at each of which late bytes are repeated.
const CHECKS: usize = 6;

/// Connections of each test.
const CONNECTIONS: usize = 20;

fn with_connections(name: &str, work: impl Fn(&Cable, TcpStream, TcpStream) + Send + Sync) {
    for family in [Family::V4, Family::V6] {
        if skipped() {
            return;
        }
        let cable = Cable::new(&format!("{name}-{}", if family == Family::V4 { 4 } else { 6 }), family, &[]);
        for _ in 0..CONNECTIONS {
            let (client, server) = cable.connection(|_| {});
            cable.server.run_inside(|| work(&cable, client, server)).unwrap();
        }
        assert_unseen(&cable);
    }
}

fn state_of(stream: &TcpStream) -> u8 {
    info(stream).tcpi_state
}

fn assert_finished(mut stream: &TcpStream) {
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0, "the peer has finished");
}

#[test]
fn close_wait_moves_with_and_without_unread_bytes() {
    with_connections("cap-close-wait", |cable, client, server| {
        let (mut requests, mut taken) = (Pattern::new(1), Pattern::new(1));
        let (mut replies, mut answers) = (Pattern::new(2), Pattern::new(2));
        requests.write(&client, 5_000);
        client.shutdown(Shutdown::Write).unwrap();
        wait_until("the FIN arrives", || state_of(&server) == CLOSE_WAIT);
        let (moving, state) = Moving::new(cable, server).step();
        // The FIN is not passed to the application before the unread bytes.
        assert_eq!((state.stage, state.receiving.fin.is_some()), (Stage::Established, true));
        assert_eq!(state_of(&moving.stream), CLOSE_WAIT);
        assert_eq!(unread(&moving.stream), 5_000);
        taken.read(&moving.stream, 5_000);
        let (moving, state) = moving.step();
        assert_eq!(state.stage, Stage::CloseWait);
        assert_finished(&moving.stream);
        replies.write(&moving.stream, 50_000);
        let (moving, _) = moving.step();
        assert_eq!(state_of(&moving.stream), CLOSE_WAIT);
        answers.read(&client, 50_000);
        drop(moving);
        assert_finished(&client);
    });
}

#[test]
fn fin_wait_1_moves_with_sent_and_unsent_bytes() {
    with_connections("cap-fin-wait-1", |cable, client, server| {
        let (mut replies, mut answers) = (Pattern::new(2), Pattern::new(2));
        // The cable holds the client's acknowledgements: first of a sent FIN, then of one behind unsent bytes.
        cable.hold();
        replies.write(&server, 1_000);
        server.shutdown(Shutdown::Write).unwrap();
        let (moving, state) = Moving::new(cable, server).step();
        assert_eq!((state.stage, state.sending.queue.len()), (Stage::FinWait1, 1_000));
        wait_until("the FIN is acknowledged", || state_of(&moving.stream) == FIN_WAIT_2);
        answers.read(&client, 1_000);
        assert_finished(&client);
        assert_client_can_send(&client, &moving);
    });
    with_connections("cap-fin-unsent", |cable, client, server| {
        let (mut replies, mut answers) = (Pattern::new(2), Pattern::new(2));
        rustix::net::sockopt::set_socket_send_buffer_size(&server, 1 << 20).unwrap();
        cable.hold();
        replies.write(&server, 300_000);
        server.shutdown(Shutdown::Write).unwrap();
        let (moving, state) = Moving::new(cable, server).step();
        assert_eq!(state.stage, Stage::FinWait1);
        assert!(state.sending.nxt - state.sending.una < 300_000, "the FIN is not sent");
        assert_eq!(state_of(&moving.stream), FIN_WAIT_1);
        answers.read(&client, 300_000);
        assert_finished(&client);
        assert_client_can_send(&client, &moving);
    });
}

#[test]
fn fin_wait_2_moves() {
    with_connections("cap-fin-wait-2", |cable, client, server| {
        let (mut replies, mut answers) = (Pattern::new(2), Pattern::new(2));
        replies.write(&server, 1_000);
        server.shutdown(Shutdown::Write).unwrap();
        answers.read(&client, 1_000);
        wait_until("the FIN is acknowledged", || state_of(&server) == FIN_WAIT_2);
        let (moving, state) = Moving::new(cable, server).step();
        assert_eq!(state.stage, Stage::FinWait2);
        assert_eq!(state_of(&moving.stream), FIN_WAIT_2);
        assert_finished(&client);
        assert_client_can_send(&client, &moving);
    });
}

/// The client's direction works, and its end.
fn assert_client_can_send(client: &TcpStream, moving: &Moving<'_>) {
    let (mut requests, mut taken) = (Pattern::new(1), Pattern::new(1));
    requests.write(client, 10_000);
    client.shutdown(Shutdown::Write).unwrap();
    taken.read(&moving.stream, 10_000);
    assert_finished(&moving.stream);
}

/// The kernel does not know that a restored connection owes an acknowledgement: its peer would send its bytes again.
#[test]
fn an_owed_acknowledgement_is_sent() {
    with_connections("cap-owed", |cable, client, server| {
        Pattern::new(1).write(&client, 100);
        wait_until("the request arrives", || unread(&server) == 100);
        let (moving, _) = Moving::new(cable, server).step_with(|state| {
            let mut state = state.clone();
            // As if the last 50 bytes were not acknowledged yet; `step_with` waits for the acknowledgement.
            if !state.receiving.owes {
                state.receiving.acknowledged -= 50;
                state.receiving.owes = true;
            }
            state
        });
        Pattern::new(1).read(&moving.stream, 100);
        Pattern::new(2).write(&moving.stream, 100);
        Pattern::new(2).read(&client, 100);
    });
}

#[test]
fn other_states_are_refused_by_name() {
    with_connections("cap-states", |_, client, server| {
        client.shutdown(Shutdown::Write).unwrap();
        wait_until("the FIN arrives", || state_of(&server) == CLOSE_WAIT);
        server.shutdown(Shutdown::Write).unwrap();
        wait_until("the connection ends", || state_of(&server) == CLOSED);
        let Failed { kept, error } = export(server).unwrap_err();
        assert!(matches!(error, CaptureError::Refused(Refusal::State("CLOSED"))), "{error}");
        drop(kept);
    });
}

#[test]
fn a_capture_that_ends_without_a_move_continues_with_the_same_socket() {
    with_connections("cap-resume", |cable, client, server| {
        let (mut requests, mut taken) = (Pattern::new(1), Pattern::new(1));
        let (mut replies, mut answers) = (Pattern::new(2), Pattern::new(2));
        rustix::net::sockopt::set_socket_send_buffer_size(&server, 1 << 20).unwrap();
        let reuses = rustix::net::sockopt::socket_reuseaddr(&server).unwrap();
        requests.write(&client, 3_000);
        taken.read(&server, 1_000);
        replies.write(&server, 300_000);
        cable.hold();
        let captured = export(server).unwrap();
        requests.write(&client, 4_000);
        let server = resumed(captured);
        cable.release();
        assert_eq!(rustix::net::sockopt::socket_reuseaddr(&server).unwrap(), reuses);
        answers.read(&client, 300_000);
        taken.read(&server, 6_000);
        wait_until("all is acknowledged", || unacknowledged(&server) == 0);
    });
}

/// Segments that arrive at a captured socket are neither acknowledged nor answered by a reset.
#[test]
fn a_captured_socket_drops_segments_silently() {
    with_connections("cap-silent", |cable, mut client, server| {
        let address = client.local_addr().unwrap();
        let before = cable.server_segments(address);
        let captured = export(server).unwrap();
        client.write_all(&Pattern::new(1).next(500)).unwrap();
        wait_until("the segment reaches the server", || cable.client_segments_are_through());
        assert_eq!(cable.server_segments(address), before, "the captured socket sends nothing");
        let server = resumed(captured);
        // The client sends the bytes again after its retransmission timeout.
        Pattern::new(1).read(&server, 500);
    });
}

/// A segment may have passed the filter on another CPU. The filter is detached here to get the same.
#[test]
fn what_arrives_behind_the_filter_goes_to_the_new_owner() {
    with_connections("cap-late", |_, mut client, server| {
        let other = server.try_clone().unwrap();
        client.write_all(&Pattern::new(1).next(2_000)).unwrap();
        wait_until("the request arrives", || unread(&server) == 2_000);
        let captured = export(server).unwrap();
        let end = captured.state().receiving.initial.wrapping_add(1 + 2_000);
        assert_eq!(set_option(&other, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32), 0);
        client.write_all(&Pattern::new(9).next(700)).unwrap();
        wait_until("late bytes arrive", || unread(&other) == 2_700);
        let mut leaving = captured.accepted();
        let mut now = Instant::now();
        let Step::Forward(late) = leaving.poll(now).unwrap() else { panic!("late bytes are forwarded") };
        assert_eq!((late.seq(), late.data(), late.has_fin()), (end, &Pattern::new(9).next(700)[..], false));
        let Step::Wait(next) = leaving.poll(now).unwrap() else { panic!("bytes are given once at a time") };
        client.shutdown(Shutdown::Write).unwrap();
        wait_until("the FIN arrives", || state_of(&other) == CLOSE_WAIT);
        let Step::Forward(fin) = leaving.poll(now).unwrap() else { panic!("a late FIN is forwarded") };
        assert_eq!((fin.seq(), fin.data(), fin.has_fin()), (end.wrapping_add(700), &[][..], true));
        assert_eq!(leaving.poll(now).unwrap(), Step::Wait(next), "the grace begins at the same time again");
        let (mut step, mut repeated) = (Step::Wait(next), 0);
        while step != Step::Ended {
            step = leaving.poll(now).unwrap();
            match &step {
                Step::Wait(next) => now = *next,
                Step::Forward(both) => {
                    assert_eq!((both.seq(), both.data(), both.has_fin()), (end, late.data(), true));
                    repeated += 1;
                }
                Step::Ended => {}
            }
        }
        assert_eq!(repeated, CHECKS);
        assert_eq!(state_of(&other), CLOSED);
    });
}

/// A FIN in FIN-WAIT-2 ends the kernel's socket: its state is CLOSED then, which does not say that a FIN has arrived.
#[test]
fn a_late_fin_in_fin_wait_2_goes_to_the_new_owner() {
    with_connections("cap-late-fin", |_, mut client, server| {
        let other = server.try_clone().unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        wait_until("the FIN is acknowledged", || state_of(&server) == FIN_WAIT_2);
        let captured = export(server).unwrap();
        let end = captured.state().receiving.initial.wrapping_add(1);
        assert_eq!(set_option(&other, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32), 0);
        client.write_all(&Pattern::new(9).next(700)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        wait_until("the FIN arrives", || state_of(&other) == CLOSED);
        let mut leaving = captured.accepted();
        let mut packets = Vec::new();
        while let Step::Forward(packet) = leaving.poll(Instant::now()).unwrap() {
            packets.push(packet);
        }
        let data: Vec<u8> = packets.iter().flat_map(|packet| packet.data().to_vec()).collect();
        assert_eq!((packets[0].seq(), data), (end, Pattern::new(9).next(700)));
        assert_eq!(packets.iter().filter(|packet| packet.has_fin()).count(), 1);
        assert!(packets.last().is_some_and(spillway_capture::PeerPacket::has_fin));
    });
}

/// Urgent data that arrives behind the filter ends every read, so it is not forwarded; it stays for a socket that does not move.
#[test]
fn late_urgent_data_is_refused_and_stays_in_the_socket() {
    with_connections("cap-late-urgent", |_, mut client, server| {
        let other = server.try_clone().unwrap();
        client.write_all(&Pattern::new(1).next(2_000)).unwrap();
        wait_until("the request arrives", || unread(&server) == 2_000);
        let before = info(&server).tcpi_bytes_received;
        let captured = export(server).unwrap();
        assert_eq!(set_option(&other, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32), 0);
        rustix::net::send(&client, b"!", rustix::net::SendFlags::OOB).unwrap();
        client.write_all(b"behind").unwrap();
        wait_until("late bytes arrive", || info(&other).tcpi_bytes_received == before + 7);
        let Failed { kept, error } = captured.close_without_grace().unwrap_err();
        assert!(matches!(error, CaptureError::Refused(Refusal::Urgent)), "{error}");
        let mut server = resumed(kept);
        Pattern::new(1).read(&server, 2_000);
        let mut urgent = [0];
        rustix::net::recv(&server, &mut urgent[..], rustix::net::RecvFlags::OOB).unwrap();
        assert_eq!(urgent, *b"!");
        let mut behind = [0; 6];
        server.read_exact(&mut behind).unwrap();
        assert_eq!(behind, *b"behind");
    });
}

#[test]
fn what_arrives_behind_the_filter_stays_in_a_socket_that_does_not_move() {
    with_connections("cap-late-stays", |_, mut client, server| {
        let other = server.try_clone().unwrap();
        client.write_all(&Pattern::new(1).next(2_000)).unwrap();
        wait_until("the request arrives", || unread(&server) == 2_000);
        let captured = export(server).unwrap();
        assert_eq!(set_option(&other, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32), 0);
        client.write_all(&Pattern::new(9).next(700)).unwrap();
        wait_until("late bytes arrive", || unread(&other) == 2_700);
        let server = resumed(captured);
        Pattern::new(1).read(&server, 2_000);
        Pattern::new(9).read(&server, 700);
    });
}

/// A second descriptor does not keep the old connection: the new socket can have its addresses.
#[test]
fn a_silent_close_ends_all_descriptors_of_the_socket() {
    with_connections("cap-close", |cable, client, server| {
        let mut other = server.try_clone().unwrap();
        cable.hold();
        let captured = export(server).unwrap();
        let state = captured.state().clone();
        let present = import(&state).unwrap_err();
        assert!(matches!(present, CaptureError::Present(..)), "{present}");
        assert_eq!(captured.close_without_grace().unwrap(), []);
        assert!(other.read(&mut [0; 10]).is_err() || state_of(&other) == CLOSED);
        // A restored connection that is dropped sends nothing, and can be restored again.
        let address = client.local_addr().unwrap();
        let segments = cable.server_segments(address);
        drop(import(&state).unwrap());
        assert_eq!(cable.server_segments(address), segments);
        let live = import(&state).unwrap().go_live(&Injector::open().unwrap()).unwrap();
        cable.release();
        let server = TcpStream::from(live.socket);
        Pattern::new(1).write(&server, 1_000);
        Pattern::new(1).read(&client, 1_000);
    });
}
