//! Datagrams between servers that move connections: arbitrary bytes, arbitrary messages, and one error of each kind.

use std::num::NonZeroU64;

use proptest::prelude::*;
use spillway_parts::Random;
use spillway_wire::handoff::{
    Body, DATAGRAM_BYTES_MAX, FRAME_BYTES_MAX, Form, GREETING_BYTES, GREETING_CONTENT_BYTES, Greeting,
    HEAD_BYTES, HandoffError, Head, Kind, MESSAGE_HEAD_BYTES, Message, NextServer, PART_BYTES, Part, Reason,
    Received, Run, STATE_BYTES_MAX, TAG_BYTES, parts_of,
};
use spillway_wire::switch::{Endpoint, Flow, ServerId};

fn flow() -> impl Strategy<Value = Flow> {
    let ends = prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| [std::net::IpAddr::from(a), b.into()]),
        any::<([u8; 15], [u8; 15])>().prop_map(|(a, b)| [a, b].map(|tail| {
            let mut address = [0x20; 16];
            address[1..].copy_from_slice(&tail);
            address.into()
        })),
    ];
    (ends, any::<[u16; 2]>()).prop_map(|([client, service], [a, b])| {
        let endpoint = |ip, port| Endpoint::from(std::net::SocketAddr::new(ip, port));
        Flow::new(endpoint(client, a), endpoint(service, b)).unwrap()
    })
}

/// Checks that a message with one of all bodies survives a round trip.
fn check_round_trip(flow: Flow, generation: u64, body: Body<'_>) -> Result<Vec<u8>, TestCaseError> {
    let generation = if body.kind().has_generation() { generation.max(1) } else { 0 };
    let (message, mut bytes) = (Message { flow, generation, body }, Vec::new());
    message.emit(&mut bytes);
    prop_assert_eq!(Message::parse(&bytes), Ok(message));
    prop_assert!(HEAD_BYTES + bytes.len() + TAG_BYTES <= DATAGRAM_BYTES_MAX);
    Ok(bytes)
}

/// A message that parses is emitted unchanged, so the parser ignores no byte of it.
fn check_message(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let Ok(message) = Message::parse(bytes) else { return Ok(false) };
    let mut emitted = Vec::new();
    message.emit(&mut emitted);
    prop_assert_eq!(emitted, bytes);
    Ok(true)
}

fn bodies<'a>(whole: &'a [u8], word: u64, half: u32) -> Vec<Body<'a>> {
    let part = Part::of(whole, (word % parts_of(whole.len()) as u64) as u16).unwrap();
    let through = half as u16 % (parts_of(STATE_BYTES_MAX) as u16 + 1);
    let next = NextServer { id: ServerId(half as u8 | 1), hops_left: half as u8 };
    vec![
        Body::State(part),
        Body::Received(Received { through, beyond: word }),
        Body::Accepted,
        Body::Refused(Reason::ALL[half as usize % Reason::ALL.len()]),
        Body::TakenBack,
        Body::Forward { frame: half, part },
        Body::Reclaim,
        Body::Lent,
        Body::Served(word),
        Body::Abandoned(word),
        Body::PassedOn(word, next),
        Body::Noted(word, Some(next).filter(|_| half.is_multiple_of(2))),
    ]
}

