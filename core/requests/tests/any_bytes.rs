//! Trackers do not panic on arbitrary bytes, and their results do not depend on how the streams are split into pieces.

mod world;

use proptest::prelude::*;
use spillway_requests::Protocol;
use world::{Outcome, Step, play};

/// Plays a conversation three times: unsplit, in single bytes and in random pieces. Returns the common outcome.
fn play_in_all_splits(protocol: Protocol, steps: &[Step], mut seed: u64) -> Outcome {
    let whole = play(protocol, steps, |remaining| remaining);
    assert_eq!(play(protocol, steps, |_| 1), whole);
    let random_pieces = play(protocol, steps, |remaining| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % (remaining + 1)
    });
    assert_eq!(random_pieces, whole);
    whole
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Memcached), Just(Protocol::Redis), Just(Protocol::Tcp)]
}

/// Valid parts of memcached's and redis's protocols, and random bytes.
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
    let step =
        (any::<bool>(), prop::collection::vec(fragment(), 1..5)).prop_map(|(is_request, fragments)| {
            let bytes = fragments.concat();
            if is_request { Step::FromClient(bytes) } else { Step::FromServer(bytes) }
        });
    prop::collection::vec(step, 0..12)
}

proptest! {
    #[test]
    fn results_are_independent_of_how_arbitrary_streams_are_split(
        protocol in protocol(), steps in conversation(), seed in any::<u64>(),
    ) {
        let outcome = play_in_all_splits(protocol, &steps, seed);
        prop_assert_eq!(outcome.stop_reason.is_some(), outcome.is_idle.is_none());
    }

    #[test]
    fn every_reply_of_a_valid_memcached_conversation_is_measured(
        sizes in prop::collection::vec((0..2000_usize, any::<bool>()), 1..30), seed in any::<u64>(),
    ) {
        let (mut steps, mut expected) = (Vec::new(), 0);
        for (size, is_quiet) in sizes {
            let value = "\r\nEND\r\n".repeat(size / 7 + 1)[..size].to_owned();
            let noreply = if is_quiet { " noreply" } else { "" };
            steps.push(Step::FromClient(format!("set k 0 0 {size}{noreply}\r\n{value}\r\nget k\r\n").into_bytes()));
            let stored = if is_quiet { "" } else { "STORED\r\n" };
            steps.push(Step::FromServer(format!("{stored}VALUE k 0 {size}\r\n{value}\r\nEND\r\n").into_bytes()));
            expected += 2 - usize::from(is_quiet);
        }
        let outcome = play_in_all_splits(Protocol::Memcached, &steps, seed);
        prop_assert_eq!(
            (outcome.stop_reason, outcome.is_idle), (None, Some(true)),
            "the connection should be idle and measured"
        );
        prop_assert_eq!(outcome.latencies.len(), expected);
        prop_assert!(
            outcome.latencies.iter().all(|latency| latency.is_some_and(|time| time.as_nanos() == 10)),
            "each latency should be 10 ns"
        );
    }
}
