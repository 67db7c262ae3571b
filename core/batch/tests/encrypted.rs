//! Encrypted links: an attacker on the path cannot disable encryption, and cannot alter a byte without being detected.

#[allow(dead_code, reason = "this test uses only the keys and configurations of `pair`")]
mod pair;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use spillway_auth::{Key, KeyRing};
use spillway_batch::{
    Encryption, Id, Limits, LinkError, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Role, Scratch,
    ServerConfig, ServerEvent, ServerLink,
};
use spillway_transport::Time;
use spillway_wire::record::RECORD_BYTES_MAX;

const NOW: Time = Time(1);
const CLIENT: &str = "10.0.0.3:5000";

fn opener(key: Key, encryption: Encryption) -> OpenerLink {
    let policy = PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 };
    let config = OpenerConfig { role: Role::Helper, key, limits: Limits::default(), policy, encryption };
    OpenerLink::new(&config, NOW, pair::fresh(7))
}

fn server(ring: KeyRing, encryption: Encryption) -> ServerLink {
    let (peer, local) = ("127.0.0.1:40000".parse().unwrap(), "127.0.0.1:11411".parse().unwrap());
    let config = Arc::new(ServerConfig { ring, encryption, ..ServerConfig::default() });
    ServerLink::new(config, NOW, peer, local, pair::fresh(8))
}

fn ring() -> KeyRing {
    pair::server_config(Limits::default()).ring.clone()
}

fn opener_output(opener: &mut OpenerLink) -> Vec<u8> {
    opener.flush(NOW).map_or(Vec::new(), |batch| batch.as_slice().to_vec())
}

fn server_output(server: &mut ServerLink) -> Vec<u8> {
    server.flush(NOW).map_or(Vec::new(), |batch| batch.as_slice().to_vec())
}

fn receive_at_server(server: &mut ServerLink, wire: &[u8]) -> (Vec<u8>, Result<(), LinkError>) {
    let (mut scratch, mut received) = (Scratch::new(), Vec::new());
    let mut input = server.unseal(NOW, wire, &mut scratch);
    loop {
        match server.decompose(NOW, &mut input) {
            Ok(Some(ServerEvent::Data { bytes, .. })) => received.extend_from_slice(bytes),
            Ok(Some(_)) => {}
            Ok(None) => return (received, Ok(())),
            Err(error) => return (received, Err(error)),
        }
    }
}

fn receive_at_opener(opener: &mut OpenerLink, wire: &[u8]) -> (Vec<u8>, Result<(), LinkError>) {
    let (mut scratch, mut received) = (Scratch::new(), Vec::new());
    let mut input = opener.unseal(NOW, wire, &mut scratch);
    loop {
        match opener.decompose(NOW, &mut input) {
            Ok(Some(OpenerEvent::Data { bytes, .. })) => received.extend_from_slice(bytes),
            Ok(Some(_)) => {}
            Ok(None) => return (received, Ok(())),
            Err(error) => return (received, Err(error)),
        }
    }
}

fn established() -> (OpenerLink, ServerLink, Id) {
    let mut ends = (opener(pair::helper_key(), Encryption::Preferred), server(ring(), Encryption::Preferred));
    let (opener, server) = (&mut ends.0, &mut ends.1);
    receive_at_server(server, &opener_output(opener)).1.unwrap();
    receive_at_opener(opener, &server_output(server)).1.unwrap();
    let id = opener.open(CLIENT.parse().unwrap(), None).unwrap();
    receive_at_server(server, &opener_output(opener)).1.unwrap();
    server.accept(id);
    receive_at_opener(opener, &server_output(server)).1.unwrap();
    assert!(opener.is_encrypted() && server.is_encrypted(), "both ends should be encrypted");
    (ends.0, ends.1, id)
}

