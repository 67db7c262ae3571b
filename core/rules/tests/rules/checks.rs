//! The checks of control messages that have nothing to do with flows, in their order.

use spillway_rules::{Action, Decision, FlowState, Verdict};
use spillway_wire::switch::{Kind, Status, View};

use crate::frames::Frame;
use crate::test_config::{self as setup, key, port_mac, server_mac};
use crate::world::{EPOCH, Message, World, control_end};

fn drop(verdict: Verdict) -> Decision {
    Decision { verdict, action: Action::Drop }
}

/// A message with a sequence number and an epoch that the switch accepts.
fn current(world: &World, sender: u8, kind: Kind) -> Message {
    let sequence = world.sequence(sender) + 1;
    Message::new(sender, kind).with(|view| {
        view.set_sequence(sequence);
        view.set_epoch(EPOCH);
    })
}

#[test]
fn only_ports_of_servers_and_the_daemon_are_heard() {
    let mut world = World::new();
    for (ingress, verdict) in
        [(0, Verdict::DropControlPort), (5, Verdict::DropControlPort), (9, Verdict::DropUnknownPort)]
    {
        let message = current(&world, 1, Kind::Get);
        let frame = message.frame().bytes();
        assert_eq!(world.receive(ingress, frame), (drop(verdict), message.frame().bytes()), "{ingress}");
    }
}

#[test]
fn what_is_no_request_of_a_configured_sender_is_dropped() {
    let world = World::new();
    let good = current(&world, 1, Kind::Get).frame();
    let with = |change: &dyn Fn(&mut Frame)| {
        let mut frame = good.clone();
        change(&mut frame);
        frame.bytes()
    };
    let tagged = |change: &dyn Fn(&mut View<[u8; 128]>)| {
        current(&world, 1, Kind::Get).with(|view| change(view)).frame().bytes()
    };
    let mut longer_than_udp = good.bytes();
    longer_than_udp.push(0);
    let mut wrong_length = good.bytes();
    wrong_length[14 + 20 + 5] -= 1;
    let mut cut_udp = good.bytes();
    cut_udp.truncate(14 + 20 + 6);
    for (name, frame) in [
        ("too short", with(&|frame| drop_last(&mut frame.payload))),
        ("too long", with(&|frame| frame.payload.push(0))),
        ("bytes after the datagram", longer_than_udp),
        ("wrong UDP length", wrong_length),
        ("cut UDP header", cut_udp),
        ("wrong magic", with(&|frame| frame.payload[0] = 0)),
        ("from the switch", tagged(&|view| view.set_flags(1))),
        ("sender 256", tagged(&|view| view.set_sender(256))),
        ("sender 2^24", tagged(&|view| view.set_sender(1 << 24))),
        ("unknown sender", tagged(&|view| view.set_sender(9))),
    ] {
        let mut world = world.clone();
        assert_eq!(world.receive(1, frame).0, drop(Verdict::DropControlInvalid), "{name}");
        assert_eq!(world.switch.counters().of(Verdict::DropControlInvalid), 1);
    }
}

fn drop_last(bytes: &mut Vec<u8>) {
    bytes.pop();
}

#[test]
fn a_wrong_tag_gets_no_answer_and_changes_nothing() {
    let mut world = World::new();
    let good = current(&world, 1, Kind::Prepare).place(2).frame().bytes();
    let start = good.len() - 128;
    for bit in (8 * 8..128 * 8).step_by(3) {
        let mut frame = good.clone();
        frame[start + bit / 8] ^= 0x80 >> (bit % 8);
        let (decision, _) = world.receive(1, frame);
        assert_eq!(decision.action, Action::Drop, "bit {bit}");
    }
    // Another server's key.
    let mut message = current(&world, 1, Kind::Prepare).place(2);
    message.sender = 2;
    assert_eq!(world.receive(1, message.frame().bytes()).0, drop(Verdict::DropControlTag));
    assert_eq!(world.switch.flow_count(), 0);
    // The sequence number is not used up.
    assert_eq!(world.receive(1, good).0.verdict, Verdict::Relayed);
}

#[test]
fn unknown_versions_and_kinds_are_answered() {
    let world = World::new();
    for (at, value) in [(8, 0), (8, 2), (8, 255), (9, 0), (9, 10), (9, 255)] {
        let mut world = world.clone();
        let message = current(&world, 1, Kind::Hold).generation(5).place(2);
        let mut bytes = *message.view.bytes();
        bytes[at] = value;
        let reply = world.deliver(&Message { view: View::new(bytes).unwrap(), ..message });
        assert_eq!(reply.outcome(), (Status::UnknownVersion, FlowState::None));
        assert_eq!((reply.view.generation(), reply.view.owner()), (0, None));
        assert_eq!(reply.view.bytes()[at], value, "the version and the kind stay");
    }
}