proptest! {
    #[test]
    fn every_message_survives_a_round_trip_and_damage(
        flow in flow(), word: u64, half: u32, length in 1..3 * PART_BYTES,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        rest in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let whole: Vec<u8> = (0..length).map(|at| (at as u64 ^ word) as u8).collect();
        for body in bodies(&whole, word, half) {
            let mut bytes = check_round_trip(flow, word, body)?;
            let last = bytes.len();
            for (at, byte) in &damage {
                // Half of the damage is done to the head, which most bytes of a part would hide.
                let at = at.index(if byte % 2 == 0 { last } else { MESSAGE_HEAD_BYTES + 8.min(last - MESSAGE_HEAD_BYTES) });
                bytes[at] = *byte;
            }
            check_message(&bytes)?;
            if let Some(rest) = rest {
                bytes.truncate(rest.index(last));
                check_message(&bytes)?;
            }
        }
    }

    #[test]
    fn any_bytes_are_rejected_or_emitted_unchanged(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300), has_valid_head: bool,
    ) {
        if has_valid_head && bytes.len() >= MESSAGE_HEAD_BYTES {
            bytes[0] = bytes[0] % 12 + 1;
            bytes[1] = 6;
            bytes[2..4].fill(0);
        }
        check_message(&bytes)?;
        if let Ok(head) = Head::parse(&bytes) {
            prop_assert_eq!(&head.emit()[..], &bytes[..HEAD_BYTES]);
        }
        if let Some(content) = bytes.first_chunk::<GREETING_CONTENT_BYTES>()
            && let Ok(greeting) = Greeting::parse(content)
        {
            prop_assert_eq!(&greeting.emit(), content);
        }
    }

    #[test]
    fn heads_and_greetings_survive_a_round_trip(
        ids in (1_u8.., 1_u8..), runs: (u64, u64), numbers: (u64, u64), session: u32, flag: bool,
    ) {
        prop_assume!(ids.0 != ids.1);
        let (sender, receiver) = (ServerId(ids.0), ServerId(ids.1));
        let sender_run = Run::new(runs.0.max(1)).unwrap();
        let receiver_run = Run::new(runs.1);
        let greeting = Head { sender, receiver, sender_run, form: Form::Greeting { receiver_run } };
        let bytes = [&greeting.emit()[..], &[0; GREETING_BYTES - HEAD_BYTES]].concat();
        prop_assert_eq!(Head::parse(&bytes), Ok(greeting));
        if let Some(receiver_run) = receiver_run {
            let form = Form::Move { receiver_run, session, counter: numbers.0 };
            let head = Head { form, ..greeting };
            let bytes = [&head.emit()[..], &[0; DATAGRAM_BYTES_MAX - HEAD_BYTES]].concat();
            prop_assert_eq!(Head::parse(&bytes), Ok(head));
        }
        let number = NonZeroU64::new(numbers.0.max(1)).unwrap();
        let content = Greeting { number, echo: NonZeroU64::new(numbers.1), wants_answer: flag };
        prop_assert_eq!(Greeting::parse(&content.emit()), Ok(content));
    }
}

fn valid() -> (Message<'static>, Head) {
    let endpoint = |text: &str| Endpoint::from(text.parse::<std::net::SocketAddr>().unwrap());
    let flow = Flow::new(endpoint("192.0.2.9:50000"), endpoint("198.51.100.1:11211")).unwrap();
    let (run, other) = (Run::new(5).unwrap(), Run::new(6).unwrap());
    let form = Form::Move { receiver_run: other, session: 1, counter: 9 };
    let head = Head { sender: ServerId(1), receiver: ServerId(2), sender_run: run, form };
    (Message { flow, generation: 7, body: Body::Accepted }, head)
}

/// Damages a datagram's bytes in one random way. Also suitable for a coverage-guided fuzzer.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let mut below = |limit: usize| random.below(limit as u64) as usize;
    let offset = below(bytes.len().max(1));
    match below(6) {
        _ if bytes.is_empty() => bytes.push(1),
        0 => bytes[offset] ^= 1 << below(8),
        1 => bytes[offset] = [0, 1, 4, 6, 0x7f, 0xff][below(6)],
        2 => bytes.truncate(offset),
        3 => drop(bytes.splice(offset..offset, (0..below(9)).map(|byte| byte as u8))),
        4 => drop(bytes.drain(offset..(offset + below(9)).min(bytes.len()))),
        _ => {
            let other = below(bytes.len());
            bytes.swap(offset, other);
        }
    }
}

