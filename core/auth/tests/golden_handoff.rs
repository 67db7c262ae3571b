//! Tags and sealed contents of datagrams between servers do not change. The vectors were computed with another
//! implementation.

#[path = "../../wire/tests/vectors/mod.rs"]
mod vectors;

use spillway_auth::{Key, Opened, PeerSeal};
use spillway_wire::handoff::{Message, Run};
use spillway_wire::switch::ServerId;
use vectors::{Vectors, hex};

fn end(id: u8, run: u64) -> PeerSeal {
    let key = Key::from_secret(std::array::from_fn(|at| 0x40 + at as u8));
    PeerSeal::new(&key, (ServerId(id), Run::new(run).unwrap()), ServerId(3 - id))
}

fn answer_to(end: &mut PeerSeal, greeting: &[u8]) -> Option<Vec<u8>> {
    match end.open(&mut greeting.to_vec()) {
        Ok(Opened::Greeting { answer, .. }) => answer.map(|answer| answer.to_vec()),
        other => panic!("the greeting should be accepted: {other:?}"),
    }
}

#[test]
fn greetings_and_sealed_datagrams_match_the_vectors() {
    let vectors = Vectors::read(include_str!("../../wire/golden/handoff.hex"));
    let (mut first, mut second) = (end(1, 0xa1a2_a3a4_a5a6_a7a8), end(2, 0xb1b2_b3b4_b5b6_b7b8));
    // In the vectors the second server's greeting has number 3: it has had sessions with two earlier runs.
    for run in [1, 2] {
        let mut earlier = end(1, run);
        let answer = answer_to(&mut second, &earlier.greeting()).unwrap();
        let last = answer_to(&mut earlier, &answer).unwrap();
        assert_eq!(answer_to(&mut second, &last), None);
    }
    let greeting = first.greeting();
    assert_eq!(hex(&greeting), hex(vectors.bytes("greeting: first")));
    let answer = answer_to(&mut second, &greeting).unwrap();
    assert_eq!(hex(&answer), hex(vectors.bytes("greeting: answer")));
    let last = answer_to(&mut first, &answer).unwrap();
    assert_eq!(hex(&last), hex(vectors.bytes("greeting: last")));
    assert_eq!(answer_to(&mut second, &last), None);

    let mut compared = 0;
    for (number, name) in [(1, "state: last part"), (1, "taken back"), (2, "received"), (2, "accepted: IPv6")]
    {
        let message = Message::parse(vectors.bytes(name)).unwrap();
        let expected = vectors.bytes(&format!("sealed: server {number}: {name}"));
        let (from, to) = if number == 1 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let mut sealed = Vec::new();
        from.seal(&message, &mut sealed).unwrap();
        assert_eq!(hex(&sealed), hex(expected), "{name}");
        assert_eq!(to.open(&mut sealed), Ok(Opened::Message(message)), "{name}");
        compared += 1;
    }
    let is_sealed = |(name, _): &(&str, &[u8])| name.starts_with("sealed");
    assert_eq!(vectors.iter().filter(is_sealed).count(), compared, "each vector should be tested here");
}
