//! Streams longer than the sequence space (RFC 9293 §3.4): the numbers on the wire wrap, and the stream continues.

use spillway_tcp::StackEvent;

use crate::trace::*;

const SEQUENCE_SPACE: u64 = 1 << 32;

/// A connection that has carried `carried` bytes, a multiple of the sequence space, in each direction. The
/// number 1 is the byte after them.
fn open_after(carried: u64, syn: Seg) -> Trace {
    let mut t = Trace::open_with(|_| {}, syn);
    t.export_and_import(|state| {
        let sending = &mut state.sending;
        let (seq, ack) = sending.window_update.expect("the last update of the window");
        (sending.una, sending.nxt) = (sending.una + carried, sending.nxt + carried);
        (sending.window_update, sending.reported_acknowledged) =
            (Some((seq + carried, ack + carried)), carried);
        let receiving = &mut state.receiving;
        receiving.next += carried;
        receiving.granted += carried;
        receiving.edge += carried;
        receiving.acknowledged += carried;
        state.recovery = None;
    });
    t.discard();
    t.peer().received_before = carried;
    t
}

/// These streams wrap again, because the peer's initial number is 2^32 - 256.
#[test]
fn bytes_are_delivered_and_sent_after_the_numbers_have_wrapped() {
    for wraps in [1, 2, 1000] {
        let carried = wraps * SEQUENCE_SPACE;
        let mut t = open_after(carried, syn().mss(1460));
        t.watch();
        for at in (1..2000).step_by(100) {
            t.recv(data(at, 100));
            t.expect_event(StackEvent::Data { end: carried + at as u64 + 99, bytes: pattern(at, 100) });
            t.peer().segments.clear();
            t.send_pattern(100);
            t.expect(data(at, 100).ack(at + 100));
            t.recv(ack(at + 100));
            t.expect_event(StackEvent::Acknowledged { through: carried + at as u64 + 99 });
        }
    }
}

#[test]
fn after_a_wrap_old_bytes_are_not_taken_for_new_ones() {
    let mut t = open_after(3 * SEQUENCE_SPACE, syn().mss(1460).sack_ok(true));
    t.recv(data(301, 100));
    t.expect(ack(1).sack(&[(301, 401)]));
    t.recv(data(-99, 100));
    t.expect(ack(1));
    t.recv(data(1, 300));
    t.expect(ack(401).sack(&[]));
    assert_eq!(t.peer().received, pattern(1, 400));
    t.send_pattern(5000);
    t.discard();
    t.recv(ack(1).sack(&[(1461, 5001)]));
    t.expect(data(1, 1460));
    t.expect_nothing_sent();
    t.recv(ack(5001));
    t.expect_nothing_sent_later();
}
