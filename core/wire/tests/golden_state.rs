//! Connection states are emitted as the bytes of their test vectors, and parsed from them.

mod vectors;

use proptest::prelude::*;
use spillway_wire::state::{
    Agreed, ConnectionState, Controller, Epoch, Finish, Phase, Receiving, Recovery, Segment, Sending, Stage,
    Stamps, StateError, Undo,
};
use vectors::{Vectors, hex};

/// A state as a kernel could export it: nothing in flight, and no optional fields.
fn plain() -> ConnectionState {
    ConnectionState {
        local: "192.0.2.1:11211".parse().unwrap(),
        peer: "198.51.100.7:40000".parse().unwrap(),
        stage: Stage::Established,
        listener: None,
        sending: Sending {
            initial: 0xfeed_0001,
            una: 1,
            nxt: 1,
            window: 65_535,
            window_largest: 65_535,
            window_update: (1, 1),
            scale: 7,
            finish: Finish::No,
            wants_room: false,
            is_watched: false,
            reported_acknowledged: 0,
            queue: Vec::new(),
        },
        receiving: Receiving {
            initial: 0xbeef_0002,
            next: 1,
            granted: 65_536,
            edge: 65_536,
            window_largest: 65_535,
            scale: 5,
            fin: None,
            reported_finished: false,
            gate: None,
            acknowledged: 1,
            owes: false,
            late: Vec::new(),
        },
        agreed: Agreed { mss: 1460, has_sack: false, stamps: None },
        received_age_ns: 0,
        recovery: None,
    }
}

/// A state with data in flight and all optional fields.
fn full() -> ConnectionState {
    let cubic = Controller::Cubic {
        w_max: 50_000,
        cwnd_prior: 60_000,
        epoch: Some(Epoch { age_ns: 9, paused_ns: Some(3), origin: 55_000, k: 1024, w_est: 40_000 }),
    };
    let segment = Segment {
        end: 1020,
        age_ns: 77,
        transmissions: 2,
        lost: true,
        retransmitted: true,
        ..Segment::default()
    };
    let undo = Undo {
        cwnd: 70_000,
        ssthresh: 80_000,
        controller: Controller::NewReno { acked: 5 },
        from: 1000,
        to: 1040,
        open: 1,
        first_age_ns: Some(70),
    };
    let plain = plain();
    ConnectionState {
        local: "[2001:db8::1]:443".parse().unwrap(),
        stage: Stage::LastAck,
        listener: Some(3),
        sending: Sending {
            una: 1000,
            nxt: 1040,
            finish: Finish::Unacknowledged,
            wants_room: true,
            is_watched: true,
            reported_acknowledged: 998,
            queue: b"forty bytes, of which one half is lost..".to_vec(),
            ..plain.sending
        },
        receiving: Receiving {
            next: 500,
            granted: 9000,
            edge: 9000,
            fin: Some(499),
            reported_finished: true,
            gate: Some(450),
            acknowledged: 450,
            owes: true,
            late: vec![(510, b"late".to_vec()), (505, b"r".to_vec())],
            ..plain.receiving
        },
        agreed: Agreed {
            mss: 1448,
            has_sack: true,
            stamps: Some(Stamps { clock: 0x0102_0304, recent: 0x0506_0708, recent_age_ns: 12 }),
        },
        received_age_ns: 1_000_000,
        recovery: Some(Recovery {
            mss: 1436,
            cwnd: 42_000,
            ssthresh: 35_000,
            controller: cubic,
            srtt_ns: 250_000,
            rttvar_ns: 60_000,
            rtt_min_ns: 200_000,
            backoffs: 1,
            timeouts: 1,
            phase: Phase::Loss,
            recovery_point: 1040,
            reduction: [1, 2, 3],
            high_rxt: 1020,
            is_rescued: true,
            duplicated: (1436, 1),
            threshold: 3,
            limited_to: 1040,
            sent_age_ns: 77,
            progress_age_ns: 88,
            latest_age_ns: 99,
            rto_in_ns: Some(200_000_000),
            probe_in_ns: Some(5_000_000),
            probe: Some((1040, true)),
            undo: Some(undo),
            segments: vec![
                segment,
                Segment { end: 1040, age_ns: 70, transmissions: 1, sacked: true, ..segment },
            ],
        }),
        ..plain
    }
}

fn emitted(state: &ConnectionState) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.emit(&mut bytes);
    bytes
}

#[test]
fn states_equal_their_vectors() {
    let vectors = Vectors::read(include_str!("../golden/state.hex"));
    for (name, state) in [("plain", plain()), ("everything", full())] {
        let bytes = emitted(&state);
        assert_eq!(hex(&bytes), hex(vectors.bytes(name)), "{name} should equal its vector");
        assert_eq!(ConnectionState::parse(&bytes), Ok(state), "{name} should be parsed");
    }
}

#[test]
fn altered_states_are_rejected_with_their_cause() {
    let bytes = emitted(&full());
    let parse_altered = |offset: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[offset] = value;
        ConnectionState::parse(&bytes)
    };
    assert_eq!(parse_altered(0, 0), Err(StateError::Magic));
    assert_eq!(parse_altered(8, 9), Err(StateError::Version(9)));
    assert_eq!(parse_altered(12, 1), Err(StateError::Length));
    assert_eq!(parse_altered(40, 1), Err(StateError::Checksum));
}

/// Corrects length and checksum, so that `parse` reaches the fields.
fn with_correct_length_and_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 8;
    let length = (end - 16) as u32;
    bytes[12..16].copy_from_slice(&length.to_be_bytes());
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = ConnectionState::parse(&bytes);
    }

    #[test]
    fn altered_fields_are_rejected_or_survive_a_round_trip(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        removed in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = emitted(&full());
        let fields_bytes = bytes.len() - 24; // without 16 bytes of head and 8 of checksum
        for (offset, value) in changes {
            bytes[16 + offset.index(fields_bytes)] = value;
        }
        if let Some(removed) = removed {
            bytes.remove(16 + removed.index(fields_bytes));
        }
        let bytes = with_correct_length_and_checksum(bytes);
        if let Ok(state) = ConnectionState::parse(&bytes) {
            prop_assert_eq!(emitted(&state), bytes);
        }
    }
}
