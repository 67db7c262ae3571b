//! Every state × every kind of message × every sender, as a table.

use spillway_rules::{FlowState, Verdict};
use spillway_wire::switch::{Kind, Status};

use crate::test_config::place_of;
use crate::world::{Message, World};

/// A flow's state before the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Server 1 is the original owner.
    None,
    /// Server 1 has asked server 2.
    Asked,
    /// Server 2 is ready.
    Held,
    /// The flow has moved from server 1 to server 2.
    Owned,
}

impl Before {
    fn world(self) -> World {
        let mut world = World::new();
        match self {
            Before::None => {}
            Before::Asked => world.ask(1, 2),
            Before::Held => {
                world.ask(1, 2);
                world.ready(2);
            }
            Before::Owned => world.move_flow(1, 2),
        }
        world
    }
}

/// What a message does: the status of its answer, or that it is relayed with this status; and the state afterwards.
fn outcome(world: &mut World, message: Message) -> String {
    let reply = world.send(message);
    let state = match world.entry().map_or(FlowState::None, |entry| entry.state) {
        FlowState::None => "none",
        FlowState::Asked => "asked",
        FlowState::Held => "held",
        FlowState::Owned => "owned",
    };
    let status = reply.view.status().unwrap();
    let is_about_flow = !matches!(reply.view.kind(), Ok(Kind::Heartbeat | Kind::Hello | Kind::List));
    if is_about_flow {
        assert_eq!(reply.view.state().unwrap().to_string(), state, "the state in the message");
        assert_eq!(reply.view.generation(), world.generation(), "the generation in the message");
    }
    match reply.decision.verdict {
        Verdict::Relayed => format!("relayed ({status}), {state}"),
        Verdict::Answered => format!("{status}, {state}"),
        verdict => format!("{verdict:?}"),
    }
}

/// The messages. A server names its own place, except in `prepare` and `hold`, where it names server 4's.
fn message(text: &str, sender: u8, generation: u64) -> Message {
    let kind = match text.split(' ').next().unwrap() {
        "prepare" => Kind::Prepare,
        "prepared" => Kind::Prepared,
        "hold" => Kind::Hold,
        "own" => Kind::Own,
        "release" => Kind::Release,
        "get" => Kind::Get,
        "heartbeat" => Kind::Heartbeat,
        "hello" => Kind::Hello,
        _ => Kind::List,
    };
    let message = Message::new(sender, kind).generation(generation);
    match text {
        "prepare repeated" => message.generation(0),
        "own repeated" => message.generation(generation - 1),
        "prepare named" | "hold" => message.place(4),
        "prepared" => message.place(sender.max(1)),
        "prepared full" => message.status(Status::Full),
        "list" => message.generation(0),
        _ => message,
    }
}