#[test]
fn a_server_is_heard_on_its_own_port_only() {
    let mut world = World::new();
    world.ask(1, 2);
    let generation = world.generation();
    for (sender, ingress) in [(1, 2), (2, 1), (0, 1), (1, 63)] {
        let message = current(&world, sender, Kind::Get).generation(generation).ingress(ingress);
        let reply = world.deliver(&message);
        assert_eq!(reply.outcome(), (Status::Forbidden, FlowState::None), "{sender} on {ingress}");
        assert_eq!((reply.view.generation(), reply.view.owner()), (0, None), "no entry is looked up");
    }
    // The sequence number was not recorded.
    assert_eq!(world.send(Message::new(1, Kind::Get)).status(), Status::Ok);
}

#[test]
fn messages_of_another_epoch_change_nothing() {
    let mut world = World::new();
    world.ask(1, 2);
    let entry = world.entry();
    for kind in Kind::ALL {
        let message = current(&world, 1, kind).generation(world.generation()).place(2);
        let reply = world.deliver(&message.with(|view| view.set_epoch(EPOCH - 1)));
        if kind == Kind::Hello {
            assert_eq!((reply.status(), reply.view.epoch()), (Status::Ok, EPOCH));
        } else {
            assert_eq!(reply.outcome(), (Status::NoOwner, FlowState::None), "{kind}");
            assert_eq!(reply.view.epoch(), EPOCH - 1, "the answer repeats the epoch");
        }
        assert_eq!(world.entry(), entry);
    }
    // No sequence number was recorded, and the term of server 1 has not changed.
    assert_eq!(world.send(Message::new(1, Kind::Get)).status(), Status::Ok);
}

#[test]
fn a_replayed_message_changes_nothing_and_learns_the_state() {
    let mut world = World::new();
    let prepare = current(&world, 1, Kind::Prepare).place(2);
    assert_eq!(world.deliver(&prepare).decision.verdict, Verdict::Relayed);
    let entry = world.entry();
    for _ in 0..3 {
        let reply = world.deliver(&prepare);
        assert_eq!(reply.outcome(), (Status::Replayed, FlowState::Asked));
        assert_eq!(reply.view.generation(), world.generation());
        assert_eq!(world.entry(), entry);
    }
    // Every kind; a heartbeat's answer states no flow, and a list's keeps its number.
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Hello) {
        let replayed = Message { view: prepare.view, ..prepare.clone() };
        let mut bytes = *replayed.view.bytes();
        bytes[9] = kind.code();
        let message = Message { view: View::new(bytes).unwrap(), ..replayed }.generation(7);
        let reply = world.deliver(&message);
        assert_eq!(reply.status(), Status::Replayed, "{kind}");
        match kind {
            Kind::Heartbeat => {
                assert_eq!((reply.view.generation(), reply.view.owner()), (0, message.view.owner()));
            }
            Kind::List => assert_eq!((reply.view.generation(), reply.view.owner()), (7, None)),
            _ => assert_eq!(reply.view.generation(), world.generation(), "{kind}"),
        }
    }
    assert_eq!(world.entry(), entry);
}

#[test]
fn messages_may_overtake_each_other_within_the_window() {
    let mut world = World::new();
    let first = world.sequence(1) + 1;
    let get = |sequence| {
        Message::new(1, Kind::Get).with(|view| {
            view.set_sequence(sequence);
            view.set_epoch(EPOCH);
        })
    };
    assert_eq!(world.deliver(&get(first + 64)).status(), Status::NoEntry);
    assert_eq!(world.deliver(&get(first)).status(), Status::Replayed, "64 behind is too old");
    for sequence in first + 1..first + 64 {
        assert_eq!(world.deliver(&get(sequence)).status(), Status::NoEntry);
        assert_eq!(world.deliver(&get(sequence)).status(), Status::Replayed);
    }
}

#[test]
fn hello_begins_a_term_and_its_replay_does_not() {
    let mut world = World::empty(setup::config());
    let hello = |sequence, epoch| {
        Message::new(1, Kind::Hello).with(|view| {
            view.set_sequence(sequence);
            view.set_epoch(epoch);
        })
    };
    assert_eq!(world.deliver(&hello(5, 0)).view.epoch(), EPOCH);
    assert!(world.switch.owners(world.now).is_empty(), "a hello of another epoch begins no term");
    let accepted = world.deliver(&hello(5, EPOCH));
    assert_eq!((accepted.outcome(), accepted.view.generation()), ((Status::Ok, FlowState::None), EPOCH + 1));
    for sequence in [5, 4, 0] {
        let replayed = world.deliver(&hello(sequence, EPOCH));
        assert_eq!((replayed.status(), replayed.view.generation()), (Status::Replayed, 5));
    }
    assert_eq!(world.switch.owners(world.now)[0].term, EPOCH + 1);
    assert_eq!(world.deliver(&hello(6, EPOCH)).view.generation(), EPOCH + 2);
    // Sequence 0 is never a hello, because the window starts there.
    let mut other = World::empty(setup::config());
    assert_eq!(other.deliver(&hello(0, EPOCH)).status(), Status::Replayed);
}

