//! A session's opening messages and answers, including proofs, are exactly the bytes of `core/wire/golden/session.hex`.

#[path = "../../wire/tests/vectors/mod.rs"]
mod vectors;

use std::net::SocketAddr;

use spillway_auth::{Key, KeyRing};
use spillway_session::{
    Carrier, ClientEvent, ClientSession, Opened, OpeningMessage, Sessions, StreamLimits, TableLimits,
};
use spillway_transport::Time;
use spillway_wire::preamble::Role;
use spillway_wire::session::SessionId;
use spillway_wire::{Control, HEADER_BYTES, Header, Id, Kind};
use vectors::{Vectors, hex};

const NOW: Time = Time::ZERO;

/// Frames as a link would carry them.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Carrier for Frames {
    fn data(&mut self, bytes: &[u8]) -> usize {
        let header = Header { kind: Kind::Request, more: false, length: bytes.len() as u16, id: Id(1) };
        self.0.extend_from_slice(&header.emit());
        self.0.extend_from_slice(bytes);
        bytes.len()
    }

    fn control(&mut self, control: Control) {
        control.emit(Id(1), &mut self.0);
    }
}

fn assert_is(control: Control, expected: &[u8], name: &str) -> Control {
    let mut said = Frames::default();
    said.control(control);
    assert!(said.0 == expected, "{name} is\n{}\ninstead of\n{}", hex(&said.0), hex(expected));
    Control::parse(control.kind(), &expected[HEADER_BYTES..]).unwrap()
}

fn first_words(carrier: u32, control: Control) -> OpeningMessage<u32> {
    match control {
        Control::Connect(connect) => {
            let opening = connect.session.expect("a session");
            OpeningMessage { carrier, kind: Kind::Connect, client: connect.client, opening }
        }
        Control::Reconnect(reconnect) => {
            let (client, opening) = (reconnect.client, reconnect.opening);
            OpeningMessage { carrier, kind: Kind::Reconnect, client, opening }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_begins_and_moves_with_these_bytes() {
    let vectors = Vectors::read(include_str!("../../wire/golden/session.hex"));
    let key = Key::from_secret(std::array::from_fn(|at| 0x20 + at as u8));
    let mut ring = KeyRing::new();
    ring.accept(Role::Client, key.clone());
    let id = SessionId(std::array::from_fn(|at| 0xa0 + at as u8));
    let mut client = ClientSession::new(key, id, StreamLimits::default());
    let mut table = Sessions::new(TableLimits::default(), 0x0102_0304_0506_0707);
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();

    let connect = client.open(NOW, address("192.0.2.7:40000"), None);
    let connect = assert_is(connect, vectors.bytes("connect"), "connect");
    let Opened::New { session, answer } = table.open(NOW, &ring, &first_words(1, connect)) else {
        panic!("it is new")
    };
    let resumed = assert_is(answer, vectors.bytes("resumed"), "resumed");
    assert_eq!(client.handle_control(NOW, &resumed), Ok(Some(ClientEvent::Attached { room: false })));

    assert_eq!(client.write(b"0123456789"), 10);
    client.transmit(NOW, &mut Frames::default());
    assert_eq!(table.handle_data(NOW, session, 1, 4), Ok(true));
    client.detach();

    let reconnect = client.open(NOW, address("[2001:db8::9]:4711"), None);
    let reconnect = assert_is(reconnect, vectors.bytes("reconnect"), "reconnect");
    let Opened::Resumed { answer, replaced, .. } = table.open(NOW, &ring, &first_words(2, reconnect)) else {
        panic!("it goes on")
    };
    assert_eq!(replaced, Some(1));
    let resumed = assert_is(answer, vectors.bytes("resumed again"), "resumed again");
    assert_eq!(client.handle_control(NOW, &resumed), Ok(Some(ClientEvent::Attached { room: false })));
    let mut rest = Frames::default();
    client.transmit(NOW, &mut rest);
    assert_eq!(hex(&rest.0), hex(vectors.bytes("the rest")));
}
