//! The link port at its bounds, in virtual time.

mod support;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{CloseReason, Encryption, Id, Limits, Role, Scratch};
use spillway_server::{
    BindError, ClientId, ConsumedTooMuch, Event, Key, KeyRing, LinkLoss, Links, ReleaseSettings, Settings,
};
use spillway_transport::Time;
use spillway_wire::{Connect, Control};
use support::port::{Port, Serve, run_until};
use support::raw::{LinkEvent, RawLink};

/// An echoing link port that the test drives, turn by turn.
struct Server {
    port: Port,
    now: Instant,
    clients: Vec<ClientId>,
    opened: usize,
    closed: Vec<ClientId>,
    lost: Vec<LinkLoss>,
}

fn keys() -> (Key, Key) {
    let (helpers, clients) = (Key::from_secret([1; 32]), Key::from_secret([2; 32]));
    (helpers, clients)
}

impl Server {
    fn start(settings: Settings) -> Server {
        let mut ring = KeyRing::new();
        ring.accept(Role::Helper, keys().0);
        ring.accept(Role::Client, keys().1);
        let now = Instant::now();
        let address = "127.0.0.1:0".parse().unwrap();
        let port = Port::bind(now, address, Settings { keys: ring, ..settings });
        Server { port, now, clients: Vec::new(), opened: 0, closed: Vec::new(), lost: Vec::new() }
    }

    fn turn(&mut self) {
        self.turn_at(self.now, &mut [0; 65536]);
    }

    fn run_until(&mut self, description: &str, done: impl FnMut(&mut Server) -> bool) {
        run_until(self, description, Server::turn, done);
    }

    /// The next event that the server's output causes at the link's other end.
    fn next_event(&mut self, link: &mut RawLink) -> LinkEvent {
        self.run_until("an answer", |_| link.has_input());
        link.next_event()
    }

    /// As [`next_event`](Self::next_event), but the event may be in bytes that were received before.
    fn next_buffered_event(&mut self, link: &mut RawLink) -> LinkEvent {
        if link.is_all_decomposed() { self.next_event(link) } else { link.next_event() }
    }

    fn establish(&mut self, role: Role, key: Key) -> RawLink {
        self.establish_as(role, key, Encryption::Preferred)
    }

    fn establish_plain(&mut self, role: Role, key: Key) -> RawLink {
        self.establish_as(role, key, Encryption::Off)
    }

    fn establish_as(&mut self, role: Role, key: Key, encryption: Encryption) -> RawLink {
        let mut link = RawLink::open_as(self.port.links.address(), role, key, encryption);
        assert_eq!(self.next_event(&mut link), LinkEvent::Established);
        link.flush();
        let opened = self.opened;
        self.run_until("the link", |server| server.opened > opened);
        link
    }
}

