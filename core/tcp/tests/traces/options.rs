//! Options (RFC 9293 §3.1, §3.2, §3.7.1; RFC 6691; RFC 7323 §2; RFC 2018 §2).

use crate::trace::*;

/// Payload bytes of the first full segment to a peer with this SYN.
fn first_segment(syn: Seg) -> usize {
    let mut t = Trace::opened_by(|_| {}, syn);
    t.say(5000);
    t.next().payload.expect("a payload").len()
}

/// MUST-15: 536 bytes to a peer without the MSS option.
#[test]
fn without_the_option_segments_are_of_536_bytes() {
    assert_eq!(first_segment(syn()), 536);
}

/// MUST-16.
#[test]
fn segments_are_as_large_as_the_peer_takes() {
    assert_eq!(first_segment(syn().mss(1000)), 1000);
    assert_eq!(first_segment(syn().mss(537)), 537);
}

/// MUST-16: not larger than our own link permits.
#[test]
fn segments_are_at_most_what_our_link_takes() {
    assert_eq!(first_segment(syn().mss(65_535)), 1460);
}

/// RFC 6691 §2, MUST-16: options count.
#[test]
fn what_options_need_is_taken_from_the_payload() {
    assert_eq!(first_segment(syn().mss(1460).stamp(1)), 1448);
}

/// MSS 0 counts as no option.
#[test]
fn a_segment_size_of_nothing_is_none() {
    assert_eq!(first_segment(syn().mss(0)), 536);
}

/// Segments of less than 88 bytes would be mostly headers, as in an attack; Linux has the same minimum.
#[test]
fn tiny_segments_are_not_made() {
    assert_eq!(first_segment(syn().mss(48)), 88);
    assert_eq!(first_segment(syn().mss(1).sack_ok(true).stamp(1)), 76);
}

/// MUST-14, SHLD-5: SYN and SYN-ACK advertise our segment size.
#[test]
fn we_say_what_we_take() {
    let mut t = Trace::new(|settings| settings.mtu = 9000);
    t.recv(syn());
    t.expect(syn_ack().mss(8960));
    let mut t = Trace::new(|settings| settings.mtu = 576);
    t.connect();
    t.expect(syn().mss(536));
}

/// MUST-48, MUST-49.
#[test]
fn packets_have_the_life_and_the_class_that_were_set() {
    let mut t = Trace::opened_by(|settings| (settings.ttl, settings.dscp) = (7, 46), syn());
    let told = |t: &Trace| (t.last_frame[15], t.last_frame[22]);
    assert_eq!(told(&t), (46 << 2, 7), "the SYN's answer");
    t.say(10);
    assert_eq!(told(&t), (46 << 2, 7));
    t.abort();
    assert_eq!(told(&t), (46 << 2, 7));
    let mut t = Trace::open();
    t.say(1);
    assert_eq!(told(&t), (0, 64), "unless nothing was set");
}

/// MUST-65 is for senders; an option without a SYN is ignored all the same.
#[test]
fn a_segment_size_without_a_syn_is_ignored() {
    let mut t = Trace::open();
    t.recv(ack(1).raw_options(&[2, 4, 0, 100]));
    t.say(2000);
    t.expect(many(1, 1460));
}

/// MUST-4, MUST-64: padding may be anywhere, and options need not be aligned.
#[test]
fn options_need_no_alignment() {
    assert_eq!(first_segment(syn().raw_options(&[1, 1, 1, 2, 4, 3, 0xe8, 1, 0])), 1000);
    assert_eq!(first_segment(syn().raw_options(&[2, 4, 3, 0xe8])), 1000);
}

/// MUST-6, MUST-68: unknown options are skipped by their length.
#[test]
fn unknown_options_are_passed_over() {
    assert_eq!(first_segment(syn().raw_options(&[200, 6, 1, 2, 3, 4, 2, 4, 3, 0xe8])), 1000);
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").raw_options(&[253, 10, 1, 2, 3, 4, 5, 6, 7, 8]));
    t.hears("abc");
}

/// MUST-5: an option may come in any segment, without harm.
#[test]
fn options_of_a_syn_in_other_segments_do_no_harm() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").raw_options(&[3, 3, 9, 4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]));
    t.hears("abc");
    t.expect(ack(4));
    t.say(300);
    t.expect(many(1, 300));
}

/// MUST-7: invalid lengths.
#[test]
fn impossible_lengths_end_the_options_and_the_segment_counts() {
    for options in [&[9, 0][..], &[9, 1], &[9, 200], &[2], &[2, 3, 1], &[8, 10, 0, 0], &[255; 40], &[5, 255]]
    {
        let mut t = Trace::opened_by(|_| {}, syn().raw_options(options));
        t.recv(bytes(1, "abc").raw_options(options));
        t.hears("abc");
        t.expect(ack(4));
        t.say(1000);
        t.expect(many(1, 536));
    }
}

