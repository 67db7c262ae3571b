//! A client's driver without sockets: which link ports it tries after failures, and when the session ends.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::Encryption;
use spillway_session::{
    Action, CarrierLoss, Driver, Gone, LinkTarget, SessionEnd, SessionEvent, SessionSettings,
};
use spillway_transport::Time;
use spillway_wire::session::SessionId;

const SEED: u64 = 7;

fn address(last_byte: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last_byte], 11411))
}

fn target(last_byte: u8) -> LinkTarget {
    let key = Key::from_secret([1; 32]);
    LinkTarget { address: address(last_byte), key, server: None, encryption: Encryption::Off }
}

fn targets(last_bytes: &[u8]) -> Vec<LinkTarget> {
    last_bytes.iter().map(|last_byte| target(*last_byte)).collect()
}

/// A driver with these link ports that has begun its attempt at the first one.
fn open(last_bytes: &[u8], settings: SessionSettings) -> Driver<&'static str> {
    let mut driver = Driver::new(Time(0), targets(last_bytes), &settings, SessionId([3; 16]), SEED)
        .expect("there should be a link port");
    driver.handle_timeout(Time(0));
    driver
}

/// The link port that the driver opens now, if any.
fn poll_open(driver: &mut Driver<&'static str>) -> Option<SocketAddr> {
    let mut opened = None;
    while let Some(action) = driver.poll_action() {
        match action {
            Action::Open(target) => opened = Some(target.address),
            Action::Close => assert_eq!(opened, None, "the old socket should be closed first"),
        }
    }
    opened
}

/// Waits for the next timeout and handles it.
fn handle_next_timeout(driver: &mut Driver<&'static str>) -> Time {
    let at = driver.poll_timeout().expect("a timeout should be due");
    driver.handle_timeout(at);
    at
}

#[test]
fn link_ports_are_tried_in_turn() {
    let mut driver = open(&[1, 2, 3], SessionSettings::default());
    let mut now = Time(0);
    for last_byte in [1, 2, 3, 1] {
        assert_eq!(poll_open(&mut driver), Some(address(last_byte)));
        assert_eq!(poll_open(&mut driver), None, "a link port should be opened once");
        driver.handle_failed(now, "unreachable", false);
        let event = driver.poll_event();
        let Some(SessionEvent::CarrierLost { address: lost, why: CarrierLoss::Socket("unreachable") }) =
            event
        else {
            panic!("{event:?}")
        };
        assert_eq!(lost, address(last_byte));
        now = handle_next_timeout(&mut driver);
    }
}

#[test]
fn the_next_link_port_is_tried_after_the_attach_timeout() {
    let settings =
        SessionSettings { attach_timeout: Duration::from_millis(30), ..SessionSettings::default() };
    let mut driver = open(&[1, 2], settings);
    assert_eq!(poll_open(&mut driver), Some(address(1)));
    assert_eq!(handle_next_timeout(&mut driver), Time(30_000_000));
    assert!(matches!(driver.poll_action(), Some(Action::Close)), "the silent carrier should be closed");
    handle_next_timeout(&mut driver);
    assert_eq!(poll_open(&mut driver), Some(address(2)));
}

/// The next link port may have been removed since the last attempt, for example by service discovery.
#[test]
fn the_next_attempt_uses_the_replaced_link_ports() {
    let mut driver = open(&[1, 2, 3], SessionSettings::default());
    assert_eq!(poll_open(&mut driver), Some(address(1)));
    driver.handle_failed(Time(0), "reset", false);
    assert!(driver.set_targets(targets(&[4])), "new link ports should be accepted");
    handle_next_timeout(&mut driver);
    assert_eq!(poll_open(&mut driver), Some(address(4)));
    assert!(!driver.set_targets(Vec::new()), "an empty list should be rejected");
}

#[test]
fn a_session_without_a_carrier_is_given_up_after_the_time_limit() {
    let settings = SessionSettings { give_up_after: Duration::from_secs(2), ..SessionSettings::default() };
    let mut driver = open(&[1], settings);
    let mut now = Time(0);
    while !driver.is_over() {
        if poll_open(&mut driver).is_some() {
            driver.handle_failed(now, "unreachable", false);
        }
        now = handle_next_timeout(&mut driver);
    }
    assert_eq!(now, Time(2_000_000_000));
    assert_eq!(
        (driver.end(), driver.poll_timeout()),
        (Some(SessionEnd::GivenUp), None),
        "the session should be given up"
    );
    assert_eq!(driver.write(b"more"), Err(SessionEnd::GivenUp));
}

#[test]
fn refusals_at_the_server_port_end_a_session_that_never_began() {
    let settings = SessionSettings {
        server_port: Some(address(9)),
        refused_timeout: Duration::from_millis(100),
        ..SessionSettings::default()
    };
    let mut driver = open(&[9], settings);
    let mut now = Time(0);
    while !driver.is_over() {
        if poll_open(&mut driver).is_some() {
            driver.handle_failed(now, "refused", true);
        }
        now = handle_next_timeout(&mut driver);
    }
    assert_eq!(now, Time(100_000_000));
    assert_eq!(driver.end(), Some(SessionEnd::Absent(None::<Gone>)));
}

#[test]
fn move_to_opens_an_existing_link_port_and_rejects_others() {
    let mut driver = open(&[1, 2], SessionSettings::default());
    assert_eq!(poll_open(&mut driver), Some(address(1)));
    assert!(!driver.move_to(Time(5), 2), "an unknown route should be rejected");
    assert!(driver.move_to(Time(5), 1), "a known route should be opened");
    assert!(matches!(driver.poll_action(), Some(Action::Close)), "the old carrier should be closed");
    assert_eq!(poll_open(&mut driver), Some(address(2)));
    assert!(
        matches!(
            driver.poll_event(),
            Some(SessionEvent::CarrierLost { why: CarrierLoss::LeftOnRequest, .. })
        ),
        "the loss should have its reason"
    );
}
