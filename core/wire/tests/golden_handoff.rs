//! Datagrams between servers that move connections are frozen: messages, greetings and heads are emitted as their test
//! vectors, and parsed from these. core/auth tests tags and sealed contents.

mod vectors;

use std::num::NonZeroU64;

use spillway_wire::handoff::{
    Body, Form, GREETING_CONTENT_BYTES, Greeting, HEAD_BYTES, Head, Kind, Message, NextServer, Part, Reason,
    Received, Run,
};
use spillway_wire::switch::{Endpoint, Flow, ServerId};
use vectors::{Vectors, hex};

const GENERATION: u64 = 0x18b3_c5f0_2a40_0003;
/// The number of a request.
const NUMBER: u64 = 0xc1c2_c3c4_c5c6_c7c8;
const NEXT: NextServer = NextServer { id: ServerId(5), hops_left: 3 };

fn flow(client: &str, service: &str) -> Flow {
    let endpoint = |text: &str| Endpoint::from(text.parse::<std::net::SocketAddr>().unwrap());
    Flow::new(endpoint(client), endpoint(service)).unwrap()
}

fn messages(whole: &[u8]) -> Vec<(String, Message<'_>)> {
    let ipv4 = flow("192.0.2.9:50000", "198.51.100.1:11211");
    let ipv6 = flow("[2001:db8::9]:50000", "[2001:db8:1::1]:11211");
    let last = Part::of(whole, 1).unwrap();
    let received = Received { through: 3, beyond: 0x8000_0000_0000_0005 };
    assert!([0, 2, 4, 6, 67].map(|part| received.contains(part)) == [true; 5]);
    assert!([3, 5, 66, 68].map(|part| received.contains(part)) == [false; 4]);
    let mut all = vec![
        ("state: last part", ipv4, GENERATION, Body::State(last)),
        ("state: IPv6", ipv6, GENERATION, Body::State(Part::of(&whole[..7], 0).unwrap())),
        ("received", ipv4, GENERATION, Body::Received(received)),
        ("accepted", ipv4, GENERATION, Body::Accepted),
        ("accepted: IPv6", ipv6, GENERATION, Body::Accepted),
        ("taken back", ipv4, GENERATION, Body::TakenBack),
        ("forward: last part", ipv4, GENERATION, Body::Forward { frame: 9, part: last }),
        ("reclaim", ipv4, 0, Body::Reclaim),
        ("lent", ipv4, GENERATION, Body::Lent),
        ("served", ipv4, 0, Body::Served(NUMBER)),
        ("abandoned", ipv4, 0, Body::Abandoned(NUMBER)),
        ("passed on", ipv6, 0, Body::PassedOn(NUMBER, NEXT)),
        ("noted", ipv4, 0, Body::Noted(NUMBER, None)),
        ("noted: passed on", ipv6, 0, Body::Noted(NUMBER, Some(NEXT))),
    ];
    for (name, reason) in [
        ("refused: no move", Reason::NoMove),
        ("refused: no room", Reason::NoRoom),
        ("refused: no service", Reason::NoService),
        ("refused: family", Reason::Family),
        ("refused: version", Reason::Version),
        ("refused: feature", Reason::Feature),
        ("refused: damaged", Reason::Damaged),
        ("refused: too large", Reason::TooLarge),
        ("refused: invalid", Reason::Invalid),
        ("refused: late", Reason::Late),
        ("refused: lost", Reason::Lost),
        ("refused: silent", Reason::Silent),
    ] {
        all.push((name, ipv4, GENERATION, Body::Refused(reason)));
    }
    let message = |(name, flow, generation, body): (&str, _, _, _)| {
        (name.to_owned(), Message { flow, generation, body })
    };
    all.into_iter().map(message).collect()
}

#[test]
fn messages_equal_their_vectors() {
    let vectors = Vectors::read(include_str!("../golden/handoff.hex"));
    let whole: Vec<u8> = (0..1207).map(|at| (7 * at + 3) as u8).collect();
    let messages = messages(&whole);
    for (name, message) in &messages {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        assert_eq!(hex(&bytes), hex(vectors.bytes(name)), "{name}");
        assert_eq!(Message::parse(&bytes), Ok(*message), "{name}");
    }
    let with_head =
        vectors.iter().filter(|(name, _)| name.starts_with("greeting") || name.starts_with("sealed"));
    assert_eq!(messages.len() + with_head.count(), vectors.iter().count(), "every vector should be compared");
    for kind in Kind::ALL {
        assert!(messages.iter().any(|(_, message)| message.kind() == kind), "{kind}");
    }
    for reason in Reason::ALL {
        assert!(messages.iter().any(|(_, message)| message.body == Body::Refused(reason)), "{reason}");
    }
}

fn run(id: u8) -> Run {
    Run::new(if id == 1 { 0xa1a2_a3a4_a5a6_a7a8 } else { 0xb1b2_b3b4_b5b6_b7b8 }).unwrap()
}

fn head(sender: u8, receiver: u8, form: Form) -> Head {
    Head { sender: ServerId(sender), receiver: ServerId(receiver), sender_run: run(sender), form }
}

#[test]
fn greetings_equal_their_vectors() {
    let vectors = Vectors::read(include_str!("../golden/handoff.hex"));
    let number = |number| NonZeroU64::new(number).unwrap();
    let greetings = [
        ("greeting: first", 1, None, Greeting { number: number(1), echo: None, wants_answer: true }),
        (
            "greeting: answer",
            2,
            Some(1),
            Greeting { number: number(3), echo: NonZeroU64::new(1), wants_answer: true },
        ),
        (
            "greeting: last",
            1,
            Some(2),
            Greeting { number: number(1), echo: NonZeroU64::new(3), wants_answer: false },
        ),
    ];
    for (name, sender, receiver, greeting) in greetings {
        let bytes = vectors.bytes(name);
        let head = head(sender, 3 - sender, Form::Greeting { receiver_run: receiver.map(run) });
        assert_eq!(hex(&head.emit()), hex(&bytes[..HEAD_BYTES]), "{name}");
        assert_eq!(Head::parse(bytes), Ok(head), "{name}");
        let content: &[u8; GREETING_CONTENT_BYTES] = bytes[HEAD_BYTES..].first_chunk().unwrap();
        assert_eq!(hex(&greeting.emit()), hex(content), "{name}");
        assert_eq!(Greeting::parse(content), Ok(greeting), "{name}");
    }
}

#[test]
fn heads_of_sealed_datagrams_equal_their_vectors() {
    let vectors = Vectors::read(include_str!("../golden/handoff.hex"));
    for (name, sender, session, counter) in [
        ("sealed: server 1: state: last part", 1, 3, 0),
        ("sealed: server 1: taken back", 1, 3, 1),
        ("sealed: server 2: received", 2, 1, 0),
        ("sealed: server 2: accepted: IPv6", 2, 1, 1),
    ] {
        let bytes = vectors.bytes(name);
        let form = Form::Move { receiver_run: run(3 - sender), session, counter };
        let head = head(sender, 3 - sender, form);
        assert_eq!(hex(&head.emit()), hex(&bytes[..HEAD_BYTES]), "{name}");
        assert_eq!(Head::parse(bytes), Ok(head), "{name}");
    }
}