/// Columns: server 1 (the original owner), server 2 (the target, in *owned* the owner), server 3, the daemon.
const TABLE: &[(Before, &str, [&str; 4])] = {
    use Before::{Asked, Held, None, Owned};
    &[
        (None, "prepare", ["relayed (ok), asked", "forbidden, none", "forbidden, none", "forbidden, none"]),
        (
            None,
            "prepare named",
            ["relayed (ok), asked", "forbidden, none", "forbidden, none", "forbidden, none"],
        ),
        (None, "prepared", ["no entry, none", "no entry, none", "no entry, none", "forbidden, none"]),
        (None, "prepared full", ["no entry, none", "no entry, none", "no entry, none", "forbidden, none"]),
        (None, "hold", ["no entry, none", "no entry, none", "no entry, none", "forbidden, none"]),
        (None, "own", ["no entry, none", "no entry, none", "no entry, none", "forbidden, none"]),
        (None, "release", ["no entry, none", "no entry, none", "no entry, none", "no entry, none"]),
        (None, "get", ["no entry, none", "no entry, none", "no entry, none", "no entry, none"]),
        (None, "heartbeat", ["ok, none", "ok, none", "ok, none", "forbidden, none"]),
        (None, "hello", ["ok, none", "ok, none", "ok, none", "ok, none"]),
        (None, "list", ["ok, none", "ok, none", "ok, none", "ok, none"]),
        (Asked, "prepare", ["stale, asked", "stale, asked", "stale, asked", "forbidden, asked"]),
        (Asked, "prepare named", ["stale, asked", "stale, asked", "stale, asked", "forbidden, asked"]),
        (
            Asked,
            "prepare repeated",
            ["relayed (ok), asked", "stale, asked", "stale, asked", "forbidden, asked"],
        ),
        (
            Asked,
            "prepared",
            ["forbidden, asked", "relayed (ok), held", "forbidden, asked", "forbidden, asked"],
        ),
        (
            Asked,
            "prepared full",
            ["forbidden, asked", "relayed (full), owned", "forbidden, asked", "forbidden, asked"],
        ),
        (Asked, "hold", ["stale, asked", "forbidden, asked", "forbidden, asked", "forbidden, asked"]),
        (Asked, "own", ["ok, owned", "stale, asked", "forbidden, asked", "forbidden, asked"]),
        (Asked, "release", ["stale, asked", "forbidden, asked", "forbidden, asked", "ok, none"]),
        (Asked, "get", ["ok, asked", "ok, asked", "ok, asked", "ok, asked"]),
        (Asked, "heartbeat", ["ok, asked", "ok, asked", "ok, asked", "forbidden, asked"]),
        (Asked, "hello", ["ok, asked", "ok, asked", "ok, asked", "ok, asked"]),
        (Asked, "list", ["ok, asked", "ok, asked", "ok, asked", "ok, asked"]),
        (Held, "prepare", ["stale, held", "stale, held", "stale, held", "forbidden, held"]),
        (Held, "prepare named", ["stale, held", "stale, held", "stale, held", "forbidden, held"]),
        (Held, "prepare repeated", ["relayed (ok), held", "stale, held", "stale, held", "forbidden, held"]),
        (Held, "prepared", ["forbidden, held", "relayed (ok), held", "forbidden, held", "forbidden, held"]),
        (
            Held,
            "prepared full",
            ["forbidden, held", "relayed (ok), held", "forbidden, held", "forbidden, held"],
        ),
        (Held, "hold", ["stale, held", "forbidden, held", "forbidden, held", "forbidden, held"]),
        (Held, "own", ["ok, owned", "ok, owned", "forbidden, held", "forbidden, held"]),
        (Held, "release", ["stale, held", "forbidden, held", "forbidden, held", "ok, none"]),
        (Held, "get", ["ok, held", "ok, held", "ok, held", "ok, held"]),
        (Held, "heartbeat", ["ok, held", "ok, held", "ok, held", "forbidden, held"]),
        (Held, "hello", ["ok, held", "ok, held", "ok, held", "ok, held"]),
        (Held, "list", ["ok, held", "ok, held", "ok, held", "ok, held"]),
        (
            Owned,
            "prepare",
            ["forbidden, owned", "relayed (ok), asked", "forbidden, owned", "forbidden, owned"],
        ),
        (
            Owned,
            "prepare named",
            ["forbidden, owned", "relayed (ok), asked", "forbidden, owned", "forbidden, owned"],
        ),
        (
            Owned,
            "prepare repeated",
            ["forbidden, owned", "stale, owned", "forbidden, owned", "forbidden, owned"],
        ),
        (Owned, "prepared", ["forbidden, owned", "forbidden, owned", "forbidden, owned", "forbidden, owned"]),
        (
            Owned,
            "prepared full",
            ["forbidden, owned", "forbidden, owned", "forbidden, owned", "forbidden, owned"],
        ),
        (Owned, "hold", ["forbidden, owned", "ok, held", "forbidden, owned", "forbidden, owned"]),
        (Owned, "own", ["forbidden, owned", "stale, owned", "forbidden, owned", "forbidden, owned"]),
        (Owned, "own repeated", ["forbidden, owned", "ok, owned", "forbidden, owned", "forbidden, owned"]),
        (Owned, "release", ["forbidden, owned", "ok, none", "forbidden, owned", "ok, none"]),
        (Owned, "get", ["ok, owned", "ok, owned", "ok, owned", "ok, owned"]),
        (Owned, "heartbeat", ["ok, owned", "ok, owned", "ok, owned", "forbidden, owned"]),
        (Owned, "hello", ["ok, owned", "ok, owned", "ok, owned", "ok, owned"]),
        (Owned, "list", ["ok, owned", "ok, owned", "ok, owned", "ok, owned"]),
    ]
};

