//! Attempts to take over another client's session at memcached: with forged, stale and replayed first messages.

mod support;

use std::net::SocketAddr;

use spillway_auth::Key;
use spillway_batch::{Control, Id, RefuseReason};
use spillway_session::{ClientSession, OnOpenerLink, StreamLimits};
use spillway_transport::Time;
use spillway_wire::session::{Opening, SessionId};
use support::driver::{Driver, Relayed};
use support::memcached::memcached;

/// Sends a first message, and returns the answer.
fn say(helper: &mut Driver, words: &Control) -> (Id, Control) {
    let id = helper.link.open_relayed(*words).unwrap();
    match helper.next_relayed(id) {
        Relayed::Control(answer) => (id, answer),
        Relayed::Data(_) => panic!("no byte comes before the answer"),
    }
}

fn is_refused(helper: &mut Driver, words: &Control) -> RefuseReason {
    match say(helper, words).1 {
        Control::Refused(reason) => reason,
        other => panic!("a thief hears {other:?}"),
    }
}

/// Moves the owner's session to this helper. Returns the connection and the first message.
fn take(helper: &mut Driver, session: &mut ClientSession, client: SocketAddr) -> (Id, Control) {
    let words = session.open(helper.now(), client, None);
    let (id, answer) = say(helper, &words);
    session.handle_control(helper.now(), &answer).unwrap();
    assert!(session.is_attached(), "the owner hears {answer:?}");
    (id, words)
}

fn ask(helper: &mut Driver, session: &mut ClientSession, id: Id, request: &[u8], reply: &[u8]) {
    assert_eq!(session.write(request), request.len());
    let now = helper.now();
    session.transmit(now, &mut OnOpenerLink { link: &mut helper.link, id, pending_bytes_max: 1 << 20 });
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

/// A first message as a relay on its way might alter it.
fn altered(words: &Control, alter: impl FnOnce(&mut Opening)) -> Control {
    let mut words = *words;
    match &mut words {
        Control::Connect(connect) => alter(connect.session.as_mut().unwrap()),
        Control::Reconnect(reconnect) => alter(&mut reconnect.opening),
        _ => panic!("first words"),
    }
    words
}

#[test]
fn nobody_takes_a_session_by_words_that_are_forged_stale_or_replayed() {
    let server = memcached(&["-t", "4"], &[]);
    let client = SocketAddr::from(([127, 0, 0, 7], 4_321));
    let helper = || Driver::loopback(server.link);
    let (mut first, mut second, mut thief) = (helper(), helper(), helper());
    let mut owner = ClientSession::new(Key::loopback_only(), SessionId([7; 16]), StreamLimits::default());
    let (id, connect) = take(&mut first, &mut owner, client);
    ask(&mut first, &mut owner, id, b"set key 0 0 5\r\nvalue\r\n", b"STORED\r\n");
    // Replayed by a helper that has read the message.
    assert_eq!(is_refused(&mut thief, &connect), RefuseReason::Stale);
    // With a higher epoch than the one that the proof covers.
    assert_eq!(
        is_refused(&mut thief, &altered(&connect, |opening| opening.epoch += 1)),
        RefuseReason::Forbidden
    );
    let (id, reconnect) = take(&mut second, &mut owner, client);
    ask(&mut second, &mut owner, id, b"get key\r\n", b"VALUE key 0 5\r\nvalue\r\nEND\r\n");
    for words in [&connect, &reconnect] {
        assert_eq!(is_refused(&mut thief, words), RefuseReason::Stale);
        let forgeries: [fn(&mut Opening); 4] = [
            |opening| opening.epoch += 7,
            |opening| opening.position.received += 1,
            |opening| opening.life ^= 1,
            |opening| opening.proof[3] ^= 1,
        ];
        for forge in forgeries {
            assert_eq!(is_refused(&mut thief, &altered(words, forge)), RefuseReason::Forbidden);
        }
    }
    // With another key, which the server does not accept.
    let mut stranger =
        ClientSession::new(Key::from_secret([9; 32]), SessionId([7; 16]), StreamLimits::default());
    let words = stranger.open(Time::ZERO, client, None);
    assert_eq!(is_refused(&mut thief, &words), RefuseReason::Forbidden);
    // For a session that never existed, as after a restart.
    let words = altered(&reconnect, |opening| opening.session = SessionId([8; 16]));
    assert!(matches!(is_refused(&mut thief, &words), RefuseReason::Forbidden | RefuseReason::Gone));
    // The owner's session is not affected.
    ask(&mut second, &mut owner, id, b"get key\r\n", b"VALUE key 0 5\r\nvalue\r\nEND\r\n");
}
