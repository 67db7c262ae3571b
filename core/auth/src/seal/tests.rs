use alloc::format;
use alloc::vec;

use spillway_wire::handoff::{Body, DATAGRAM_BYTES_MAX, PART_BYTES, Part, Reason};
use spillway_wire::switch::{Endpoint, Flow};

use super::*;

const A: ServerId = ServerId(3);
const B: ServerId = ServerId(9);

fn key(byte: u8) -> Key {
    Key::from_secret([byte; 32])
}

fn run(number: u64) -> Run {
    Run::new(number).unwrap()
}

fn end(id: ServerId, number: u64, peer: ServerId) -> PeerSeal {
    PeerSeal::new(&key(7), (id, run(number)), peer)
}

fn flow() -> Flow {
    let end = |last, port| Endpoint::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last], port);
    Flow::new(end(2, 40_000), end(1, 80)).unwrap()
}

fn message(generation: u64) -> Message<'static> {
    Message { flow: flow(), generation, body: Body::Refused(Reason::Late) }
}

fn sealed(from: &mut PeerSeal, generation: u64) -> Vec<u8> {
    let mut out = Vec::new();
    from.seal(&message(generation), &mut out).unwrap();
    out
}

fn generation(to: &mut PeerSeal, datagram: &[u8]) -> Result<u64, SealRejection> {
    match to.open(&mut datagram.to_vec())? {
        Opened::Message(message) => Ok(message.generation),
        Opened::Greeting { .. } => panic!("the datagram should not be a greeting"),
    }
}

/// Delivers a greeting and returns the answer.
fn greet(to: &mut PeerSeal, greeting: [u8; GREETING_BYTES]) -> Option<[u8; GREETING_BYTES]> {
    match to.open(&mut greeting.clone()).unwrap() {
        Opened::Greeting { answer, .. } => answer,
        Opened::Message(_) => panic!("the datagram should be a greeting"),
    }
}

/// Delivers greetings until there is no answer any more.
fn meet(first: &mut PeerSeal, second: &mut PeerSeal) {
    let (mut greeting, mut is_first) = (Some(first.greeting()), true);
    for _ in 0..4 {
        let Some(sent) = greeting else { return };
        greeting = greet(if is_first { second } else { first }, sent);
        is_first = !is_first;
    }
    panic!("greetings should end");
}

fn pair() -> (PeerSeal, PeerSeal) {
    let (mut a, mut b) = (end(A, 100, B), end(B, 200, A));
    meet(&mut a, &mut b);
    assert!(a.is_open() && b.is_open());
    (a, b)
}

#[test]
fn messages_open_at_the_other_end_in_both_directions() {
    let (mut a, mut b) = pair();
    assert_eq!((a.peer_run(), b.peer_run()), (Some(run(200)), Some(run(100))));
    for number in 1..10 {
        let (to_b, to_a) = (sealed(&mut a, number), sealed(&mut b, number + 50));
        assert_eq!(generation(&mut b, &to_b), Ok(number));
        assert_eq!(generation(&mut a, &to_a), Ok(number + 50));
        assert!(
            !to_b.windows(4).any(|bytes| bytes == [10, 0, 0, 2]),
            "the client's address should be sealed"
        );
    }
    assert_eq!((b.counters().messages, b.counters().rejected()), (9, 0));
}

#[test]
fn the_longest_message_has_the_longest_datagram() {
    let (mut a, mut b) = pair();
    let packet = vec![1; PART_BYTES + 1];
    let body = Body::Forward { frame: 1, part: Part::of(&packet, 0).unwrap() };
    let mut out = Vec::new();
    a.seal(&Message { body, ..message(1) }, &mut out).unwrap();
    assert_eq!(out.len(), DATAGRAM_BYTES_MAX);
    assert!(matches!(b.open(&mut out), Ok(Opened::Message(Message { body: opened, .. })) if opened == body));
}

#[test]
fn a_datagram_opens_once_in_any_order() {
    let (mut a, mut b) = pair();
    let datagrams: Vec<_> = (1..=replay::WINDOW + 1).map(|number| sealed(&mut a, number)).collect();
    for (number, datagram) in (1..).zip(&datagrams).skip(1).collect::<Vec<_>>().into_iter().rev() {
        assert_eq!(generation(&mut b, datagram), Ok(number));
        assert_eq!(generation(&mut b, datagram), Err(SealRejection::Replayed));
    }
    assert_eq!(generation(&mut b, &datagrams[0]), Err(SealRejection::Replayed), "too old");
    assert_eq!(b.counters().replayed, replay::WINDOW + 1);
}

