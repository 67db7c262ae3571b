//! The reasons for which frames and segments are dropped, and what provokes each.

use std::net::{Ipv4Addr, SocketAddr};

use spillway_tcp::{Dropped, Listener, OwnAddress, Settings, Stack};
use spillway_transport::Transport;
use spillway_wire::packet::icmp::v4::{self, Message};
use spillway_wire::packet::icmp::v6;
use spillway_wire::packet::tcp::{Flags, Header};
use spillway_wire::packet::{checksum, ethernet, ipv4};

use crate::icmp::unreachable_frame;
use crate::trace::*;

/// A trace, and the frame that the stack should drop.
type Scene = (Trace, Vec<u8>);

fn scene(mut t: Trace, next: Seg) -> Scene {
    let frame = t.frame_of(next);
    (t, frame)
}

/// A segment's frame, changed by `change`, with its IPv4 header checksum recomputed.
fn altered(next: Seg, change: impl FnOnce(&mut Vec<u8>)) -> Scene {
    let (t, mut frame) = scene(Trace::open(), next);
    change(&mut frame);
    frame::fix_ip_checksum(&mut frame);
    (t, frame)
}

fn raw_frame(bytes: Vec<u8>) -> Scene {
    (Trace::open(), bytes)
}

/// A stack with one half-open connection, of peer 99. It answers other SYNs by cookies, and peer 0 has one.
fn flooded(change: impl FnOnce(&mut Settings)) -> Trace {
    let mut t = Trace::new(|settings| {
        settings.half_open_max = 1;
        change(settings);
    });
    t.select_peer(99).recv(syn());
    t.select_peer(0).recv(syn().mss(1460));
    t.discard();
    t
}

/// A stack on which peer 0 has opened a connection with a cookie, and then reset it.
fn cookie_used(change: impl FnOnce(&mut Settings)) -> Trace {
    let mut t = flooded(change);
    t.recv(bytes(1, "hello").ack(1));
    t.expect_opened();
    t.recv(rst(6));
    t.discard();
    t
}

/// A connection that was imported under another address than the stack's own, and was aborted.
fn imported_and_aborted() -> Scene {
    let (mut t, late) = scene(Trace::open(), bytes(1, "late"));
    let state = t.stack.export(t.now, t.conn()).expect("an established connection");
    let address = Ipv4Addr::new(10, 0, 0, 9);
    let listeners = vec![Listener { address: SocketAddr::from((address, UNGATED_PORT)), is_gated: false }];
    let settings = Settings { addresses: vec![OwnAddress::new(address, 24)], listeners, ..settings() };
    t.stack = Stack::new(t.now, settings).expect("valid settings");
    let moved = t.stack.import(t.now, &state).expect("room for a connection");
    t.stack.abort(moved);
    (t, late)
}

