//! Control messages of the switch are frozen: messages are emitted as their test vectors, and parsed from these.

mod vectors;

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{
    Answer, Body, Endpoint, Flow, FlowState, Import, Kind, Message, Relay, Request, ServerId, Site, Status,
    Subject, View,
};
use vectors::{Vectors, hex};

const EPOCH: u64 = 0x18b3_c5f0_2a40_0000;

const DAEMON: ServerId = ServerId::DAEMON;
const SOURCE: ServerId = ServerId(1);
const TARGET: ServerId = ServerId(2);

const SOURCE_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const TARGET_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// The addresses of the vectors of one family.
#[derive(Clone, Copy)]
struct Addresses {
    flow: Flow,
    service: Endpoint,
    target: Endpoint,
}

impl Addresses {
    fn new(client: &str, service: &str, target: &str) -> Addresses {
        let endpoint = |text: &str| Endpoint::from(text.parse::<std::net::SocketAddr>().unwrap());
        let service = endpoint(service);
        Addresses { flow: Flow::new(endpoint(client), service).unwrap(), service, target: endpoint(target) }
    }

    fn ipv4() -> Addresses {
        Addresses::new("192.0.2.9:50000", "198.51.100.1:11211", "198.51.100.12:12000")
    }

    fn ipv6() -> Addresses {
        Addresses::new("[2001:db8::9]:50000", "[2001:db8:1::1]:11211", "[2001:db8:1::12]:12000")
    }

    fn source_site(&self) -> Site {
        Site::new(self.service, SOURCE_MAC).unwrap()
    }

    fn target_site(&self) -> Site {
        Site::new(self.target, TARGET_MAC).unwrap()
    }

    /// An answer about the flow, whose entry has this owner.
    fn answer(
        &self,
        kind: Kind,
        status: Status,
        state: FlowState,
        generation: u64,
        owner: Option<Site>,
    ) -> Answer {
        Answer { state, generation, owner, ..answer(kind, status, Subject::Flow(self.flow)) }
    }

    /// An answer about the flow, which has no entry.
    fn without_entry(&self, kind: Kind, status: Status) -> Answer {
        answer(kind, status, Subject::Flow(self.flow))
    }
}

fn answer(kind: Kind, status: Status, subject: Subject) -> Answer {
    Answer {
        kind,
        status,
        state: FlowState::None,
        generation: 0,
        subject,
        owner: None,
        load: 0,
        lifetime_ms: 0,
        free_places: 0,
        weight: 0,
    }
}

fn message(sender: ServerId, sequence: u64, body: Body) -> Message {
    Message { sender, sequence, epoch: EPOCH, body }
}

fn hello() -> Vec<(&'static str, Message)> {
    let accepted = Answer { generation: EPOCH + 1, ..answer(Kind::Hello, Status::Ok, Subject::None) };
    // The generation is the highest sequence that the switch has seen.
    let replayed = Answer { generation: 2, ..answer(Kind::Hello, Status::Replayed, Subject::None) };
    let request = Body::Request(Request::Hello);
    vec![
        ("hello: epoch not known", Message { epoch: 0, ..message(SOURCE, 1, request) }),
        (
            "hello: epoch not known: ok",
            message(SOURCE, 1, Body::Answer(answer(Kind::Hello, Status::Ok, Subject::None))),
        ),
        ("hello", message(SOURCE, 2, request)),
        ("hello: ok", message(SOURCE, 2, Body::Answer(accepted))),
        ("hello: replayed", message(SOURCE, 2, Body::Answer(replayed))),
    ]
}

