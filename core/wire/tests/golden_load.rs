//! Load datagrams are frozen: queries and replies are emitted as their test vectors, and parsed from these.

mod vectors;

use spillway_wire::load::{
    LOAD_MAX, LOAD_QUERY_BYTES, LOAD_REPLY_BYTES, LOAD_VERSION, LoadQuery, LoadReport, SHARE_MAX, exactly,
};
use spillway_wire::preamble::{KeyId, PROOF_BYTES};
use vectors::{Vectors, hex};

fn nonce() -> [u8; 16] {
    std::array::from_fn(|index| 0x10 + index as u8)
}

fn queries() -> Vec<(&'static str, LoadQuery)> {
    let key = KeyId([0xec, 0x44, 0xd7, 0xe4, 0x25, 0x2b, 0xb6, 0x19]);
    let plain = LoadQuery { helpers_asked: 2, key, nonce: nonce(), server: None };
    let server = |text: &str| Some(text.parse().unwrap());
    vec![
        ("ask", plain),
        ("ask: for a server of IPv4", LoadQuery { server: server("198.51.100.1:11211"), ..plain }),
        (
            "ask: for a server of IPv6",
            LoadQuery { helpers_asked: 8, server: server("[2001:db8::1]:11211"), ..plain },
        ),
    ]
}

fn reports() -> Vec<(&'static str, LoadReport)> {
    let idle = LoadReport { nonce: nonce(), ..LoadReport::default() };
    let busy = LoadReport {
        cpu: 312,
        network: 45,
        connections: 20,
        memory: 1,
        load: 312_000,
        tentative: 2_500,
        random: 0x1234,
        ..idle
    };
    let full = LoadReport {
        full: true,
        cpu: SHARE_MAX,
        network: SHARE_MAX,
        connections: SHARE_MAX,
        memory: SHARE_MAX,
        load: LOAD_MAX,
        tentative: LOAD_MAX,
        random: u16::MAX,
        ..idle
    };
    vec![
        ("load", busy),
        ("load: full", full),
        ("load: draining", LoadReport { draining: true, ..idle }),
        ("load: down", LoadReport { down: true, ..idle }),
    ]
}

#[test]
fn datagrams_equal_their_vectors() {
    let vectors = Vectors::read(include_str!("../golden/load.hex"));
    let proof_of = |bytes: &[u8]| -> [u8; PROOF_BYTES] { *bytes.last_chunk().unwrap() };
    for (name, query) in queries() {
        let bytes: &[u8; LOAD_QUERY_BYTES] = exactly(vectors.bytes(name)).unwrap();
        let proof = proof_of(bytes);
        assert_eq!(hex(&query.emit(&proof)), hex(bytes), "{name} should equal its vector");
        assert_eq!(LoadQuery::parse(bytes), Ok((query, proof)), "{name} should be parsed");
        assert_eq!(
            LoadQuery::bytes_under_proof(bytes),
            &bytes[..56],
            "the proof of {name} should cover the bytes before it"
        );
    }
    for (name, report) in reports() {
        let bytes: &[u8; LOAD_REPLY_BYTES] = exactly(vectors.bytes(name)).unwrap();
        let proof = proof_of(bytes);
        assert_eq!(hex(&report.emit(&proof)), hex(bytes), "{name} should equal its vector");
        assert_eq!(LoadReport::parse(bytes), Ok((report, proof)), "{name} should be parsed");
        assert_eq!(
            LoadReport::bytes_under_proof(bytes),
            &bytes[..48],
            "the proof of {name} should cover the bytes before it"
        );
    }
    assert_eq!(vectors.iter().count(), 7, "every vector should be compared");
    assert_eq!((LOAD_VERSION, LOAD_QUERY_BYTES, LOAD_REPLY_BYTES), (1, 88, 80));
}