/// XORs each byte of the handshake with each single bit, with masks that turn 4 (the link version) into 1, 2 and 3, and
/// with 0xff. At most one end is then established, and only with an encrypted link.
#[test]
fn no_alteration_of_the_handshake_disables_encryption() {
    let lengths = [36, 68 + 48, 32 + 48]; // *hello*; *welcome* and *exchange*; proof and *exchange*
    let masks = (0..8).map(|bit| 1 << bit).chain([4 ^ 1, 4 ^ 2, 4 ^ 3, 0xff]);
    let cases = lengths
        .iter()
        .enumerate()
        .flat_map(|(message, length)| (0..*length).map(move |offset| (message, offset)));
    let mut failed = 0;
    for ((message, offset), mask) in cases.flat_map(|case| masks.clone().map(move |mask| (case, mask))) {
        let mut opener = opener(pair::helper_key(), Encryption::Preferred);
        let mut server = server(ring(), Encryption::Preferred);
        let altered = |number: usize, mut bytes: Vec<u8>| {
            assert!(
                number != 2 || bytes.is_empty() || bytes.len() == lengths[2],
                "the third message should be sent whole"
            );
            if number == message && !bytes.is_empty() {
                bytes[offset] ^= mask;
            }
            bytes
        };
        let outcome = receive_at_server(&mut server, &altered(0, opener_output(&mut opener)))
            .1
            .and_then(|()| receive_at_opener(&mut opener, &altered(1, server_output(&mut server))).1)
            .and_then(|()| receive_at_server(&mut server, &altered(2, opener_output(&mut opener))).1);
        let case = format!("byte {offset} of message {message}, mask {mask:#04x}: {outcome:?}");
        assert!(
            !opener.is_established() || opener.is_encrypted(),
            "the opener should not establish a link without encryption: {case}"
        );
        assert!(
            !server.is_established() || server.is_encrypted(),
            "the server should not establish a link without encryption: {case}"
        );
        assert!(
            !(opener.is_established() && server.is_established()),
            "the two ends should not both establish an altered handshake: {case}"
        );
        failed += usize::from(outcome.is_err());
    }
    // In the other cases no end reports an error: because of the altered byte, an end waits for bytes that are not sent.
    // 232 bytes with 12 masks are 2784 cases.
    assert!(failed > 2500, "most alterations should fail the handshake, and only {failed} did");
}

#[test]
fn decompose_rejects_bytes_that_were_not_unsealed() {
    let (mut opener, mut server, id) = established();
    opener.compose(id, b"get x");
    let batch = opener_output(&mut opener);
    assert_eq!(server.decompose(NOW, &mut batch.as_slice()), Err(LinkError::Sealed));
    // Plain frames that an attacker inserts are rejected too.
    let (_, mut server, _) = established();
    let mut frame = Vec::new();
    spillway_batch::Control::Credit(1).emit(id, &mut frame);
    spillway_batch::Control::Credit(2).emit(id, &mut frame);
    assert_eq!(server.decompose(NOW, &mut frame.as_slice()), Err(LinkError::Sealed));
    assert!(
        receive_at_server(&mut established().1, &frame).1.is_err(),
        "plain bytes should be rejected on an encrypted link"
    );
}

#[test]
fn the_longest_record_is_held_until_it_is_complete() {
    let (mut opener, mut server, id) = established();
    let request = vec![7; 60_000];
    assert_eq!(opener.compose(id, &request), request.len());
    let batch = opener_output(&mut opener);
    let (first, rest) = batch.split_at(RECORD_BYTES_MAX - 1);
    assert_eq!(receive_at_server(&mut server, first), (Vec::new(), Ok(())));
    assert_eq!(receive_at_server(&mut server, rest), (request, Ok(())));
}

