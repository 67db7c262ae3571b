//! The link port at its bounds, in virtual time.

mod support;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{CloseReason, Encryption, Id, Limits, Role, Scratch};
use spillway_server::{BindError, Client, ConsumedTooMuch, Event, Key, KeyRing, LinkEnd, Links, Settings};
use spillway_transport::Time;
use spillway_wire::{Connect, Control};
use support::port::{Port, Serve, until};
use support::raw::{Heard, RawLink};

/// An echoing link port that the test drives, turn by turn.
struct Server {
    port: Port,
    now: Instant,
    clients: Vec<Client>,
    opened: usize,
    closed: Vec<Client>,
    lost: Vec<LinkEnd>,
}

fn keys() -> (Key, Key) {
    (Key::from_secret([1; 32]), Key::from_secret([2; 32]))
}

impl Server {
    fn start(settings: Settings) -> Server {
        let mut ring = KeyRing::new();
        ring.accept(Role::Helper, keys().0);
        ring.accept(Role::Client, keys().1);
        let now = Instant::now();
        let address = "127.0.0.1:0".parse().unwrap();
        let port = Port::bind(now, address, Settings { ring, ..settings });
        Server { port, now, clients: Vec::new(), opened: 0, closed: Vec::new(), lost: Vec::new() }
    }

    fn turn(&mut self) {
        self.turn_at(self.now, &mut [0; 65536]);
    }

    fn until(&mut self, what: &str, done: impl FnMut(&mut Server) -> bool) {
        until(self, what, Server::turn, done);
    }

    /// The next event that the server's output causes at the link's other end.
    fn hear(&mut self, link: &mut RawLink) -> Heard {
        self.until("an answer", |_| link.has_something());
        link.hear()
    }

    /// As [`hear`](Self::hear), but the event may be in bytes that were received before.
    fn hear_more(&mut self, link: &mut RawLink) -> Heard {
        if link.is_used_up() { self.hear(link) } else { link.hear() }
    }

    fn establish(&mut self, role: Role, key: Key) -> RawLink {
        self.establish_as(role, key, Encryption::Preferred)
    }

    fn establish_plain(&mut self, role: Role, key: Key) -> RawLink {
        self.establish_as(role, key, Encryption::Off)
    }

    fn establish_as(&mut self, role: Role, key: Key, encryption: Encryption) -> RawLink {
        let mut link = RawLink::open_as(self.port.links.address(), role, key, encryption);
        assert_eq!(self.hear(&mut link), Heard::Established);
        link.flush();
        let opened = self.opened;
        self.until("the link", |server| server.opened > opened);
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
fn without_a_key_it_stays_on_loopback() {
    let now = Instant::now();
    let error = Links::bind(now, address("0.0.0.0:0"), Settings::default()).unwrap_err();
    assert!(matches!(error, BindError::NeedsKey(_)), "{error}");
    assert!(error.to_string().contains("spillway key new"), "{error}");
    for loopback in ["127.0.0.1:0", "[::1]:0"] {
        let links = Links::bind(now, address(loopback), Settings::default()).unwrap();
        assert_ne!(links.address().port(), 0);
    }
}

#[test]
fn threads_can_share_a_port() {
    let now = Instant::now();
    let settings = Settings { reuse_port: true, ..Settings::default() };
    let first = Links::bind(now, address("127.0.0.1:0"), settings.clone()).unwrap();
    assert!(Links::bind(now, first.address(), settings).is_ok());
    let error = Links::bind(now, first.address(), Settings::default()).unwrap_err();
    assert!(matches!(error, BindError::Listen(..)), "{error}");
}

#[test]
fn one_link_too_many_is_told_so_and_there_is_room_again() {
    let mut server = Server::start(Settings { links_max: 1, ..Settings::default() });
    let first = server.establish(Role::Helper, keys().0);
    let mut second = RawLink::open(server.port.links.address(), Role::Helper, keys().0);
    let refused = server.hear(&mut second);
    assert!(matches!(&refused, Heard::Broken(error) if error.to_string().contains("no room")), "{refused:?}");
    assert_eq!(server.port.links.len(), 1);
    drop(first);
    server.until("the end of the first", |server| server.port.links.is_empty());
    server.establish(Role::Helper, keys().0);
}

#[test]
fn strangers_cannot_shut_helpers_out() {
    let mut server = Server::start(Settings {
        unauthenticated: Bounds { young: 3, ..Bounds::DEFAULT },
        ..Settings::default()
    });
    let mut helper = server.establish(Role::Helper, keys().0);
    let strangers: Vec<TcpStream> =
        (0..10).map(|_| TcpStream::connect(server.port.links.address()).unwrap()).collect();
    server.until("strangers", |server| server.lost.len() == 7);
    assert!(server.lost.iter().all(|why| matches!(why, LinkEnd::Evicted)), "{:?}", server.lost);
    assert_eq!(server.port.links.len(), 4, "the helper, and the last three");
    assert_eq!(server.port.links.evicted_handshakes(), 7);
    server.establish(Role::Helper, keys().0);
    let id = helper.end.open(address("127.0.0.1:5"), None).unwrap();
    helper.flush();
    assert_eq!(server.hear(&mut helper), Heard::Accepted(id));
    drop(strangers);
}

/// On a port for few links, unauthenticated links are dropped for a helper, and established links stay.
#[test]
fn strangers_do_not_fill_a_small_port() {
    let mut server = Server::start(Settings { links_max: 3, ..Settings::default() });
    let _first = server.establish(Role::Helper, keys().0);
    let strangers: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(server.port.links.address()).unwrap()).collect();
    server.until("strangers", |server| server.lost.len() == 18);
    assert!(server.lost.iter().all(|why| matches!(why, LinkEnd::Evicted)), "{:?}", server.lost);
    assert_eq!(server.port.links.len(), 3);
    let _second = server.establish(Role::Helper, keys().0);
    let _third = server.establish(Role::Helper, keys().0);
    let mut fourth = RawLink::open(server.port.links.address(), Role::Helper, keys().0);
    assert!(matches!(server.hear(&mut fourth), Heard::Broken(_)), "three have authenticated");
    drop(strangers);
}

/// A link whose peer has named its key survives a flood of unauthenticated links from the same address.
#[test]
fn a_handshake_survives_a_flood_of_silent_connections() {
    let unauthenticated = Bounds { young: 32, ..Bounds::DEFAULT };
    let mut server = Server::start(Settings { unauthenticated, ..Settings::default() });
    for _ in 0..10 {
        let mut helper = RawLink::open(server.port.links.address(), Role::Helper, keys().0);
        server.until("the welcome", |_| helper.has_something());
        let lost = server.lost.len();
        let strangers: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(server.port.links.address()).unwrap()).collect();
        server.until("strangers", |server| server.lost.len() >= lost + 60);
        assert_eq!(server.hear(&mut helper), Heard::Established);
        helper.flush();
        let opened = server.opened;
        server.until("the link", |server| server.opened > opened);
        drop(strangers);
    }
}