const SENDERS: [u8; 4] = [1, 2, 3, 0];

/// Whether a message has changed the flow, or removed its entry, or created it.
fn is_change(outcome: &str, before: Before, text: &str) -> bool {
    let is_repetition = text.ends_with("repeated") || before == Before::Held && text.starts_with("prepared");
    let is_about_owners = matches!(text, "get" | "heartbeat" | "hello" | "list");
    (outcome.starts_with("ok") || outcome.starts_with("relayed")) && !is_repetition && !is_about_owners
}

#[test]
fn every_message_in_every_state_from_every_sender() {
    for (before, text, expected) in TABLE {
        for (sender, expected) in SENDERS.into_iter().zip(expected) {
            let mut world = before.world();
            let entry = world.entry();
            let case = format!("{before:?}, {text} from {sender}");
            let message = message(text, sender, world.generation());
            assert_eq!(&outcome(&mut world, message), expected, "{case}");
            let has_changed = world.entry() != entry;
            assert_eq!(has_changed, is_change(expected, *before, text), "{case}");
        }
    }
}

#[test]
fn the_table_is_complete() {
    let texts = [
        "prepare",
        "prepare named",
        "prepared",
        "prepared full",
        "hold",
        "own",
        "release",
        "get",
        "heartbeat",
        "hello",
        "list",
    ];
    for before in [Before::None, Before::Asked, Before::Held, Before::Owned] {
        for text in texts {
            assert!(TABLE.iter().any(|row| row.0 == before && row.1 == text), "{before:?}, {text}");
        }
    }
}

#[test]
fn every_other_generation_is_stale() {
    for (before, text, expected) in TABLE {
        if matches!(*text, "get" | "heartbeat" | "hello" | "list")
            || text.ends_with("repeated")
            || *before == Before::None
        {
            continue;
        }
        for (sender, expected) in SENDERS.into_iter().zip(expected) {
            // Not 1 less, which repeats the message that has ended the move.
            for difference in [1, u64::MAX - 1, 1 << 63] {
                let mut world = before.world();
                let entry = world.entry();
                let generation = world.generation().wrapping_add(difference);
                // The target that becomes ready, and the owner of a flow: an accepted message becomes stale.
                let is_accepted = expected.starts_with("ok") || expected.starts_with("relayed");
                let state = entry.as_ref().unwrap().state;
                let expected = if is_accepted { format!("stale, {state}") } else { (*expected).to_string() };
                let case = format!("{before:?}, {text} from {sender}, generation + {difference}");
                assert_eq!(outcome(&mut world, message(text, sender, generation)), expected, "{case}");
                assert_eq!(world.entry(), entry, "{case}");
            }
        }
    }
}

#[test]
fn an_original_owner_without_entry_replaces_generation_0_only() {
    let mut world = World::new();
    assert_eq!(outcome(&mut world, message("prepare", 1, 1)), "stale, none");
    assert_eq!(outcome(&mut world, message("prepare", 2, 1)), "forbidden, none");
    assert_eq!(outcome(&mut world, message("prepare", 1, 0)), "relayed (ok), asked");
}