#[test]
fn a_server_without_hello_is_no_owner() {
    let mut world = World::empty(setup::config());
    for kind in [Kind::Prepare, Kind::Prepared, Kind::Hold, Kind::Own, Kind::Release, Kind::Heartbeat] {
        assert_eq!(world.send(Message::new(1, kind)).status(), Status::NoOwner, "{kind}");
    }
    assert_eq!(world.send(Message::new(1, Kind::Get)).status(), Status::NoEntry);
    assert_eq!(world.send(Message::new(1, Kind::List)).status(), Status::NoOwner, "no owner of the service");
}

#[test]
fn a_port_owns_only_its_services() {
    let mut world = World::new();
    for kind in [Kind::Prepare, Kind::Prepared, Kind::Hold, Kind::Own, Kind::Release, Kind::Heartbeat] {
        for service in [setup::other_service(), setup::place_of(1), setup::endpoint("10.0.0.1:81")] {
            let message = Message::new(1, kind).service(service);
            assert_eq!(world.send(message).status(), Status::Forbidden, "{kind} {service}");
        }
    }
    for kind in [Kind::Get, Kind::List] {
        let message = |sender| Message::new(sender, kind).service(setup::other_service());
        assert_eq!(world.send(message(1)).status(), Status::Forbidden, "{kind}");
        assert_ne!(world.send(message(3)).status(), Status::Forbidden, "{kind}");
        assert_ne!(world.send(message(0)).status(), Status::Forbidden, "{kind} from the daemon");
    }
    let prepare = Message::new(3, Kind::Prepare).service(setup::other_service());
    assert_eq!(world.send(prepare).status(), Status::NoOwner, "allowed, but no other server serves it");
}

#[test]
fn tenants_learn_nothing_of_each_others_flows() {
    let mut world = World::new();
    let about = |sender, kind| Message::new(sender, kind).service(setup::other_service());
    world.send(about(4, Kind::Heartbeat).load(1, 1, 1));
    assert_eq!(world.send(about(3, Kind::Prepare)).decision.verdict, Verdict::Relayed);
    let replayed = world.sequence(1);
    for kind in [Kind::Get, Kind::Prepare, Kind::Prepared, Kind::Hold, Kind::Own, Kind::Release] {
        let refused = world.send(about(1, kind));
        let again = world.deliver(&about(1, kind).with(|view| {
            view.set_sequence(replayed);
            view.set_epoch(EPOCH);
        }));
        assert_eq!((refused.status(), again.status()), (Status::Forbidden, Status::Replayed), "{kind}");
        for reply in [refused, again] {
            let stated = (reply.view.state().unwrap(), reply.view.generation(), reply.view.owner());
            assert_eq!(stated, (FlowState::None, 0, None), "{kind}");
        }
    }
}

#[test]
fn moves_end_within_60_seconds() {
    let mut world = World::new();
    for lifetime in [0, 60_001, u32::MAX] {
        let prepare = Message::new(1, Kind::Prepare).lifetime_ms(lifetime);
        assert_eq!(world.send(prepare).status(), Status::Forbidden, "{lifetime}");
    }
    world.move_flow(1, 2);
    for lifetime in [0, 60_001] {
        let hold = Message::new(2, Kind::Hold).generation(world.generation()).place(3).lifetime_ms(lifetime);
        assert_eq!(world.send(hold).outcome(), (Status::Forbidden, FlowState::Owned));
    }
    for lifetime in [1, 60_000] {
        let mut world = world.clone();
        let hold = Message::new(2, Kind::Hold).generation(world.generation()).place(3).lifetime_ms(lifetime);
        assert_eq!(world.send(hold).outcome(), (Status::Ok, FlowState::Held));
    }
}

