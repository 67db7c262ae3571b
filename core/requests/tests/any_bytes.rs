//! Trackers do not panic on any bytes, and their results do not depend on how the streams are cut into pieces.

mod world;

use proptest::prelude::*;
use spillway_requests::Protocol;
use world::{Outcome, Step, play};

/// Plays a conversation three times, whole and cut in two ways, and returns the common outcome.
fn play_with_all_cuts(protocol: Protocol, steps: &[Step], mut seed: u64) -> Outcome {
    let whole = play(protocol, steps, |all| all);
    assert_eq!(play(protocol, steps, |_| 1), whole);
    let cut = play(protocol, steps, |all| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % (all + 1)
    });
    assert_eq!(cut, whole);
    whole
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Memcached), Just(Protocol::Redis), Just(Protocol::Tcp)]
}

/// Valid parts of both protocols, and random bytes.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "get a\r\n",
        "set a 0 0 3\r\nabc\r\n",
        "set a 0 0 1 noreply\r\nx\r\n",
        "mg a q v\r\n",
        "mn\r\n",
        "END\r\n",
        "VALUE a 0 3\r\nabc\r\n",
        "STORED\r\n",
        "MN\r\n",
        "VA 1\r\nx\r\n",
        "HD\r\n",
        "ERROR\r\n",
        "STAT a 1\r\n",
        "quit\r\n",
        "*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
        "PING\r\n",
        "*1\r\n$5\r\nMULTI\r\n",
        "BLPOP a 0\r\n",
        "$1\r\nx\r\n",
        "*2\r\n",
        ":1\r\n",
        "+OK\r\n",
        "%1\r\n",
        ">1\r\n",
        "|1\r\n",
        "*?\r\n",
        ".\r\n",
        "$?\r\n",
        ";0\r\n",
        "*-1\r\n",
        "$-1\r\n",
        " ",
        "\r\n",
        "\n",
        "-",
        "9",
        "\u{80}",
        "*0\r\n",
    ]);
    prop_oneof![
        8 => known.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (prop::sample::select(vec![0x80_u8, 0x81]), 0..0x26_u8, 0..3_u8).prop_map(|(magic, opcode, body)| {
            let mut packet = vec![0; 24 + usize::from(body)];
            (packet[0], packet[1], packet[11]) = (magic, opcode, body);
            packet
        }),
    ]
}

fn conversation() -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<bool>(), prop::collection::vec(fragment(), 1..5)).prop_map(|(asks, fragments)| {
        let bytes = fragments.concat();
        if asks { Step::Asks(bytes) } else { Step::Answers(bytes) }
    });
    prop::collection::vec(step, 0..12)
}

proptest! {
    #[test]
    fn any_conversation(protocol in protocol(), steps in conversation(), seed in any::<u64>()) {
        let outcome = play_with_all_cuts(protocol, &steps, seed);
        prop_assert_eq!(outcome.gave_up.is_some(), outcome.is_idle.is_none());
    }

    /// Every reply of a valid conversation is reported with its latency.
    #[test]
    fn valid_memcached(sizes in prop::collection::vec((0..2000_usize, any::<bool>()), 1..30), seed in any::<u64>()) {
        let (mut steps, mut expected) = (Vec::new(), 0);
        for (size, is_quiet) in sizes {
            let value = "\r\nEND\r\n".repeat(size / 7 + 1)[..size].to_owned();
            let noreply = if is_quiet { " noreply" } else { "" };
            steps.push(Step::Asks(format!("set k 0 0 {size}{noreply}\r\n{value}\r\nget k\r\n").into_bytes()));
            let stored = if is_quiet { "" } else { "STORED\r\n" };
            steps.push(Step::Answers(format!("{stored}VALUE k 0 {size}\r\n{value}\r\nEND\r\n").into_bytes()));
            expected += 2 - usize::from(is_quiet);
        }
        let outcome = play_with_all_cuts(Protocol::Memcached, &steps, seed);
        prop_assert_eq!((outcome.gave_up, outcome.is_idle), (None, Some(true)));
        prop_assert_eq!(outcome.latencies.len(), expected);
        prop_assert!(outcome.latencies.iter().all(|latency| latency.is_some_and(|time| time.as_nanos() == 10)));
    }
}
