//! A client's driver and a server's port over links in memory: the driver's timeouts for a carrier and for the session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spillway_auth::{Key, KeyRing, LinkRandomness};
use spillway_batch::{
    AddressRules, CloseReason, Encryption, Id, Limits, Scratch, ServerConfig, ServerEvent, ServerLink,
};
use spillway_session::{
    Action, CarrierLoss, Driver, LinkTarget, Opened, OpeningMessage, Port, ServerLinkCarrier, SessionEnd,
    SessionEvent, SessionHandle, SessionSettings, TableLimits,
};
use spillway_transport::Time;
use spillway_wire::preamble::Role;
use spillway_wire::session::SessionId;

const START: Time = Time(1_000_000);
/// Longer than the minimum interval of a server's acknowledgements, 40 ms. *Resumed* counts as one, so after a shorter
/// time a reply would not acknowledge its request.
const ROUND_TRIP: Duration = Duration::from_millis(50);
const GIVE_UP_AFTER: Duration = Duration::from_secs(2);

fn key() -> Key {
    Key::from_secret([1; 32])
}

fn client() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 9], 999))
}

fn target(last: u8) -> LinkTarget {
    let address = SocketAddr::from(([10, 0, 0, last], 11411));
    LinkTarget { address, key: key(), server: None, encryption: Encryption::Off }
}

/// The server of one session, and its end of the client's latest link.
struct Server {
    config: Arc<ServerConfig>,
    port: Port<(u32, Id)>,
    session: Option<SessionHandle>,
    link: ServerLink,
    links: u32,
}

impl Server {
    fn new() -> Server {
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key());
        let (rules, limits) = (AddressRules::default(), Limits::default());
        let config = Arc::new(ServerConfig { ring, rules, limits, encryption: Encryption::Off });
        let link = Server::link(&config, START);
        Server { config, port: Port::new(TableLimits::default(), 9), session: None, link, links: 0 }
    }

    fn link(config: &Arc<ServerConfig>, now: Time) -> ServerLink {
        let fresh = LinkRandomness::from_random([8; LinkRandomness::BYTES]);
        ServerLink::new(config.clone(), now, client(), target(1).address, fresh)
    }

    /// The client has opened another link.
    fn open_link(&mut self, now: Time) {
        self.link = Server::link(&self.config, now);
        self.links += 1;
    }

    fn receive(&mut self, now: Time, wire: &[u8]) {
        let mut scratch = Scratch::new();
        let mut input = self.link.unseal(now, wire, &mut scratch);
        while let Some(event) =
            self.link.decompose(now, &mut input).expect("the link should accept the driver's bytes")
        {
            match event {
                ServerEvent::Session { id, kind, client, opening } => {
                    let message = OpeningMessage { carrier: (self.links, id), kind, client, opening };
                    match self.port.open(now, &self.config.ring, &message, Role::Client) {
                        Opened::New { session, answer } => {
                            self.session = Some(session);
                            self.link.send_control(id, answer);
                            assert_eq!(self.port.accept(session), Some((self.links, id)));
                        }
                        Opened::Resumed { answer, .. } => self.link.send_control(id, answer),
                        other => panic!("{other:?}"),
                    }
                    self.link.accept(id);
                }
                ServerEvent::Carried { id, bytes } => {
                    let session = self.session.expect("the session should be open");
                    let taken = self.port.handle_data(now, session, (self.links, id), bytes.len());
                    assert_eq!(taken, Ok(true));
                    self.port.consumed(session, bytes.len()).expect("the bytes were received");
                }
                ServerEvent::CarriedControl { id, control } => {
                    let session = self.session.expect("the session should be open");
                    let _ = self.port.handle_control(now, session, (self.links, id), &control);
                }
                _ => {}
            }
        }
    }

    fn transmit(&mut self, now: Time) -> Vec<u8> {
        while let Some((session, (_, id))) = self.port.poll_dirty() {
            self.port.transmit(now, session, &mut ServerLinkCarrier { link: &mut self.link, id });
        }
        let mut wire = Vec::new();
        while let Some(batch) = self.link.flush(now) {
            wire.extend_from_slice(batch.as_slice());
        }
        wire
    }
}

/// The bytes that the driver sends now.
fn take_output(driver: &mut Driver<&'static str>, now: Time) -> Vec<u8> {
    let mut wire = Vec::new();
    while let Some(bytes) = driver.poll_transmit(now).map(<[u8]>::to_vec) {
        driver.sent(bytes.len());
        wire.extend(bytes);
    }
    wire
}

fn receive(driver: &mut Driver<&'static str>, now: Time, wire: &[u8]) {
    let mut scratch = Scratch::new();
    let mut input = driver.unseal(now, wire, &mut scratch);
    while let Some(event) = driver.decompose(now, &mut input) {
        if let Some(bytes) = driver.handle(now, event) {
            driver.consumed(bytes.len()).expect("the bytes were received");
        }
    }
}

