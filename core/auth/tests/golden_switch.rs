//! The tags of control messages do not change. The vectors were computed with another implementation of SipHash.

#[path = "../../wire/tests/vectors/mod.rs"]
mod vectors;

use spillway_auth::{Key, SwitchKey, SwitchRejection};
use spillway_wire::switch::{Body, Message, MessageError, Relay, View};
use vectors::{Vectors, hex};

/// The key of the daemon (id 0) or of a server.
fn key_of(id: u8) -> SwitchKey {
    SwitchKey::from_bytes(std::array::from_fn(|at| 0x10 * (id + 1) + at as u8))
}

const SOURCE: u8 = 1;
const TARGET: u8 = 2;

#[test]
fn tags_match_the_vectors() {
    let vectors = Vectors::read(include_str!("../../wire/golden/switch.hex"));
    for (name, bytes) in vectors.iter() {
        let view = View::of(bytes).unwrap_or_else(|why| panic!("{name}: {why}"));
        // A server and the switch use the server's key; a relayed message has the key of its receiver.
        let receiver = match Message::parse(&view).map(|message| message.body) {
            Ok(Body::Relay(Relay::Prepare { .. })) => TARGET,
            Ok(Body::Relay(Relay::Prepared { .. })) => SOURCE,
            _ => u8::try_from(view.sender()).unwrap(),
        };
        let key = key_of(receiver);
        assert!(key.verify_message(&view), "{name}");
        let message = key.parse(bytes).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(hex(&key.emit(&message)), hex(bytes), "{name}");
        assert_eq!(key_of(receiver + 1).parse(bytes), Err(SwitchRejection::Tag), "{name}");
    }
    assert_eq!(vectors.iter().count(), 54, "each vector should be tested here");
}

#[test]
fn a_message_that_is_cut_short_is_rejected_before_its_tag_is_computed() {
    let vectors = Vectors::read(include_str!("../../wire/golden/switch.hex"));
    let bytes = vectors.bytes("IPv4 get");
    for length in 0..bytes.len() {
        let rejection = key_of(0).parse(&bytes[..length]);
        assert_eq!(rejection, Err(SwitchRejection::Malformed(MessageError::Length(length))));
    }
}

#[test]
fn the_switch_key_of_a_key_file_does_not_change() {
    let secret = std::array::from_fn(|at| 0x20 + at as u8);
    assert_eq!(hex(Key::from_secret(secret).switch_key().as_bytes()), "7df9b21ee575d1dccfdbc1407cabe3a5");
}
