//! Parsing and emitting control messages of the switch: arbitrary bytes, arbitrary messages, and one error of each kind.

use proptest::prelude::*;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{
    Answer, Body, Endpoint, Flow, FlowState, Import, Kind, MESSAGE_BYTES, Message, MessageError, Relay,
    Request, SWITCH_MAGIC, ServerId, Site, Status, Subject, View, field,
};

fn endpoints() -> impl Strategy<Value = (Endpoint, Endpoint)> {
    let ipv4 = |address: [u8; 4], port| {
        Endpoint::from(std::net::SocketAddr::new(std::net::IpAddr::from(address), port))
    };
    prop_oneof![
        any::<([u8; 4], u16, [u8; 4], u16)>().prop_map(move |(a, p, b, q)| (ipv4(a, p), ipv4(b, q))),
        any::<([u8; 15], u16, [u8; 15], u16)>().prop_map(|(a, p, b, q)| {
            let ipv6 = |tail: [u8; 15], port| {
                let mut address = [0x20; 16];
                address[1..].copy_from_slice(&tail);
                Endpoint::new(address, port)
            };
            (ipv6(a, p), ipv6(b, q))
        }),
    ]
}

fn flow() -> impl Strategy<Value = Flow> {
    endpoints().prop_map(|(client, service)| Flow::new(client, service).unwrap())
}

fn service() -> impl Strategy<Value = Endpoint> {
    endpoints().prop_map(|(_, service)| service)
}

fn site() -> impl Strategy<Value = Site> {
    any::<([u8; 16], u16, [u8; 6])>().prop_filter_map("zeros are no site", |(address, port, mac)| {
        Site::new(Endpoint::new(address, port), Mac(mac))
    })
}

fn import() -> impl Strategy<Value = Import> {
    prop_oneof![site().prop_map(Import::Ready), Just(Import::Refused)]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (flow(), any::<u64>(), proptest::option::of(site()), any::<u32>()).prop_map(
            |(flow, replaces, target, lifetime_ms)| Request::Prepare { flow, replaces, target, lifetime_ms }
        ),
        (flow(), any::<u64>(), import()).prop_map(|(flow, asked, import)| Request::Prepared {
            flow,
            asked,
            import
        }),
        (flow(), any::<u64>(), site(), any::<u32>()).prop_map(|(flow, replaces, target, lifetime_ms)| {
            Request::Hold { flow, replaces, target, lifetime_ms }
        }),
        (flow(), any::<u64>()).prop_map(|(flow, replaces)| Request::Own { flow, replaces }),
        (flow(), any::<u64>()).prop_map(|(flow, generation)| Request::Release { flow, generation }),
        flow().prop_map(|flow| Request::Get { flow }),
        (service(), any::<u32>(), any::<u32>(), any::<u16>()).prop_map(
            |(service, load, free_places, weight)| Request::Heartbeat { service, load, free_places, weight }
        ),
        Just(Request::Hello),
        (service(), any::<u64>()).prop_map(|(service, index)| Request::List { service, index }),
    ]
}