/// Takes the driver's actions. Returns whether one of them is to connect.
fn poll_connect(driver: &mut Driver<&'static str>) -> bool {
    std::iter::from_fn(|| driver.poll_action().map(|action| matches!(action, Action::Open(_))))
        .any(|opens| opens)
}

/// Waits until the driver asks for a connection, and connects. The server's bytes arrive one at a time.
fn attach(driver: &mut Driver<&'static str>, server: &mut Server, mut now: Time) -> Time {
    while !poll_connect(driver) {
        now = driver.poll_timeout().expect("another attempt should be due");
        driver.handle_timeout(now);
    }
    driver.handle_connected(now, client(), LinkRandomness::from_random([7; LinkRandomness::BYTES]));
    server.open_link(now);
    for _ in 0..10 {
        server.receive(now, &take_output(driver, now));
        for byte in server.transmit(now) {
            receive(driver, now, &[byte]);
        }
        if driver.carrier().is_some() {
            return now;
        }
    }
    panic!("the handshake should end within 10 rounds")
}

/// One request and its reply, which acknowledges the request.
fn exchange(driver: &mut Driver<&'static str>, server: &mut Server, now: Time) -> Time {
    assert_eq!(driver.write(b"request"), Ok(7));
    let request = take_output(driver, now);
    let now = now + ROUND_TRIP;
    server.receive(now, &request);
    assert_eq!(server.port.write(server.session.expect("the session should be open"), b"reply"), 5);
    receive(driver, now, &server.transmit(now));
    assert_eq!(driver.unacknowledged_bytes(), 0, "the reply should acknowledge the request");
    now
}

/// The server is silent from now on. Returns when the carrier is left, and after how much silence.
fn wait_until_left(driver: &mut Driver<&'static str>, mut now: Time) -> (Time, Duration) {
    loop {
        let _ = take_output(driver, now);
        while let Some(event) = driver.poll_event() {
            if let SessionEvent::CarrierLost { why, .. } = event {
                let CarrierLoss::Silent(silent) = why else { panic!("{why:?}") };
                return (now, silent);
            }
        }
        now = driver.poll_timeout().expect("a timeout should be due");
        driver.handle_timeout(now);
    }
}

fn open() -> (Driver<&'static str>, Server) {
    let settings = SessionSettings { give_up_after: GIVE_UP_AFTER, ..SessionSettings::default() };
    let targets = vec![target(1), target(2)];
    let mut driver =
        Driver::new(START, targets, &settings, SessionId([3; 16]), 7).expect("there should be link ports");
    driver.handle_timeout(START);
    (driver, Server::new())
}

/// Bytes of a handshake do not answer the session's messages, so they must not count as a round trip.
#[test]
fn a_handshake_in_single_bytes_does_not_reset_the_back_off() {
    let (mut driver, mut server) = open();
    let now = attach(&mut driver, &mut server, START);
    let now = exchange(&mut driver, &mut server, now);
    assert_eq!(driver.write(b"request"), Ok(7));
    let (now, first) = wait_until_left(&mut driver, now);
    assert!(
        first < SessionSettings::default().carrier_timeouts.ceiling / 2,
        "the measured round trip should shorten the timeout: {first:?}"
    );
    let now = attach(&mut driver, &mut server, now);
    let (_, second) = wait_until_left(&mut driver, now);
    assert_eq!(second, first * 2);
}

/// The session's carrier is lost and all link ports fail, until the session is given up.
fn give_up(driver: &mut Driver<&'static str>, lost_at: Time) -> Option<SessionEnd> {
    driver.handle_closed(lost_at);
    let mut now = lost_at;
    while !driver.is_over() {
        if poll_connect(driver) {
            driver.handle_failed(now, "unreachable", false);
        }
        now = driver.poll_timeout().expect("a timeout should be due");
        driver.handle_timeout(now);
    }
    assert_eq!(now, lost_at + GIVE_UP_AFTER);
    driver.end()
}

#[test]
fn a_closed_session_with_all_bytes_acknowledged_is_given_up_in_order() {
    let (mut driver, mut server) = open();
    let now = attach(&mut driver, &mut server, START);
    let now = exchange(&mut driver, &mut server, now);
    driver.close(CloseReason::Normal);
    assert_eq!(give_up(&mut driver, now), Some(SessionEnd::InOrder));
}

#[test]
fn a_closed_session_with_unacknowledged_bytes_is_not_given_up_in_order() {
    let (mut driver, mut server) = open();
    let now = attach(&mut driver, &mut server, START);
    let now = exchange(&mut driver, &mut server, now);
    assert_eq!(driver.write(b"request"), Ok(7));
    driver.close(CloseReason::Normal);
    assert_eq!(give_up(&mut driver, now), Some(SessionEnd::GivenUp));
}