fn provoked(reason: Dropped) -> Scene {
    match reason {
        Dropped::Malformed => raw_frame(vec![0; 13]),
        Dropped::BadChecksum => altered(bytes(1, "x"), |frame| *frame.last_mut().unwrap() ^= 1),
        Dropped::PartialChecksum => altered(bytes(1, "x"), |frame| {
            let segment = &mut frame[ethernet::HEADER_BYTES + ipv4::HEADER_BYTES..];
            let pseudo =
                checksum::pseudo_v4(PEER_IP, frame::STACK_IP, ipv4::PROTOCOL_TCP, segment.len() as u32);
            segment[16..18].copy_from_slice(&(!pseudo.finish()).to_be_bytes());
        }),
        Dropped::Fragment => altered(bytes(1, "x"), |frame| frame[ethernet::HEADER_BYTES + 6] = 0x20),
        Dropped::Extension => {
            let t = Trace::new_ipv6(|_| {});
            let route_goes_on = [6, 0, 4, 1, 0, 0, 0, 0];
            (t, frame::packet6(PEER_IP6, STACK_IP6, 43, &route_goes_on))
        }
        Dropped::MtuTooSmall => {
            let t = Trace::new_ipv6(|_| {});
            let message = v6::Message::PacketTooBig { mtu: 1279, inner: &[0; 48] };
            (t, frame::icmp6(PEER_IP6, &message))
        }
        Dropped::NotForUs => altered(bytes(1, "x"), |frame| frame[5] ^= 8),
        Dropped::UnknownProtocol => altered(bytes(1, "x"), |frame| frame[12] = 0x86),
        Dropped::InvalidPeer => {
            let header =
                Header { source: PEER_PORT, target: UNGATED_PORT, flags: Flags::SYN, ..Header::default() };
            raw_frame(frame::segment(Ipv4Addr::BROADCAST, &header, b"", None))
        }
        Dropped::EchoTooLarge => {
            let payload = &[0; 1473];
            raw_frame(frame::icmp(PEER_IP, &Message::EchoRequest { ident: 1, sequence: 1, payload }))
        }
        Dropped::UnrelatedError => {
            let message = Message::Unreachable { code: v4::CODE_HOST, next_hop_mtu: 0, inner: &[0; 28] };
            raw_frame(frame::icmp(PEER_IP, &message))
        }
        Dropped::SoftError => {
            let mut t = Trace::open();
            t.send_pattern(1);
            let frame = unreachable_frame(&mut t, v4::CODE_HOST, 0, 1);
            (t, frame)
        }
        Dropped::NoListener => {
            let mut t = Trace::new(|_| {});
            t.peer().stack_port = 99;
            scene(t, syn())
        }
        Dropped::NoConnection => scene(Trace::new(|_| {}), ack(1).seq(1)),
        Dropped::StrayReset => scene(Trace::new(|_| {}), rst(1)),
        Dropped::NotASyn => scene(Trace::new(|_| {}), bytes(1, "x").no_flags()),
        Dropped::SynWithFin => scene(Trace::new(|_| {}), syn().fin()),
        Dropped::TimeWait => {
            let mut t = Trace::open();
            t.finish();
            t.recv(fin(1).ack(2));
            t.discard();
            scene(t, fin(1).ack(2))
        }
        Dropped::Moved => {
            let mut t = Trace::open();
            t.stack.export(t.now, t.conn()).expect("an established connection");
            scene(t, bytes(1, "late"))
        }
        Dropped::Aborted => imported_and_aborted(),
        Dropped::TableFull => {
            let mut t = Trace::new(|settings| settings.connections_max = 1);
            t.establish(syn());
            t.select_peer(1);
            scene(t, syn())
        }
        Dropped::SynQueueFull => {
            let mut t = cookie_used(|settings| settings.cookies_max = 1);
            t.select_peer(1);
            scene(t, syn())
        }
        Dropped::CookieInvalid => scene(flooded(|_| {}), bytes(1, "x").ack(77)),
        Dropped::CookieUsed => scene(cookie_used(|_| {}), bytes(1, "hello").ack(1)),
        Dropped::CookiesFull => {
            let mut t = flooded(|settings| settings.cookies_max = 1);
            t.select_peer(1).recv(syn().mss(1460));
            t.recv(bytes(1, "hello").ack(1));
            t.select_peer(0);
            scene(t, bytes(1, "hello").ack(1))
        }
        Dropped::BadHandshakeAck => {
            let mut t = Trace::new(|_| {});
            t.recv(syn());
            scene(t, ack(5).seq(1))
        }
        Dropped::WithoutTimestamp => scene(Trace::open_timestamps(), bytes(1, "x").no_timestamp()),
        Dropped::OldTimestamp => scene(Trace::open_timestamps(), bytes(1, "x").timestamp(PEER_CLOCK - 1)),
        Dropped::ResetOutOfWindow => scene(Trace::open(), rst(-1)),
        Dropped::ResetNotExact => scene(Trace::open(), rst(5)),
        Dropped::SynInConnection => scene(Trace::open(), syn().seq(5)),
        Dropped::Duplicate => {
            let mut t = Trace::open();
            t.recv(bytes(1, "x"));
            scene(t, bytes(1, "x"))
        }
        Dropped::OutOfWindow => scene(Trace::open(), bytes(100_000, "x")),
        Dropped::WithoutAck => scene(Trace::open(), bytes(1, "x").no_flags()),
        Dropped::BadAck => scene(Trace::open(), ack(1000).seq(1)),
        Dropped::ChallengeLimited => {
            let mut t = Trace::open();
            t.recv(rst(5));
            scene(t, rst(6))
        }
        Dropped::AfterEnd => {
            let mut t = Trace::open();
            t.recv(fin(1));
            scene(t, bytes(2, "x"))
        }
        Dropped::NoRoom => {
            let t = Trace::open_with(|settings| settings.reassembly_bytes_max = 2000, syn().mss(1460));
            scene(t, data(3001, 100))
        }
    }
}

#[test]
fn each_reason_is_reported_when_it_is_provoked() {
    for reason in Dropped::ALL {
        let (mut t, frame) = provoked(*reason);
        t.stack.watch_drops(4);
        t.recv_frame(&frame);
        let reported: Vec<_> =
            std::iter::from_fn(|| t.stack.poll_dropped()).map(|dropping| dropping.reason).collect();
        if !reported.contains(reason) {
            t.fail(&format!("expected: {reason:?}\nreported: {reported:?}"));
        }
    }
}

/// By the report, the segment can be found in a packet capture.
#[test]
fn a_reported_drop_identifies_its_segment() {
    let mut t = Trace::open();
    t.stack.watch_drops(1);
    t.recv(rst(-1));
    let dropped = t.stack.poll_dropped().expect("the reset was outside the window");
    let segment = dropped.segment.expect("the dropped frame held a segment");
    assert_eq!(
        (dropped.at, segment.flow.peer().port(), segment.flow.local().port()),
        (t.now, PEER_PORT, UNGATED_PORT)
    );
    assert_eq!((segment.flags, segment.payload_bytes), (Flags::RST, 0));
    let text = dropped.to_string();
    assert!(
        text.starts_with("10.0.0.2:4000 > 10.0.0.1:80 R ") && text.contains("outside the window"),
        "the text should have the segment's addresses and the reason: {text}"
    );
    t.recv_frame(&[0; 13]);
    let dropped = t.stack.poll_dropped().map(|dropping| (dropping.reason, dropping.segment));
    assert_eq!(
        dropped,
        Some((Dropped::Malformed, None)),
        "a malformed frame should have no segment, and not the previous one's"
    );
}

#[test]
fn drops_are_recorded_only_after_watch_drops() {
    let mut t = Trace::open();
    t.recv(bytes(100_000, "x"));
    assert_eq!((t.stack.poll_dropped(), t.counters().unacceptable), (None, 1));
}
