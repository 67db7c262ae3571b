//! How entries end: by the owner's RST, by both FINs, by a fresh SYN, and by *release*. A host that does not know the
//! sequence numbers of a connection cannot end its entry with forged segments.

use core::time::Duration;

use spillway_rules::{FlowState, Verdict};
use spillway_wire::switch::{Kind, Status};

use crate::frames::{ACK, FIN, Frame, RST, SYN};
use crate::test_config::place_of;
use crate::world::{Message, World, acknowledgement_of_fin, client_fin, client_frame, server_frame};

fn moved() -> World {
    let mut world = World::new();
    world.move_flow(1, 2);
    world
}

/// Whether the flow still has an entry. The *get* that asks settles the entry.
fn has_entry(world: &World) -> bool {
    world.clone().send(Message::new(4, Kind::Get)).status() == Status::Ok
}

/// Both ends close: the client first.
fn close(world: &mut World) {
    world.client_sends_frame(&client_fin());
    world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)));
    world.server_sends(2, place_of(2), FIN | ACK);
    world.client_sends_frame(&acknowledgement_of_owner());
}

/// The client's segment that acknowledges the owner's FIN.
fn acknowledgement_of_owner() -> Frame {
    client_frame(ACK).numbered(1001, 1001)
}

#[test]
fn forged_segments_of_a_client_end_nothing() {
    let mut world = moved();
    let entry = world.entry().unwrap();
    for flags in [RST, RST | ACK, SYN, SYN | RST, FIN, FIN | SYN, SYN, RST, 0, 0xff] {
        let (decision, _) = world.client_sends(flags);
        assert_eq!(decision.verdict, Verdict::ToOwner, "the owner judges flags {flags:#x}");
        assert!(has_entry(&world));
    }
    world.pass(Duration::from_secs(120));
    world.client_sends(SYN);
    let after = world.entry().unwrap();
    assert_eq!((after.generation, after.owner, after.has_client_fin), (entry.generation, entry.owner, false));
}

#[test]
fn a_forged_fin_does_not_complete_a_half_closed_connection() {
    let mut world = moved();
    // The server has closed; the client still sends.
    world.server_sends(2, place_of(2), FIN | ACK);
    for sequence in [0, 998, 1000, 1001, 5000, u32::MAX] {
        world.client_sends_frame(&client_frame(FIN | ACK).numbered(sequence, 1));
        // The owner acknowledges what the client has really sent.
        world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)).numbered(1, 1000));
    }
    let entry = world.entry().unwrap();
    assert!(entry.has_owner_fin && !entry.has_client_fin);
    assert_eq!(entry.client_fin_claim, Some(0), "the latest claim");
    world.client_sends(SYN);
    assert!(has_entry(&world));
    world.pass(Duration::from_secs(61));
    assert!(has_entry(&world));
    // The real FIN.
    world.client_sends_frame(&client_fin());
    assert!(!world.entry().unwrap().has_client_fin, "not acknowledged yet");
    world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)));
    assert!(world.entry().unwrap().has_client_fin);
}

#[test]
fn the_acknowledgement_of_a_fin_counts_payload_and_flags() {
    for (frame, end) in [
        (client_frame(FIN | ACK).numbered(u32::MAX, 1), 0),
        (Frame { payload: vec![1; 100], ..client_frame(FIN | ACK) }, 1101),
        (Frame { payload: vec![1; 100], option_words: 3, ..client_frame(FIN | SYN) }, 1102),
    ] {
        for (acknowledged, is_seen) in [(end, true), (end + 1, false)] {
            let mut world = moved();
            world.server_sends(2, place_of(2), FIN | ACK);
            world.client_sends_frame(&frame);
            world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)).numbered(1, acknowledged));
            assert_eq!(world.entry().unwrap().has_client_fin, is_seen, "{acknowledged}");
        }
    }
}

#[test]
fn a_padded_frame_does_not_change_the_end_of_a_fin() {
    let mut world = moved();
    world.server_sends(2, place_of(2), FIN | ACK);
    let mut padded = client_fin().bytes();
    padded.extend([0; 6]);
    world.receive(0, padded);
    world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)));
    assert!(world.entry().unwrap().has_client_fin);
}

#[test]
fn a_closed_flow_ends_after_60_seconds_of_silence() {
    let mut world = moved();
    close(&mut world);
    world.pass(Duration::from_secs(59));
    assert!(has_entry(&world));
    world.client_sends(ACK);
    world.pass(Duration::from_millis(59_990));
    assert!(has_entry(&world), "the last packet counts");
    world.pass(Duration::from_millis(10));
    assert!(!has_entry(&world));
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::Switched);
    assert_eq!(world.switch.flow_count(), 0);
}

#[test]
fn half_closed_flows_do_not_end() {
    let mut world = moved();
    world.client_sends_frame(&client_fin());
    world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)));
    world.pass(Duration::from_secs(600));
    assert!(has_entry(&world));
    assert_eq!(world.client_sends(SYN).0.verdict, Verdict::ToOwner);
}

#[test]
fn a_fresh_syn_ends_a_closed_flow() {
    let mut world = moved();
    close(&mut world);
    assert_eq!(world.client_sends(SYN | ACK).0.verdict, Verdict::ToOwner, "not a fresh one");
    assert_eq!(world.client_sends(SYN).0.verdict, Verdict::Switched);
    assert_eq!(world.switch.flow_count(), 0);
    // The new connection is the original owner's.
    assert_eq!(world.server_sends(2, place_of(2), ACK).0.verdict, Verdict::DropNotOwner);
}

