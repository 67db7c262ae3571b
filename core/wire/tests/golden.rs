//! The wire format is frozen: every message of every link version is emitted as its vector, and parsed from it. A message
//! without a vector fails, too. docs/wire.md says how the format may change.

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
fn frames_of(version: u8) -> (Vectors, Vec<(&'static str, Vec<Said>)>) {
    match version {
        1 => (Vectors::read(include_str!("../golden/frames-1.hex")), version_1()),
        2 => (Vectors::read(include_str!("../golden/frames-2.hex")), version_2()),
        3 => (Vectors::read(include_str!("../golden/frames-3.hex")), version_3()),
        // Version 4 adds no frames: it carries those of version 3 in encrypted records, for which link.hex has vectors.
        4 => (Vectors::read(""), Vec::new()),
        _ => panic!("link version {version} has no vectors: add golden/frames-{version}.hex"),
    }
}

/// An expected frame.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    /// Kind, sender, *more* bit, payload.
    Data(Kind, u32, bool, &'static [u8]),
    Control(u32, Control),
}

use Said::Data;

fn says(sender: u32, control: Control) -> Vec<Said> {
    vec![Said::Control(sender, control)]
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const V4: &str = "192.0.2.7:40000";
const V6: &str = "[2001:db8::9]:4711";

fn version_1() -> Vec<(&'static str, Vec<Said>)> {
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
        ("connect: IPv4", says(1, Connect(Connect { client, server: None, credit: 65_536, session: None }))),
        (
            "connect: IPv6, to a server of IPv4",
            says(2, Connect(Connect { client: address(V6), server, credit: u64::MAX, session: None })),
        ),
        ("accepted", says(1, Accepted)),
        ("refused: full", says(1, Refused(RefuseReason::Full))),
        ("refused: forbidden", says(1, Refused(RefuseReason::Forbidden))),
        ("refused: unavailable", says(1, Refused(RefuseReason::Unavailable))),
        ("refused: unknown server", says(1, Refused(RefuseReason::UnknownServer))),
        ("credit", says(1, Credit(1 << 40))),
        ("finish", says(1, Finish(4711))),
        ("close: normal", says(1, Close(CloseReason::Normal))),
        ("close: reset", says(1, Close(CloseReason::Reset))),
        ("close: over credit", says(1, Close(CloseReason::OverCredit))),
        ("close: protocol", says(1, Close(CloseReason::Protocol))),
        ("drain: the link", says(0, Drain { deadline_ms: 30_000 })),
        ("drain: a connection, at once", says(3, Drain { deadline_ms: 0 })),
    ]
}

/// Not a valid proof, but bytes that are easy to recognize.
fn proof() -> [u8; PROOF_BYTES] {
    std::array::from_fn(|at| 0x40 + at as u8)
}

fn opening(epoch: u32, life: u64, position: Position) -> Opening {
    let (session, key) =
        (SessionId(std::array::from_fn(|at| 0xa0 + at as u8)), KeyId([0, 1, 2, 3, 4, 5, 6, 7]));
    Opening { session, key, epoch, life, position, proof: proof() }
}

fn at(sent: u64, received: u64, credit: u64, finish_received: bool) -> Position {
    Position { sent, received, credit, finish_received }
}

fn version_2() -> Vec<(&'static str, Vec<Said>)> {
    let start = at(0, 0, 262_144, false);
    let connect = |client, server, epoch| {
        says(1, Connect(Connect { client, server, credit: 262_144, session: Some(opening(epoch, 0, start)) }))
    };
    let reconnect = |client, server, opening| says(1, Reconnect(Reconnect { client, server, opening }));
    let resumed = |epoch, life, position| says(1, Resumed(Resumed { epoch, life, position, proof: proof() }));
    let acknowledge = |received, finish_received, answer| {
        says(1, Acknowledge(Acknowledge { received, finish_received, answer }))
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
        ("reconnect: IPv4", reconnect(v4, None, opening(3, life, at(9, 1 << 40, u64::MAX, true)))),
        ("reconnect: IPv6, to a server of IPv6", reconnect(v6, server, opening(4, 1, at(1, 2, 3, false)))),
        ("resumed", resumed(3, life, at(8, 7, 6, true))),
        ("resumed: no finish received", resumed(4, 1, start)),
        ("refused: gone", says(1, Refused(RefuseReason::Gone))),
        ("refused: stale", says(1, Refused(RefuseReason::Stale))),
        ("refused: mismatch", says(1, Refused(RefuseReason::Mismatch))),
        ("close: moved", says(1, Close(CloseReason::Moved))),
        ("close: lost", says(1, Close(CloseReason::Lost))),
    ]
}

fn written(said: &[Said]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in said {
        match *frame {
            Data(kind, sender, more, payload) => {
                let header = Header { kind, more, length: payload.len() as u16, id: Id(sender) };
                bytes.extend_from_slice(&header.emit());
                bytes.extend_from_slice(payload);
            }
            Said::Control(sender, control) => control.emit(Id(sender), &mut bytes),
        }
    }
    bytes
}

/// Parses `bytes` and compares the pieces with the expected frames.
fn check_read(name: &str, mut bytes: &[u8], said: &[Said]) {
    let mut disassembler = Disassembler::new();
    for frame in said {
        let piece = disassembler.next(&mut bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = match *frame {
            Data(kind, sender, more, bytes) => Piece::Data { kind, id: Id(sender), bytes, last: !more },
            Said::Control(sender, control) => Piece::Control { id: Id(sender), control },
        };
        assert_eq!(piece, Some(expected), "{name}");
    }
    assert!(bytes.is_empty() && disassembler.is_between_frames(), "{name}: bytes are left");
}

/// The layout of *acknowledge* is that of version 2. In version 3 servers also send it for connections without a session.
fn version_3() -> Vec<(&'static str, Vec<Said>)> {
    let told = |received, finish_received| {
        says(7, Acknowledge(self::Acknowledge { received, finish_received, answer: false }))
    };
    vec![
        ("acknowledge: requests", told(1500, false)),
        ("acknowledge: requests and their end", told(1500, true)),
    ]
}

#[test]
fn frames_are_these_bytes() {
    for version in VERSIONS {
        let (vectors, frames) = frames_of(version);
        for (name, said) in &frames {
            let bytes = vectors.bytes(name);
            let ours = written(said);
            assert!(ours == bytes, "{name} is written as\n{}\ninstead of\n{}", hex(&ours), hex(bytes));
            check_read(name, bytes, said);
        }
        for (name, _) in vectors.iter() {
            assert!(frames.iter().any(|(known, _)| *known == name), "nothing is compared with {name:?}");
        }
    }
}

#[test]
fn version_1_has_no_word_of_sessions() {
    for (name, said) in version_1() {
        for frame in said {
            assert!(!matches!(frame, Said::Control(_, control) if control.is_of_sessions()), "{name}");
        }
    }
}

#[test]
fn version_2_has_only_words_of_sessions() {
    for (name, said) in version_2() {
        for frame in said {
            assert!(matches!(frame, Said::Control(_, control) if control.is_of_sessions()), "{name}");
        }
    }
}

#[test]
fn every_message_has_a_vector() {
    let all: Vec<u8> = VERSIONS.collect();
    let vectors: Vec<Vectors> = all.iter().map(|version| frames_of(*version).0).collect();
    let frames: Vec<&[u8]> = vectors.iter().flat_map(Vectors::iter).map(|(_, bytes)| bytes).collect();
    let has = |kind: Kind, is: &dyn Fn(&[u8]) -> bool| {
        frames.iter().any(|frame| frame[0] & 0x7f == kind as u8 && is(&frame[HEADER_BYTES..]))
    };
    for kind in (0..0x80).filter_map(Kind::from_code) {
        assert!(has(kind, &|_| true), "no vector for {kind:?}");
        assert!(
            !kind.is_data() || frames.iter().any(|frame| frame[0] == kind as u8 | 0x80),
            "continued {kind:?}"
        );
    }
    for code in 0..=u8::MAX {
        for kind in [Kind::Refused, Kind::Close] {
            let is_known = Control::parse(kind, &[code]).is_ok();
            assert_eq!(has(kind, &|payload| payload == [code]), is_known, "{kind:?}, reason {code}");
        }
        let is_known = Control::parse(Kind::Acknowledge, &[0, 0, 0, 0, 0, 0, 0, 0, code]).is_ok();
        assert_eq!(
            has(Kind::Acknowledge, &|payload| payload[8] == code),
            is_known,
            "acknowledge, flags {code}"
        );
        let error = Control::parse(Kind::Connect, &[code]).unwrap_err();
        let is_known = error != spillway_wire::ControlError::Version(code);
        assert_eq!(has(Kind::Connect, &|payload| payload[0] == code), is_known, "connect, form {code}");
    }
}

#[test]
fn the_preamble_is_these_bytes() {
    let vectors = Vectors::read(include_str!("../golden/preamble.hex"));
    let key = KeyId([0, 1, 2, 3, 4, 5, 6, 7]);
    let nonce = std::array::from_fn(|at| 0x10 + at as u8);
    let hello = Hello { version_min: 1, version_max: 2, role: Role::Helper, key, nonce };
    let old = Hello { version_max: 1, role: Role::Client, ..hello };
    for (name, hello) in [("hello: helper, versions 1 to 2", hello), ("hello: client, version 1 only", old)] {
        let bytes = vectors.array::<HELLO_BYTES>(name);
        assert_eq!((hello.emit(), Hello::parse(&bytes)), (bytes, Ok(hello)), "{name}");
    }
    let nonce = std::array::from_fn(|at| 0x20 + at as u8);
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
        assert_eq!((welcome.emit(), Welcome::parse(&bytes)), (bytes, Ok(welcome)), "{name}");
    }
    assert_eq!(vectors.iter().count(), 7, "all of them");
    // Each role and verdict that can be parsed has a vector.
    let has =
        |length, at: usize, code| vectors.iter().any(|(_, bytes)| bytes.len() == length && bytes[at] == code);
    for code in 0..=u8::MAX {
        let (mut hello, mut welcome) = (hello.emit(), welcome.emit());
        (hello[10], welcome[9]) = (code, code);
        assert_eq!(has(HELLO_BYTES, 10, code), Hello::parse(&hello).is_ok(), "role {code}");
        assert_eq!(has(WELCOME_BYTES, 9, code), Welcome::parse(&welcome).is_ok(), "verdict {code}");
    }
}

#[test]
fn numbers_that_both_ends_must_know() {
    assert_eq!((HEADER_BYTES, PAYLOAD_BYTES_MAX), (7, 65_535));
    assert_eq!(spillway_wire::CONTROL_BYTES_MAX, 256);
    assert_eq!((VERSIONS, SESSIONS_SINCE, REQUESTS_ACKNOWLEDGED_SINCE, ENCRYPTED_SINCE), (1..=4, 2, 3, 4));
    assert_eq!((RECORD_HEADER_BYTES, RECORD_PLAIN_BYTES_MAX, RECORD_TAG_BYTES), (18, 16_384, 16));
}