#[test]
fn an_altered_bit_anywhere_is_rejected_and_uses_up_no_counter() {
    let (mut a, mut b) = pair();
    let datagram = sealed(&mut a, 1);
    for bit in 0..datagram.len() * 8 {
        let mut altered = datagram.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        assert!(generation(&mut b, &altered).is_err(), "bit {bit}");
    }
    let counters = *b.counters();
    assert_eq!(counters.rejected(), datagram.len() as u64 * 8);
    assert!(counters.version == 8 && counters.malformed > 64 && counters.misdirected > 0, "{counters:?}");
    assert!(counters.other_session > 0 && counters.not_authentic > 500, "{counters:?}");
    assert_eq!(generation(&mut b, &datagram), Ok(1), "the genuine datagram should still open");
}

#[test]
fn a_truncated_or_extended_datagram_is_rejected() {
    let (mut a, mut b) = pair();
    let datagram = sealed(&mut a, 1);
    for length in 0..datagram.len() {
        assert!(generation(&mut b, &datagram[..length]).is_err(), "{length} bytes");
    }
    let longer = [&datagram[..], &[0]].concat();
    assert_eq!(generation(&mut b, &longer), Err(SealRejection::NotAuthentic));
    let too_long = [&datagram[..], &[0; DATAGRAM_BYTES_MAX]].concat();
    let expected = SealRejection::Malformed(HandoffError::Length(too_long.len()));
    assert_eq!(generation(&mut b, &too_long), Err(expected));
}

#[test]
fn a_reflected_datagram_is_rejected() {
    let (mut a, mut b) = pair();
    let datagram = sealed(&mut a, 1);
    assert_eq!(generation(&mut a, &datagram), Err(SealRejection::Misdirected));
    // With exchanged servers and runs in the head, only the nonce's direction and the head's tag are left.
    let Ok(head) = Head::parse(&datagram) else { panic!("a valid head") };
    let form = Form::Move { receiver_run: run(100), session: 1, counter: 0 };
    let turned = Head { sender: B, receiver: A, sender_run: run(200), form }.emit();
    assert!(matches!(head.form, Form::Move { session: 1, counter: 0, .. }));
    let reflected = [&turned[..], &datagram[HEAD_BYTES..]].concat();
    assert_eq!(generation(&mut a, &reflected), Err(SealRejection::NotAuthentic));
    assert_eq!(generation(&mut b, &datagram), Ok(1));
}

#[test]
fn the_two_directions_have_different_nonces() {
    let (mut a, mut b) = pair();
    let (to_b, to_a) = (sealed(&mut a, 1), sealed(&mut b, 1));
    assert_ne!(to_b[HEAD_BYTES..], to_a[HEAD_BYTES..], "equal messages with equal counters");
    assert_eq!(message(1), message(1));
}

#[test]
fn another_key_another_peer_or_no_session_open_nothing() {
    let (mut a, mut b) = pair();
    let datagram = sealed(&mut a, 1);
    assert_eq!(generation(&mut end(B, 200, A), &datagram), Err(SealRejection::OtherSession));
    assert_eq!(generation(&mut end(B, 200, ServerId(4)), &datagram), Err(SealRejection::Misdirected));
    let mut stranger = PeerSeal::new(&key(8), (B, run(200)), A);
    let rejected = stranger.open(&mut a.greeting()).unwrap_err();
    assert_eq!(rejected, SealRejection::NotAuthentic);
    let mut out = vec![1, 2];
    assert_eq!(stranger.seal(&message(1), &mut out), Err(SealError::NotOpen));
    assert_eq!(out, [1, 2], "nothing should be appended");
    assert_eq!(generation(&mut b, &datagram), Ok(1));
}

#[test]
fn a_new_run_of_the_peer_ends_the_session_of_the_old_one() {
    let (mut a, mut b) = pair();
    let old = [sealed(&mut a, 1), sealed(&mut a, 2)];
    let old_greeting = a.greeting();
    assert_eq!(generation(&mut b, &old[0]), Ok(1));
    let mut a = end(A, 101, B);
    assert_eq!(generation(&mut a, &sealed(&mut b, 1)), Err(SealRejection::OtherSession));
    meet(&mut a, &mut b);
    assert_eq!(b.peer_run(), Some(run(101)));
    assert_eq!(generation(&mut b, &old[1]), Err(SealRejection::OtherSession));
    // A copy of the old run's greeting is answered, but nobody can echo the answer.
    let answer = greet(&mut b, old_greeting).expect("an answer");
    assert_eq!(b.peer_run(), Some(run(101)));
    assert_eq!(a.open(&mut answer.clone()), Err(SealRejection::Stale));
    assert_eq!(generation(&mut b, &sealed(&mut a, 3)), Ok(3), "the session should continue");
    assert_eq!(generation(&mut a, &sealed(&mut b, 4)), Ok(4));
}

