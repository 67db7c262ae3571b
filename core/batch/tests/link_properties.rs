//! Properties of a link for random sequences of operations and bytes, with both ends connected in memory.

#[allow(dead_code, reason = "opening messages of sessions are for other test programs")]
mod pair;

use std::collections::HashMap;
use std::net::SocketAddr;

use pair::{CLIENT, Pair, Seen};
use proptest::prelude::*;
use spillway_batch::{CloseReason, Id, Limits};

fn client(port: u16) -> SocketAddr {
    SocketAddr::new(CLIENT, port)
}

#[derive(Clone, Debug)]
enum Step {
    Open,
    Request(usize, u16),
    Reply(usize, u16),
    Read(usize),
    ReadReply(usize),
    FinishRequest(usize),
    CloseByClient(usize),
    CloseByServer(usize),
    Exchange(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let index = 0..8usize;
    prop_oneof![
        2 => Just(Step::Open),
        6 => (index.clone(), 1..3000u16).prop_map(|(index, bytes)| Step::Request(index, bytes)),
        6 => (index.clone(), 1..3000u16).prop_map(|(index, bytes)| Step::Reply(index, bytes)),
        3 => index.clone().prop_map(Step::Read),
        3 => index.clone().prop_map(Step::ReadReply),
        1 => index.clone().prop_map(Step::FinishRequest),
        1 => index.clone().prop_map(Step::CloseByClient),
        1 => index.clone().prop_map(Step::CloseByServer),
        6 => (1..5000usize).prop_map(Step::Exchange),
    ]
}

/// One direction of one connection. The byte at an offset of a stream always has the same value.
#[derive(Default)]
struct Stream {
    sent: usize,
    received: usize,
    unread: usize,
}

fn pattern(stream: u32, offset: usize) -> u8 {
    (stream as usize).wrapping_mul(131).wrapping_add(offset.wrapping_mul(7)) as u8
}

fn bytes(stream: u32, from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|offset| pattern(stream, offset)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Each stream arrives as it was sent, for any sequence of operations and any split of the link's bytes.
    #[test]
    fn streams_arrive_complete_and_in_order(steps in proptest::collection::vec(step(), 1..200)) {
        let limits = Limits { window_bytes: 4000, pending_bytes_max: 6000, ..Limits::default() };
        let mut pair = Pair::with_limits(limits, limits);
        // The requests of the n-th connection are stream 2n, its replies are stream 2n + 1.
        let mut open: Vec<(Id, u32)> = Vec::new();
        let mut numbers: HashMap<Id, u32> = HashMap::new();
        let mut streams: HashMap<u32, Stream> = HashMap::new();
        let mut opened = 0u32;
        for step in steps {
            match step {
                Step::Open if open.len() < 8 => {
                    let id = pair.opener.open(client(opened as u16), None).unwrap();
                    numbers.insert(id, opened);
                    open.push((id, opened));
                    opened += 1;
                }
                Step::Request(index, count) if index < open.len() => {
                    let (id, number) = open[index];
                    let stream = streams.entry(2 * number).or_default();
                    stream.sent += pair.opener.compose(id, &bytes(2 * number, stream.sent, count.into()));
                }
                Step::Reply(index, count) if index < open.len() => {
                    let (id, number) = open[index];
                    let stream = streams.entry(2 * number + 1).or_default();
                    stream.sent += pair.server.compose(id, &bytes(2 * number + 1, stream.sent, count.into()));
                }
                Step::Read(index) if index < open.len() => {
                    let (id, number) = open[index];
                    let unread = std::mem::take(&mut streams.entry(2 * number).or_default().unread);
                    pair.server.consumed(id, unread).unwrap();
                }
                Step::ReadReply(index) if index < open.len() => {
                    let (id, number) = open[index];
                    let unread = std::mem::take(&mut streams.entry(2 * number + 1).or_default().unread);
                    pair.opener.consumed(id, unread).unwrap();
                }
                Step::FinishRequest(index) if index < open.len() => pair.opener.finish(open[index].0),
                Step::CloseByClient(index) if index < open.len() => {
                    let (id, _) = open.remove(index);
                    pair.opener.close(id, CloseReason::Normal);
                    pair.server_closes.insert(id);
                }
                Step::CloseByServer(index) if index < open.len() && pair.server.info(open[index].0).is_some() => {
                    let (id, _) = open.remove(index);
                    pair.server.close(id, CloseReason::Normal);
                    pair.opener_closes.insert(id);
                }
                Step::Exchange(piece_bytes) => pair.exchange_in_pieces(piece_bytes),
                _ => {}
            }
            for (side, events) in [(0, pair.take_server_events()), (1, pair.take_opener_events())] {
                for event in events {
                    match event {
                        Seen::Data(id, data) => {
                            let number = 2 * numbers[&id] + side;
                            let stream = streams.entry(number).or_default();
                            prop_assert_eq!(&data, &bytes(number, stream.received, data.len()));
                            stream.received += data.len();
                            stream.unread += data.len();
                            prop_assert!(
                                stream.received <= stream.sent,
                                "no byte should be received before it is sent"
                            );
                            prop_assert!(stream.unread <= 4000, "unread bytes should not exceed the window");
                        }
                        Seen::Closed(_, reason) => prop_assert_eq!(reason, CloseReason::Normal),
                        _ => {}
                    }
                }
            }
            // data and control messages
            prop_assert!(
                pair.opener.pending() <= 6000 + 8 * 100 + 400 * 30,
                "pending bytes should be bounded by the data, the closes and the headers"
            );
        }
        pair.exchange();
        pair.take_server_events();
        pair.exchange();
        prop_assert_eq!(pair.opener.connections(), pair.server.connections());
        prop_assert_eq!(pair.opener.connections(), open.len());
    }

    /// Arbitrary bytes after a valid preamble cause an error or a bounded number of events, but no panic.
    #[test]
    fn arbitrary_bytes_of_an_authenticated_peer_do_not_panic(
        random_bytes in proptest::collection::vec(any::<u8>(), 0..3000),
    ) {
        let mut pair = Pair::unencrypted(Limits::default());
        pair.open(1);
        let mut input = &random_bytes[..];
        let mut events = 0;
        while let Ok(Some(_)) = pair.server.decompose(pair.now, &mut input) {
            events += 1;
            prop_assert!(events <= random_bytes.len(), "each event should need a byte at least");
        }
        let mut input = &random_bytes[..];
        while let Ok(Some(_)) = pair.opener.decompose(pair.now, &mut input) {
            events += 1;
            prop_assert!(events <= 2 * random_bytes.len(), "each byte should cause two events at most");
        }
    }
}
