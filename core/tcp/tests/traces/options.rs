//! Options (RFC 9293 §3.1, §3.2, §3.7.1; RFC 6691; RFC 7323 §2; RFC 2018 §2).

use crate::trace::*;

/// Payload of the first full segment to a peer with this SYN, bytes.
fn first_segment(syn: Seg) -> usize {
    let mut t = Trace::open_with(|_| {}, syn);
    t.send_pattern(5000);
    t.next().payload.expect("a segment's payload").len()
}

/// MUST-15.
#[test]
fn without_the_mss_option_segments_have_536_bytes() {
    assert_eq!(first_segment(syn()), 536);
}

/// MUST-16.
#[test]
fn segments_are_as_large_as_the_peers_mss() {
    assert_eq!(first_segment(syn().mss(1000)), 1000);
    assert_eq!(first_segment(syn().mss(537)), 537);
}

/// MUST-16.
#[test]
fn segments_do_not_exceed_our_mtu() {
    assert_eq!(first_segment(syn().mss(65_535)), 1460);
}

/// RFC 6691 §2, MUST-16.
#[test]
fn options_reduce_the_payload() {
    assert_eq!(first_segment(syn().mss(1460).timestamp(1)), 1448);
}

#[test]
fn an_mss_of_0_counts_as_no_option() {
    assert_eq!(first_segment(syn().mss(0)), 536);
}

/// Smaller segments would be mostly headers, as in an attack. Linux has the same minimum.
#[test]
fn a_tiny_mss_is_raised_to_88_bytes() {
    assert_eq!(first_segment(syn().mss(48)), 88);
    assert_eq!(first_segment(syn().mss(1).sack_ok(true).timestamp(1)), 76);
}

/// MUST-14, SHLD-5: SYN and SYN-ACK advertise our segment size.
#[test]
fn the_mss_option_follows_our_mtu() {
    let mut t = Trace::new(|settings| settings.mtu = 9000);
    t.recv(syn());
    t.expect(syn_ack().mss(8960));
    let mut t = Trace::new(|settings| settings.mtu = 576);
    t.connect();
    t.expect(syn().mss(536));
}

/// MUST-48, MUST-49.
#[test]
fn packets_have_the_configured_ttl_and_dscp() {
    let mut t = Trace::open_with(|settings| (settings.ttl, settings.dscp) = (7, 46), syn());
    let dscp_and_ttl = |t: &Trace| (t.last_frame[15], t.last_frame[22]);
    assert_eq!(dscp_and_ttl(&t), (46 << 2, 7), "the SYN-ACK should have the configured DSCP and TTL");
    t.send_pattern(10);
    assert_eq!(dscp_and_ttl(&t), (46 << 2, 7));
    t.abort();
    assert_eq!(dscp_and_ttl(&t), (46 << 2, 7));
    let mut t = Trace::open();
    t.send_pattern(1);
    assert_eq!(dscp_and_ttl(&t), (0, 64), "the SYN-ACK should have the defaults");
}

/// MUST-65 forbids such an option; a receiver ignores it.
#[test]
fn an_mss_option_without_a_syn_is_ignored() {
    let mut t = Trace::open();
    t.recv(ack(1).raw_options(&[2, 4, 0, 100]));
    t.send_pattern(2000);
    t.expect(data(1, 1460));
}

/// MUST-4, MUST-64: padding may be anywhere.
#[test]
fn options_need_no_alignment() {
    assert_eq!(first_segment(syn().raw_options(&[1, 1, 1, 2, 4, 3, 0xe8, 1, 0])), 1000);
    assert_eq!(first_segment(syn().raw_options(&[2, 4, 3, 0xe8])), 1000);
}

/// MUST-6, MUST-68.
#[test]
fn unknown_options_are_skipped() {
    assert_eq!(first_segment(syn().raw_options(&[200, 6, 1, 2, 3, 4, 2, 4, 3, 0xe8])), 1000);
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").raw_options(&[253, 10, 1, 2, 3, 4, 5, 6, 7, 8]));
    t.expect_data("abc");
}

/// MUST-5.
#[test]
fn options_of_a_syn_are_ignored_in_other_segments() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").raw_options(&[3, 3, 9, 4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]));
    t.expect_data("abc");
    t.expect(ack(4));
    t.send_pattern(300);
    t.expect(data(1, 300));
}

/// MUST-7.
#[test]
fn an_invalid_option_length_ends_the_options_of_an_accepted_segment() {
    for options in [&[9, 0][..], &[9, 1], &[9, 200], &[2], &[2, 3, 1], &[8, 10, 0, 0], &[255; 40], &[5, 255]]
    {
        let mut t = Trace::open_with(|_| {}, syn().raw_options(options));
        t.recv(bytes(1, "abc").raw_options(options));
        t.expect_data("abc");
        t.expect(ack(4));
        t.send_pattern(1000);
        t.expect(data(1, 536));
    }
}