#[test]
fn replayed_greetings_change_no_session() {
    let (mut a, mut b) = (end(A, 100, B), end(B, 200, A));
    let first = a.greeting();
    let second = greet(&mut b, first).unwrap();
    let third = greet(&mut a, second).unwrap();
    assert_eq!(greet(&mut b, third), None);
    let before = sealed(&mut a, 1);
    for greeting in [first, third] {
        if let Some(answer) = greet(&mut b, greeting) {
            assert_eq!(greet(&mut a, answer), None);
        }
    }
    assert_eq!(greet(&mut a, second).map(|answer| greet(&mut b, answer)), Some(None));
    assert_eq!(generation(&mut b, &before), Ok(1), "the session should be the same");
    assert_eq!(generation(&mut b, &before), Err(SealRejection::Replayed), "with the same window");
    // The session after that has other numbers: greetings of the first one are old.
    meet(&mut a, &mut b);
    assert_eq!(b.open(&mut first.clone()), Err(SealRejection::Stale));
    assert_eq!(a.open(&mut second.clone()), Err(SealRejection::Stale));
    assert_eq!(generation(&mut b, &sealed(&mut a, 2)), Ok(2));
}

#[test]
fn lost_greetings_are_made_good_by_repetitions() {
    let (mut a, mut b) = (end(A, 100, B), end(B, 200, A));
    let first = a.greeting();
    assert_eq!(a.greeting(), first, "a repetition should be equal");
    let second = greet(&mut b, first).unwrap();
    assert_eq!(greet(&mut b, first), Some(second), "an answer is repeated");
    assert!(greet(&mut a, second).is_some() && a.is_open(), "the third greeting is lost");
    assert!(!b.is_open());
    assert_eq!(generation(&mut b, &sealed(&mut a, 1)), Err(SealRejection::OtherSession));
    let answer = greet(&mut a, b.greeting()).unwrap();
    assert_eq!(greet(&mut b, answer), None);
    assert_eq!(generation(&mut b, &sealed(&mut a, 2)), Ok(2));
}

#[test]
fn ends_that_greet_at_the_same_time_have_one_session() {
    let (mut a, mut b) = (end(A, 100, B), end(B, 200, A));
    let (from_a, from_b) = (a.greeting(), b.greeting());
    let (to_b, to_a) = (greet(&mut a, from_b).unwrap(), greet(&mut b, from_a).unwrap());
    let (last_to_b, last_to_a) = (greet(&mut a, to_a), greet(&mut b, to_b));
    assert_eq!((greet(&mut b, last_to_b.unwrap()), greet(&mut a, last_to_a.unwrap())), (None, None));
    assert_eq!(generation(&mut b, &sealed(&mut a, 1)), Ok(1));
    assert_eq!(generation(&mut a, &sealed(&mut b, 2)), Ok(2));
}

#[test]
fn an_altered_greeting_is_rejected() {
    let (mut a, mut b) = (end(A, 100, B), end(B, 200, A));
    let greeting = a.greeting();
    for bit in 0..greeting.len() * 8 {
        let mut altered = greeting;
        altered[bit / 8] ^= 1 << (bit % 8);
        assert!(b.open(&mut altered).is_err(), "bit {bit}");
    }
    assert_eq!(b.counters().greetings, 0);
    for length in 0..greeting.len() {
        assert!(b.open(&mut greeting.to_vec()[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn an_exhausted_session_seals_nothing_and_is_followed_by_another_one() {
    let (mut a, mut b) = pair();
    a.session.as_mut().unwrap().set_next_counter(COUNTERS_PER_SESSION - 1);
    assert_eq!(generation(&mut b, &sealed(&mut a, 1)), Ok(1), "the last counter");
    assert!(!a.is_open());
    let mut out = Vec::new();
    assert_eq!(a.seal(&message(2), &mut out), Err(SealError::Exhausted));
    assert!(out.is_empty());
    assert_eq!(generation(&mut a, &sealed(&mut b, 3)), Ok(3), "the other direction goes on");
    let old = sealed(&mut b, 4);
    meet(&mut a, &mut b);
    assert!(a.is_open());
    assert_eq!(generation(&mut b, &sealed(&mut a, 5)), Ok(5), "counters begin again");
    assert_eq!(generation(&mut a, &old), Err(SealRejection::OtherSession));
}

#[test]
fn a_counter_beyond_the_last_is_rejected() {
    let (mut a, mut b) = pair();
    let mut datagram = sealed(&mut a, 1);
    datagram[32..40].fill(0xff);
    assert_eq!(generation(&mut b, &datagram), Err(SealRejection::NotAuthentic));
    assert_eq!(generation(&mut b, &sealed(&mut a, 2)), Ok(2));
}

#[test]
fn an_authentic_message_that_is_not_valid_is_counted() {
    let (mut a, mut b) = pair();
    let invalid = Message { generation: 0, ..message(1) };
    let mut out = Vec::new();
    a.seal(&invalid, &mut out).unwrap();
    let expected = SealRejection::Malformed(HandoffError::Missing("generation"));
    assert_eq!(b.open(&mut out), Err(expected));
    assert_eq!(b.counters().malformed, 1);
}

#[test]
fn debug_output_contains_no_secret() {
    let text = format!("{:?}", pair().0);
    assert_eq!(text, "PeerSeal(server 3, Run(0000000000000064), to server 9, Some(Run(00000000000000c8)))");
}