/// Both ends fail when the rest of a record is withheld, but not after a pause of their own process.
#[test]
fn a_record_that_stays_incomplete_ends_the_link() {
    let at = |seconds: u64| Time(NOW.0 + seconds * 1_000_000_000);
    let receive = |link: &mut ServerLink, now, wire: &[u8]| {
        let mut scratch = Scratch::new();
        let mut input = link.unseal(now, wire, &mut scratch);
        while link.decompose(now, &mut input).unwrap().is_some() {}
    };
    // A part of the sealed length, the whole sealed length (18 bytes), and the length with a part of the ciphertext.
    for piece_bytes in [5, 18, 30] {
        let (mut opener, mut server, id) = established();
        assert_eq!(server.poll_timeout(), None);
        opener.compose(id, b"get x");
        let batch = opener_output(&mut opener);
        let (first, rest) = batch.split_at(piece_bytes);
        receive(&mut server, at(0), first);
        assert_eq!(server.poll_timeout(), Some(at(5)));
        assert_eq!(server.handle_timeout(at(4)), Ok(()));
        // The process paused for a minute: the rest may be in its socket.
        assert_eq!(server.handle_timeout(at(60)), Ok(()));
        assert_eq!(server.poll_timeout(), Some(at(65)));
        receive(&mut server, at(64), rest);
        assert_eq!(
            (server.poll_timeout(), server.handle_timeout(at(90))),
            (None, Ok(())),
            "a complete record should need no timeout"
        );

        let (mut opener, mut server, id) = established();
        opener.compose(id, b"get x");
        receive(&mut server, at(0), &opener_output(&mut opener)[..piece_bytes]);
        assert_eq!((server.handle_timeout(at(5)), server.poll_timeout()), (Ok(()), Some(at(10))));
        assert_eq!(server.handle_timeout(at(10)), Err(LinkError::RecordTimeout));
        assert_eq!(server.handle_timeout(at(20)), Ok(()), "the error should be reported once");
        assert_eq!(
            (server.poll_timeout(), server.poll_read_timeout()),
            (None, None),
            "a failed link should have no timeout"
        );

        let (mut opener, mut server, id) = established();
        server.compose(id, b"STORED");
        let batch = server_output(&mut server);
        assert_eq!(receive_at_opener(&mut opener, &batch[..piece_bytes]), (Vec::new(), Ok(())));
        assert_eq!(opener.poll_timeout(), Some(at(5)));
        assert_eq!(opener.handle_timeout(at(5)), Ok(()));
        assert_eq!(opener.handle_timeout(at(10)), Err(LinkError::RecordTimeout));
        assert_eq!(
            (opener.poll_timeout(), opener.poll_record_timeout()),
            (None, None),
            "no timeout should be left"
        );
    }
}

/// A record that arrives slowly holds memory like an incomplete one.
#[test]
fn a_record_that_arrives_too_slowly_ends_the_link() {
    let at = |seconds: u64| Time(NOW.0 + seconds * 1_000_000_000);
    let (mut opener, mut server, id) = established();
    opener.compose(id, &[7; 1_000]);
    let batch = opener_output(&mut opener);
    let mut scratch = Scratch::new();
    let mut ended_after_seconds = None;
    for (seconds, byte) in batch.chunks(1).enumerate() {
        let now = at(seconds as u64);
        let mut input = server.unseal(now, byte, &mut scratch);
        while server.decompose(now, &mut input).unwrap().is_some() {}
        if server.handle_timeout(now) == Err(LinkError::RecordTimeout) {
            ended_after_seconds = Some(seconds);
            break;
        }
    }
    assert_eq!(ended_after_seconds, Some(10));

    // Consecutive records each have their own time limit.
    let (mut opener, mut server, id) = established();
    for seconds in 0..60 {
        opener.compose(id, b"get x");
        let batch = opener_output(&mut opener);
        let (first, rest) = batch.split_at(batch.len() / 2);
        for part in [first, rest, &[]] {
            let mut input = server.unseal(at(seconds), part, &mut scratch);
            while server.decompose(at(seconds), &mut input).unwrap().is_some() {}
        }
        assert_eq!(server.handle_timeout(at(seconds)), Ok(()));
    }
}

#[test]
fn an_incomplete_record_does_not_end_a_link_while_reading_is_paused() {
    let at = |seconds: u64| Time(NOW.0 + seconds * 1_000_000_000);
    let (mut opener, mut server, id) = established();
    // The server stops reading when too many answers wait for the peer.
    while server.may_read() {
        for _ in 0..1000 {
            server.accept(id);
        }
    }
    opener.compose(id, b"get x");
    assert_eq!(receive_at_server(&mut server, &opener_output(&mut opener)[..30]), (Vec::new(), Ok(())));
    for seconds in [5, 10, 15, 20, 60] {
        assert_eq!(server.handle_timeout(at(seconds)), Ok(()));
    }
    let _ = server_output(&mut server);
    assert!(server.may_read(), "the server should read after its answers are sent");
    assert_eq!(
        (server.handle_timeout(at(65)), server.handle_timeout(at(70))),
        (Ok(()), Err(LinkError::RecordTimeout))
    );
}