/// What the vectors of both families have, by the names without the family.
fn both_families(addresses: Addresses) -> Vec<(&'static str, Message)> {
    let Addresses { flow, service, target } = addresses;
    let (source_site, target_site) = (addresses.source_site(), addresses.target_site());
    let heartbeat = Answer {
        load: 70_000,
        free_places: 500,
        weight: 100,
        ..answer(Kind::Heartbeat, Status::Ok, Subject::Service(service))
    };
    let listed = Answer {
        state: FlowState::Owned,
        generation: 1,
        owner: Site::new(Endpoint::new(target.address(), 0), TARGET_MAC),
        load: 20_000,
        lifetime_ms: 9,
        free_places: 800,
        weight: 100,
        ..answer(Kind::List, Status::Ok, Subject::Service(service))
    };
    let owned = |kind, generation| {
        addresses.answer(kind, Status::Ok, FlowState::Owned, generation, Some(target_site))
    };
    let held = Answer {
        lifetime_ms: 50,
        ..addresses.answer(Kind::Hold, Status::Ok, FlowState::Held, EPOCH + 5, Some(source_site))
    };
    let full = Answer { lifetime_ms: 200, ..addresses.without_entry(Kind::Prepare, Status::Full) };
    let requests = [
        (
            "heartbeat",
            message(
                SOURCE,
                3,
                Body::Request(Request::Heartbeat { service, load: 70_000, free_places: 500, weight: 100 }),
            ),
        ),
        ("list", message(DAEMON, 1, Body::Request(Request::List { service, index: 1 }))),
        ("get", message(DAEMON, 2, Body::Request(Request::Get { flow }))),
        (
            "prepare",
            message(
                SOURCE,
                4,
                Body::Request(Request::Prepare { flow, replaces: 0, target: None, lifetime_ms: 200 }),
            ),
        ),
        (
            "prepared",
            message(
                TARGET,
                9,
                Body::Request(Request::Prepared {
                    flow,
                    asked: EPOCH + 3,
                    import: Import::Ready(target_site),
                }),
            ),
        ),
        (
            "hold",
            message(
                SOURCE,
                5,
                Body::Request(Request::Hold {
                    flow,
                    replaces: EPOCH + 4,
                    target: target_site,
                    lifetime_ms: 50,
                }),
            ),
        ),
        ("own", message(TARGET, 10, Body::Request(Request::Own { flow, replaces: EPOCH + 3 }))),
        ("release", message(TARGET, 11, Body::Request(Request::Release { flow, generation: EPOCH + 4 }))),
    ];
    let answers = [
        ("heartbeat: ok", message(SOURCE, 3, Body::Answer(heartbeat))),
        ("list: ok", message(DAEMON, 1, Body::Answer(listed))),
        ("get: ok", message(DAEMON, 2, Body::Answer(owned(Kind::Get, EPOCH + 5)))),
        ("prepare: full", message(SOURCE, 4, Body::Answer(full))),
        (
            "prepared: no entry",
            message(TARGET, 9, Body::Answer(addresses.without_entry(Kind::Prepared, Status::NoEntry))),
        ),
        ("hold: ok", message(SOURCE, 5, Body::Answer(held))),
        ("own: ok", message(TARGET, 10, Body::Answer(owned(Kind::Own, EPOCH + 4)))),
        (
            "release: ok",
            message(TARGET, 11, Body::Answer(addresses.without_entry(Kind::Release, Status::Ok))),
        ),
    ];
    let relayed = [
        (
            "prepare: relayed",
            message(
                SOURCE,
                4,
                Body::Relay(Relay::Prepare {
                    flow,
                    generation: EPOCH + 3,
                    is_held: false,
                    target: Site::new(service, TARGET_MAC).unwrap(),
                    lifetime_ms: 200,
                }),
            ),
        ),
        (
            "prepared: relayed",
            message(
                TARGET,
                9,
                Body::Relay(Relay::Prepared {
                    flow,
                    generation: EPOCH + 3,
                    import: Import::Ready(target_site),
                }),
            ),
        ),
    ];
    [&requests[..], &answers, &relayed].concat()
}