fn relay() -> impl Strategy<Value = Relay> {
    prop_oneof![
        (flow(), any::<u64>(), any::<bool>(), site(), any::<u32>()).prop_map(
            |(flow, generation, is_held, target, lifetime_ms)| Relay::Prepare {
                flow,
                generation,
                is_held,
                target,
                lifetime_ms
            }
        ),
        (flow(), any::<u64>(), import()).prop_map(|(flow, generation, import)| Relay::Prepared {
            flow,
            generation,
            import
        }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let fields = (
        (proptest::sample::select(Kind::ALL.to_vec()), proptest::sample::select(Status::ALL[1..].to_vec())),
        proptest::sample::select(FlowState::ALL.to_vec()),
        (flow(), proptest::option::of(site())),
        any::<(u64, u32, u32, u32, u16)>(),
    );
    let answers = fields.prop_map(|((kind, status), state, (flow, owner), numbers)| {
        let (generation, load, lifetime_ms, free_places, weight) = numbers;
        let subject = match kind {
            Kind::Hello => Subject::None,
            Kind::Heartbeat | Kind::List => Subject::Service(flow.service()),
            _ => Subject::Flow(flow),
        };
        Answer { kind, status, state, generation, subject, owner, load, lifetime_ms, free_places, weight }
    });
    answers.prop_filter("relayed messages have these statuses", |answer| {
        !matches!(
            (answer.kind, answer.status),
            (Kind::Prepare, Status::Ok) | (Kind::Prepared, Status::Ok | Status::Full)
        )
    })
}

fn message() -> impl Strategy<Value = Message> {
    let body = prop_oneof![
        request().prop_map(Body::Request),
        relay().prop_map(Body::Relay),
        answer().prop_map(Body::Answer)
    ];
    (any::<u8>(), any::<u64>(), any::<u64>(), body).prop_map(|(sender, sequence, epoch, body)| Message {
        sender: ServerId(sender),
        sequence,
        epoch,
        body,
    })
}

/// A message that parses is emitted unchanged, so the parser ignores no byte of it.
fn assert_rejected_or_emitted_unchanged(bytes: &[u8; MESSAGE_BYTES]) -> Result<(), TestCaseError> {
    if let Ok(view) = View::new(bytes)
        && let Ok(message) = Message::parse(&view)
    {
        let mut emitted = message.emit();
        emitted.set_tag(view.tag());
        prop_assert_eq!(emitted.bytes(), bytes);
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_message_survives_a_round_trip(message in message()) {
        prop_assert_eq!(Message::parse(&message.emit()), Ok(message));
    }

    #[test]
    fn any_bytes_are_rejected_or_emitted_unchanged(
        mut bytes in proptest::array::uniform::<_, MESSAGE_BYTES>(any::<u8>()), has_valid_head: bool,
    ) {
        if has_valid_head {
            bytes[field::MAGIC].copy_from_slice(&SWITCH_MAGIC);
            bytes[field::VERSION] = 1;
            bytes[field::KIND] = bytes[field::KIND] % 9 + 1;
            bytes[field::FLAGS].copy_from_slice(&[0, 1]);
            bytes[field::SENDER].copy_from_slice(&[0, 0, 0, 7]);
            bytes[field::STATUS] = bytes[field::STATUS] % 8 + 1;
            bytes[field::STATE] %= 4;
            bytes[field::FAMILY] = 6;
            bytes[field::RESERVED].fill(0);
        }
        assert_rejected_or_emitted_unchanged(&bytes)?;
    }

    #[test]
    fn an_altered_message_is_rejected_or_emitted_unchanged(
        message in message(), offset in 0..MESSAGE_BYTES, byte: u8,
    ) {
        let mut bytes = *message.emit().bytes();
        bytes[offset] = byte;
        assert_rejected_or_emitted_unchanged(&bytes)?;
    }
}

fn valid_flow() -> Flow {
    let endpoint = |text: &str| Endpoint::from(text.parse::<std::net::SocketAddr>().unwrap());
    Flow::new(endpoint("192.0.2.9:50000"), endpoint("198.51.100.1:11211")).unwrap()
}

fn error_with(body: Body, change: impl FnOnce(&mut [u8; MESSAGE_BYTES])) -> MessageError {
    let valid = Message { sender: ServerId(1), sequence: 2, epoch: 3, body };
    assert_eq!(Message::parse(&valid.emit()), Ok(valid), "the message should be valid before the change");
    let mut bytes = valid.emit().into_inner();
    change(&mut bytes);
    Message::parse(&View::new(bytes).unwrap()).unwrap_err()
}

#[test]
fn invalid_heads_are_rejected_with_their_cause() {
    let hello = Body::Request(Request::Hello);
    assert_eq!(error_with(hello, |bytes| bytes[field::VERSION] = 2), MessageError::Version(2));
    assert_eq!(error_with(hello, |bytes| bytes[field::KIND] = 0), MessageError::Kind(0));
    assert_eq!(error_with(hello, |bytes| bytes[field::KIND] = 10), MessageError::Kind(10));
    assert_eq!(error_with(hello, |bytes| bytes[field::FLAGS.start] = 1), MessageError::Flags(0x0100));
    assert_eq!(error_with(hello, |bytes| bytes[field::SENDER.start + 2] = 1), MessageError::Sender(257));
    assert_eq!(error_with(hello, |bytes| bytes[field::STATUS] = 9), MessageError::Status(9));
    assert_eq!(error_with(hello, |bytes| bytes[field::STATUS] = 1), MessageError::Status(1));
    assert_eq!(error_with(hello, |bytes| bytes[field::STATE] = 3), MessageError::State(3));
    assert_eq!(error_with(hello, |bytes| bytes[field::RESERVED.start] = 1), MessageError::Reserved);
    assert_eq!(error_with(hello, |bytes| bytes[field::FAMILY] = 4), MessageError::Family(4));
}

#[test]
fn missing_and_unused_fields_are_rejected_with_their_names() {
    let get = Body::Request(Request::Get { flow: valid_flow() });
    let clear = |range: std::ops::Range<usize>| move |bytes: &mut [u8; MESSAGE_BYTES]| bytes[range].fill(0);
    assert_eq!(error_with(get, clear(field::CLIENT_ADDRESS)), MessageError::Missing("client"));
    assert_eq!(error_with(get, clear(field::SERVICE_ADDRESS)), MessageError::Missing("service"));
    assert_eq!(
        error_with(get, |bytes| bytes[field::FAMILY] = 6),
        MessageError::Family(6),
        "the addresses are IPv4 addresses"
    );
    assert_eq!(
        error_with(get, |bytes| bytes[field::CLIENT_ADDRESS.start] = 0x20),
        MessageError::Family(6),
        "client and service should have one family"
    );
    for (offset, name) in [
        (field::GENERATION.start, "generation"),
        (field::OWNER_ADDRESS.start, "owner"),
        (field::OWNER_PORT.start, "owner"),
        (field::OWNER_MAC.start, "MAC"),
        (field::LOAD.start, "load"),
        (field::LIFETIME_MS.start, "lifetime"),
        (field::FREE_PLACES.start, "number of free places"),
        (field::WEIGHT.start, "weight"),
    ] {
        assert_eq!(error_with(get, |bytes| bytes[offset] = 1), MessageError::Unused(name), "{name}");
    }
    let target = Site::new(valid_flow().service(), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    let hold = Body::Request(Request::Hold { flow: valid_flow(), replaces: 9, target, lifetime_ms: 1 });
    let without_target = error_with(hold, clear(field::OWNER_ADDRESS.start..field::OWNER_MAC.end));
    assert_eq!(without_target, MessageError::Missing("target"));
    let list = Body::Request(Request::List { service: valid_flow().service(), index: 0 });
    let with_client = error_with(list, |bytes| bytes[field::CLIENT_PORT.start] = 1);
    assert_eq!(with_client, MessageError::Unused("client"));
}

#[test]
fn a_relayed_message_has_the_state_that_fits_its_status() {
    let relay = |import| Body::Relay(Relay::Prepared { flow: valid_flow(), generation: 9, import });
    let refused = relay(Import::Refused);
    assert_eq!(error_with(refused, |bytes| bytes[field::STATE] = 2), MessageError::State(2));
    let target = Site::new(valid_flow().service(), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    let ready = relay(Import::Ready(target));
    assert_eq!(error_with(ready, |bytes| bytes[field::STATE] = 3), MessageError::State(3));
    let prepare =
        Relay::Prepare { flow: valid_flow(), generation: 9, is_held: false, target, lifetime_ms: 1 };
    assert_eq!(error_with(Body::Relay(prepare), |bytes| bytes[field::STATE] = 3), MessageError::State(3));
}

#[test]
fn an_answer_has_a_status_that_requests_do_not_have() {
    let answer = Answer {
        kind: Kind::Hello,
        status: Status::Replayed,
        state: FlowState::None,
        generation: 9,
        subject: Subject::None,
        owner: None,
        load: 0,
        lifetime_ms: 0,
        free_places: 0,
        weight: 0,
    };
    assert_eq!(error_with(Body::Answer(answer), |bytes| bytes[field::STATUS] = 0), MessageError::Status(0));
    let target = Site::new(valid_flow().service(), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    let prepared = Request::Prepared { flow: valid_flow(), asked: 9, import: Import::Ready(target) };
    let with_other_status = error_with(Body::Request(prepared), |bytes| bytes[field::STATUS] = 7);
    assert_eq!(with_other_status, MessageError::Status(7));
}

#[test]
fn a_flow_has_two_addresses_of_one_family() {
    let (ipv4, ipv6) = (valid_flow().client(), Endpoint::new([0x20; 16], 1));
    assert_eq!(Flow::new(ipv4, ipv6), Err(MessageError::Family(4)));
    assert_eq!(Flow::new(Endpoint::new([0; 16], 1), ipv6), Err(MessageError::Missing("client")));
    assert_eq!(Flow::new(ipv6, Endpoint::ZERO), Err(MessageError::Missing("service")));
    assert_eq!(ipv4.to_string(), "192.0.2.9:50000");
    assert_eq!(std::net::SocketAddr::from(ipv4), "192.0.2.9:50000".parse().unwrap());
    assert_eq!(Site::new(Endpoint::ZERO, Mac::ZERO), None);
}
