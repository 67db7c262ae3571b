//! Connection states are emitted as the bytes of their test vectors, and parsed from them and from those of version 1.

mod vectors;

use std::time::Duration;

use proptest::prelude::*;
use spillway_wire::state::{
    ATTACHMENT_BYTES_MAX, Agreed, Attachment, Buffer, ConnectionState, Controller, Epoch, Features, Finish,
    HandedRequest, KeepAlive, Phase, Purpose, QUEUE_BYTES_MAX, Receiving, Recovery, Segment, Sending,
    SocketOptions, Stage, Stamps, StateError, Undo,
};
use spillway_wire::switch::ServerId;
use spillway_wire::{Bytes, Chunks};
use vectors::{Vectors, hex};

/// A state with nothing in flight, and without optional fields.
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
            window_update: Some((1, 1)),
            scale: 7,
            finish: Finish::No,
            wants_room: false,
            is_watched: false,
            reported_acknowledged: 0,
            queue: Chunks::new(),
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
        attachment: None,
        request: None,
        socket_options: None,
    }
}

/// A state as a kernel could export it.
fn kernel() -> ConnectionState {
    let plain = plain();
    ConnectionState {
        sending: Sending { window_update: None, ..plain.sending },
        agreed: Agreed {
            stamps: Some(Stamps { clock: 0x0102_0304, recent: None, recent_age_ns: 0 }),
            ..plain.agreed
        },
        ..plain
    }
}

/// The state of a connection that moves with a request.
fn with_request() -> ConnectionState {
    let request = HandedRequest {
        origin: ServerId(3),
        number: 0x0102_0304_0506_0708,
        hops_left: 2,
        purpose: Purpose::NotServed,
    };
    ConnectionState { request: Some(request), ..kernel() }
}

/// The state of a kernel's connection, with all options of its socket.
fn with_socket_options() -> ConnectionState {
    let options = SocketOptions {
        no_delay: Some(true),
        cork: Some(false),
        keep_alive: Some(KeepAlive {
            is_on: true,
            idle: Duration::from_secs(7_200),
            interval: Duration::from_secs(75),
            probes: 9,
        }),
        user_timeout_ms: Some(30_000),
        congestion_control: Some("cubic".to_owned()),
        send_buffer: Some(Buffer { bytes: 87_040, is_fixed: false }),
        receive_buffer: Some(Buffer { bytes: 131_072, is_fixed: true }),
        reuses_address: Some(true),
        is_nonblocking: true,
        has_ended_reading: false,
        has_microsecond_stamps: true,
    };
    ConnectionState { socket_options: Some(options), ..kernel() }
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
            queue: b"forty bytes, of which one half is lost..".to_vec().into(),
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
            late: vec![(510, Bytes::from_static(b"late")), (505, Bytes::from_static(b"r"))],
            ..plain.receiving
        },
        agreed: Agreed {
            mss: 1448,
            has_sack: true,
            stamps: Some(Stamps { clock: 0x0102_0304, recent: Some(0x0506_0708), recent_age_ns: 12 }),
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
        attachment: Some(Attachment::new("memcached", &b"get key:1\r"[..]).unwrap()),
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
    let vectors = Vectors::read(include_str!("../golden/state-2.hex"));
    for (name, state) in [
        ("kernel", kernel()),
        ("everything", full()),
        ("request", with_request()),
        ("socket options", with_socket_options()),
    ] {
        let bytes = emitted(&state);
        assert_eq!(hex(&bytes), hex(vectors.bytes(name)), "{name} should equal its vector");
        assert_eq!(ConnectionState::parse(&bytes), Ok(state), "{name} should be parsed");
    }
    assert_eq!(
        ConnectionState::parse(vectors.bytes("unknown extensions")),
        Ok(full()),
        "unknown extensions should be skipped"
    );
}

#[test]
fn states_of_version_1_are_read_and_written_in_version_2() {
    let vectors = Vectors::read(include_str!("../golden/state-1.hex"));
    let full = ConnectionState { attachment: None, ..full() };
    for (name, state) in [("plain", plain()), ("everything", full)] {
        let read = ConnectionState::parse(vectors.bytes(name)).expect("a valid state");
        assert_eq!(read, state, "{name} should be parsed");
        assert_eq!(ConnectionState::parse(&emitted(&read)), Ok(state), "{name} should be written again");
    }
}

