//! Both ends work with peers of link version 1, which cannot carry sessions.

#[allow(dead_code, reason = "its events and its pair are for another test program")]
mod pair;

use spillway_auth::{Key, Prover, prove};
use spillway_batch::{
    CloseReason, Encryption, Id, Limits, LinkError, OpenError, OpenerConfig, OpenerEvent, OpenerLink,
    PolicyKind, Role, ServerEvent, ServerLink, Verdict,
};
use spillway_transport::Time;
use spillway_wire::Control;
use spillway_wire::preamble::{HELLO_BYTES, Hello, PROOF_BYTES, WELCOME_BYTES, Welcome, transcript};
use spillway_wire::session::Acknowledge;

const CLIENT: &str = "10.0.0.3:5000";

fn session() -> Control {
    pair::reconnect_control(CLIENT.parse().unwrap())
}

fn emitted(control: Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    control.emit(Id(1), &mut bytes);
    bytes
}

fn server_with_an_opener_of_version_1() -> ServerLink {
    let key = pair::helper_key();
    let (peer, local) = ("10.0.0.2:40000".parse().unwrap(), "10.0.0.5:11411".parse().unwrap());
    let config = pair::server_config(Limits::default());
    let mut server = ServerLink::new(config, Time(0), peer, local, pair::fresh(9));
    let hello = Hello { version_min: 1, version_max: 1, role: Role::Helper, key: key.id(), nonce: [5; 16] };
    assert_eq!(server.decompose(Time(1), &mut &hello.emit()[..]), Ok(None));
    let welcome: [u8; WELCOME_BYTES] = server.flush(Time(1)).unwrap().as_slice().try_into().unwrap();
    let welcome = Welcome::parse(&welcome).unwrap();
    assert_eq!((welcome.version, welcome.verdict), (1, Verdict::Proceed));
    let proof = prove(&key, Prover::Opener, &transcript(&hello, &welcome));
    let established = server.decompose(Time(1), &mut &proof[..]).unwrap();
    assert!(
        matches!(established, Some(ServerEvent::Established { role: Role::Helper, .. })),
        "the server should establish the link with a helper"
    );
    server
}

#[test]
fn an_opener_of_version_1_is_served_and_must_not_send_messages_of_sessions() {
    let client = CLIENT.parse().unwrap();
    for message in [session(), Control::Close(CloseReason::Lost)] {
        let mut server = server_with_an_opener_of_version_1();
        let bytes = emitted(pair::connect_control(client));
        let event = server.decompose(Time(2), &mut &bytes[..]).unwrap();
        assert_eq!(event, Some(ServerEvent::Connect { id: Id(1), client, server: None }));
        let error = server.decompose(Time(2), &mut &emitted(message)[..]).unwrap_err();
        assert_eq!(error, LinkError::Sessions);
    }
}

fn opener_with_a_server_of_version_1() -> OpenerLink {
    let key = Key::from_secret([2; 32]);
    let config = OpenerConfig {
        role: Role::Client,
        key: key.clone(),
        limits: Limits::default(),
        policy: PolicyKind::Fixed { interval: core::time::Duration::ZERO, size_bytes: 0 },
        encryption: Encryption::Preferred,
    };
    let mut opener = OpenerLink::new(&config, Time(0), pair::fresh(5));
    let hello: [u8; HELLO_BYTES] = opener.flush(Time(0)).unwrap().as_slice().try_into().unwrap();
    let hello = Hello::parse(&hello).unwrap();
    let mut welcome = Welcome {
        version: 1,
        verdict: Verdict::Proceed,
        nonce: [6; 16],
        proof: [0; PROOF_BYTES],
        credit: 1000,
        connections_max: 10,
    };
    welcome.proof = prove(&key, Prover::Server, &transcript(&hello, &welcome));
    let bytes = welcome.emit();
    let established = opener.decompose(Time(1), &mut &bytes[..]).unwrap();
    assert!(
        matches!(established, Some(OpenerEvent::Established { .. })),
        "the opener should establish the link"
    );
    opener.flush(Time(1));
    opener
}

#[test]
fn a_server_of_version_1_is_used_without_sessions() {
    let mut opener = opener_with_a_server_of_version_1();
    assert_eq!(opener.open_with_message(session()), Err(OpenError::Sessions));
    assert_eq!(opener.open(CLIENT.parse().unwrap(), None), Ok(Id(1)));
}

#[test]
fn messages_of_sessions_are_not_relayed_to_a_server_of_version_1() {
    let mut opener = opener_with_a_server_of_version_1();
    let connect = pair::connect_control(CLIENT.parse().unwrap());
    let id = opener.open_with_message(connect).unwrap();
    let acknowledge = Acknowledge { received: 0, finish_received: false, requests_answer: false };
    for message in [Control::Acknowledge(acknowledge), Control::Finish(0), Control::Close(CloseReason::Lost)]
    {
        opener.relay_control(id, message);
    }
    let expected = [connect, Control::Finish(0), Control::Close(CloseReason::Reset)].map(emitted).concat();
    assert_eq!(opener.flush(Time(2)).unwrap().as_slice(), expected);
}