#[test]
fn held_memory_includes_an_incomplete_record() {
    let (mut opener, mut server, id) = established();
    let reply = vec![7; 16_000];
    server.compose(id, &reply);
    let batch = server_output(&mut server);
    assert_eq!(opener.held_incomplete(), 0);
    receive_at_opener(&mut opener, &batch[..100]).1.unwrap();
    assert!(
        (16_000..=RECORD_BYTES_MAX).contains(&opener.held_incomplete()),
        "an incomplete record should count as held: {}",
        opener.held_incomplete()
    );
    assert!(opener.held() >= opener.held_incomplete(), "an incomplete record should count as held");
    assert_eq!(receive_at_opener(&mut opener, &batch[100..]), (reply, Ok(())));
    assert_eq!(opener.held_incomplete(), 0);
}

#[test]
fn required_encryption_rejects_older_peers_and_peers_without_a_key() {
    let handshake = |opener_encryption, server_encryption, key: fn() -> Key, ring: KeyRing| {
        let (mut opener, mut server) = (opener(key(), opener_encryption), server(ring, server_encryption));
        let at_server = receive_at_server(&mut server, &opener_output(&mut opener)).1;
        let at_opener = receive_at_opener(&mut opener, &server_output(&mut server)).1;
        (at_opener, at_server)
    };
    use Encryption::{Off, Preferred, Required};
    assert_eq!(handshake(Required, Required, pair::helper_key, ring()), (Ok(()), Ok(())));
    // A peer with older link versions only.
    let (at_opener, at_server) = handshake(Off, Required, pair::helper_key, ring());
    assert_eq!(at_server, Err(LinkError::Unencrypted));
    assert!(
        at_opener.unwrap_err().to_string().contains("link versions"),
        "the opener should report the versions"
    );
    let (at_opener, at_server) = handshake(Required, Off, pair::helper_key, ring());
    assert_eq!(at_opener, Err(LinkError::Unencrypted));
    assert!(
        matches!(at_server, Err(LinkError::Version { min: 4, .. })),
        "the server should require version 4"
    );
    // The well-known key for loopback.
    let (at_opener, at_server) = handshake(Preferred, Required, Key::loopback_only, KeyRing::loopback_only());
    assert_eq!(at_server, Err(LinkError::Unencrypted));
    assert!(at_opener.is_err(), "the opener should learn of the rejection");
    let (at_opener, _) = handshake(Required, Preferred, Key::loopback_only, KeyRing::loopback_only());
    assert_eq!(at_opener, Err(LinkError::Unencrypted));
}

#[test]
fn a_link_with_the_loopback_only_key_has_version_4_and_is_not_encrypted() {
    let mut opener = opener(Key::loopback_only(), Encryption::Preferred);
    let mut server = server(KeyRing::loopback_only(), Encryption::Preferred);
    receive_at_server(&mut server, &opener_output(&mut opener)).1.unwrap();
    let welcome = server_output(&mut server);
    assert_eq!((welcome.len(), welcome[8]), (68, 4), "*welcome* should have 68 bytes and version 4");
    receive_at_opener(&mut opener, &welcome).1.unwrap();
    receive_at_server(&mut server, &opener_output(&mut opener)).1.unwrap();
    assert!(
        server.is_established() && !server.is_encrypted() && !opener.is_encrypted(),
        "the link should be established without encryption"
    );
}