/// The head of version 2: magic, version, reserved bytes, needed features, lengths of fields and data.
const HEAD_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;

/// Corrects the checksum, so that `parse` reaches the fields.
fn with_correct_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - CHECKSUM_BYTES;
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// The state with a valid checksum, after a change of its bytes.
fn parse_changed(
    state: &ConnectionState,
    change: impl FnOnce(&mut Vec<u8>),
) -> Result<ConnectionState, StateError> {
    let mut bytes = emitted(state);
    change(&mut bytes);
    ConnectionState::parse(&with_correct_checksum(bytes))
}

#[test]
fn altered_states_are_rejected_with_their_cause() {
    let parse_altered = |offset: usize, value: u8| {
        let mut bytes = emitted(&full());
        bytes[offset] = value;
        ConnectionState::parse(&bytes)
    };
    assert_eq!(parse_altered(0, 0), Err(StateError::Magic));
    for version in [0, 3, 9] {
        assert_eq!(parse_altered(8, version), Err(StateError::Version(version)));
    }
    assert_eq!(parse_altered(16, 1), Err(StateError::Truncated), "a longer length of the fields");
    assert_eq!(parse_altered(23, 1), Err(StateError::Length), "a shorter length of the data");
    assert_eq!(parse_altered(40, 1), Err(StateError::Checksum));
    assert_eq!(parse_changed(&full(), |bytes| bytes[9] = 1), Err(StateError::Field("reserved bytes")));
    let cut = |bytes: &mut Vec<u8>| {
        let fields = bytes.len() - HEAD_BYTES - CHECKSUM_BYTES - 1;
        bytes[16..20].copy_from_slice(&(fields as u32).to_be_bytes()); // a few hundred
        bytes.pop();
    };
    assert_eq!(parse_changed(&kernel(), cut), Err(StateError::Truncated), "fields without their last byte");
}

#[test]
fn a_cut_or_lengthened_state_is_rejected() {
    let mut bytes = emitted(&full());
    for end in 0..bytes.len() {
        assert_eq!(ConnectionState::parse(&bytes[..end]), Err(StateError::Truncated), "{end} bytes");
    }
    bytes.push(0);
    assert_eq!(ConnectionState::parse(&bytes), Err(StateError::Length));
}

#[test]
fn features_that_a_reader_must_know_are_refused_by_name() {
    let with_needs =
        |bits: u32| parse_changed(&full(), |bytes| bytes[12..16].copy_from_slice(&bits.to_be_bytes()));
    assert_eq!(full().needs(), Features::GATE.with(Features::ATTACHMENT));
    assert_eq!(kernel().needs(), Features::default());
    assert_eq!(with_needs(3), Ok(full()));
    let unknown = Features::from_bits(0x8000_0000);
    assert_eq!(with_needs(0x8000_0003), Err(StateError::Features(unknown)));
    assert_eq!(
        StateError::Features(unknown).to_string(),
        "the connection's state needs unknown features (bits 0x80000000), which this end does not have: upgrade this end"
    );
    for wrong in 0..3 {
        assert_eq!(with_needs(wrong), Err(StateError::Field("needed features")), "{wrong}");
    }
}

#[test]
fn oversized_lists_are_rejected_before_they_are_read() {
    let at_end = emitted(&kernel()).len() - CHECKSUM_BYTES;
    let count_of_extensions = |count: u32| {
        parse_changed(&kernel(), |bytes| bytes[at_end - 4..at_end].copy_from_slice(&count.to_be_bytes()))
    };
    assert_eq!(count_of_extensions(65), Err(StateError::TooMany("extensions")));
    assert_eq!(count_of_extensions(64), Err(StateError::Truncated));
    // Of "everything", the queue's length comes directly before the peer's initial number.
    let bytes = emitted(&full());
    let initial = 0xbeef_0002_u32.to_be_bytes();
    let at = bytes.windows(4).position(|four| four == initial).unwrap();
    let length_of_queue = |length: usize| {
        let length = u32::try_from(length).unwrap();
        parse_changed(&full(), |bytes| bytes[at - 4..at].copy_from_slice(&length.to_be_bytes()))
    };
    assert_eq!(length_of_queue(QUEUE_BYTES_MAX + 1), Err(StateError::TooMany("bytes to send")));
    assert_eq!(length_of_queue(QUEUE_BYTES_MAX), Err(StateError::Truncated));
    assert_eq!(length_of_queue(39), Err(StateError::Length), "a byte of data that belongs to no queue");
}

