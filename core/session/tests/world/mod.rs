//! One client and one server's table over faulty carriers. Each byte of both streams is compared with the expected one.
#![allow(dead_code, reason = "each test file uses only some of these items")]

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_session::{
    Carrier, ClientEvent, ClientSession, Expired, Opened, OpeningMessage, SessionHandle, Sessions,
    StreamEvent, StreamLimits, TableLimits,
};
use spillway_transport::Time;
use spillway_wire::preamble::Role;
use spillway_wire::session::SessionId;
use spillway_wire::{CloseReason, Control, Kind};

/// Small limits, so that tests reach them.
pub const LIMITS: StreamLimits = StreamLimits { window_bytes: 500, kept_bytes_max: 300 };

/// A frame on a carrier.
#[derive(Clone, Debug)]
pub enum Frame {
    Data(Vec<u8>),
    Control(Control),
}

/// One virtual connection: the frames in flight in both directions.
#[derive(Default)]
pub struct Path {
    pub to_server: VecDeque<Frame>,
    pub to_client: VecDeque<Frame>,
    /// The server's end has closed the connection.
    pub is_closed: bool,
}

/// The byte of a stream at this offset; `salt` differs by direction.
fn byte_at(offset: u64, salt: u64) -> u8 {
    ((offset ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

const TO_SERVER: u64 = 0x5151;
const TO_CLIENT: u64 = 0xacac;

struct Queue<'a>(&'a mut VecDeque<Frame>);

impl Carrier for Queue<'_> {
    fn data(&mut self, bytes: &[u8]) -> usize {
        assert!(!bytes.is_empty(), "data should have bytes");
        // The carrier is full at eight frames.
        let taken = bytes.len().min(400usize.saturating_sub(self.0.len() * 50));
        if taken > 0 {
            self.0.push_back(Frame::Data(bytes[..taken].to_vec()));
        }
        taken
    }

    fn control(&mut self, control: Control) {
        self.0.push_back(Frame::Control(control));
    }
}

/// An application at one end.
#[derive(Debug, Default)]
pub struct App {
    pub written: u64,
    pub read: u64,
    pub is_accepted: bool,
    pub has_finished: bool,
    pub received_finish: bool,
    pub got_room: bool,
    pub received_close: Option<CloseReason>,
    pub has_closed: bool,
}

pub struct World {
    pub now: Time,
    pub client: ClientSession,
    pub client_app: App,
    /// The carrier that the client reads and writes.
    pub current: Option<usize>,
    pub paths: Vec<Path>,
    pub table: Sessions<usize>,
    pub session: Option<SessionHandle>,
    /// The paths that are carriers at the server.
    carried: HashMap<usize, SessionHandle>,
    pub server_app: App,
    pub ring: KeyRing,
    pub gone: Option<u64>,
    pub abandoned: bool,
    /// All opening messages of the client, for replays.
    pub opening_messages: Vec<Control>,
    pub refused: Vec<spillway_wire::RefuseReason>,
}

pub fn client_address() -> SocketAddr {
    "10.0.0.9:999".parse().unwrap()
}

impl World {
    pub fn new() -> World {
        let key = Key::from_secret([7; 32]);
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key.clone());
        World {
            now: Time(1_000_000),
            client: ClientSession::new(key, SessionId([3; 16]), LIMITS),
            client_app: App::default(),
            current: None,
            paths: Vec::new(),
            table: World::empty_table(),
            session: None,
            carried: HashMap::new(),
            server_app: App::default(),
            ring,
            gone: None,
            abandoned: false,
            opening_messages: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn empty_table() -> Sessions<usize> {
        World::table_of_life(1)
    }

    fn table_of_life(life: u64) -> Sessions<usize> {
        Sessions::new(TableLimits { sessions_max: 4, stream: LIMITS, ..TableLimits::default() }, life << 32)
    }

    /// The server restarts and loses all state.
    pub fn restart_server(&mut self) {
        self.table = World::table_of_life(2);
        self.carried.clear();
        self.session = None;
        self.server_app = App::default();
        for path in &mut self.paths {
            path.is_closed = true;
            path.to_client.clear();
        }
    }

    pub fn advance_time(&mut self, time: Duration) {
        self.now = self.now + time;
        while let Some(expired) = self.table.poll_expired(self.now) {
            self.session = None;
            self.abandoned |= matches!(expired, Expired::Abandoned(_));
        }
    }

    /// The client opens the session on a new carrier. Frames on the old ones stay in flight.
    pub fn connect(&mut self) -> usize {
        let message = self.client.open(self.now, client_address(), None);
        self.opening_messages.push(message);
        self.paths.push(Path::default());
        let path = self.paths.len() - 1;
        self.paths[path].to_server.push_back(Frame::Control(message));
        self.current = Some(path);
        path
    }

    /// Both ends lose a carrier; its frames in flight are lost.
    pub fn lose_carrier(&mut self, path: usize) {
        self.paths[path].to_server.clear();
        self.paths[path].to_client.clear();
        self.paths[path].is_closed = true;
        if let Some(session) = self.carried.remove(&path) {
            self.table.detach(self.now, session, path);
        }
        if self.current == Some(path) {
            self.current = None;
            self.client.detach();
        }
    }

    /// An attacker replays an opening message on a new carrier.
    pub fn replay(&mut self, message: Control) -> usize {
        self.paths.push(Path::default());
        let path = self.paths.len() - 1;
        self.paths[path].to_server.push_back(Frame::Control(message));
        path
    }

    pub fn client_writes(&mut self, bytes_max: u64) {
        let app = &mut self.client_app;
        let bytes: Vec<u8> =
            (app.written..app.written + bytes_max).map(|at| byte_at(at, TO_SERVER)).collect();
        app.written += self.client.write(&bytes) as u64;
        assert!(
            self.client.unacknowledged_bytes() <= LIMITS.kept_bytes_max,
            "the client's kept bytes should be within the limit"
        );
        self.client_transmits();
    }

    pub fn server_writes(&mut self, bytes_max: u64) {
        let Some(session) = self.session else { return };
        let app = &mut self.server_app;
        let bytes: Vec<u8> =
            (app.written..app.written + bytes_max).map(|at| byte_at(at, TO_CLIENT)).collect();
        app.written += self.table.write(session, &bytes) as u64;
        assert!(
            self.table.info(session).unwrap().bytes_kept <= LIMITS.kept_bytes_max,
            "the server's kept bytes should be within the limit"
        );
        self.server_transmits();
    }

    pub fn client_closes(&mut self, reason: CloseReason) {
        self.client_app.has_closed = true;
        self.client.close(reason);
        self.client_transmits();
    }

    pub fn server_closes(&mut self, reason: CloseReason) {
        let Some(session) = self.session else { return };
        self.server_app.has_closed = true;
        self.table.close(self.now, session, reason);
        self.server_transmits();
    }

    pub fn client_finishes(&mut self) {
        self.client_app.has_finished = true;
        self.client.finish();
        self.client_transmits();
    }

    pub fn server_finishes(&mut self) {
        let Some(session) = self.session else { return };
        self.server_app.has_finished = true;
        self.table.finish(session);
        self.server_transmits();
    }

    pub fn server_accepts(&mut self) {
        let Some(session) = self.session.filter(|_| !self.server_app.is_accepted) else { return };
        self.server_app.is_accepted = true;
        if let Some(path) = self.table.accept(session) {
            self.paths[path].to_client.push_back(Frame::Control(Control::Accepted));
        }
    }

    pub fn client_transmits(&mut self) {
        if let Some(path) = self.current {
            self.client.transmit(self.now, &mut Queue(&mut self.paths[path].to_server));
        }
    }

    pub fn server_transmits(&mut self) {
        let Some(session) = self.session else { return };
        if let Some(path) = self.table.info(session).and_then(|info| info.carrier) {
            self.table.transmit(self.now, session, &mut Queue(&mut self.paths[path].to_client));
        }
        if self.table.info(session).is_none() {
            self.session = None;
        }
    }

    /// The server receives the next frame of a path. Returns whether there was one.
    pub fn server_receives(&mut self, path: usize) -> bool {
        let Some(frame) = self.paths[path].to_server.pop_front() else { return false };
        if self.paths[path].is_closed {
            return true;
        }
        match (frame, self.carried.get(&path).copied()) {
            (Frame::Control(Control::Connect(connect)), None) => {
                let opening = connect.session.expect("connect should begin a session");
                self.handle_opening_message(path, Kind::Connect, connect.client, opening);
            }
            (Frame::Control(Control::Reconnect(reconnect)), None) => {
                self.handle_opening_message(path, Kind::Reconnect, reconnect.client, reconnect.opening);
            }
            (Frame::Control(control), Some(session)) => {
                let event = self.table.handle_control(self.now, session, path, &control);
                self.server_event(event);
            }
            (Frame::Data(bytes), Some(session)) => {
                match self.table.handle_data(self.now, session, path, bytes.len()) {
                    Ok(true) => {
                        let app = &mut self.server_app;
                        assert!(!app.has_closed, "no bytes should arrive after close");
                        for byte in &bytes {
                            assert_eq!(
                                *byte,
                                byte_at(app.read, TO_SERVER),
                                "request byte {} should be unaltered",
                                app.read
                            );
                            app.read += 1;
                        }
                        assert!(
                            app.read <= self.client_app.written,
                            "the server should not read more than was written"
                        );
                        self.table.consumed(session, bytes.len()).unwrap();
                    }
                    Ok(false) => {}
                    Err(event) => self.server_event(Some(event)),
                }
            }
            (_, None) => {}
        }
        self.server_transmits();
        true
    }

    fn handle_opening_message(
        &mut self,
        path: usize,
        kind: Kind,
        client: SocketAddr,
        opening: spillway_wire::session::Opening,
    ) {
        let message = OpeningMessage { carrier: path, kind, client, opening };
        match self.table.open(self.now, &self.ring, &message) {
            Opened::New { session, answer } => {
                assert_eq!(self.server_app.read, 0, "a session should not begin twice");
                self.carried.insert(path, session);
                self.session = Some(session);
                self.paths[path].to_client.push_back(Frame::Control(answer));
            }
            Opened::Resumed { session, answer, is_accepted, room, replaced } => {
                self.server_app.got_room |= room;
                if let Some(old) = replaced {
                    self.carried.remove(&old);
                    self.paths[old].is_closed = true;
                }
                self.carried.insert(path, session);
                let to_client = &mut self.paths[path].to_client;
                to_client.push_back(Frame::Control(answer));
                if is_accepted {
                    to_client.push_back(Frame::Control(Control::Accepted));
                }
            }
            Opened::AlreadyClosed { answer, reason } => {
                let to_client = &mut self.paths[path].to_client;
                to_client.extend([answer, Control::Close(reason)].map(Frame::Control));
                self.paths[path].is_closed = true;
            }
            Opened::Refused(reason) => {
                self.refused.push(reason);
                self.paths[path].to_client.push_back(Frame::Control(Control::Refused(reason)));
                self.paths[path].is_closed = true;
            }
        }
    }

    fn server_event(&mut self, event: Option<StreamEvent>) {
        match event {
            Some(StreamEvent::Finished) => {
                assert!(
                    self.client_app.has_finished && self.server_app.read == self.client_app.written,
                    "a finish should follow all bytes"
                );
                self.server_app.received_finish = true;
            }
            Some(StreamEvent::Closed(reason)) => self.server_app.received_close = Some(reason),
            Some(StreamEvent::Room) => self.server_app.got_room = true,
            None => {}
        }
    }

    /// The client receives the next frame of its present carrier. Returns whether there was one.
    pub fn client_receives(&mut self) -> bool {
        let Some(path) = self.current else { return false };
        let Some(frame) = self.paths[path].to_client.pop_front() else { return false };
        match frame {
            Frame::Control(control) => {
                match self
                    .client
                    .handle_control(self.now, &control)
                    .expect("a message of the genuine server should be valid")
                {
                    Some(ClientEvent::Stream(event)) => self.client_event(event),
                    Some(ClientEvent::Accepted) => {
                        assert!(!self.client_app.is_accepted, "a session should be accepted once");
                        self.client_app.is_accepted = true;
                    }
                    Some(ClientEvent::Gone { acknowledged }) => {
                        self.gone = Some(acknowledged);
                        self.current = None;
                    }
                    Some(ClientEvent::Refused(_)) => self.current = None,
                    Some(ClientEvent::Attached { room }) => self.client_app.got_room |= room,
                    Some(ClientEvent::Drain { .. }) | None => {}
                }
            }
            Frame::Data(bytes) => match self.client.handle_data(self.now, bytes.len()) {
                Ok(true) => {
                    let app = &mut self.client_app;
                    assert!(!app.has_closed, "no bytes should arrive after close");
                    for byte in &bytes {
                        assert_eq!(
                            *byte,
                            byte_at(app.read, TO_CLIENT),
                            "reply byte {} should be unaltered",
                            app.read
                        );
                        app.read += 1;
                    }
                    self.client.consumed(bytes.len()).unwrap();
                }
                Ok(false) => {}
                Err(ClientEvent::Stream(event)) => self.client_event(event),
                Err(other) => panic!("{other:?}"),
            },
        }
        self.client_transmits();
        true
    }

    fn client_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Finished => {
                assert!(
                    self.server_app.has_finished && self.client_app.read == self.server_app.written,
                    "a finish should follow all bytes"
                );
                self.client_app.received_finish = true;
            }
            StreamEvent::Closed(reason) => self.client_app.received_close = Some(reason),
            StreamEvent::Room => self.client_app.got_room = true,
        }
    }

    /// Delivers frames until no frame is in flight. An end that receives *close* closes, too.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut has_progress = false;
            for path in 0..self.paths.len() {
                has_progress |= self.server_receives(path);
            }
            while self.client_receives() {
                has_progress = true;
            }
            self.server_accepts();
            if self.server_app.received_close.is_some() && !self.server_app.has_closed {
                self.server_closes(CloseReason::Normal);
            }
            if self.client_app.received_close.is_some() && !self.client_app.has_closed {
                self.client_closes(CloseReason::Normal);
            }
            self.advance_time(Duration::from_millis(150)); // longer than the delay of acknowledgements
            self.client_transmits();
            self.server_transmits();
            has_progress |= self.paths.iter().any(|path| !path.to_server.is_empty() && !path.is_closed);
            has_progress |= self.current.is_some_and(|path| !self.paths[path].to_client.is_empty());
            if !has_progress {
                return;
            }
        }
        panic!("frames should stop within 10,000 rounds");
    }
}
