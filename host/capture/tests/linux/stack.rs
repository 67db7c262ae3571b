//! The user-level stack takes over the kernel's connections, and the kernel takes over those of the stack.

use rustix::net::sockopt;
use spillway_capture::{CaptureError, PeerPacket, import};
use spillway_tcp::isn::Key;
use spillway_tcp::{Resolver, Settings, Stack};
use spillway_transport::Time;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::state::ConnectionState;

use crate::cable::{Cable, Family, skipped, wait_until};
use crate::moving::{Moving, assert_unseen, moves};
use crate::stream::{Pattern, unread};

const STACK_MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
const NOW: Time = Time(1_000_000_000);

fn stack_for(state: &ConnectionState) -> Stack {
    let prefix = if state.local.is_ipv4() { 24 } else { 64 };
    let settings = Settings {
        resolver: Resolver::Driver,
        ..Settings::new(STACK_MAC, state.local.ip(), prefix, Key([7; 16]))
    };
    Stack::new(NOW, settings).unwrap()
}

/// The state that a stack exports after it has imported a state and received a packet.
pub fn after_packet(state: &ConnectionState, packet: &PeerPacket) -> ConnectionState {
    let mut stack = stack_for(state);
    let conn = stack.import(NOW, state).unwrap();
    let kind = if state.local.is_ipv4() { ethernet::KIND_IPV4 } else { ethernet::KIND_IPV6 };
    let mut head = [0; ethernet::HEADER_BYTES];
    ethernet::Header { target: STACK_MAC, source: Mac([2, 0, 0, 0, 0, 8]), kind }.emit(&mut head);
    let frame = [&head[..], packet.bytes()].concat();
    stack.handle_frame(NOW, &frame);
    stack.export(NOW, conn).unwrap()
}

/// Passes a state through a stack: imports and exports it.
pub fn through_stack(state: &ConnectionState) -> ConnectionState {
    let mut stack = stack_for(state);
    let conn = stack.import(NOW, state).unwrap();
    let exported = stack.export(NOW, conn).unwrap();
    // The stack adds its own recovery state; all else is as the kernel has exported it.
    assert!(exported.recovery.is_some());
    assert_eq!(exported.agreed, state.agreed);
    assert_eq!(exported.sending, state.sending);
    assert_eq!(exported.receiving, state.receiving);
    exported
}

fn moves_through_stack(name: &str, family: Family) {
    if skipped() {
        return;
    }
    let cable = Cable::new(name, family, &[]);
    let (client, server) = cable.connection(|_| {});
    let work = || {
        let (mut requests, mut taken) = (Pattern::new(1), Pattern::new(1));
        let (mut replies, mut answers) = (Pattern::new(2), Pattern::new(2));
        sockopt::set_socket_send_buffer_size(&server, 1 << 20).unwrap();
        let mut moving = Moving::new(&cable, server);
        for _ in 0..moves() {
            requests.write(&client, 2_000);
            taken.read(&moving.stream, 500);
            wait_until("the request arrives", || unread(&moving.stream) == 1_500);
            replies.write(&moving.stream, 100_000);
            (moving, _) = moving.step_with(through_stack);
            answers.read(&client, 100_000);
            taken.read(&moving.stream, 1_500);
        }
    };
    cable.server.run_inside(work).unwrap();
    assert_unseen(&cable);
}

#[test]
fn connections_move_through_the_user_level_stack() {
    moves_through_stack("cap-stack-4", Family::V4);
}

#[test]
fn connections_move_through_the_user_level_stack_over_ipv6() {
    moves_through_stack("cap-stack-6", Family::V6);
}

/// Fields that no kernel could have exported.
#[test]
fn forged_states_are_refused_by_name() {
    if skipped() {
        return;
    }
    let cable = Cable::new("cap-forged", Family::V4, &[]);
    let (client, server) = cable.connection(|_| {});
    let work = || {
        Pattern::new(1).write(&client, 100);
        wait_until("the request arrives", || unread(&server) == 100);
        let (moving, state) = Moving::new(&cable, server).step();
        type Forge = fn(&mut ConnectionState);
        let forgeries: [(&str, Forge); 15] = [
            ("addresses of two families", |state| state.peer = "[::2]:1".parse().unwrap()),
            ("a port of 0", |state| state.local.set_port(0)),
            ("an address that is no host's", |state| state.peer = "0.0.0.0:1".parse().unwrap()),
            ("the range in flight", |state| state.sending.una = 0),
            ("the peer's window scale", |state| state.sending.scale = 15),
            ("the peer's window", |state| state.sending.window = 1 << 40),
            ("the largest window of the peer", |state| state.sending.window_largest = 0),
            ("more bytes sent than queued", |state| state.sending.nxt += 1),
            ("RCV.NXT", |state| state.receiving.next = 0),
            ("our window scale", |state| state.receiving.scale = 15),
            ("our window", |state| state.receiving.edge += 1 << 40),
            ("the acknowledgement sent last", |state| state.receiving.acknowledged += 1_000),
            ("pieces that overlap", |state| {
                let piece = state.receiving.late[0].clone();
                state.receiving.late.push(piece);
            }),
            ("a stage that contradicts the peer's FIN", |state| {
                state.stage = spillway_wire::state::Stage::CloseWait;
            }),
            ("a segment size", |state| state.agreed.mss = 10),
        ];
        for (field, forge) in forgeries {
            let mut forged = state.clone();
            forge(&mut forged);
            let error = import(&forged).unwrap_err();
            assert!(
                matches!(error, CaptureError::Contradiction(named) if named == field),
                "{field}: {error}"
            );
        }
        let mut gated = state.clone();
        gated.receiving.gate = Some(1);
        assert!(matches!(import(&gated), Err(CaptureError::NotOfKernels(_))));
        let mut elsewhere = state;
        elsewhere.local = "10.81.0.77:7000".parse().unwrap();
        let error = import(&elsewhere).unwrap_err();
        assert!(matches!(error, CaptureError::NoAddress(local) if local == elsewhere.local), "{error}");
        drop(moving);
    };
    cable.server.run_inside(work).unwrap();
}
