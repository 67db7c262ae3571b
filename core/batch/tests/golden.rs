//! Complete links with fixed keys and nonces: both ends send exactly the bytes of `core/wire/golden/link.hex`.

#[path = "../../wire/tests/vectors/mod.rs"]
mod vectors;

use std::net::SocketAddr;
use std::sync::Arc;

use spillway_auth::{Key, KeyRing, LinkRandomness};
use spillway_batch::{
    CloseReason, Encryption, Id, Limits, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Role, Scratch,
    ServerConfig, ServerEvent, ServerLink,
};
use spillway_transport::Time;
use vectors::{Vectors, hex};

const NOW: Time = Time::ZERO;
const CLIENT: &str = "10.1.2.3:40000";

fn vectors() -> Vectors {
    Vectors::read(include_str!("../../wire/golden/link.hex"))
}

fn key(role: Role) -> Key {
    let first = if role == Role::Helper { 0x00 } else { 0x20 };
    Key::from_secret(std::array::from_fn(|index| first + index as u8))
}

/// Random bytes of a link: a nonce that counts from `nonce`, and an ephemeral secret that counts from `ephemeral`.
fn fresh(nonce: u8, ephemeral: u8) -> LinkRandomness {
    let byte = |index: usize| if index < 16 { nonce + index as u8 } else { ephemeral + (index - 16) as u8 };
    LinkRandomness::from_random(std::array::from_fn(byte))
}

fn opener(role: Role, encryption: Encryption) -> OpenerLink {
    let policy = PolicyKind::Fixed { interval: std::time::Duration::ZERO, size_bytes: 0 };
    let config = OpenerConfig { role, key: key(role), limits: Limits::default(), policy, encryption };
    OpenerLink::new(&config, NOW, fresh(0x10, 0x40))
}

fn server() -> ServerLink {
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, key(Role::Helper));
    ring.accept(Role::Client, key(Role::Client));
    let config = Arc::new(ServerConfig { ring, ..ServerConfig::default() });
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    ServerLink::new(config, NOW, address("10.0.0.2:40000"), address("10.0.0.5:11411"), fresh(0x20, 0x60))
}

fn assert_sends(batch: Option<spillway_transport::Chunk>, expected: &[u8], name: &str) {
    let batch = batch.unwrap_or_else(|| panic!("{name} should be sent"));
    let sent = batch.as_slice();
    assert!(
        sent == expected,
        "{name} should equal its vector; it is\n{}\ninstead of\n{}",
        hex(sent),
        hex(expected)
    );
}