#[test]
fn damaged_messages_do_not_panic() {
    // For a long search, SPILLWAY_SEED sets the first seed and SPILLWAY_SEEDS the number of seeds.
    let number_of = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, seeds) =
        (number_of("SPILLWAY_SEED").unwrap_or(0), number_of("SPILLWAY_SEEDS").unwrap_or(100_000));
    let whole = vec![3; PART_BYTES + 40];
    let (mut accepted, mut rejected) = (0_u64, 0_u64);
    for seed in first..first.saturating_add(seeds) {
        let mut random = Random::new(seed);
        let all = bodies(&whole, 1, seed as u32);
        let body = all[random.below(all.len() as u64) as usize];
        let mut bytes = Vec::new();
        Message { body, generation: u64::from(body.kind().has_generation()), ..valid().0 }.emit(&mut bytes);
        for _ in 0..=random.below(3) {
            mutate(&mut bytes, &mut random);
        }
        let is_accepted = check_message(&bytes).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        *if is_accepted { &mut accepted } else { &mut rejected } += 1;
    }
    assert!(
        accepted > seeds / 50 && rejected > seeds / 4,
        "valid and invalid messages should both occur often: {accepted} accepted, {rejected} rejected"
    );
}

fn message_error(body: Body<'_>, change: impl FnOnce(&mut Vec<u8>)) -> HandoffError {
    let mut bytes = Vec::new();
    Message { body, generation: u64::from(body.kind().has_generation()), ..valid().0 }.emit(&mut bytes);
    assert!(Message::parse(&bytes).is_ok(), "the message should be valid before the change");
    change(&mut bytes);
    Message::parse(&bytes).unwrap_err()
}

#[test]
fn invalid_messages_are_rejected_with_their_cause() {
    let accepted = |change: fn(&mut Vec<u8>)| message_error(Body::Accepted, change);
    assert_eq!(accepted(|bytes| bytes.truncate(47)), HandoffError::NoMessage);
    assert_eq!(accepted(|bytes| bytes[0] = 13), HandoffError::Kind(13));
    assert_eq!(accepted(|bytes| bytes[1] = 6), HandoffError::Family(6));
    assert_eq!(accepted(|bytes| bytes[30] = 0x20), HandoffError::Family(4), "a service of another family");
    assert_eq!(accepted(|bytes| bytes[2] = 1), HandoffError::Reserved);
    assert_eq!(accepted(|bytes| bytes[4..12].fill(0)), HandoffError::Missing("generation"));
    assert_eq!(accepted(|bytes| bytes[12..28].fill(0)), HandoffError::Missing("client"));
    assert_eq!(accepted(|bytes| bytes[30..46].fill(0)), HandoffError::Missing("service"));
    assert_eq!(accepted(|bytes| bytes.push(0)), HandoffError::Trailing(Kind::Accepted));
    let reclaim = message_error(Body::Reclaim, |bytes| bytes[11] = 1);
    assert_eq!(reclaim, HandoffError::Unused("generation"));
    let refused = |change: fn(&mut Vec<u8>)| message_error(Body::Refused(Reason::Late), change);
    assert_eq!(refused(|bytes| bytes[48] = 13), HandoffError::Reason(13));
    assert_eq!(refused(|bytes| bytes[55] = 1), HandoffError::Reserved);
    assert_eq!(refused(|bytes| bytes.truncate(55)), HandoffError::Truncated(Kind::Refused));
    let received = |change: fn(&mut Vec<u8>)| message_error(Body::Received(Received::default()), change);
    assert_eq!(received(|bytes| bytes[48] = 0xff), HandoffError::Part);
    assert_eq!(received(|bytes| bytes[50] = 1), HandoffError::Reserved);
    let served = |change: fn(&mut Vec<u8>)| message_error(Body::Served(7), change);
    assert_eq!(served(|bytes| bytes[11] = 1), HandoffError::Unused("generation"));
    assert_eq!(served(|bytes| bytes[56] = 1), HandoffError::Unused("next server"));
    assert_eq!(served(|bytes| bytes[63] = 1), HandoffError::Reserved);
    assert_eq!(served(|bytes| bytes.truncate(63)), HandoffError::Truncated(Kind::Served));
    let passed_on = Body::PassedOn(7, NextServer { id: ServerId(2), hops_left: 1 });
    assert_eq!(message_error(passed_on, |bytes| bytes[56] = 0), HandoffError::Missing("next server"));
}

