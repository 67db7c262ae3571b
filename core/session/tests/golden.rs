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

fn assert_bytes(control: Control, expected: &[u8], name: &str) -> Control {
    let mut emitted = Frames::default();
    emitted.control(control);
    assert!(emitted.0 == expected, "{name} should be\n{}\nnot\n{}", hex(expected), hex(&emitted.0));
    Control::parse(control.kind(), &expected[HEADER_BYTES..]).unwrap()
}

fn opening_message(carrier: u32, control: Control) -> OpeningMessage<u32> {
    match control {
        Control::Connect(connect) => {
            let opening = connect.session.expect("connect should begin a session");
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
fn opening_messages_and_answers_equal_their_vectors() {
    let vectors = Vectors::read(include_str!("../../wire/golden/session.hex"));
    let key = Key::from_secret(std::array::from_fn(|index| 0x20 + index as u8));
    let mut ring = KeyRing::new();
    ring.accept(Role::Client, key.clone());
    let id = SessionId(std::array::from_fn(|index| 0xa0 + index as u8));
    let mut client = ClientSession::new(key, id, StreamLimits::default());
    let mut table = Sessions::new(TableLimits::default(), 0x0102_0304_0506_0707);
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();

    let connect = client.open(NOW, address("192.0.2.7:40000"), None);
    let connect = assert_bytes(connect, vectors.bytes("connect"), "connect");
    let Opened::New { session, answer } = table.open(NOW, &ring, &opening_message(1, connect)) else {
        panic!("the session should be new")
    };
    let resumed = assert_bytes(answer, vectors.bytes("resumed"), "resumed");
    assert_eq!(client.handle_control(NOW, &resumed), Ok(Some(ClientEvent::Attached { room: false })));

    assert_eq!(client.write(b"0123456789"), 10);
    client.transmit(NOW, &mut Frames::default());
    assert_eq!(table.handle_data(NOW, session, 1, 4), Ok(true));
    client.detach();

    let reconnect = client.open(NOW, address("[2001:db8::9]:4711"), None);
    let reconnect = assert_bytes(reconnect, vectors.bytes("reconnect"), "reconnect");
    let Opened::Resumed { answer, replaced, .. } = table.open(NOW, &ring, &opening_message(2, reconnect))
    else {
        panic!("the session should be resumed")
    };
    assert_eq!(replaced, Some(1));
    let resumed = assert_bytes(answer, vectors.bytes("resumed again"), "resumed again");
    assert_eq!(client.handle_control(NOW, &resumed), Ok(Some(ClientEvent::Attached { room: false })));
    let mut rest = Frames::default();
    client.transmit(NOW, &mut rest);
    assert_eq!(hex(&rest.0), hex(vectors.bytes("the rest")));
}
