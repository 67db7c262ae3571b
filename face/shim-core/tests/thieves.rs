//! Attempts to take over another client's session at memcached: with forged, stale and replayed first messages.

mod support;

use std::net::SocketAddr;

use spillway_auth::Key;
use spillway_batch::{Control, Id, RefuseReason};
use spillway_session::{ClientSession, OpenerLinkCarrier, StreamLimits};
use spillway_transport::Time;
use spillway_wire::session::{Opening, SessionId};
use support::driver::{Driver, Relayed};
use support::memcached::memcached;

/// Sends a first message, and returns the answer.
fn send_opening(helper: &mut Driver, opening: &Control) -> (Id, Control) {
    let id = helper.link.open_with_message(*opening).unwrap();
    match helper.next_relayed(id) {
        Relayed::Control(answer) => (id, answer),
        Relayed::Data(_) => panic!("the answer should arrive before data"),
    }
}

/// Why the server refuses a first message.
fn refusal(helper: &mut Driver, opening: &Control) -> RefuseReason {
    match send_opening(helper, opening).1 {
        Control::Refused(reason) => reason,
        other => panic!("the attacker should be refused, but receives {other:?}"),
    }
}

/// Moves the owner's session to this helper. Returns the connection and the first message.
fn move_to(helper: &mut Driver, session: &mut ClientSession, client: SocketAddr) -> (Id, Control) {
    let opening = session.open(helper.now(), client, None);
    let (id, answer) = send_opening(helper, &opening);
    session.handle_control(helper.now(), &answer).unwrap();
    assert!(session.is_attached(), "the owner should be accepted, but receives {answer:?}");
    (id, opening)
}

fn exchange(helper: &mut Driver, session: &mut ClientSession, id: Id, request: &[u8], reply: &[u8]) {
    assert_eq!(session.write(request), request.len());
    let now = helper.now();
    session.transmit(now, &mut OpenerLinkCarrier { link: &mut helper.link, id, pending_bytes_max: 1 << 20 });
    let mut got = Vec::new();
    while got.len() < reply.len() {
        match helper.next_relayed(id) {
            Relayed::Control(control) => drop(session.handle_control(now, &control).unwrap()),
            Relayed::Data(bytes) => {
                assert_eq!(session.handle_data(now, bytes.len()), Ok(true));
                session.consumed(bytes.len()).unwrap();
                got.extend(bytes);
            }
        }
    }
    assert_eq!(got, reply);
}

/// A first message with an altered opening, as a relay on the path might send it.
fn altered(message: &Control, alter: impl FnOnce(&mut Opening)) -> Control {
    let mut message = *message;
    match &mut message {
        Control::Connect(connect) => alter(connect.session.as_mut().unwrap()),
        Control::Reconnect(reconnect) => alter(&mut reconnect.opening),
        _ => panic!("only first messages can be altered"),
    }
    message
}

#[test]
fn forged_stale_and_replayed_first_messages_are_refused() {
    let server = memcached(&["-t", "4"], &[]);
    let client = SocketAddr::from(([127, 0, 0, 7], 4_321));
    let helper = || Driver::loopback(server.link);
    let (mut first, mut second, mut attacker) = (helper(), helper(), helper());
    let mut owner = ClientSession::new(Key::loopback_only(), SessionId([7; 16]), StreamLimits::default());
    let (id, connect) = move_to(&mut first, &mut owner, client);
    exchange(&mut first, &mut owner, id, b"set key 0 0 5\r\nvalue\r\n", b"STORED\r\n");
    // The message is replayed by another helper, which has read it.
    assert_eq!(refusal(&mut attacker, &connect), RefuseReason::Stale);
    // The epoch is higher than the one that the proof covers.
    assert_eq!(
        refusal(&mut attacker, &altered(&connect, |opening| opening.epoch += 1)),
        RefuseReason::Forbidden
    );
    let (id, reconnect) = move_to(&mut second, &mut owner, client);
    exchange(&mut second, &mut owner, id, b"get key\r\n", b"VALUE key 0 5\r\nvalue\r\nEND\r\n");
    for message in [&connect, &reconnect] {
        assert_eq!(refusal(&mut attacker, message), RefuseReason::Stale);
        let forgeries: [fn(&mut Opening); 4] = [
            |opening| opening.epoch += 7,
            |opening| opening.position.received += 1,
            |opening| opening.life ^= 1,
            |opening| opening.proof[3] ^= 1,
        ];
        for forge in forgeries {
            assert_eq!(refusal(&mut attacker, &altered(message, forge)), RefuseReason::Forbidden);
        }
    }
    // The server does not accept the key.
    let mut stranger =
        ClientSession::new(Key::from_secret([9; 32]), SessionId([7; 16]), StreamLimits::default());
    let message = stranger.open(Time::ZERO, client, None);
    assert_eq!(refusal(&mut attacker, &message), RefuseReason::Forbidden);
    // The server does not have the session, as after a restart.
    let message = altered(&reconnect, |opening| opening.session = SessionId([8; 16]));
    assert!(matches!(refusal(&mut attacker, &message), RefuseReason::Forbidden | RefuseReason::Gone));
    // The owner's session still works.
    exchange(&mut second, &mut owner, id, b"get key\r\n", b"VALUE key 0 5\r\nvalue\r\nEND\r\n");
}