#[test]
fn answers_state_the_owner_before_the_move_until_the_target_owns() {
    let mut world = World::new();
    let owner = |world: &mut World| {
        let reply = world.send(Message::new(3, Kind::Get));
        let site = reply.view.owner().unwrap();
        (site.endpoint(), site.mac())
    };
    world.ask(1, 2);
    let original = (crate::test_config::service(), crate::test_config::server_mac(1));
    assert_eq!(owner(&mut world), original);
    world.ready(2);
    assert_eq!(owner(&mut world), original);
    assert_eq!(world.own(2), Status::Ok);
    assert_eq!(owner(&mut world), (place_of(2), crate::test_config::server_mac(2)));
    let released = world.send(Message::new(2, Kind::Release).generation(world.generation()));
    assert_eq!(released.view.owner(), None);
}

#[test]
fn relayed_messages_state_the_target() {
    use crate::test_config::{server_mac, service};
    let mut world = World::new();
    // The least loaded server states later where it imports.
    let prepare = world.send(Message::new(1, Kind::Prepare));
    let site = prepare.view.owner().unwrap();
    assert_eq!((site.endpoint(), site.mac()), (service(), server_mac(2)));
    let place = Message::new(2, Kind::Prepared).generation(world.generation()).place(2);
    let prepared = world.send(place.clone());
    assert_eq!(prepared.relayed().0, crate::test_config::port(1));
    let site = prepared.view.owner().unwrap();
    assert_eq!((site.endpoint(), site.mac()), (place_of(2), server_mac(2)));
    // The answer to a repetition states the stored entry, not the fields of the repetition.
    let repeated = world.send(place.site(service(), server_mac(2)));
    assert_eq!(repeated.view.owner().unwrap().endpoint(), place_of(2));
}

#[test]
fn a_target_imports_only_at_its_own_places() {
    use crate::test_config::{mac, other_service, place_v6_of, server_mac, service};
    let mut world = World::new();
    world.ask(1, 2);
    let generation = world.generation();
    for (at, mac) in [
        (place_of(3), server_mac(2)), // another server's place
        (place_of(3), server_mac(3)), // another server
        (place_of(2), server_mac(3)),
        (place_v6_of(2), server_mac(2)), // a place of another service endpoint
        (other_service(), server_mac(2)),
        (place_of(2), mac(99)),
        (crate::test_config::endpoint("10.0.1.2:8001"), server_mac(2)),
    ] {
        let prepared = Message::new(2, Kind::Prepared).generation(generation).site(at, mac);
        assert_eq!(world.send(prepared).outcome(), (Status::Forbidden, FlowState::Asked), "{at} {mac}");
    }
    let nowhere = Message::new(2, Kind::Prepared).generation(generation);
    assert_eq!(world.send(nowhere).status(), Status::Forbidden);
    // Only the Ethernet address changes: the service's own address and port.
    let prepared = Message::new(2, Kind::Prepared).generation(generation).site(service(), server_mac(2));
    assert_eq!(world.send(prepared).relayed().2, FlowState::Held);
}

#[test]
fn a_ready_target_has_status_none_or_ok() {
    for status in Status::ALL {
        let mut world = World::new();
        world.ask(1, 2);
        let prepared = Message::new(2, Kind::Prepared).generation(world.generation()).place(2).status(status);
        let reply = world.send(prepared);
        match status {
            Status::None | Status::Ok => assert_eq!(reply.relayed().2, FlowState::Held),
            Status::Full => {
                assert_eq!(reply.relayed(), (crate::test_config::port(1), Status::Full, FlowState::Owned));
                assert_eq!(reply.view.owner(), None);
            }
            _ => assert_eq!(reply.outcome(), (Status::Forbidden, FlowState::Asked), "{status}"),
        }
    }
}

#[test]
fn a_refused_target_is_not_asked_again_by_a_repetition() {
    let mut world = World::new();
    world.ask(1, 2);
    let refused = Message::new(2, Kind::Prepared).generation(world.generation()).status(Status::Full);
    assert_eq!(world.send(refused).relayed().1, Status::Full);
    let repeated = Message::new(1, Kind::Prepare).generation(0);
    assert_eq!(world.send(repeated).outcome(), (Status::Stale, FlowState::Owned));
    world.ask(1, 3);
}