/// RFC 7323 §2.2: only if both SYNs have the option.
#[test]
fn windows_are_scaled_when_both_say_so() {
    let mut t = Trace::opened_by(|settings| settings.receive_window_max = 1 << 20, syn().mss(1000).scale(2));
    t.grant(1 << 20);
    t.say(5000);
    t.recv(ack(1).window(250));
    t.last();
    t.recv(bytes(1, "x").ack(5001));
    t.hears("x");
    t.pass(ms(40));
    let seg = t.next();
    let told = u32::from(seg.window.expect("a window")) << 5;
    assert!(told >= 1 << 20, "{told}");
}

#[test]
fn the_peers_scale_is_used() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).scale(3));
    t.recv(ack(1).window(200)); // 1600 bytes
    t.say(3000);
    t.expect(many(1, 1000));
    t.recv(ack(1001).window(200));
    t.expect(many(1001, 1000));
    assert_eq!(t.peer().stack_nxt, 2001);
}

/// §2.2: the option is answered even if our own scale is 0: otherwise the peer could not scale its windows.
#[test]
fn a_scale_is_answered_even_with_none() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().scale(7));
    t.expect(syn_ack().scale(0));
}

#[test]
fn no_scale_no_scaling() {
    let mut t = Trace::new(|settings| settings.receive_window_max = 1 << 20);
    t.recv(syn().mss(1000).window(500));
    t.expect(syn_ack().no_scale());
    t.recv(ack(1).window(500));
    t.opened();
    t.grant(1 << 20);
    t.say(2000);
    t.expect(many(1, 500).window(65_535));
    t.quiet();
}

/// §2.2: the same when we open.
#[test]
fn a_peer_may_not_want_scaling() {
    let mut t = Trace::new(|settings| settings.receive_window_max = 1 << 20);
    t.connect();
    t.expect(syn().scale(5));
    t.recv(syn_ack().mss(1000).window(700));
    t.expect(ack(1));
    t.opened();
    t.say(2000);
    t.expect(many(1, 700));
}

/// §2.2: "the window field in a segment where the SYN bit is set must not be scaled".
#[test]
fn the_window_of_a_syn_is_not_scaled() {
    let mut t = Trace::new(|settings| settings.receive_window_max = 1 << 20);
    t.connect();
    t.expect(syn().window(65_535));
    t.recv(syn_ack().mss(1000).scale(4).window(800));
    t.expect(ack(1));
    t.opened();
    t.say(2000);
    t.expect(many(1, 800));
    t.quiet();
}

/// §2.3: a larger scale counts as 14.
#[test]
fn a_scale_above_14_is_14() {
    let mut t = Trace::opened_by(|_| {}, syn().raw_options(&[2, 4, 3, 0xe8, 3, 3, 15]));
    t.recv(ack(1).window(1)); // 16,384 bytes
    t.say(30_000);
    for index in 0..10 {
        t.expect(many(1 + 1000 * index, 1000));
    }
    t.quiet();
    t.recv(ack(10_001).window(1));
    let mut sent = 0;
    while let Some(seg) = t.peer().segments.pop_front() {
        sent += seg.payload.expect("a payload").len();
    }
    assert_eq!(sent, 16_000, "as many whole segments as 16,384 bytes take");
}

/// RFC 2018 §2: only if the SYN has permitted it.
#[test]
fn sack_is_agreed_on() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().sack_ok(true));
    t.expect(syn_ack().sack_ok(true));
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack().sack_ok(false));
    t.recv(ack(1));
    t.opened();
    t.grant(1000);
    t.recv(bytes(11, "out of order"));
    t.expect(ack(1).sack(&[]));
}

/// RFC 7323 §3.2: in every segment, or in none.
#[test]
fn timestamps_are_agreed_on() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().stamp(1234));
    t.expect(syn_ack().stamp(0).echo(1234));
    t.pass(ms(7));
    t.recv(ack(1).stamp(1300));
    t.opened();
    t.say(5);
    t.expect(many(1, 5).stamp(7).echo(1300));
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack().no_stamp());
}

/// RFC 7323 §3.2: after a SYN-ACK without the option there are no timestamps.
#[test]
fn a_peer_may_not_want_timestamps() {
    let mut t = Trace::new(|_| {});
    t.connect();
    t.expect(syn().stamp(0).echo(0));
    t.recv(syn_ack());
    t.expect(ack(1).no_stamp());
    t.opened();
    t.say(1);
    t.expect(many(1, 1).no_stamp());
}