#[test]
fn who_does_not_authenticate_in_time_is_dropped() {
    let mut server = Server::start(Settings::default());
    let _helper = server.establish(Role::Helper, keys().0);
    let _silent = TcpStream::connect(server.port.links.address()).unwrap();
    server.until("the silent one", |server| server.port.links.len() == 2);
    assert!(server.lost.is_empty());
    server.now += Limits::default().handshake_timeout;
    server.until("its end", |server| !server.lost.is_empty());
    assert!(matches!(server.lost[..], [LinkEnd::Broken(_)]), "{:?}", server.lost);
    assert_eq!((server.port.links.len(), server.port.links.poll_timeout()), (1, None));
}

#[test]
fn a_lost_link_closes_what_was_open_and_nothing_twice() {
    let mut server = Server::start(Settings::default());
    let mut helper = server.establish(Role::Helper, keys().0);
    let ids: Vec<Id> = (1..=4)
        .map(|port| helper.end.open(SocketAddr::new([127, 0, 0, 1].into(), port), None).unwrap())
        .collect();
    helper.flush();
    server.until("all clients", |server| server.clients.len() == 4);
    let clients = server.clients.clone();
    // One connection is closed by its client, another by the application.
    helper.end.close(ids[0], CloseReason::Normal);
    helper.flush();
    server.until("the first end", |server| server.closed.len() == 1);
    server.port.links.close(clients[1], CloseReason::Normal);
    drop(helper);
    server.until("the end of the link", |server| !server.lost.is_empty());
    let mut closed = server.closed.clone();
    closed.sort();
    assert_eq!(closed, [clients[0], clients[2], clients[3]]);
    for client in clients {
        assert_eq!((server.port.links.info(client), server.port.links.compose(client, b"x")), (None, 0));
        server.port.links.close(client, CloseReason::Normal);
    }
}

#[test]
fn get_info_tells_helpers_and_clients_apart() {
    let mut server = Server::start(Settings::default());
    let mut helper = server.establish(Role::Helper, keys().0);
    let mut client = server.establish(Role::Client, keys().1);
    let own = client.stream.local_addr().unwrap();
    for (link, from) in [(&mut helper, address("10.9.8.7:6")), (&mut client, own)] {
        // A loopback link may carry any private address.
        let id = link.end.open(from, None).unwrap();
        link.end.compose(id, b"hello");
        link.flush();
        assert_eq!(server.hear(link), Heard::Accepted(id));
    }
    let info = |index: usize| server.port.links.info(server.clients[index]).unwrap();
    assert_eq!((info(0).role, info(0).client), (Role::Helper, address("10.9.8.7:6")));
    assert_eq!((info(1).role, info(1).client), (Role::Client, own));
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
    assert_eq!(server.hear(&mut helper), Heard::Accepted(id));
    let client = server.clients[0];
    let error = server.port.links.consumed(client, 1).unwrap_err();
    assert_eq!(error, ConsumedTooMuch { bytes: 1, unconsumed: 0 });
    assert!(error.to_string().contains("only 0 were received"), "{error}");
    assert_eq!(server.port.links.consumed(client, 0), Ok(()));
}