#[test]
fn a_syn_ends_nothing_until_the_client_has_acknowledged_the_owners_fin() {
    let mut world = moved();
    world.client_sends_frame(&client_fin());
    world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)));
    let last = server_frame(2, place_of(2), FIN | ACK).numbered(1000, 1001);
    let last = Frame { payload: vec![7; 10], ..last };
    world.server_sends_frame(2, &last);
    assert_eq!(world.entry().unwrap().owner_fin_claim, Some(1011));
    // The segment was lost on its way to the client; it is repeated, whatever a forger sends meanwhile.
    for frame in
        [client_frame(SYN), client_frame(ACK).numbered(1001, 1010), client_frame(0).numbered(1001, 1011)]
    {
        assert_eq!(world.client_sends_frame(&frame).0.verdict, Verdict::ToOwner);
        assert_eq!(world.client_sends(SYN).0.verdict, Verdict::ToOwner);
    }
    assert_eq!(world.server_sends_frame(2, &last).0.verdict, Verdict::FromOwner);
    world.client_sends_frame(&client_frame(ACK).numbered(1001, 1011));
    assert_eq!(world.entry().unwrap().owner_fin_claim, None);
    // A late copy of the FIN opens nothing again.
    world.server_sends_frame(2, &last);
    assert_eq!(world.client_sends(SYN).0.verdict, Verdict::Switched);
    assert_eq!(world.switch.flow_count(), 0);
}

#[test]
fn a_fin_of_the_client_may_acknowledge_the_owners() {
    let mut world = moved();
    world.server_sends(2, place_of(2), FIN | ACK);
    let fin = client_frame(FIN | ACK).numbered(1000, 1001);
    world.client_sends_frame(&fin);
    world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)));
    assert_eq!(world.client_sends(SYN).0.verdict, Verdict::Switched);
}

/// The client uses its port again, but its last acknowledgement was lost: the owner answers, the client's stack resets
/// what the owner still has, and the owner releases the flow. The SYN that the client repeats opens a connection.
#[test]
fn a_client_that_reuses_its_port_before_the_owner_is_done_gets_through() {
    let mut world = moved();
    world.client_sends_frame(&client_fin());
    world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)));
    world.server_sends(2, place_of(2), FIN | ACK);
    assert_eq!(world.client_sends(SYN).0.verdict, Verdict::ToOwner, "the owner's stack judges it");
    let challenge = server_frame(2, place_of(2), ACK).numbered(1001, 1001);
    assert_eq!(world.server_sends_frame(2, &challenge).0.verdict, Verdict::FromOwner);
    assert_eq!(world.client_sends_frame(&client_frame(RST).numbered(1001, 0)).0.verdict, Verdict::ToOwner);
    let release = Message::new(2, Kind::Release).generation(world.generation());
    assert_eq!(world.send(release).status(), Status::Ok);
    assert_eq!(world.client_sends(SYN).0.verdict, Verdict::Switched);
}

#[test]
fn the_owners_rst_ends_a_flow_after_a_second() {
    let mut world = moved();
    assert_eq!(world.server_sends(2, place_of(2), RST).0.verdict, Verdict::FromOwner);
    world.pass(Duration::from_millis(990));
    assert_eq!(world.server_sends(2, place_of(2), RST).0.verdict, Verdict::FromOwner, "the first RST counts");
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::ToOwner);
    world.pass(Duration::from_millis(10));
    assert!(!has_entry(&world));
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::Switched);
}

#[test]
fn an_open_flow_of_a_live_owner_never_ends_by_age() {
    let mut world = moved();
    world.pass(Duration::from_secs(4000));
    assert!(has_entry(&world));
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::ToOwner);
}

#[test]
fn an_entry_of_no_use_ends_after_10_minutes() {
    let mut world = World::new();
    world.ask(1, 2);
    assert_eq!(world.own(1), Status::Ok);
    world.pass(Duration::from_millis(599_990));
    assert!(has_entry(&world));
    world.pass(Duration::from_millis(10));
    assert!(!has_entry(&world));
    // An entry with a move under way is not redundant.
    let mut world = World::new();
    world.ask(1, 2);
    world.own(1);
    world.pass(Duration::from_secs(599));
    let prepare = Message::new(1, Kind::Prepare).place(2).lifetime_ms(60_000);
    world.send(prepare.generation(world.generation())).relayed();
    world.pass(Duration::from_secs(59));
    assert!(has_entry(&world));
    // The entry of a flow that has moved is not redundant.
    let mut world = moved();
    world.pass(Duration::from_secs(1200));
    assert!(has_entry(&world));
}

#[test]
fn release_ends_a_flow_at_once() {
    let mut world = moved();
    let release = Message::new(2, Kind::Release).generation(world.generation());
    let reply = world.send(release);
    assert_eq!(reply.outcome(), (Status::Ok, FlowState::None));
    assert_eq!(reply.view.generation(), 0);
    assert_eq!(world.switch.flow_count(), 0);
    // Without an entry the original owner is heard, and the former owner is not.
    assert_eq!(world.server_sends(2, place_of(2), RST).0.verdict, Verdict::DropNotOwner);
    assert_eq!(world.server_sends(1, crate::test_config::service(), ACK).0.verdict, Verdict::Switched);
}

#[test]
fn fins_survive_a_move() {
    let mut world = moved();
    world.client_sends_frame(&client_fin());
    world.server_sends_frame(2, &acknowledgement_of_fin(2, place_of(2)));
    world.move_flow(2, 3);
    world.server_sends(3, place_of(3), FIN | ACK);
    let entry = world.entry().unwrap();
    assert!(entry.has_client_fin && entry.has_owner_fin);
}
