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

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 11411))
}

fn target(last: u8) -> LinkTarget {
    let key = Key::from_secret([1; 32]);
    LinkTarget { address: address(last), key, server: None, encryption: Encryption::Off }
}

fn targets(of: &[u8]) -> Vec<LinkTarget> {
    of.iter().map(|last| target(*last)).collect()
}

/// A driver with these link ports that has begun its attempt at the first one.
fn open(of: &[u8], settings: SessionSettings) -> Driver<&'static str> {
    let mut driver =
        Driver::new(Time(0), targets(of), &settings, SessionId([3; 16]), SEED).expect("a link port");
    driver.handle_timeout(Time(0));
    driver
}

/// The address that the driver asks its host to connect to.
fn opened(driver: &mut Driver<&'static str>) -> Option<SocketAddr> {
    let mut opened = None;
    while let Some(action) = driver.poll_action() {
        match action {
            Action::Open(target) => opened = Some(target.address),
            Action::Close => assert_eq!(opened, None, "the old socket is closed before the next is opened"),
        }
    }
    opened
}

/// Waits for the next timeout and handles it.
fn wait(driver: &mut Driver<&'static str>) -> Time {
    let at = driver.poll_timeout().expect("something is due");
    driver.handle_timeout(at);
    at
}

#[test]
fn link_ports_are_tried_in_turn() {
    let mut driver = open(&[1, 2, 3], SessionSettings::default());
    let mut now = Time(0);
    for last in [1, 2, 3, 1] {
        assert_eq!(opened(&mut driver), Some(address(last)));
        assert_eq!(opened(&mut driver), None, "once");
        driver.handle_failed(now, "unreachable", false);
        let event = driver.poll_event();
        let Some(SessionEvent::CarrierLost { address: lost, why: CarrierLoss::Socket("unreachable") }) =
            event
        else {
            panic!("{event:?}")
        };
        assert_eq!(lost, address(last));
        now = wait(&mut driver);
    }
}

#[test]
fn a_silent_link_port_is_left_after_the_attach_timeout() {
    let settings =
        SessionSettings { attach_timeout: Duration::from_millis(30), ..SessionSettings::default() };
    let mut driver = open(&[1, 2], settings);
    assert_eq!(opened(&mut driver), Some(address(1)));
    assert_eq!(wait(&mut driver), Time(30_000_000));
    assert!(matches!(driver.poll_action(), Some(Action::Close)));
    wait(&mut driver);
    assert_eq!(opened(&mut driver), Some(address(2)));
}

/// The link port that is due next may have been removed meanwhile, for example by service discovery.
#[test]
fn an_attempt_goes_to_the_new_link_ports() {
    let mut driver = open(&[1, 2, 3], SessionSettings::default());
    assert_eq!(opened(&mut driver), Some(address(1)));
    driver.handle_failed(Time(0), "reset", false);
    assert!(driver.set_targets(targets(&[4])), "none of the old ones");
    wait(&mut driver);
    assert_eq!(opened(&mut driver), Some(address(4)));
    assert!(!driver.set_targets(Vec::new()), "one is needed");
}

#[test]
fn without_a_carrier_a_session_is_given_up() {
    let settings = SessionSettings { give_up_after: Duration::from_secs(2), ..SessionSettings::default() };
    let mut driver = open(&[1], settings);
    let mut now = Time(0);
    while !driver.is_over() {
        if opened(&mut driver).is_some() {
            driver.handle_failed(now, "unreachable", false);
        }
        now = wait(&mut driver);
    }
    assert_eq!(now, Time(2_000_000_000));
    assert_eq!((driver.end(), driver.poll_timeout()), (Some(SessionEnd::GivenUp), None));
    assert_eq!(driver.write(b"more"), Err(SessionEnd::GivenUp));
}

#[test]
fn a_server_port_that_refuses_ends_a_session_that_never_began() {
    let settings = SessionSettings {
        server_port: Some(address(9)),
        refused_patience: Duration::from_millis(100),
        ..SessionSettings::default()
    };
    let mut driver = open(&[9], settings);
    let mut now = Time(0);
    while !driver.is_over() {
        if opened(&mut driver).is_some() {
            driver.handle_failed(now, "refused", true);
        }
        now = wait(&mut driver);
    }
    assert_eq!(now, Time(100_000_000));
    assert_eq!(driver.end(), Some(SessionEnd::Absent(None::<Gone>)));
}

#[test]
fn the_application_chooses_among_the_link_ports_that_there_are() {
    let mut driver = open(&[1, 2], SessionSettings::default());
    assert_eq!(opened(&mut driver), Some(address(1)));
    assert!(!driver.move_to(Time(5), 2));
    assert!(driver.move_to(Time(5), 1));
    assert!(matches!(driver.poll_action(), Some(Action::Close)));
    assert_eq!(opened(&mut driver), Some(address(2)));
    assert!(matches!(driver.poll_event(), Some(SessionEvent::CarrierLost { why: CarrierLoss::Asked, .. })));
}