impl Serve for Server {
    fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Connected { client, .. } => {
                self.clients.push(client);
                self.port.links.accept(client);
            }
            Event::Data { client, bytes } => {
                assert_eq!(self.port.links.compose(client, bytes), bytes.len());
                self.port.links.consumed(client, bytes.len()).unwrap();
            }
            Event::Closed { client, reason } => {
                self.port.links.close(client, reason);
                self.closed.push(client);
            }
            Event::LinkOpened { .. } => self.opened += 1,
            Event::LinkLost { why, .. } => self.lost.push(why),
            _ => {}
        }
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn bind_without_a_key_is_refused_except_on_loopback() {
    let now = Instant::now();
    let error = Links::bind(now, address("0.0.0.0:0"), Settings::default()).unwrap_err();
    assert!(matches!(error, BindError::NeedsKeyForAddress(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("spillway key new") && text.contains("127.0.0.1"), "{text}");
    for loopback in ["127.0.0.1:0", "[::1]:0"] {
        let links = Links::bind(now, address(loopback), Settings::default()).unwrap();
        assert_ne!(links.address().port(), 0);
    }
}

/// A loopback address does not help here, so the error must not recommend one.
#[test]
fn required_encryption_without_a_key_is_refused_on_loopback_too() {
    let settings = Settings { encryption: Encryption::Required, ..Settings::default() };
    for any in ["127.0.0.1:0", "0.0.0.0:0"] {
        let error = Links::bind(Instant::now(), address(any), settings.clone()).unwrap_err();
        assert!(matches!(error, BindError::NeedsKeyForEncryption(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("spillway key new") && !text.contains("bind"), "{text}");
    }
}

#[test]
fn release_settings_out_of_their_bounds_are_rejected() {
    let release = ReleaseSettings { low_percent: 0, ..ReleaseSettings::default() };
    let settings = Settings { release: Some(release), ..Settings::default() };
    let error = Links::bind(Instant::now(), address("127.0.0.1:0"), settings).unwrap_err();
    assert_eq!(error.to_string(), "release settings: low_percent must be 1 to 95");
}

#[test]
fn two_link_ports_can_share_an_address() {
    let now = Instant::now();
    let settings = Settings { reuse_port: true, ..Settings::default() };
    let first = Links::bind(now, address("127.0.0.1:0"), settings.clone()).unwrap();
    assert!(Links::bind(now, first.address(), settings).is_ok());
    let error = Links::bind(now, first.address(), Settings::default()).unwrap_err();
    assert!(matches!(error, BindError::Listen(..)), "{error}");
}

#[test]
fn link_that_could_not_be_watched_is_watched_by_the_next_call() {
    let mut server = Server::start(Settings::default());
    server.turn();
    let mut link = RawLink::open(server.port.links.address(), Role::Helper, keys().0);
    // `/dev/null` is not an epoll set, so the call fails once there is a link to watch.
    let file = std::fs::File::open("/dev/null").unwrap();
    server.run_until("a link", |server| server.port.links.watch_in(&file, 9).is_err());
    assert_eq!(server.next_event(&mut link), LinkEvent::Established);
    link.flush();
    server.run_until("the link", |server| server.opened == 1);
}

#[test]
fn link_beyond_the_maximum_is_refused_until_another_ends() {
    let mut server = Server::start(Settings { links_max: 1, ..Settings::default() });
    let first = server.establish(Role::Helper, keys().0);
    let mut second = RawLink::open(server.port.links.address(), Role::Helper, keys().0);
    let refused = server.next_event(&mut second);
    assert!(
        matches!(&refused, LinkEvent::Broken(error) if error.to_string().contains("no room")),
        "{refused:?}"
    );
    assert_eq!(server.port.links.len(), 1);
    drop(first);
    server.run_until("the end of the first", |server| server.port.links.is_empty());
    server.establish(Role::Helper, keys().0);
}

#[test]
fn unauthenticated_links_do_not_shut_helpers_out() {
    let mut server = Server::start(Settings {
        unauthenticated: Bounds { total_any_age: 3, ..Bounds::DEFAULT },
        ..Settings::default()
    });
    let mut helper = server.establish(Role::Helper, keys().0);
    let silent_connections: Vec<TcpStream> =
        (0..10).map(|_| TcpStream::connect(server.port.links.address()).unwrap()).collect();
    server.run_until("the end of evicted connections", |server| server.lost.len() == 7);
    assert!(server.lost.iter().all(|why| matches!(why, LinkLoss::Evicted)), "{:?}", server.lost);
    assert_eq!(server.port.links.len(), 4, "the helper's link and the newest three should stay");
    assert_eq!(server.port.links.evicted_handshakes(), 7);
    server.establish(Role::Helper, keys().0);
    let id = helper.end.open(address("127.0.0.1:5"), None).unwrap();
    helper.flush();
    assert_eq!(server.next_event(&mut helper), LinkEvent::Accepted(id));
    drop(silent_connections);
}

/// On a port for few links, unauthenticated links are dropped for a helper, and established links stay.
#[test]
fn unauthenticated_links_do_not_fill_a_small_port() {
    let mut server = Server::start(Settings { links_max: 3, ..Settings::default() });
    let _first = server.establish(Role::Helper, keys().0);
    let silent_connections: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(server.port.links.address()).unwrap()).collect();
    server.run_until("the end of evicted connections", |server| server.lost.len() == 18);
    assert!(server.lost.iter().all(|why| matches!(why, LinkLoss::Evicted)), "{:?}", server.lost);
    assert_eq!(server.port.links.len(), 3);
    let _second = server.establish(Role::Helper, keys().0);
    let _third = server.establish(Role::Helper, keys().0);
    let mut fourth = RawLink::open(server.port.links.address(), Role::Helper, keys().0);
    assert!(
        matches!(server.next_event(&mut fourth), LinkEvent::Broken(_)),
        "the fourth link should be refused: three have authenticated"
    );
    drop(silent_connections);
}

/// A link whose peer has named its key survives a flood of unauthenticated links from the same address.
#[test]
fn a_handshake_survives_a_flood_of_silent_connections() {
    let unauthenticated = Bounds { total_any_age: 32, ..Bounds::DEFAULT };
    let mut server = Server::start(Settings { unauthenticated, ..Settings::default() });
    for _ in 0..10 {
        let mut helper = RawLink::open(server.port.links.address(), Role::Helper, keys().0);
        server.run_until("the welcome", |_| helper.has_input());
        let lost = server.lost.len();
        let silent_connections: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(server.port.links.address()).unwrap()).collect();
        server.run_until("the end of evicted connections", |server| server.lost.len() >= lost + 60);
        assert_eq!(server.next_event(&mut helper), LinkEvent::Established);
        helper.flush();
        let opened = server.opened;
        server.run_until("the link", |server| server.opened > opened);
        drop(silent_connections);
    }
}

#[test]
fn link_without_authentication_is_dropped_at_the_timeout() {
    let mut server = Server::start(Settings::default());
    let _helper = server.establish(Role::Helper, keys().0);
    let _silent = TcpStream::connect(server.port.links.address()).unwrap();
    server.run_until("the silent link", |server| server.port.links.len() == 2);
    assert!(server.lost.is_empty());
    server.now += Limits::default().handshake_timeout;
    server.run_until("the end of the silent link", |server| !server.lost.is_empty());
    assert!(matches!(server.lost[..], [LinkLoss::ProtocolError(_)]), "{:?}", server.lost);
    assert_eq!((server.port.links.len(), server.port.links.poll_timeout()), (1, None));
}

#[test]
fn lost_link_closes_each_open_connection_once() {
    let mut server = Server::start(Settings::default());
    let mut helper = server.establish(Role::Helper, keys().0);
    let ids: Vec<Id> = (1..=4)
        .map(|port| helper.end.open(SocketAddr::new([127, 0, 0, 1].into(), port), None).unwrap())
        .collect();
    helper.flush();
    server.run_until("all clients", |server| server.clients.len() == 4);
    let clients = server.clients.clone();
    // One connection is closed by its client, another by the application.
    helper.end.close(ids[0], CloseReason::Normal);
    helper.flush();
    server.run_until("the first end", |server| server.closed.len() == 1);
    server.port.links.close(clients[1], CloseReason::Normal);
    drop(helper);
    server.run_until("the end of the link", |server| !server.lost.is_empty());
    let mut closed = server.closed.clone();
    closed.sort();
    assert_eq!(closed, [clients[0], clients[2], clients[3]]);
    for client in clients {
        assert_eq!((server.port.links.info(client), server.port.links.compose(client, b"x")), (None, 0));
        server.port.links.close(client, CloseReason::Normal);
    }
}

#[test]
fn info_reports_the_role_and_address_of_each_client() {
    let mut server = Server::start(Settings::default());
    let mut helper = server.establish(Role::Helper, keys().0);
    let mut client = server.establish(Role::Client, keys().1);
    let local = client.stream.local_addr().unwrap();
    for (link, from) in [(&mut helper, address("10.9.8.7:6")), (&mut client, local)] {
        // A loopback link may carry any private address.
        let id = link.end.open(from, None).unwrap();
        link.end.compose(id, b"hello");
        link.flush();
        assert_eq!(server.next_event(link), LinkEvent::Accepted(id));
    }
    let info = |index: usize| server.port.links.info(server.clients[index]).unwrap();
    assert_eq!((info(0).role, info(0).client), (Role::Helper, address("10.9.8.7:6")));
    assert_eq!((info(1).role, info(1).client), (Role::Client, local));
    assert_eq!((info(0).bytes_received, info(0).bytes_sent), (5, 5));
}

/// The application consumes one byte too many: an error, and the client gets no credit for the byte that it never sent.
#[test]
fn consuming_more_than_was_received_is_an_error() {
    let mut server = Server::start(Settings::default());
    let mut helper = server.establish(Role::Helper, keys().0);
    let id = helper.end.open(address("10.9.8.7:6"), None).unwrap();
    helper.end.compose(id, b"hello");
    helper.flush();
    assert_eq!(server.next_event(&mut helper), LinkEvent::Accepted(id));
    let client = server.clients[0];
    let error = server.port.links.consumed(client, 1).unwrap_err();
    assert_eq!(error, ConsumedTooMuch { bytes: 1, unconsumed: 0 });
    assert!(error.to_string().contains("only 0 were received"), "{error}");
    assert_eq!(server.port.links.consumed(client, 0), Ok(()));
}

/// The peer opens and closes connections without end.
#[test]
fn peer_that_reads_no_answers_is_not_read() {
    let limits = Limits { pending_bytes_max: 64 * 1024, ..Limits::default() };
    let mut server = Server::start(Settings { limits, ..Settings::default() });
    let mut bystander = server.establish(Role::Helper, keys().0);
    // Without encryption the test can write frames itself.
    let mut flooder = server.establish_plain(Role::Helper, keys().0);
    let mut frames = Vec::new();
    let connect = Connect { client: address("127.0.0.1:5"), server: None, credit: 0, session: None };
    for _ in 0..1000 {
        Control::Connect(connect).emit(Id(1), &mut frames);
        Control::Close(CloseReason::Normal).emit(Id(1), &mut frames);
    }
    flooder.stream.set_nonblocking(true).unwrap();
    let (mut offset, mut stuck) = (0, 0);
    // `stuck`: turns in which the socket took no bytes, because the server does not read.
    while stuck < 50 {
        match flooder.stream.write(&frames[offset..]) {
            Ok(written) => (offset, stuck) = ((offset + written) % frames.len(), 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                stuck += 1;
            }
        }
        server.turn();
        assert!(server.clients.len() < 10_000_000, "the server should stop reading from the flooder");
        server.closed.clear();
    }
    let id = bystander.end.open(address("127.0.0.1:6"), None).unwrap();
    bystander.end.compose(id, b"still here?");
    bystander.flush();
    assert_eq!(server.next_event(&mut bystander), LinkEvent::Accepted(id));
    assert_eq!(server.next_buffered_event(&mut bystander), LinkEvent::Data(id, b"still here?".to_vec()));
    // When the peer reads the answers, the server reads the link again.
    flooder.stream.set_nonblocking(false).unwrap();
    let mut reader = flooder.stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let before = server.clients.len();
    server.run_until("more connections", |server| server.clients.len() > before);
    flooder.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let _ = reading.join();
}

/// The client sends *credit* without end. Others are read at once.
#[test]
fn client_that_sends_only_credit_is_read_once_a_second() {
    let mut server = Server::start(Settings::default());
    let mut bystander = server.establish(Role::Helper, keys().0);
    for encryption in [Encryption::Off, Encryption::Preferred] {
        let mut flooder = server.establish_as(Role::Client, keys().1, encryption);
        flooder.stream.set_nonblocking(true).unwrap();
        let mut batch = Vec::new();
        // Writes until the server reads no more and its socket is full. Returns the number of bytes taken.
        let mut flood = |server: &mut Server| {
            let (mut taken, mut stuck) = (0, 0);
            while stuck < 50 && taken < 64 << 20 {
                if batch.is_empty() {
                    (0..1000).for_each(|step| flooder.end.relay_control(Id(1), Control::Credit(step)));
                    batch.extend_from_slice(flooder.end.flush(Time::ZERO).unwrap().as_slice());
                }
                match flooder.stream.write(&batch) {
                    Ok(written) => (taken, stuck) = (taken + batch.drain(..written).len(), 0),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        stuck += 1;
                    }
                }
                server.turn();
            }
            taken
        };
        assert!(flood(&mut server) < 16 << 20, "the flood should stop when the sockets are full");
        for second in 0..20 {
            let id = bystander.end.open(address("127.0.0.1:6"), None).unwrap();
            bystander.end.compose(id, b"still here?");
            bystander.flush();
            assert_eq!(server.next_event(&mut bystander), LinkEvent::Accepted(id));
            assert_eq!(
                server.next_buffered_event(&mut bystander),
                LinkEvent::Data(id, b"still here?".to_vec())
            );
            server.turn();
            let resumed_at =
                server.port.links.poll_timeout().expect("the flooder's next reading should have a time");
            assert!(resumed_at > server.now, "the next reading should be later than now");
            server.now = resumed_at;
            let taken = flood(&mut server);
            assert!(
                taken < 2 << 20,
                "less than 2 MiB should be read in second {second}, but {taken} bytes were"
            );
        }
        assert!(server.lost.is_empty(), "{:?}", server.lost);
    }
}

#[test]
fn drain_is_sent_to_every_link() {
    let mut server = Server::start(Settings::default());
    let mut helper = server.establish(Role::Helper, keys().0);
    server.port.links.drain(1500);
    server.run_until("the drain message", |_| helper.has_input());
    let mut buffer = [0; 256];
    let received = std::io::Read::read(&mut helper.stream, &mut buffer).unwrap();
    let mut scratch = Scratch::new();
    let mut input = helper.end.unseal(Time::ZERO, &buffer[..received], &mut scratch);
    let event = helper.end.decompose(Time::ZERO, &mut input).unwrap();
    assert_eq!(event, Some(spillway_batch::OpenerEvent::Drain { deadline_ms: 1500 }));
}