#[derive(Clone, Debug)]
enum Alteration {
    Flip(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Delete(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
}

impl Alteration {
    fn apply(&self, stream: &[u8]) -> Vec<u8> {
        let mut out = stream.to_vec();
        match self {
            Alteration::Flip(offset, mask) => out[offset.index(stream.len())] ^= mask,
            Alteration::Insert(offset, bytes) => {
                let offset = offset.index(stream.len());
                out.splice(offset..offset, bytes.iter().copied());
            }
            Alteration::Delete(offset, count) => {
                let offset = offset.index(stream.len());
                out.drain(offset..(offset + count).min(stream.len()));
            }
            Alteration::Repeat(offset, count) => {
                let offset = offset.index(stream.len());
                let repeated = stream[offset..(offset + count).min(stream.len())].to_vec();
                let end = offset + repeated.len();
                out.splice(end..end, repeated);
            }
        }
        out
    }
}

fn alteration() -> impl Strategy<Value = Alteration> {
    let offset = any::<prop::sample::Index>;
    prop_oneof![
        (offset(), 1..=u8::MAX).prop_map(|(offset, mask)| Alteration::Flip(offset, mask)),
        (offset(), prop::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(offset, bytes)| Alteration::Insert(offset, bytes)),
        (offset(), 1..200_usize).prop_map(|(offset, count)| Alteration::Delete(offset, count)),
        (offset(), 1..200_usize).prop_map(|(offset, count)| Alteration::Repeat(offset, count)),
    ]
}

proptest! {
    /// The server delivers a prefix of the data that was sent, and then fails, at the latest when the unaltered records
    /// that follow arrive.
    #[test]
    fn altered_streams_end_the_link_after_a_prefix(
        sizes in prop::collection::vec(1..3000_usize, 1..8),
        alteration in alteration(),
        piece_bytes in 1..5000_usize,
    ) {
        let (mut opener, mut server, id) = established();
        let (mut stream, mut sent) = (Vec::new(), Vec::new());
        for (number, size) in sizes.iter().enumerate() {
            let request: Vec<u8> = (0..*size).map(|offset| (offset * 31 + number) as u8).collect();
            prop_assert_eq!(opener.compose(id, &request), request.len());
            sent.extend(request);
            stream.extend(opener_output(&mut opener));
        }
        let altered = alteration.apply(&stream);
        prop_assert_ne!(&altered, &stream, "an alteration should change the stream");
        let (mut received, mut outcome) = (Vec::new(), Ok(()));
        // Unaltered bytes follow, which are long enough to complete any record that has begun.
        for _ in 0..6 {
            prop_assert_eq!(opener.compose(id, &[9; 4000]), 4000);
            stream.extend(opener_output(&mut opener));
        }
        let sealed_bytes = 4000 + 7 + 18 + 16; // with the frame's header, and the record's header and tag
        let rest = stream.split_off(stream.len() - 6 * sealed_bytes);
        for piece in altered.chunks(piece_bytes).chain([&rest[..]]) {
            let (more, result) = receive_at_server(&mut server, piece);
            received.extend(more);
            outcome = result;
            if outcome.is_err() {
                break;
            }
        }
        prop_assert!(outcome.is_err(), "an altered stream should end the link");
        prop_assert!(
            sent.starts_with(&received),
            "only a prefix of the sent bytes should be received: {} of {} bytes", received.len(), sent.len()
        );
    }

    #[test]
    fn arbitrary_bytes_after_the_handshake_do_not_panic(
        random_bytes in prop::collection::vec(any::<u8>(), 18..3000),
        piece_bytes in 1..100_usize,
    ) {
        let (mut opener, mut server, _) = established();
        for piece in random_bytes.chunks(piece_bytes) {
            let (at_server, at_opener) =
                (receive_at_server(&mut server, piece).0, receive_at_opener(&mut opener, piece).0);
            prop_assert!(
                at_server.is_empty() && at_opener.is_empty(),
                "random bytes should not be delivered as data"
            );
        }
    }

    #[test]
    fn a_stream_arrives_when_it_is_split_anywhere(piece_bytes in 1..40_000_usize, size in 1..100_000_usize) {
        let (mut opener, mut server, id) = established();
        let reply: Vec<u8> = (0..size).map(|offset| (offset * 7) as u8).collect();
        prop_assert_eq!(server.compose(id, &reply), size);
        let stream = server_output(&mut server);
        let mut received = Vec::new();
        for piece in stream.chunks(piece_bytes) {
            let (more, outcome) = receive_at_opener(&mut opener, piece);
            received.extend(more);
            prop_assert_eq!(outcome, Ok(()));
        }
        prop_assert!(received == reply, "the whole reply should be received");
    }
}