#[test]
fn a_link_of_version_3_equals_its_vectors() {
    let vectors = vectors();
    let (mut opener, mut server) = (opener(Role::Helper, Encryption::Off), server());
    let bytes_of = |name: &str| vectors.bytes(name);

    assert_sends(opener.flush(NOW), bytes_of("version 3: hello"), "hello");
    assert_eq!(server.decompose(NOW, &mut bytes_of("version 3: hello")), Ok(None));
    assert_sends(server.flush(NOW), bytes_of("version 3: welcome"), "welcome");
    let established = opener.decompose(NOW, &mut bytes_of("version 3: welcome")).unwrap();
    assert!(
        matches!(established, Some(OpenerEvent::Established { .. })),
        "the opener should establish the link"
    );
    assert_sends(opener.flush(NOW), bytes_of("version 3: proof"), "proof");
    let established = server.decompose(NOW, &mut bytes_of("version 3: proof")).unwrap();
    assert!(
        matches!(established, Some(ServerEvent::Established { role: Role::Helper, .. })),
        "the server should establish the link with a helper"
    );

    let (id, client) = (Id(1), CLIENT.parse().unwrap());
    assert_eq!(opener.open(client, None), Ok(id));
    assert_eq!(opener.compose(id, b"get a\r\n"), 7);
    opener.finish(id);
    assert_sends(opener.flush(NOW), bytes_of("version 3: opener's batch"), "the opener's batch");
    let mut input = bytes_of("version 3: opener's batch");
    let mut next = || server.decompose(NOW, &mut input).unwrap();
    assert_eq!(next(), Some(ServerEvent::Connect { id, client, server: None }));
    assert_eq!(next(), Some(ServerEvent::Data { id, bytes: b"get a\r\n" }));
    assert_eq!((next(), next()), (Some(ServerEvent::Finished { id }), None));

    server.accept(id);
    assert_eq!(server.compose(id, b"END\r\n"), 5);
    server.close(id, CloseReason::Normal);
    assert_sends(server.flush(NOW), bytes_of("version 3: server's batch"), "the server's batch");
    let mut input = bytes_of("version 3: server's batch");
    let mut next = || opener.decompose(NOW, &mut input).unwrap();
    assert_eq!(next(), Some(OpenerEvent::Accepted { id }));
    assert_eq!(next(), Some(OpenerEvent::Data { id, bytes: b"END\r\n" }));
    assert_eq!((next(), next()), (Some(OpenerEvent::Closed { id, reason: CloseReason::Normal }), None));

    opener.close(id, CloseReason::Normal);
    assert_sends(opener.flush(NOW), bytes_of("version 3: opener's last batch"), "the opener's last batch");
    assert_eq!(server.decompose(NOW, &mut bytes_of("version 3: opener's last batch")), Ok(None));
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_link_of_version_4_equals_its_vectors() {
    let vectors = vectors();
    let (mut opener, mut server) = (opener(Role::Helper, Encryption::Preferred), server());
    let (mut scratch, mut opener_scratch) = (Scratch::new(), Scratch::new());
    let bytes_of = |name: &str| vectors.bytes(name);

    assert_sends(opener.flush(NOW), bytes_of("version 4: hello"), "hello");
    let mut input = server.unseal(NOW, bytes_of("version 4: hello"), &mut scratch);
    assert_eq!(server.decompose(NOW, &mut input), Ok(None));
    assert_sends(server.flush(NOW), bytes_of("version 4: welcome"), "welcome");
    let mut input = opener.unseal(NOW, bytes_of("version 4: welcome"), &mut opener_scratch);
    let established = opener.decompose(NOW, &mut input).unwrap();
    assert!(
        matches!(established, Some(OpenerEvent::Established { .. })),
        "the opener should establish the link"
    );
    // The proof is followed by the sealed batch of version 3.
    let (id, client) = (Id(1), CLIENT.parse().unwrap());
    assert_eq!(opener.open(client, None), Ok(id));
    assert_eq!(opener.compose(id, b"get a\r\n"), 7);
    opener.finish(id);
    assert_sends(opener.flush(NOW), bytes_of("version 4: proof and opener's batch"), "the opener's batch");
    let mut input = server.unseal(NOW, bytes_of("version 4: proof and opener's batch"), &mut scratch);
    assert_eq!(input, bytes_of("version 3: opener's batch"));
    let mut next = || server.decompose(NOW, &mut input).unwrap();
    assert!(
        matches!(next(), Some(ServerEvent::Established { role: Role::Helper, .. })),
        "the server should establish the link with a helper"
    );
    assert_eq!(next(), Some(ServerEvent::Connect { id, client, server: None }));
    assert_eq!(next(), Some(ServerEvent::Data { id, bytes: b"get a\r\n" }));
    assert_eq!((next(), next()), (Some(ServerEvent::Finished { id }), None));

    server.accept(id);
    assert_eq!(server.compose(id, b"END\r\n"), 5);
    server.close(id, CloseReason::Normal);
    assert_sends(server.flush(NOW), bytes_of("version 4: server's batch"), "the server's batch");
    let mut input = opener.unseal(NOW, bytes_of("version 4: server's batch"), &mut opener_scratch);
    assert_eq!(input, bytes_of("version 3: server's batch"));
    while opener.decompose(NOW, &mut input).unwrap().is_some() {}

    opener.close(id, CloseReason::Normal);
    assert_sends(opener.flush(NOW), bytes_of("version 4: opener's last batch"), "the opener's last batch");
    let mut input = server.unseal(NOW, bytes_of("version 4: opener's last batch"), &mut scratch);
    assert_eq!(server.decompose(NOW, &mut input), Ok(None));
    assert_eq!(server.connections(), 0);
}

#[test]
fn answers_to_openers_of_older_versions_equal_their_vectors() {
    let vectors = vectors();
    for version in [1, 2] {
        let bytes_of = |what: &str| vectors.bytes(&format!("opener of version {version}: {what}"));
        let mut server = server();
        assert_eq!(server.decompose(NOW, &mut bytes_of("hello")), Ok(None));
        assert_sends(server.flush(NOW), bytes_of("welcome"), "welcome");
        let established = server.decompose(NOW, &mut bytes_of("proof")).unwrap();
        assert!(
            matches!(established, Some(ServerEvent::Established { .. })),
            "the server should establish the link"
        );
    }
}

#[test]
fn answers_to_a_server_of_version_1_equal_their_vectors() {
    let vectors = vectors();
    let mut opener = opener(Role::Client, Encryption::Off);
    assert_sends(opener.flush(NOW), vectors.bytes("server of version 1: hello"), "hello");
    let established = opener.decompose(NOW, &mut vectors.bytes("server of version 1: welcome")).unwrap();
    assert!(
        matches!(established, Some(OpenerEvent::Established { .. })),
        "the opener should establish the link"
    );
    assert_sends(opener.flush(NOW), vectors.bytes("server of version 1: proof"), "proof");
}
