//! The memory of send queues that the stack reports; a relay uses it to keep within its bound.

use spillway_transport::{Chunk, Transport};

use crate::trace::*;

fn held(t: &mut Trace) -> (usize, usize) {
    let conn = t.conn();
    (t.stack.held(conn), t.stack.held_by_all())
}

#[test]
fn what_is_sent_is_held_until_it_is_acknowledged() {
    let mut t = Trace::open();
    assert_eq!(held(&mut t), (0, 0));
    t.say(1000);
    let (one, all) = held(&mut t);
    assert!((1000..=4096).contains(&one) && one == all, "{one} of {all}");
    t.expect(many(1, 1000));
    assert_eq!(held(&mut t), (one, all), "it may have to be sent again");
    t.recv(ack(1001));
    assert_eq!(held(&mut t), (0, 0), "an empty buffer is not counted");
}

/// The capacity counts, not the length: a chunk is kept as it is.
#[test]
fn a_chunk_counts_with_its_capacity_and_a_connection_that_is_gone_holds_nothing() {
    let mut t = Trace::open();
    let mut buffer = Vec::with_capacity(50_000);
    buffer.resize(10, b'x');
    let conn = t.conn();
    t.stack.send_chunk(conn, Chunk::from(buffer)).expect("there is room");
    assert_eq!(held(&mut t), (50_000, 50_000));
    t.abort();
    assert_eq!(held(&mut t), (0, 0));
}

/// Peers that read nothing: the total is the sum of all connections, and a closed connection's share leaves it.
#[test]
fn connections_add_up() {
    let mut t = Trace::open();
    t.say(5000);
    let (first, _) = held(&mut t);
    t.at(1).establish(syn());
    t.say(20_000);
    let (second, all) = held(&mut t);
    assert_eq!(all, first + second);
    assert!(second >= 20_000);
    t.abort();
    assert_eq!(t.stack.held_by_all(), first);
}