#[test]
fn the_longest_state_and_frame_are_bounded() {
    for (longest, is_frame) in [(STATE_BYTES_MAX, false), (FRAME_BYTES_MAX, true)] {
        for (length, is_allowed) in [(longest, true), (longest + 1, false)] {
            let whole = vec![1; length];
            let part = Part::of(&whole, 0).unwrap();
            let body = if is_frame { Body::Forward { frame: 1, part } } else { Body::State(part) };
            let mut bytes = Vec::new();
            Message { body, ..valid().0 }.emit(&mut bytes);
            let expected = if is_allowed { None } else { Some(HandoffError::Total(length as u32)) };
            assert_eq!(Message::parse(&bytes).err(), expected, "{length} bytes");
        }
    }
    assert!(parts_of(STATE_BYTES_MAX) <= usize::from(u16::MAX), "part numbers have 16 bits");
}

#[test]
fn invalid_heads_are_rejected_with_their_cause() {
    let head = valid().1;
    let error = |change: fn(&mut Vec<u8>)| {
        let mut bytes = [&head.emit()[..], &[0; MESSAGE_HEAD_BYTES + TAG_BYTES]].concat();
        assert_eq!(Head::parse(&bytes), Ok(head));
        change(&mut bytes);
        Head::parse(&bytes).unwrap_err()
    };
    assert_eq!(error(|bytes| bytes.truncate(39)), HandoffError::Length(39));
    assert_eq!(error(|bytes| bytes.truncate(103)), HandoffError::Length(103));
    assert_eq!(
        error(|bytes| bytes.resize(DATAGRAM_BYTES_MAX + 1, 0)),
        HandoffError::Length(DATAGRAM_BYTES_MAX + 1)
    );
    assert_eq!(error(|bytes| bytes[0] = 0), HandoffError::Magic);
    assert_eq!(error(|bytes| bytes[8] = 2), HandoffError::Version(2));
    assert_eq!(error(|bytes| bytes[9] = 3), HandoffError::Form(3));
    assert_eq!(error(|bytes| bytes[10] = 0), HandoffError::Servers(0, 2));
    assert_eq!(error(|bytes| bytes[11] = 1), HandoffError::Servers(1, 1));
    assert_eq!(error(|bytes| bytes[16..24].fill(0)), HandoffError::Missing("run of the sender"));
    assert_eq!(error(|bytes| bytes[24..32].fill(0)), HandoffError::Missing("run of the receiver"));
    assert_eq!(error(|bytes| bytes[9] = 1), HandoffError::Unused("session"));
    assert_eq!(error(|bytes| (bytes[9], bytes[15]) = (1, 0)), HandoffError::Unused("counter"));
    assert_eq!(
        error(|bytes| (bytes[9], bytes[15], bytes[39]) = (1, 0, 0)),
        HandoffError::Length(104),
        "a greeting has one length"
    );
}

#[test]
fn invalid_greetings_are_rejected_with_their_cause() {
    let greeting = Greeting { number: NonZeroU64::MIN, echo: None, wants_answer: true };
    let error = |offset: usize, byte| {
        let mut bytes = greeting.emit();
        bytes[offset] = byte;
        Greeting::parse(&bytes).unwrap_err()
    };
    assert_eq!(error(7, 0), HandoffError::Missing("number of the greeting"));
    assert_eq!(error(16, 2), HandoffError::Flags(2));
    assert_eq!(error(23, 1), HandoffError::Reserved);
}