/// RFC 7323 §2.2.
#[test]
fn windows_are_scaled_if_both_syns_have_the_option() {
    let mut t = Trace::open_with(|settings| settings.receive_window_max = 1 << 20, syn().mss(1000).scale(2));
    t.grant(1 << 20);
    t.send_pattern(5000);
    t.recv(ack(1).window(250));
    t.discard_segments();
    t.recv(bytes(1, "x").ack(5001));
    t.expect_data("x");
    t.advance(ms(40));
    let seg = t.next();
    let window = u32::from(seg.window.expect("a window field")) << 5;
    assert!(window >= 1 << 20, "the window should be scaled: {window}");
}

#[test]
fn the_peers_windows_are_scaled() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).scale(3));
    t.recv(ack(1).window(200)); // 1600 bytes
    t.send_pattern(3000);
    t.expect(data(1, 1000));
    t.recv(ack(1001).window(200));
    t.expect(data(1001, 1000));
    assert_eq!(t.peer().stack_nxt, 2001);
}

/// §2.2: without the answer, the peer could not scale its windows.
#[test]
fn the_scale_option_is_answered_even_with_scale_0() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().scale(7));
    t.expect(syn_ack().scale(0));
}

#[test]
fn without_the_scale_option_windows_are_not_scaled() {
    let mut t = Trace::new(|settings| settings.receive_window_max = 1 << 20);
    t.recv(syn().mss(1000).window(500));
    t.expect(syn_ack().no_scale());
    t.recv(ack(1).window(500));
    t.expect_opened();
    t.grant(1 << 20);
    t.send_pattern(2000);
    t.expect(data(1, 500).window(65_535));
    t.expect_nothing_sent();
}

/// §2.2.
#[test]
fn a_syn_ack_without_the_scale_option_disables_scaling() {
    let mut t = Trace::new(|settings| settings.receive_window_max = 1 << 20);
    t.connect();
    t.expect(syn().scale(5));
    t.recv(syn_ack().mss(1000).window(700));
    t.expect(ack(1));
    t.expect_opened();
    t.send_pattern(2000);
    t.expect(data(1, 700));
}

/// §2.2: "the window field in a segment where the SYN bit is set must not be scaled".
#[test]
fn the_window_of_a_syn_is_not_scaled() {
    let mut t = Trace::new(|settings| settings.receive_window_max = 1 << 20);
    t.connect();
    t.expect(syn().window(65_535));
    t.recv(syn_ack().mss(1000).scale(4).window(800));
    t.expect(ack(1));
    t.expect_opened();
    t.send_pattern(2000);
    t.expect(data(1, 800));
    t.expect_nothing_sent();
}

/// §2.3.
#[test]
fn a_scale_above_14_counts_as_14() {
    let mut t = Trace::open_with(|_| {}, syn().raw_options(&[2, 4, 3, 0xe8, 3, 3, 15]));
    t.recv(ack(1).window(1)); // 16,384 bytes
    t.send_pattern(30_000);
    for index in 0..10 {
        t.expect(data(1 + 1000 * index, 1000));
    }
    t.expect_nothing_sent();
    t.recv(ack(10_001).window(1));
    let mut sent = 0;
    while let Some(seg) = t.peer().segments.pop_front() {
        sent += seg.payload.expect("a segment's payload").len();
    }
    assert_eq!(sent, 16_000, "as many whole segments should be sent as fit 16,384 bytes");
}

/// RFC 2018 §2.
#[test]
fn sack_is_used_only_if_the_syn_permits_it() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().sack_ok(true));
    t.expect(syn_ack().sack_ok(true));
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack().sack_ok(false));
    t.recv(ack(1));
    t.expect_opened();
    t.grant(1000);
    t.recv(bytes(11, "out of order"));
    t.expect(ack(1).sack(&[]));
}

/// RFC 7323 §3.2: once negotiated, timestamps are in every segment.
#[test]
fn timestamps_are_used_only_if_the_syn_has_them() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().timestamp(1234));
    t.expect(syn_ack().timestamp(0).echo(1234));
    t.advance(ms(7));
    t.recv(ack(1).timestamp(1300));
    t.expect_opened();
    t.send_pattern(5);
    t.expect(data(1, 5).timestamp(7).echo(1300));
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack().no_timestamp());
}

/// RFC 7323 §3.2.
#[test]
fn a_syn_ack_without_timestamps_disables_them() {
    let mut t = Trace::new(|_| {});
    t.connect();
    t.expect(syn().timestamp(0).echo(0));
    t.recv(syn_ack());
    t.expect(ack(1).no_timestamp());
    t.expect_opened();
    t.send_pattern(1);
    t.expect(data(1, 1).no_timestamp());
}
