//! The reasons for which frames and segments are dropped, and what provokes each.

use std::net::{Ipv4Addr, SocketAddrV4};

use spillway_tcp::{Dropped, Listener, Settings, Stack};
use spillway_transport::Transport;
use spillway_wire::packet::ethernet;
use spillway_wire::packet::icmp::v4::{self, Message};
use spillway_wire::packet::tcp::{Flags, Header};

use crate::icmp::unreachable_frame;
use crate::trace::*;

/// A trace, and the frame that is to be dropped.
type Scene = (Trace, Vec<u8>);

fn scene(mut t: Trace, next: Seg) -> Scene {
    let frame = t.frame_of(next);
    (t, frame)
}

/// A segment's frame, changed by `change`, with its IPv4 header checksum recomputed.
fn altered(next: Seg, change: impl FnOnce(&mut Vec<u8>)) -> Scene {
    let (t, mut frame) = scene(Trace::open(), next);
    change(&mut frame);
    frame::mend_ip(&mut frame);
    (t, frame)
}

fn raw_frame(bytes: Vec<u8>) -> Scene {
    (Trace::open(), bytes)
}

/// A stack that answers all SYNs but one by cookies. [`Trace::at`] selects a peer: peer 99 takes the one place, peer 0 gets
/// a cookie.
fn flooded(change: impl FnOnce(&mut Settings)) -> Trace {
    let mut t = Trace::new(|settings| {
        settings.half_open_max = 1;
        change(settings);
    });
    t.at(99).recv(syn());
    t.at(0).recv(syn().mss(1460));
    t.forget();
    t
}

/// A stack on which peer 0 has opened a connection with a cookie, and then reset it.
fn cookie_used(change: impl FnOnce(&mut Settings)) -> Trace {
    let mut t = flooded(change);
    t.recv(bytes(1, "hello").ack(1));
    t.opened();
    t.recv(rst(6));
    t.forget();
    t
}

/// A connection that was imported under another address than the stack's own, and was aborted.
fn imported_and_aborted() -> Scene {
    let (mut t, late) = scene(Trace::open(), bytes(1, "late"));
    let state = t.stack.export(t.now, t.conn()).expect("established");
    let address = Ipv4Addr::new(10, 0, 0, 9);
    let listeners = vec![Listener { address: SocketAddrV4::new(address, PLAIN), is_gated: false }];
    let settings = Settings { address, listeners, ..settings() };
    t.stack = Stack::new(t.now, settings).expect("valid settings");
    let moved = t.stack.import(t.now, &state).expect("room");
    t.stack.abort(moved);
    (t, late)
}

fn provoked(reason: Dropped) -> Scene {
    match reason {
        Dropped::Malformed => raw_frame(vec![0; 13]),
        Dropped::BadChecksum => altered(bytes(1, "x"), |frame| *frame.last_mut().unwrap() ^= 1),
        Dropped::Fragment => altered(bytes(1, "x"), |frame| frame[ethernet::HEADER_BYTES + 6] = 0x20),
        Dropped::NotForUs => altered(bytes(1, "x"), |frame| frame[5] ^= 8),
        Dropped::UnknownProtocol => altered(bytes(1, "x"), |frame| frame[12] = 0x86),
        Dropped::ForeignPeer => {
            let header = Header { source: PEER_PORT, target: PLAIN, flags: Flags::SYN, ..Header::default() };
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
            t.say(1);
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
        Dropped::TimeWait => {
            let mut t = Trace::open();
            t.finish();
            t.recv(fin(1).ack(2));
            t.forget();
            scene(t, fin(1).ack(2))
        }
        Dropped::Moved => {
            let mut t = Trace::open();
            t.stack.export(t.now, t.conn()).expect("established");
            scene(t, bytes(1, "late"))
        }
        Dropped::BrokenOff => imported_and_aborted(),
        Dropped::TableFull => {
            let mut t = Trace::new(|settings| settings.connections_max = 1);
            t.establish(syn());
            t.at(1);
            scene(t, syn())
        }
        Dropped::SynQueueFull => {
            let mut t = cookie_used(|settings| settings.cookies_max = 1);
            t.at(1);
            scene(t, syn())
        }
        Dropped::CookieInvalid => scene(flooded(|_| {}), bytes(1, "x").ack(77)),
        Dropped::CookieUsed => scene(cookie_used(|_| {}), bytes(1, "hello").ack(1)),
        Dropped::CookiesFull => {
            let mut t = flooded(|settings| settings.cookies_max = 1);
            t.at(1).recv(syn().mss(1460));
            t.recv(bytes(1, "hello").ack(1));
            t.at(0);
            scene(t, bytes(1, "hello").ack(1))
        }
        Dropped::BadHandshakeAck => {
            let mut t = Trace::new(|_| {});
            t.recv(syn());
            scene(t, ack(5).seq(1))
        }
        Dropped::WithoutTimestamp => scene(Trace::open_stamps(), bytes(1, "x").no_stamp()),
        Dropped::OldTimestamp => scene(Trace::open_stamps(), bytes(1, "x").stamp(PEER_CLOCK - 1)),
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
            let t = Trace::opened_by(|settings| settings.reassembly_bytes_max = 2000, syn().mss(1460));
            scene(t, many(3001, 100))
        }
    }
}

#[test]
fn each_reason_is_reported_when_it_is_provoked() {
    for reason in Dropped::ALL {
        let (mut t, frame) = provoked(*reason);
        t.stack.watch_drops(4);
        t.recv_frame(&frame);
        let reported: Vec<_> = std::iter::from_fn(|| t.stack.poll_dropped()).map(|one| one.reason).collect();
        if !reported.contains(reason) {
            t.fail(&format!("wanted: {reason:?}\n   was: {reported:?}"));
        }
    }
}

/// A reported segment can be found in a packet capture.
#[test]
fn a_reported_drop_identifies_its_segment() {
    let mut t = Trace::open();
    t.stack.watch_drops(1);
    t.recv(rst(-1));
    let dropped = t.stack.poll_dropped().expect("the reset was outside the window");
    let segment = dropped.segment.expect("the dropped frame held a segment");
    assert_eq!((dropped.at, segment.flow.peer.port(), segment.flow.local.port()), (t.now, PEER_PORT, PLAIN));
    assert_eq!((segment.flags, segment.payload_bytes), (Flags::RST, 0));
    let text = dropped.to_string();
    assert!(
        text.starts_with("10.0.0.2:4000 > 10.0.0.1:80 R ") && text.contains("outside the window"),
        "{text}"
    );
    t.recv_frame(&[0; 13]);
    let dropped = t.stack.poll_dropped().map(|one| (one.reason, one.segment));
    assert_eq!(
        dropped,
        Some((Dropped::Malformed, None)),
        "a malformed frame has no segment; the previous one is not reported again"
    );
}

#[test]
fn drops_are_recorded_only_after_watch_drops() {
    let mut t = Trace::open();
    t.recv(bytes(100_000, "x"));
    assert_eq!((t.stack.poll_dropped(), t.counters().unacceptable), (None, 1));
}