#[test]
fn the_answer_leaves_other_fields_as_received() {
    let mut world = World::new();
    let message = current(&world, 1, Kind::Get).with(|view| {
        view.set_family(9);
        view.set_load(1);
        view.set_lifetime_ms(2);
        view.set_free_places(3);
        view.set_weight(4);
    });
    let mut bytes = *message.view.bytes();
    bytes[33..36].copy_from_slice(&[7, 8, 9]);
    bytes[10] = 0x80; // an unknown flag
    bytes[105] = 77; // a state, which a request does not have
    let message = Message { view: View::new(bytes).unwrap(), ..message };
    let reply = world.deliver(&message);
    assert_eq!(reply.outcome(), (Status::NoEntry, FlowState::None));
    let view = reply.view;
    assert_eq!((view.load(), view.lifetime_ms(), view.free_places(), view.weight()), (1, 2, 3, 4));
}

#[test]
fn messages_over_ipv6_are_answered_but_not_relayed_to_ipv4() {
    let mut world = World::new();
    let over_ipv6 = |message: Message| Message { is_ipv6: true, ..message };
    assert_eq!(world.send(over_ipv6(Message::new(1, Kind::Get))).status(), Status::NoEntry);
    let before = world.clone();
    let prepare = over_ipv6(Message::new(1, Kind::Prepare));
    assert_eq!(world.send(prepare).outcome(), (Status::Forbidden, FlowState::None));
    assert_eq!(world.switch.owners(world.now), before.switch.owners(before.now), "no place is taken");
    // Refused before any change, too: a target that is ready, a target that refuses.
    world.ask(1, 2);
    for status in [Status::Ok, Status::Full] {
        let prepared = Message::new(2, Kind::Prepared).generation(world.generation()).place(2).status(status);
        assert_eq!(world.send(over_ipv6(prepared)).outcome(), (Status::Forbidden, FlowState::Asked));
    }
    let repeated = over_ipv6(Message::new(1, Kind::Prepare));
    assert_eq!(world.send(repeated).outcome(), (Status::Forbidden, FlowState::Asked));
}

#[test]
fn the_daemons_port_has_no_other_packets() {
    let mut world = World::new();
    let daemon = spillway_rules::PortId::DAEMON.number();
    let other = Frame::udp(
        (server_mac(1), port_mac(1)),
        (control_end(1), setup::endpoint("10.0.0.254:7301")),
        &[0; 128],
    );
    let mut link_local = other.bytes();
    link_local[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
    for frame in [other.bytes(), link_local, vec![0; 5], Vec::new()] {
        assert_eq!(world.receive(daemon, frame).0, drop(Verdict::DropUnknownPort));
    }
    let fragment = Frame { fragment_field: 0x2000, ..current(&world, 0, Kind::Get).frame() };
    assert_eq!(world.receive(daemon, fragment.bytes()).0, drop(Verdict::DropUnknownPort));
}

#[test]
fn the_daemon_clears_flows_by_their_generation() {
    let mut world = World::new();
    world.ask(1, 2);
    world.ready(2);
    let generation = world.generation();
    let release = |generation| Message::new(0, Kind::Release).generation(generation);
    assert_eq!(world.send(release(generation - 1)).outcome(), (Status::Stale, FlowState::Held));
    assert_eq!(world.send(release(generation)).outcome(), (Status::Ok, FlowState::None));
    assert_eq!(world.send(release(generation)).outcome(), (Status::NoEntry, FlowState::None));
    let own = Message::new(2, Kind::Own).generation(generation);
    assert_eq!(world.send(own).status(), Status::NoEntry, "the target lets go");
}

#[test]
fn fragments_and_other_ports_are_no_control_messages() {
    let mut world = World::new();
    let good = current(&world, 1, Kind::Get).frame();
    let fragment = Frame { fragment_field: 0x2000, ..good.clone() };
    assert_eq!(
        world.receive(1, fragment.bytes()).0,
        Decision { verdict: Verdict::Passed, action: Action::Pass }
    );
    let elsewhere = Frame { target: setup::endpoint("10.0.0.254:7301"), ..good.clone() };
    assert_eq!(world.receive(1, elsewhere.bytes()).0.action, Action::Pass);
    // Options, VLAN tags and a wrong UDP checksum do not matter: the tag protects the message.
    let mut tagged = Frame { option_words: 2, vlan_tags: vec![(0x8100, 5)], ..good }.bytes();
    let length = tagged.len();
    tagged[length - 130] ^= 0xff;
    let (decision, frame) = world.receive(1, tagged);
    assert_eq!(decision.action, Action::Answer);
    assert!(crate::frames::read(&frame).has_correct_checksums);
}

#[test]
fn each_senders_messages_are_answered_under_its_key() {
    let mut world = World::new();
    for sender in 0..=4 {
        let reply = world.send(Message::new(sender, Kind::Get));
        assert!(key(sender).verify_message(&reply.view));
        assert!(
            (0..=4).filter(|other| *other != sender).all(|other| !key(other).verify_message(&reply.view))
        );
    }
}
