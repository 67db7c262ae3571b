//! A library client's allowance for control messages and empty frames grows with time and with the client's data.
//! Reading pauses when the client has exceeded the allowance by more than a burst.

#[allow(dead_code, reason = "other test programs use the rest")]
mod pair;

use std::sync::Arc;
use std::time::Duration;

use pair::{HELPER, Pair, connect_control, helper_key, reconnect_control, server_config};
use spillway_auth::Key;
use spillway_batch::{
    CloseReason, Control, Encryption, Id, Limits, Received, Role, Scratch, ServerConfig, ServerEvent,
    ServerLink,
};
use spillway_transport::Time;
use spillway_wire::Kind;
use spillway_wire::frame::Header;
use spillway_wire::session::Acknowledge;

const SECOND: Duration = Duration::from_secs(1);

/// An unencrypted link of a peer of this role, so that a test can send its own frames.
fn server_of(role: Role) -> (ServerLink, Time) {
    let encryption = Encryption::Off;
    let config = ServerConfig { encryption, ..(*server_config(Limits::default())).clone() };
    let key = if role == Role::Helper { helper_key() } else { Key::from_secret([2; 32]) };
    let mut pair = Pair::new(role, key, Arc::new(config));
    pair.exchange();
    assert!(
        pair.server.is_established() && pair.server.may_read(),
        "the server should read an established link"
    );
    (pair.server, pair.now)
}

fn frames(controls: impl IntoIterator<Item = (Id, Control)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    controls.into_iter().for_each(|(id, control)| control.emit(id, &mut bytes));
    bytes
}

fn data(id: Id, bytes: &[u8]) -> Vec<u8> {
    let header = Header { kind: Kind::Request, more: false, length: bytes.len() as u16, id };
    [&header.emit(), bytes].concat()
}

/// Passes input to a link, and answers each close event.
fn feed(server: &mut ServerLink, now: Time, bytes: &[u8]) {
    let mut scratch = Scratch::new();
    let mut input = server.unseal(now, bytes, &mut scratch);
    while let Some(event) = server.decompose(now, &mut input).unwrap() {
        if let ServerEvent::Closed { id, .. } = event {
            server.close(id, CloseReason::Normal);
        }
    }
    while server.flush(now).is_some() {}
}

/// Floods of at least 17 KB each: more than the allowed burst of 16 KiB.
fn floods() -> Vec<(&'static str, Vec<u8>)> {
    let credit = |id| move |step| (Id(id), Control::Credit(step));
    let connect = [(Id(3), connect_control(HELPER)), (Id(3), Control::Close(CloseReason::Normal))];
    vec![
        ("credit of an open connection", frames((0..1200).map(credit(1)))),
        ("credit of an unknown connection", frames((0..1200).map(credit(77)))),
        ("empty frames", data(Id(1), b"").repeat(2500)),
        ("data of an unknown connection", data(Id(77), &[0; 1000]).repeat(18)),
        ("connections without data", frames(connect).repeat(1000)),
    ]
}

#[test]
fn a_flood_without_data_pauses_reading() {
    for (flood_name, flood) in floods() {
        let (mut server, now) = server_of(Role::Client);
        feed(&mut server, now, &frames([(Id(1), connect_control(HELPER))]));
        feed(&mut server, now, &flood);
        assert!(!server.may_read(), "{flood_name} should pause reading");
        let until = server.poll_read_timeout().unwrap();
        assert!(
            now < until && until <= now + SECOND,
            "{flood_name} should pause reading for at most a second: {until:?}"
        );
        assert_eq!(
            server.poll_timeout(),
            Some(until),
            "{flood_name} should set the timer for the end of the pause"
        );
        server.handle_timeout(Time(until.0 - 1)).unwrap();
        assert!(!server.may_read(), "{flood_name} should pause reading until the timer expires");
        server.handle_timeout(until).unwrap();
        assert!(
            server.may_read() && !server.has_read_timeout(),
            "reading should resume after the pause: {flood_name}"
        );
        feed(&mut server, until, &flood);
        assert!(!server.may_read(), "{flood_name} should pause reading the second time, too");
    }
}

#[test]
fn a_flood_in_runs_pauses_reading() {
    for (flood_name, flood) in floods() {
        let (mut server, now) = server_of(Role::Client);
        feed(&mut server, now, &frames([(Id(1), connect_control(HELPER))]));
        let mut input = flood.as_slice();
        while let Some(received) = server.decompose_run(now, &mut input).unwrap() {
            match received {
                Received::Event(ServerEvent::Closed { id, .. }) => server.close(id, CloseReason::Normal),
                Received::Event(_) => {}
                Received::Run(run) => server.forwarded(run),
            }
        }
        assert!(!server.may_read(), "{flood_name} should pause reading");
    }
}

/// A helper's link carries the control messages of thousands of clients, and the helper limits each of them.
#[test]
fn a_flood_of_a_helper_does_not_pause_reading() {
    for (flood_name, flood) in floods() {
        let (mut server, now) = server_of(Role::Helper);
        feed(&mut server, now, &flood);
        assert!(
            server.may_read() && !server.has_read_timeout(),
            "{flood_name} of a helper should not pause reading"
        );
    }
}

/// The *credit* and *acknowledge* messages that a session sends with its data stay within the allowance at any rate.
#[test]
fn control_messages_in_proportion_to_data_do_not_pause_reading() {
    let (mut server, now) = server_of(Role::Client);
    feed(&mut server, now, &frames([(Id(1), reconnect_control(HELPER))]));
    let acknowledgements = |received| {
        let acknowledge = Acknowledge { received, finish_received: false, requests_answer: false };
        frames([(Id(1), Control::Credit(received)), (Id(1), Control::Acknowledge(acknowledge))])
    };
    for step in 0..10_000 {
        assert_eq!(server.compose(Id(1), &[7; 64 * 1024]), 64 * 1024);
        while server.flush(now).is_some() {}
        feed(&mut server, now, &acknowledgements(step << 16));
        assert!(server.may_read(), "{step} replies should not pause reading");
    }
    for step in 0..10_000 {
        feed(&mut server, now, &data(Id(1), &[7; 60_000]));
        feed(&mut server, now, &acknowledgements(step << 16));
        assert!(server.may_read(), "{step} requests should not pause reading");
    }
}