/// A peer that opens and closes connections without end and reads no answers is not read.
#[test]
fn answers_that_nobody_reads_do_not_pile_up() {
    let limits = Limits { pending_bytes_max: 64 * 1024, ..Limits::default() };
    let mut server = Server::start(Settings { limits, ..Settings::default() });
    let mut bystander = server.establish(Role::Helper, keys().0);
    // Without encryption the test can write frames itself.
    let mut rude = server.establish_plain(Role::Helper, keys().0);
    let mut frames = Vec::new();
    let connect = Connect { client: address("127.0.0.1:5"), server: None, credit: 0, session: None };
    for _ in 0..1000 {
        Control::Connect(connect).emit(Id(1), &mut frames);
        Control::Close(CloseReason::Normal).emit(Id(1), &mut frames);
    }
    rude.stream.set_nonblocking(true).unwrap();
    let (mut at, mut stuck) = (0, 0);
    // `stuck`: turns in which the socket took no bytes, because the server does not read.
    while stuck < 50 {
        match rude.stream.write(&frames[at..]) {
            Ok(written) => (at, stuck) = ((at + written) % frames.len(), 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                stuck += 1;
            }
        }
        server.turn();
        assert!(server.clients.len() < 10_000_000, "it is read for ever");
        server.closed.clear();
    }
    let id = bystander.end.open(address("127.0.0.1:6"), None).unwrap();
    bystander.end.compose(id, b"still here?");
    bystander.flush();
    assert_eq!(server.hear(&mut bystander), Heard::Accepted(id));
    assert_eq!(server.hear_more(&mut bystander), Heard::Data(id, b"still here?".to_vec()));
    // Once the answers are read, the link goes on.
    rude.stream.set_nonblocking(false).unwrap();
    let mut reader = rude.stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let before = server.clients.len();
    server.until("more connections", |server| server.clients.len() > before);
    rude.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let _ = reading.join();
}

/// A client that sends only *credit*, without end, is read once a second; others at once.
#[test]
fn a_client_that_sends_no_data_is_read_slowly() {
    let mut server = Server::start(Settings::default());
    let mut bystander = server.establish(Role::Helper, keys().0);
    for encryption in [Encryption::Off, Encryption::Preferred] {
        let mut rude = server.establish_as(Role::Client, keys().1, encryption);
        rude.stream.set_nonblocking(true).unwrap();
        let mut batch = Vec::new();
        // Writes until the server reads no more and its socket is full. Returns the number of bytes taken.
        let mut flood = |server: &mut Server| {
            let (mut taken, mut stuck) = (0, 0);
            while stuck < 50 && taken < 64 << 20 {
                if batch.is_empty() {
                    (0..1000).for_each(|step| rude.end.relay_control(Id(1), Control::Credit(step)));
                    batch.extend_from_slice(rude.end.flush(Time::ZERO).unwrap().as_slice());
                }
                match rude.stream.write(&batch) {
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
        assert!(flood(&mut server) < 16 << 20, "as much as the sockets hold");
        for second in 0..20 {
            let id = bystander.end.open(address("127.0.0.1:6"), None).unwrap();
            bystander.end.compose(id, b"still here?");
            bystander.flush();
            assert_eq!(server.hear(&mut bystander), Heard::Accepted(id));
            assert_eq!(server.hear_more(&mut bystander), Heard::Data(id, b"still here?".to_vec()));
            server.turn();
            let resumed_at = server.port.links.poll_timeout().expect("it is read again");
            assert!(resumed_at > server.now, "the loop does not spin");
            server.now = resumed_at;
            let taken = flood(&mut server);
            assert!(taken < 2 << 20, "{taken} bytes in second {second}");
        }
        assert!(server.lost.is_empty(), "{:?}", server.lost);
    }
}

#[test]
fn drain_is_told_to_every_link() {
    let mut server = Server::start(Settings::default());
    let mut helper = server.establish(Role::Helper, keys().0);
    server.port.links.drain(1500);
    server.until("the word", |_| helper.has_something());
    let mut buffer = [0; 256];
    let received = std::io::Read::read(&mut helper.stream, &mut buffer).unwrap();
    let mut scratch = Scratch::new();
    let mut input = helper.end.unseal(Time::ZERO, &buffer[..received], &mut scratch);
    let event = helper.end.decompose(Time::ZERO, &mut input).unwrap();
    assert_eq!(event, Some(spillway_batch::OpenerEvent::Drain { deadline_ms: 1500 }));
}
