//! Whoever would take a session that is another's, at memcached under the shim: forged, stale and replayed words.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use spillway_auth::Key;
use spillway_batch::{
    Control, Id, Limits, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, RefuseReason, Role,
};
use spillway_session::{ClientSession, OnOpenerLink, StreamLimits};
use spillway_transport::Time;
use spillway_wire::session::SessionId;
use support::driver::PATIENCE;
use support::memcached::memcached;
use support::process::Server;

/// What came on one connection of a link.
#[derive(Debug)]
enum Came {
    Control(Control),
    Data(Vec<u8>),
}

/// A link that carries sessions, of a helper that may say what it likes.
struct Peer {
    stream: TcpStream,
    link: OpenerLink,
    began: Instant,
    came: Vec<(Id, Came)>,
}

impl Peer {
    fn open(server: &Server) -> Peer {
        let stream = TcpStream::connect(server.link).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let limits = Limits { handshake_timeout: PATIENCE, ..Limits::default() };
        let policy = PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 };
        let config = OpenerConfig { role: Role::Helper, key: Key::loopback_only(), limits, policy };
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).unwrap();
        let link = OpenerLink::new(&config, Time::ZERO, nonce);
        let mut peer = Peer { stream, link, began: Instant::now(), came: Vec::new() };
        while !peer.link.is_established() {
            peer.turn();
        }
        peer
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }

    /// Sends what waits, and receives once.
    fn turn(&mut self) {
        assert!(self.began.elapsed() < PATIENCE, "the server says nothing: {:?}", self.came);
        let now = self.now();
        while let Some(batch) = self.link.flush(now) {
            self.stream.write_all(batch.as_slice()).unwrap();
        }
        let mut buffer = [0; 65_536];
        let mut input = match self.stream.read(&mut buffer) {
            Ok(count) => &buffer[..count],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return,
            Err(error) => panic!("the link is lost: {error}"),
        };
        while let Some(event) = self.link.decompose(now, &mut input).unwrap() {
            match event {
                OpenerEvent::RelayedControl { id, control } => self.came.push((id, Came::Control(control))),
                OpenerEvent::RelayedData { id, bytes, .. } => {
                    self.came.push((id, Came::Data(bytes.to_vec())))
                }
                _ => {}
            }
        }
    }

    /// What comes next on a connection.
    fn next(&mut self, id: Id) -> Came {
        loop {
            if let Some(position) = self.came.iter().position(|(of, _)| *of == id) {
                return self.came.remove(position).1;
            }
            self.turn();
        }
    }

    /// Says first words, and hears the answer to them.
    fn say(&mut self, words: &Control) -> (Id, Control) {
        let id = self.link.open_relayed(*words).unwrap();
        match self.next(id) {
            Came::Control(answer) => (id, answer),
            Came::Data(_) => panic!("no byte comes before the answer"),
        }
    }

    fn is_refused(&mut self, words: &Control) -> RefuseReason {
        match self.say(words).1 {
            Control::Refused(reason) => reason,
            other => panic!("a thief hears {other:?}"),
        }
    }

    /// Its session goes on here.
    fn take(&mut self, session: &mut ClientSession, client: SocketAddr) -> (Id, Control) {
        let words = session.open(self.now(), client, None);
        let (id, answer) = self.say(&words);
        session.handle_control(self.now(), &answer).unwrap();
        assert!(session.is_attached(), "the owner hears {answer:?}");
        (id, words)
    }

    fn ask(&mut self, session: &mut ClientSession, id: Id, request: &[u8], reply: &[u8]) {
        assert_eq!(session.write(request), request.len());
        let now = self.now();
        session.transmit(now, &mut OnOpenerLink { link: &mut self.link, id, pending_bytes_max: 1 << 20 });
        let mut got = Vec::new();
        while got.len() < reply.len() {
            match self.next(id) {
                Came::Control(control) => drop(session.handle_control(now, &control).unwrap()),
                Came::Data(bytes) => {
                    assert_eq!(session.handle_data(now, bytes.len()), Ok(true));
                    session.consumed(bytes.len());
                    got.extend(bytes);
                }
            }
        }
        assert_eq!(got, reply);
    }
}

/// As whoever reads the words on their way may alter them.
fn altered(words: &Control, alter: impl FnOnce(&mut spillway_wire::session::Opening)) -> Control {
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
    let (mut first, mut second, mut thief) = (Peer::open(&server), Peer::open(&server), Peer::open(&server));
    let mut owner = ClientSession::new(Key::loopback_only(), SessionId([7; 16]), StreamLimits::default());
    let (id, connect) = first.take(&mut owner, client);
    first.ask(&mut owner, id, b"set key 0 0 5\r\nvalue\r\n", b"STORED\r\n");
    // Said again, by a helper that has read them on their way.
    assert_eq!(thief.is_refused(&connect), RefuseReason::Stale);
    // With a higher epoch, which the proof does not cover.
    assert_eq!(thief.is_refused(&altered(&connect, |opening| opening.epoch += 1)), RefuseReason::Forbidden);
    let (id, reconnect) = second.take(&mut owner, client);
    second.ask(&mut owner, id, b"get key\r\n", b"VALUE key 0 5\r\nvalue\r\nEND\r\n");
    for words in [&connect, &reconnect] {
        assert_eq!(thief.is_refused(words), RefuseReason::Stale);
        let forgeries: [fn(&mut spillway_wire::session::Opening); 4] = [
            |opening| opening.epoch += 7,
            |opening| opening.position.received += 1,
            |opening| opening.life ^= 1,
            |opening| opening.proof[3] ^= 1,
        ];
        for forge in forgeries {
            assert_eq!(thief.is_refused(&altered(words, forge)), RefuseReason::Forbidden);
        }
    }
    // Of another key, that the server does not accept.
    let mut stranger =
        ClientSession::new(Key::from_secret([9; 32]), SessionId([7; 16]), StreamLimits::default());
    let words = stranger.open(Time::ZERO, client, None);
    assert_eq!(thief.is_refused(&words), RefuseReason::Forbidden);
    // Of a session that there never was, as after a restart.
    let words = altered(&reconnect, |opening| opening.session = SessionId([8; 16]));
    assert!(matches!(thief.is_refused(&words), RefuseReason::Forbidden | RefuseReason::Gone));
    // The owner has not noticed.
    second.ask(&mut owner, id, b"get key\r\n", b"VALUE key 0 5\r\nvalue\r\nEND\r\n");
}
