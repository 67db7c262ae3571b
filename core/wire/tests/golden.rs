//! The wire format is frozen: every message of every link version is emitted as its test vector, and parsed from it. A
//! message without a vector fails the test. docs/wire.md specifies how the format may change.

mod vectors;

use std::net::SocketAddr;

use spillway_wire::control::Control::{self, *};
use spillway_wire::preamble::{
    ENCRYPTED_SINCE, HELLO_BYTES, Hello, KeyId, PROOF_BYTES, REQUESTS_ACKNOWLEDGED_SINCE, Role,
    SESSIONS_SINCE, VERSIONS, Verdict, WELCOME_BYTES, Welcome,
};
use spillway_wire::record::{RECORD_HEADER_BYTES, RECORD_PLAIN_BYTES_MAX, RECORD_TAG_BYTES};
use spillway_wire::session::{Acknowledge, Opening, Position, Reconnect, Resumed, SessionId};
use spillway_wire::{
    CloseReason, Connect, Disassembler, HEADER_BYTES, Header, Id, Kind, PAYLOAD_BYTES_MAX, Piece,
    RefuseReason,
};
use vectors::{Vectors, hex};

/// The frames that a link version adds to the one before.
fn frames_of(version: u8) -> (Vectors, Vec<(&'static str, Vec<ExpectedFrame>)>) {
    match version {
        1 => (Vectors::read(include_str!("../golden/frames-1.hex")), version_1()),
        2 => (Vectors::read(include_str!("../golden/frames-2.hex")), version_2()),
        3 => (Vectors::read(include_str!("../golden/frames-3.hex")), version_3()),
        // Version 4 adds no frames: it carries those of version 3 in encrypted records, for which link.hex has vectors.
        4 => (Vectors::read(""), Vec::new()),
        _ => panic!("link version {version} has no vectors: add golden/frames-{version}.hex"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ExpectedFrame {
    /// Kind, sender, *more* bit, payload.
    Data(Kind, u32, bool, &'static [u8]),
    Control(u32, Control),
}

use ExpectedFrame::Data;

fn one_control_frame(sender: u32, control: Control) -> Vec<ExpectedFrame> {
    vec![ExpectedFrame::Control(sender, control)]
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const V4: &str = "192.0.2.7:40000";
const V6: &str = "[2001:db8::9]:4711";

fn version_1() -> Vec<(&'static str, Vec<ExpectedFrame>)> {
    let (client, server) = (address(V4), Some(address("198.51.100.1:11211")));
    vec![
        ("request", vec![Data(Kind::Request, 0x0102_0304, false, b"get a\r\n")]),
        (
            "request in two frames",
            vec![Data(Kind::Request, 7, true, b"set"), Data(Kind::Request, 7, false, b" b")],
        ),
        ("reply", vec![Data(Kind::Reply, 0xffff_fffe, false, b"END\r\n")]),
        (
            "reply in two frames",
            vec![Data(Kind::Reply, 7, true, b"VALUE"), Data(Kind::Reply, 7, false, b" b")],
        ),
        (
            "connect: IPv4",
            one_control_frame(1, Connect(Connect { client, server: None, credit: 65_536, session: None })),
        ),
        (
            "connect: IPv6, to a server of IPv4",
            one_control_frame(
                2,
                Connect(Connect { client: address(V6), server, credit: u64::MAX, session: None }),
            ),
        ),
        ("accepted", one_control_frame(1, Accepted)),
        ("refused: full", one_control_frame(1, Refused(RefuseReason::Full))),
        ("refused: forbidden", one_control_frame(1, Refused(RefuseReason::Forbidden))),
        ("refused: unavailable", one_control_frame(1, Refused(RefuseReason::Unavailable))),
        ("refused: unknown server", one_control_frame(1, Refused(RefuseReason::UnknownServer))),
        ("credit", one_control_frame(1, Credit(1 << 40))),
        ("finish", one_control_frame(1, Finish(4711))),
        ("close: normal", one_control_frame(1, Close(CloseReason::Normal))),
        ("close: reset", one_control_frame(1, Close(CloseReason::Reset))),
        ("close: over credit", one_control_frame(1, Close(CloseReason::OverCredit))),
        ("close: protocol", one_control_frame(1, Close(CloseReason::Protocol))),
        ("drain: the link", one_control_frame(0, Drain { deadline_ms: 30_000 })),
        ("drain: a connection, at once", one_control_frame(3, Drain { deadline_ms: 0 })),
    ]
}

/// Not a valid proof, but bytes that are easy to recognize.
fn proof() -> [u8; PROOF_BYTES] {
    std::array::from_fn(|index| 0x40 + index as u8)
}

fn opening(epoch: u32, life: u64, position: Position) -> Opening {
    let (session, key) =
        (SessionId(std::array::from_fn(|index| 0xa0 + index as u8)), KeyId([0, 1, 2, 3, 4, 5, 6, 7]));
    Opening { session, key, epoch, life, position, proof: proof() }
}

fn position(sent: u64, received: u64, credit: u64, finish_received: bool) -> Position {
    Position { sent, received, credit, finish_received }
}

fn version_2() -> Vec<(&'static str, Vec<ExpectedFrame>)> {
    let start = position(0, 0, 262_144, false);
    let connect = |client, server, epoch| {
        one_control_frame(
            1,
            Connect(Connect { client, server, credit: 262_144, session: Some(opening(epoch, 0, start)) }),
        )
    };
    let reconnect =
        |client, server, opening| one_control_frame(1, Reconnect(Reconnect { client, server, opening }));
    let resumed = |epoch, life, position| {
        one_control_frame(1, Resumed(Resumed { epoch, life, position, proof: proof() }))
    };
    let acknowledge = |received, finish_received, requests_answer| {
        one_control_frame(1, Acknowledge(Acknowledge { received, finish_received, requests_answer }))
    };
    let (v4, v6, server) = (address(V4), address(V6), Some(address("[2001:db8::1]:11211")));
    let life = 0x0123_4567_89ab_cdef;
    vec![
        ("connect: a session, IPv4", connect(v4, None, 1)),
        ("connect: a session, IPv6", connect(v6, server, 2)),
        ("acknowledge", acknowledge(1 << 33, false, false)),
        ("acknowledge: finish received", acknowledge(5, true, false)),
        ("acknowledge: answer at once", acknowledge(5, false, true)),
        ("acknowledge: both", acknowledge(5, true, true)),
        ("reconnect: IPv4", reconnect(v4, None, opening(3, life, position(9, 1 << 40, u64::MAX, true)))),
        (
            "reconnect: IPv6, to a server of IPv6",
            reconnect(v6, server, opening(4, 1, position(1, 2, 3, false))),
        ),
        ("resumed", resumed(3, life, position(8, 7, 6, true))),
        ("resumed: no finish received", resumed(4, 1, start)),
        ("refused: gone", one_control_frame(1, Refused(RefuseReason::Gone))),
        ("refused: stale", one_control_frame(1, Refused(RefuseReason::Stale))),
        ("refused: mismatch", one_control_frame(1, Refused(RefuseReason::Mismatch))),
        ("close: moved", one_control_frame(1, Close(CloseReason::Moved))),
        ("close: lost", one_control_frame(1, Close(CloseReason::Lost))),
    ]
}

fn emit_all(expected_frames: &[ExpectedFrame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in expected_frames {
        match *frame {
            Data(kind, sender, more, payload) => {
                let header = Header { kind, more, length: payload.len() as u16, id: Id(sender) };
                bytes.extend_from_slice(&header.emit());
                bytes.extend_from_slice(payload);
            }
            ExpectedFrame::Control(sender, control) => control.emit(Id(sender), &mut bytes),
        }
    }
    bytes
}

/// Parses `bytes` and compares the pieces with the expected frames.
fn check_parse(name: &str, mut bytes: &[u8], expected_frames: &[ExpectedFrame]) {
    let mut disassembler = Disassembler::new();
    for frame in expected_frames {
        let piece = disassembler.next(&mut bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = match *frame {
            Data(kind, sender, more, bytes) => Piece::Data { kind, id: Id(sender), bytes, last: !more },
            ExpectedFrame::Control(sender, control) => Piece::Control { id: Id(sender), control },
        };
        assert_eq!(piece, Some(expected), "{name} should be parsed");
    }
    assert!(
        bytes.is_empty() && disassembler.is_between_frames(),
        "{name}: the disassembler should use up the vector"
    );
}

/// The layout of *acknowledge* is that of version 2. In version 3 servers also send it for connections without a
/// session.
fn version_3() -> Vec<(&'static str, Vec<ExpectedFrame>)> {
    let acknowledge_requests = |received, finish_received| {
        one_control_frame(
            7,
            Acknowledge(self::Acknowledge { received, finish_received, requests_answer: false }),
        )
    };
    vec![
        ("acknowledge: requests", acknowledge_requests(1500, false)),
        ("acknowledge: requests and their end", acknowledge_requests(1500, true)),
    ]
}

#[test]
fn frames_equal_their_vectors() {
    for version in VERSIONS {
        let (vectors, frames) = frames_of(version);
        for (name, expected_frames) in &frames {
            let bytes = vectors.bytes(name);
            let emitted = emit_all(expected_frames);
            assert!(
                emitted == bytes,
                "{name} should equal its vector; it is emitted as\n{}\ninstead of\n{}",
                hex(&emitted),
                hex(bytes)
            );
            check_parse(name, bytes, expected_frames);
        }
        for (name, _) in vectors.iter() {
            assert!(
                frames.iter().any(|(known, _)| *known == name),
                "vector {name:?} should have an expected frame"
            );
        }
    }
}

#[test]
fn version_1_has_no_messages_of_sessions() {
    for (name, expected_frames) in version_1() {
        for frame in expected_frames {
            assert!(
                !matches!(frame, ExpectedFrame::Control(_, control) if control.is_of_sessions()),
                "{name} should not be a message of sessions"
            );
        }
    }
}

#[test]
fn version_2_adds_only_messages_of_sessions() {
    for (name, expected_frames) in version_2() {
        for frame in expected_frames {
            assert!(
                matches!(frame, ExpectedFrame::Control(_, control) if control.is_of_sessions()),
                "{name} should be a message of sessions"
            );
        }
    }
}

#[test]
fn every_message_has_a_vector() {
    let all: Vec<u8> = VERSIONS.collect();
    let vectors: Vec<Vectors> = all.iter().map(|version| frames_of(*version).0).collect();
    let frames: Vec<&[u8]> = vectors.iter().flat_map(Vectors::iter).map(|(_, bytes)| bytes).collect();
    let has_frame = |kind: Kind, matches: &dyn Fn(&[u8]) -> bool| {
        frames.iter().any(|frame| frame[0] & 0x7f == kind as u8 && matches(&frame[HEADER_BYTES..]))
    };
    for kind in (0..0x80).filter_map(Kind::from_code) {
        assert!(has_frame(kind, &|_| true), "{kind:?} should have a vector");
        assert!(
            !kind.is_data() || frames.iter().any(|frame| frame[0] == kind as u8 | 0x80),
            "{kind:?} should have a vector with the more bit"
        );
    }
    for code in 0..=u8::MAX {
        for kind in [Kind::Refused, Kind::Close] {
            let is_known = Control::parse(kind, &[code]).is_ok();
            assert_eq!(
                has_frame(kind, &|payload| payload == [code]),
                is_known,
                "each known reason should have a vector, and no other: {kind:?}, reason {code}"
            );
        }
        let is_known = Control::parse(Kind::Acknowledge, &[0, 0, 0, 0, 0, 0, 0, 0, code]).is_ok();
        assert_eq!(
            has_frame(Kind::Acknowledge, &|payload| payload[8] == code),
            is_known,
            "each known flag should have a vector, and no other: acknowledge, flags {code}"
        );
        let error = Control::parse(Kind::Connect, &[code]).unwrap_err();
        let is_known = error != spillway_wire::ControlError::Version(code);
        assert_eq!(
            has_frame(Kind::Connect, &|payload| payload[0] == code),
            is_known,
            "each known version should have a vector, and no other: connect, version {code}"
        );
    }
}

#[test]
fn preambles_equal_their_vectors() {
    let vectors = Vectors::read(include_str!("../golden/preamble.hex"));
    let key = KeyId([0, 1, 2, 3, 4, 5, 6, 7]);
    let nonce = std::array::from_fn(|index| 0x10 + index as u8);
    let hello = Hello { version_min: 1, version_max: 2, role: Role::Helper, key, nonce };
    let version_1_only = Hello { version_max: 1, role: Role::Client, ..hello };
    for (name, hello) in
        [("hello: helper, versions 1 to 2", hello), ("hello: client, version 1 only", version_1_only)]
    {
        let bytes = vectors.array::<HELLO_BYTES>(name);
        assert_eq!(
            (hello.emit(), Hello::parse(&bytes)),
            (bytes, Ok(hello)),
            "{name} should equal its vector"
        );
    }
    let nonce = std::array::from_fn(|index| 0x20 + index as u8);
    let (credit, connections_max) = (262_144, 65_535);
    let welcome =
        Welcome { version: 2, verdict: Verdict::Proceed, nonce, proof: proof(), credit, connections_max };
    for (name, welcome) in [
        ("welcome: version 2", welcome),
        ("welcome: version 1", Welcome { version: 1, credit: 65_536, connections_max: 1000, ..welcome }),
        ("refusal: version", Welcome::refusal(Verdict::Version)),
        ("refusal: key", Welcome::refusal(Verdict::Key)),
        ("refusal: full", Welcome::refusal(Verdict::Full)),
    ] {
        let bytes = vectors.array::<WELCOME_BYTES>(name);
        assert_eq!(
            (welcome.emit(), Welcome::parse(&bytes)),
            (bytes, Ok(welcome)),
            "{name} should equal its vector"
        );
    }
    assert_eq!(vectors.iter().count(), 7, "every vector should be compared");
    // Each role and verdict that can be parsed has a vector.
    let has_vector = |length, offset: usize, code| {
        vectors.iter().any(|(_, bytes)| bytes.len() == length && bytes[offset] == code)
    };
    for code in 0..=u8::MAX {
        let (mut hello, mut welcome) = (hello.emit(), welcome.emit());
        (hello[10], welcome[9]) = (code, code);
        assert_eq!(
            has_vector(HELLO_BYTES, 10, code),
            Hello::parse(&hello).is_ok(),
            "each known role should have a vector, and no other: role {code}"
        );
        assert_eq!(
            has_vector(WELCOME_BYTES, 9, code),
            Welcome::parse(&welcome).is_ok(),
            "each known verdict should have a vector, and no other: verdict {code}"
        );
    }
}

#[test]
fn constants_of_the_wire_format_are_unchanged() {
    assert_eq!((HEADER_BYTES, PAYLOAD_BYTES_MAX), (7, 65_535));
    assert_eq!(spillway_wire::CONTROL_BYTES_MAX, 256);
    assert_eq!((VERSIONS, SESSIONS_SINCE, REQUESTS_ACKNOWLEDGED_SINCE, ENCRYPTED_SINCE), (1..=4, 2, 3, 4));
    assert_eq!((RECORD_HEADER_BYTES, RECORD_PLAIN_BYTES_MAX, RECORD_TAG_BYTES), (18, 16_384, 16));
}
