//! Load datagrams are frozen: questions and answers are emitted as their vectors, and parsed from them.

mod vectors;

use spillway_wire::load::{ASK_BYTES, Ask, LOAD_BYTES, LOAD_VERSION, Load, SHARE_MAX, WEIGHT_MAX, exactly};
use spillway_wire::preamble::{KeyId, PROOF_BYTES};
use vectors::{Vectors, hex};

fn nonce() -> [u8; 16] {
    std::array::from_fn(|at| 0x10 + at as u8)
}

fn asks() -> Vec<(&'static str, Ask)> {
    let key = KeyId([0xec, 0x44, 0xd7, 0xe4, 0x25, 0x2b, 0xb6, 0x19]);
    let plain = Ask { asked: 2, key, nonce: nonce(), server: None };
    let server = |text: &str| Some(text.parse().unwrap());
    vec![
        ("ask", plain),
        ("ask: for a server of IPv4", Ask { server: server("198.51.100.1:11211"), ..plain }),
        ("ask: for a server of IPv6", Ask { asked: 8, server: server("[2001:db8::1]:11211"), ..plain }),
    ]
}

fn loads() -> Vec<(&'static str, Load)> {
    let idle = Load { nonce: nonce(), ..Load::default() };
    let busy = Load {
        cpu: 312,
        network: 45,
        connections: 20,
        memory: 1,
        load: 312_000,
        tentative: 2_500,
        lot: 0x1234,
        ..idle
    };
    let (share, weight) = (SHARE_MAX, WEIGHT_MAX);
    let full = Load {
        full: true,
        cpu: share,
        network: share,
        connections: share,
        memory: share,
        load: weight,
        tentative: weight,
        lot: u16::MAX,
        ..idle
    };
    vec![
        ("load", busy),
        ("load: full", full),
        ("load: draining", Load { draining: true, ..idle }),
        ("load: down", Load { down: true, ..idle }),
    ]
}

#[test]
fn datagrams_are_these_bytes() {
    let vectors = Vectors::read(include_str!("../golden/load.hex"));
    let proof_of = |bytes: &[u8]| -> [u8; PROOF_BYTES] { *bytes.last_chunk().expect("it ends with a proof") };
    for (name, ask) in asks() {
        let bytes: &[u8; ASK_BYTES] = exactly(vectors.bytes(name)).unwrap();
        let proof = proof_of(bytes);
        assert_eq!(hex(&ask.emit(&proof)), hex(bytes), "{name}");
        assert_eq!(Ask::parse(bytes), Ok((ask, proof)), "{name}");
        assert_eq!(Ask::proven(bytes), &bytes[..56], "{name}");
    }
    for (name, load) in loads() {
        let bytes: &[u8; LOAD_BYTES] = exactly(vectors.bytes(name)).unwrap();
        let proof = proof_of(bytes);
        assert_eq!(hex(&load.emit(&proof)), hex(bytes), "{name}");
        assert_eq!(Load::parse(bytes), Ok((load, proof)), "{name}");
        assert_eq!(Load::proven(bytes), &bytes[..48], "{name}");
    }
    assert_eq!(vectors.iter().count(), 7, "all of them");
    assert_eq!((LOAD_VERSION, ASK_BYTES, LOAD_BYTES), (1, 88, 80));
}
