//! Ends of link version 1, which carry no sessions, work with ours.

#[allow(dead_code, reason = "its events and its pair are for another test program")]
mod pair;

use spillway_auth::{Key, Prover, prove};
use spillway_batch::{
    Id, KeyId, Limits, LinkError, OpenError, OpenerConfig, OpenerEvent, OpenerLink, Opening, PolicyKind,
    Reconnect, Role, ServerEvent, ServerLink, Verdict,
};
use spillway_transport::Time;
use spillway_wire::preamble::{HELLO_BYTES, Hello, PROOF_BYTES, WELCOME_BYTES, Welcome, transcript};
use spillway_wire::session::{Position, SessionId};
use spillway_wire::{Connect, Control};

const CLIENT: &str = "10.0.0.3:5000";

fn session() -> Control {
    let opening = Opening {
        session: SessionId([1; 16]),
        key: KeyId([2; 8]),
        epoch: 1,
        life: 1,
        position: Position::default(),
        proof: [3; PROOF_BYTES],
    };
    Control::Reconnect(Reconnect { client: CLIENT.parse().unwrap(), server: None, opening })
}

fn emitted(control: Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    control.emit(Id(1), &mut bytes);
    bytes
}

/// A server's end whose opener speaks version 1 only.
fn server_of_an_old_opener() -> ServerLink {
    let key = pair::helper_key();
    let (peer, local) = ("10.0.0.2:40000".parse().unwrap(), "10.0.0.5:11411".parse().unwrap());
    let config = pair::server_config(Limits::default());
    let mut server = ServerLink::new(config, Time(0), peer, local, [9; 16]);
    let hello = Hello { version_min: 1, version_max: 1, role: Role::Helper, key: key.id(), nonce: [5; 16] };
    assert_eq!(server.decompose(Time(1), &mut &hello.emit()[..]), Ok(None));
    let welcome: [u8; WELCOME_BYTES] = server.flush(Time(1)).unwrap().as_slice().try_into().unwrap();
    let welcome = Welcome::parse(&welcome).unwrap();
    assert_eq!((welcome.version, welcome.verdict), (1, Verdict::Proceed));
    let proof = prove(&key, Prover::Opener, &transcript(&hello, &welcome));
    let established = server.decompose(Time(1), &mut &proof[..]).unwrap();
    assert!(matches!(established, Some(ServerEvent::Established { role: Role::Helper, .. })));
    server
}

#[test]
fn an_old_opener_is_served_and_may_not_speak_of_sessions() {
    let mut server = server_of_an_old_opener();
    let client = CLIENT.parse().unwrap();
    let connect = Control::Connect(Connect { client, server: None, credit: 9, session: None });
    let bytes = emitted(connect);
    let event = server.decompose(Time(2), &mut &bytes[..]).unwrap();
    assert_eq!(event, Some(ServerEvent::Connect { id: Id(1), client, server: None }));
    let error = server.decompose(Time(2), &mut &emitted(session())[..]).unwrap_err();
    assert_eq!(error, LinkError::Sessions);
}

#[test]
fn an_old_server_is_used_and_not_told_of_sessions() {
    let key = Key::from_secret([2; 32]);
    let config = OpenerConfig {
        role: Role::Client,
        key: key.clone(),
        limits: Limits::default(),
        policy: PolicyKind::Fixed { delay: core::time::Duration::ZERO, bytes: 0 },
    };
    let mut opener = OpenerLink::new(&config, Time(0), [5; 16]);
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
    assert!(matches!(established, Some(OpenerEvent::Established { .. })));
    assert_eq!(opener.open_relayed(session()), Err(OpenError::Sessions));
    assert_eq!(opener.open(CLIENT.parse().unwrap(), None), Ok(Id(1)));
}
