//! Streams longer than the sequence space (RFC 9293 §3.4): the numbers on the wire wrap, and the stream continues.

use spillway_tcp::StackEvent;

use crate::trace::*;

/// Size of the sequence space.
const ROUND: u64 = 1 << 32;

/// A connection through which `passed` bytes, a multiple of the sequence space, have gone in each direction: the peer's
/// number 1 is the byte after them.
fn after(passed: u64, syn: Seg) -> Trace {
    let mut t = Trace::opened_by(|_| {}, syn);
    t.moves(|state| {
        let sending = &mut state.sending;
        let (by, with) = sending.window_told;
        (sending.una, sending.nxt) = (sending.una + passed, sending.nxt + passed);
        (sending.window_told, sending.told_acknowledged) = ((by + passed, with + passed), passed);
        let receiving = &mut state.receiving;
        receiving.next += passed;
        receiving.granted += passed;
        receiving.edge += passed;
        receiving.acknowledged += passed;
        state.recovery = None;
    });
    t.forget();
    t.peer().passed = passed;
    t
}

/// The peer's first number is 256 below the end of the sequence space, so these streams wrap.
#[test]
fn bytes_are_heard_and_said_at_every_round() {
    for round in [1, 2, 1000] {
        let passed = round * ROUND;
        let mut t = after(passed, syn().mss(1460));
        t.watch();
        for at in (1..2000).step_by(100) {
            t.recv(many(at, 100));
            t.event(StackEvent::Data { end: passed + at as u64 + 99, bytes: pattern(at, 100) });
            t.peer().segments.clear();
            t.say(100);
            t.expect(many(at, 100).ack(at + 100));
            t.recv(ack(at + 100));
            t.event(StackEvent::Acknowledged { through: passed + at as u64 + 99 });
        }
    }
}

#[test]
fn what_is_out_of_order_or_of_the_round_before_is_told_from_what_is_next() {
    let mut t = after(3 * ROUND, syn().mss(1460).sack_ok(true));
    t.recv(many(301, 100));
    t.expect(ack(1).sack(&[(301, 401)]));
    t.recv(many(-99, 100));
    t.expect(ack(1));
    t.recv(many(1, 300));
    t.expect(ack(401).sack(&[]));
    assert_eq!(t.peer().heard, pattern(1, 400));
    t.say(5000);
    t.forget();
    t.recv(ack(1).sack(&[(1461, 5001)]));
    t.expect(many(1, 1460));
    t.quiet();
    t.recv(ack(5001));
    t.nothing_sent_later();
}