#[test]
fn an_attachment_has_a_valid_name_and_at_most_64_kb() {
    let largest = Attachment::new("kv", vec![7; ATTACHMENT_BYTES_MAX]).unwrap();
    let state = ConnectionState { attachment: Some(largest), ..kernel() };
    assert_eq!(ConnectionState::parse(&emitted(&state)), Ok(state.clone()));
    let at = emitted(&state).windows(6).position(|six| six == b"\0\0\0\x02kv").unwrap();
    let changed = |offset: usize, value: u8| parse_changed(&state, |bytes| bytes[at + offset] = value);
    assert_eq!(changed(4, b' '), Err(StateError::Field("protocol of the attachment")));
    assert_eq!(changed(4, 0xff), Err(StateError::Field("protocol of the attachment")));
    assert_eq!(changed(3, 65), Err(StateError::TooMany("bytes in the name of the attachment's protocol")));
    assert_eq!(changed(9, 1), Err(StateError::TooMany("attached bytes")));
}

#[test]
fn a_request_has_an_origin_and_a_purpose_and_stands_once() {
    let state = with_request();
    assert_eq!(state.needs(), Features::REQUEST);
    let at = emitted(&state).len() - CHECKSUM_BYTES - 12;
    let changed = |offset: usize, value: u8| parse_changed(&state, |bytes| bytes[at + offset] = value);
    for (code, purpose) in [(1, Purpose::Serve), (2, Purpose::Served), (3, Purpose::NotServed)] {
        let request = changed(10, code).unwrap().request.unwrap();
        assert_eq!((request.purpose, request.hops_left), (purpose, 2));
    }
    assert_eq!(changed(8, 0), Err(StateError::Field("origin of the request")));
    for code in [0, 4] {
        assert_eq!(changed(10, code), Err(StateError::Field("purpose of the request")));
    }
    assert_eq!(changed(11, 1), Err(StateError::Field("reserved byte of the request")));
    // The fields are longer than the extension says.
    assert_eq!(parse_changed(&state, |bytes| bytes[at - 1] = 11), Err(StateError::Truncated));
    let unknown = parse_changed(&state, |bytes| bytes[at - 5] = 9);
    assert_eq!(unknown, Err(StateError::Field("needed features")), "the head announces a request");
    let twice = parse_changed(&state, |bytes| {
        let extension = bytes[at - 6..at + 12].to_vec();
        bytes[at - 7] = 2;
        bytes.splice(at - 6..at - 6, extension);
        let fields = u32::try_from(bytes.len() - HEAD_BYTES - CHECKSUM_BYTES).unwrap();
        bytes[16..20].copy_from_slice(&fields.to_be_bytes());
    });
    assert_eq!(twice, Err(StateError::Field("extension")));
}

#[test]
fn socket_options_need_no_feature_and_are_checked() {
    let state = with_socket_options();
    assert_eq!(state.needs(), Features::default());
    let none = ConnectionState { socket_options: Some(SocketOptions::default()), ..kernel() };
    assert_eq!(ConnectionState::parse(&emitted(&none)), Ok(none.clone()));
    let at = emitted(&state).windows(5).position(|five| five == b"cubic").unwrap();
    let changed = |offset: usize, value: u8| parse_changed(&state, |bytes| bytes[offset] = value);
    assert_eq!(changed(at, b' '), Err(StateError::Field("name of the congestion control")));
    assert_eq!(changed(at - 1, 0), Err(StateError::Field("name of the congestion control")));
    let too_long = StateError::TooMany("bytes in the name of the congestion control");
    assert_eq!(changed(at - 1, 16), Err(too_long));
    let end = emitted(&state).len() - CHECKSUM_BYTES;
    assert_eq!(changed(end - 1, 2), Err(StateError::Field("flag")));
}

#[test]
fn queued_bytes_are_read_in_place() {
    let bytes = Bytes::from(emitted(&full()));
    let state = ConnectionState::decode(&bytes.clone().into()).unwrap();
    let is_inside = |part: &Bytes| bytes.as_ptr_range().contains(&part.as_ptr());
    assert!(state.sending.queue.chunks().iter().all(is_inside) && !state.sending.queue.is_empty());
    assert!(state.receiving.late.iter().all(|(_, bytes)| is_inside(bytes)));
    let written = state.encode();
    assert_eq!(written.to_vec(), bytes);
    let chunk = &state.sending.queue.chunks()[0];
    assert!(
        written.chunks().iter().any(|part| core::ptr::eq(part.as_ptr(), chunk.as_ptr())),
        "written without a copy"
    );
}

