//! The memory of send queues as the stack reports it. A relay keeps its bound by these figures.

use spillway_transport::{Chunk, Transport};

use crate::trace::*;

fn held(t: &mut Trace) -> (usize, usize) {
    let conn = t.conn();
    (t.stack.held(conn), t.stack.held_by_all())
}

#[test]
fn sent_bytes_are_held_until_they_are_acknowledged() {
    let mut t = Trace::open();
    assert_eq!(held(&mut t), (0, 0));
    t.send_pattern(1000);
    let (own, total) = held(&mut t);
    assert!(
        (1000..=4096).contains(&own) && own == total,
        "the connection should hold its bytes: {own} of {total}"
    );
    t.expect(data(1, 1000));
    assert_eq!(held(&mut t), (own, total), "sent bytes should be held for their retransmission");
    t.recv(ack(1001));
    assert_eq!(held(&mut t), (0, 0), "an empty buffer should not be counted");
}

/// The capacity counts, because a chunk is kept with its whole buffer.
#[test]
fn a_chunk_counts_with_its_capacity_until_its_connection_ends() {
    let mut t = Trace::open();
    let mut buffer = Vec::with_capacity(50_000);
    buffer.resize(10, b'x');
    let conn = t.conn();
    t.stack.send_chunk(conn, Chunk::from(buffer)).expect("room for a chunk");
    assert_eq!(held(&mut t), (50_000, 50_000));
    t.abort();
    assert_eq!(held(&mut t), (0, 0));
}

/// The peers read nothing. The share of a closed connection leaves the total.
#[test]
fn the_total_is_the_sum_of_all_connections() {
    let mut t = Trace::open();
    t.send_pattern(5000);
    let (first, _) = held(&mut t);
    t.select_peer(1).establish(syn());
    t.send_pattern(20_000);
    let (second, total) = held(&mut t);
    assert_eq!(total, first + second);
    assert!(second >= 20_000, "the second connection should hold its 20,000 bytes");
    t.abort();
    assert_eq!(t.stack.held_by_all(), first);
}