/// Other statuses and forms of messages, with IPv4 addresses.
fn other_forms() -> Vec<(&'static str, Message)> {
    let addresses = Addresses::ipv4();
    let Addresses { flow, service, .. } = addresses;
    let (source_site, target_site) = (addresses.source_site(), addresses.target_site());
    let owned = |kind, status, generation, owner| {
        addresses.answer(kind, status, FlowState::Owned, EPOCH + generation, Some(owner))
    };
    let dead = Answer {
        load: 70_000,
        free_places: 500,
        weight: 100,
        ..answer(Kind::Heartbeat, Status::NoOwner, Subject::Service(service))
    };
    let unlisted = Answer { generation: 1, ..answer(Kind::List, Status::NoOwner, Subject::Service(service)) };
    let without_target = Answer { lifetime_ms: 200, ..owned(Kind::Prepare, Status::NoOwner, 4, source_site) };
    let not_the_owner = Answer { lifetime_ms: 50, ..owned(Kind::Hold, Status::Forbidden, 4, target_site) };
    let request_and_relay = [
        (
            "prepare: named target",
            message(
                SOURCE,
                6,
                Body::Request(Request::Prepare {
                    flow,
                    replaces: EPOCH + 4,
                    target: Some(target_site),
                    lifetime_ms: 200,
                }),
            ),
        ),
        (
            "prepare: relayed again",
            message(
                SOURCE,
                8,
                Body::Relay(Relay::Prepare {
                    flow,
                    generation: EPOCH + 3,
                    is_held: true,
                    target: target_site,
                    lifetime_ms: 200,
                }),
            ),
        ),
        (
            "prepared: refused",
            message(
                TARGET,
                12,
                Body::Request(Request::Prepared { flow, asked: EPOCH + 3, import: Import::Refused }),
            ),
        ),
        (
            "prepared: refused: relayed",
            message(
                TARGET,
                12,
                Body::Relay(Relay::Prepared { flow, generation: EPOCH + 4, import: Import::Refused }),
            ),
        ),
        (
            "release by the daemon",
            message(DAEMON, 3, Body::Request(Request::Release { flow, generation: EPOCH + 4 })),
        ),
    ];
    let answers = [
        ("heartbeat: no owner", SOURCE, 3, dead),
        ("list: no owner", DAEMON, 1, unlisted),
        ("get: no entry", DAEMON, 2, addresses.without_entry(Kind::Get, Status::NoEntry)),
        ("get: unknown version", DAEMON, 2, addresses.without_entry(Kind::Get, Status::UnknownVersion)),
        ("prepare: no owner", SOURCE, 6, without_target),
        ("hold: forbidden", SOURCE, 7, not_the_owner),
        ("own: stale", TARGET, 13, owned(Kind::Own, Status::Stale, 6, source_site)),
        ("own: replayed", TARGET, 10, owned(Kind::Own, Status::Replayed, 4, target_site)),
    ]
    .map(|(name, sender, sequence, answer)| (name, message(sender, sequence, Body::Answer(answer))));
    [&request_and_relay[..], &answers].concat()
}

fn all() -> Vec<(String, Message)> {
    let common = hello().into_iter().chain(other_forms()).map(|(name, message)| (name.to_owned(), message));
    let ipv4 =
        both_families(Addresses::ipv4()).into_iter().map(|(name, message)| (format!("IPv4 {name}"), message));
    let ipv6 =
        both_families(Addresses::ipv6()).into_iter().map(|(name, message)| (format!("IPv6 {name}"), message));
    common.chain(ipv4).chain(ipv6).collect()
}

#[test]
fn messages_equal_their_vectors() {
    let vectors = Vectors::read(include_str!("../golden/switch.hex"));
    let messages = all();
    for (name, message) in &messages {
        let view = View::of(vectors.bytes(name)).unwrap_or_else(|why| panic!("{name}: {why}"));
        let mut emitted = message.emit();
        emitted.set_tag(view.tag());
        assert_eq!(hex(emitted.bytes()), hex(view.bytes()), "{name}");
        assert_eq!(Message::parse(&view), Ok(*message), "{name}");
        assert_eq!(view.tagged(), &view.bytes()[..120], "{name}");
    }
    assert_eq!(messages.len(), vectors.iter().count(), "every vector should be compared");
}

#[test]
fn vectors_contain_every_kind_in_both_directions_and_every_status() {
    let messages: Vec<Message> = all().into_iter().map(|(_, message)| message).collect();
    for kind in Kind::ALL {
        for is_from_switch in [false, true] {
            let found = messages.iter().any(|message| {
                message.kind() == kind && matches!(message.body, Body::Request(_)) != is_from_switch
            });
            assert!(found, "{kind}, from the switch: {is_from_switch}");
        }
    }
    for status in Status::ALL {
        let found = messages.iter().any(|message| message.emit().status() == Ok(status));
        assert!(found, "{status}");
    }
}