/// States with queues in several chunks, and other values in the fields that are new in version 2.
fn any_state() -> impl Strategy<Value = ConnectionState> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..3000);
    let queue = prop::collection::vec(bytes().prop_map(Bytes::from), 0..5);
    let late = prop::collection::vec((any::<u64>(), bytes().prop_map(Bytes::from)), 0..5);
    let attachment = prop::option::of(("[!-~]{1,64}", bytes()));
    let stamps = prop::option::of((any::<u32>(), any::<Option<u32>>(), any::<u64>()));
    let numbers = (any::<Option<(u64, u64)>>(), any::<Option<u64>>(), any::<bool>());
    (queue, late, attachment, stamps, numbers).prop_map(|(queue, late, attachment, stamps, numbers)| {
        let mut state = if numbers.2 { full() } else { kernel() };
        state.sending.queue = queue.into_iter().collect();
        state.receiving.late = late;
        state.request = with_request().request.filter(|_| numbers.1.is_some());
        state.socket_options = with_socket_options().socket_options.filter(|_| numbers.0.is_some());
        state.attachment = attachment.map(|(name, bytes)| Attachment::new(&name, bytes).unwrap());
        state.agreed.stamps =
            stamps.map(|(clock, recent, recent_age_ns)| Stamps { clock, recent, recent_age_ns });
        (state.sending.window_update, state.receiving.gate) = (numbers.0, numbers.1);
        state
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), version in 1_u8..=2) {
        prop_assert!(ConnectionState::parse(&bytes).is_err());
        let mut begun = b"SPWYCONN".to_vec();
        begun.push(version);
        begun.extend_from_slice(&bytes);
        prop_assert!(ConnectionState::parse(&begun).is_err());
    }

    #[test]
    fn arbitrary_fields_behind_a_valid_head_are_rejected_or_a_state(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        data in prop::collection::vec(any::<u8>(), 0..600),
        kept in 0_usize..600,
        needs in 0_u32..4,
    ) {
        // The first bytes are those of a valid state, so that also fields far behind are reached.
        let valid = emitted(&full());
        let kept = kept.min(valid.len() - HEAD_BYTES - CHECKSUM_BYTES);
        let fields_bytes = (kept + bytes.len()) as u32;
        let mut all = valid[..12].to_vec();
        for number in [needs, fields_bytes, data.len() as u32] {
            all.extend_from_slice(&number.to_be_bytes());
        }
        all.extend_from_slice(&valid[HEAD_BYTES..HEAD_BYTES + kept]);
        all.extend_from_slice(&bytes);
        all.extend_from_slice(&data);
        all.extend_from_slice(&[0; CHECKSUM_BYTES]);
        if let Ok(state) = ConnectionState::parse(&with_correct_checksum(all)) {
            prop_assert_eq!(ConnectionState::parse(&emitted(&state)), Ok(state));
        }
    }

    #[test]
    fn a_state_survives_a_round_trip_in_any_division_into_chunks(
        state in any_state(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let bytes = Bytes::from(emitted(&state));
        prop_assert_eq!(&state.encode().to_vec(), &bytes);
        prop_assert_eq!(&ConnectionState::decode(&state.encode()).unwrap(), &state);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let divided: Chunks = cuts.windows(2).map(|ends| bytes.slice(ends[0]..ends[1])).collect();
        prop_assert_eq!(ConnectionState::decode(&divided), Ok(state));
    }

    #[test]
    fn altered_fields_are_rejected_or_survive_a_round_trip(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        is_first_version in any::<bool>(),
    ) {
        let vectors = Vectors::read(if is_first_version {
            include_str!("../golden/state-1.hex")
        } else {
            include_str!("../golden/state-2.hex")
        });
        let mut bytes = vectors.bytes("everything").to_vec();
        let end = bytes.len() - CHECKSUM_BYTES;
        for (offset, value) in changes {
            bytes[12 + offset.index(end - 12)] = value;
        }
        if let Ok(state) = ConnectionState::parse(&with_correct_checksum(bytes)) {
            prop_assert_eq!(ConnectionState::parse(&emitted(&state)), Ok(state));
        }
    }
}
