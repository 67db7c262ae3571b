//! A link peer that can also send invalid frames: the shipped link opener over a blocking socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use spillway_auth::Key;
use spillway_batch::{
    Encryption, Id, Limits, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, RefuseReason, Role, Scratch,
};
use spillway_transport::Time;

use super::PATIENCE;

#[derive(Debug, PartialEq)]
pub enum End {
    /// The link opener failed, for example because the server refused the link; its error text.
    Refused(String),
    Closed,
}

pub struct LinkPeer {
    socket: TcpStream,
    link: OpenerLink,
    started: Instant,
    /// Bytes that [`send_only`](Self::send_only) could not send yet.
    unsent: Vec<u8>,
}

impl LinkPeer {
    /// Opens a link and waits until it is established or ends.
    pub fn open(port: SocketAddr, role: Role, key: &Key) -> Result<LinkPeer, End> {
        LinkPeer::open_as(port, role, key, Encryption::Preferred)
    }

    /// Like [`open`](Self::open), with this encryption setting; [`Encryption::Off`] acts as an older peer without
    /// encryption.
    pub fn open_as(port: SocketAddr, role: Role, key: &Key, encryption: Encryption) -> Result<LinkPeer, End> {
        let socket = TcpStream::connect(port).expect("connect to the link port");
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let config = OpenerConfig {
            role,
            key: key.clone(),
            limits: Limits { handshake_timeout: PATIENCE, ..Limits::default() },
            policy: PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 },
            encryption,
        };
        let link = OpenerLink::new(&config, Time::ZERO, spillway_keys::fresh_link_randomness().unwrap());
        let mut peer = LinkPeer { socket, link, started: Instant::now(), unsent: Vec::new() };
        while !peer.link.is_established() {
            peer.turn(|_| {})?;
        }
        Ok(peer)
    }

    /// Sends waiting bytes, receives once, and calls `on_event` for each event.
    pub fn turn(&mut self, mut on_event: impl FnMut(OpenerEvent<'_>)) -> Result<(), End> {
        assert!(self.started.elapsed() < PATIENCE * 2, "the link should be used for less than 60 s");
        let now = Time(self.started.elapsed().as_nanos() as u64);
        while let Some(batch) = self.link.flush(now) {
            if self.socket.write_all(batch.as_slice()).is_err() {
                return Err(End::Closed);
            }
        }
        let mut buffer = [0; 65_536];
        let count = match self.socket.read(&mut buffer) {
            Ok(0) => return Err(End::Closed),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(());
            }
            Err(_) => return Err(End::Closed),
        };
        let mut scratch = Scratch::new();
        let mut input = self.link.unseal(now, &buffer[..count], &mut scratch);
        loop {
            match self.link.decompose(now, &mut input) {
                Ok(Some(event)) => on_event(event),
                Ok(None) => return Ok(()),
                Err(error) => return Err(End::Refused(error.to_string())),
            }
        }
    }

    pub fn link(&mut self) -> &mut OpenerLink {
        &mut self.link
    }

    /// Sends waiting bytes as far as the other end accepts them, and reads nothing. Returns the number of bytes sent.
    pub fn send_only(&mut self) -> Result<usize, End> {
        self.socket.set_nonblocking(true).unwrap();
        let now = Time(self.started.elapsed().as_nanos() as u64);
        if self.unsent.is_empty() {
            self.unsent = self.link.flush(now).map_or(Vec::new(), |batch| batch.as_slice().to_vec());
        }
        match self.socket.write(&self.unsent) {
            Ok(bytes) => {
                self.unsent.drain(..bytes);
                Ok(bytes)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(_) => Err(End::Closed),
        }
    }

    pub fn local(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Opens a connection for a client address and waits for the server's answer.
    pub fn connect(&mut self, client: SocketAddr) -> Result<Id, RefuseReason> {
        let id = self.link.open(client, None).expect("a free id");
        let mut answer = None;
        while answer.is_none() {
            self.turn(|event| match event {
                OpenerEvent::Accepted { id: other } if other == id => answer = Some(Ok(id)),
                OpenerEvent::Refused { id: other, reason } if other == id => answer = Some(Err(reason)),
                _ => {}
            })
            .expect("the link should stay open");
        }
        answer.unwrap()
    }

    /// Sends a request and reads the reply up to its end.
    pub fn exchange(&mut self, id: Id, request: &[u8], end: &[u8]) -> Vec<u8> {
        assert_eq!(self.link.compose(id, request), request.len());
        let mut reply = Vec::new();
        while !reply.ends_with(end) {
            self.turn(|event| match event {
                OpenerEvent::Data { id: other, bytes } if other == id => reply.extend_from_slice(bytes),
                OpenerEvent::Closed { id: other, reason } if other == id => panic!("closed: {reason:?}"),
                _ => {}
            })
            .expect("the link should stay open");
        }
        self.link.consumed(id, reply.len()).unwrap();
        reply
    }
}
