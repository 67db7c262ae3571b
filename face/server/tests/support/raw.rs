//! A link without the client library, so that a test can violate the protocol.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use spillway_batch::{
    CloseReason, Control, Encryption, Id, Limits, LinkError, OpenerConfig, OpenerEvent, OpenerLink,
    PolicyKind, RefuseReason, Role, Scratch,
};
use spillway_client::Key;
use spillway_transport::Time;

#[derive(Debug, PartialEq, Eq)]
pub enum LinkEvent {
    Established,
    Accepted(Id),
    Refused(Id, RefuseReason),
    Data(Id, Vec<u8>),
    Finished(Id),
    Closed(Id, CloseReason),
    /// A control message on a connection that carries a session.
    Control(Id, Control),
    Broken(LinkError),
    /// The peer closed the link.
    End,
}

pub struct RawLink {
    pub stream: TcpStream,
    pub end: OpenerLink,
    buffer: Vec<u8>,
}

impl RawLink {
    pub fn open(address: SocketAddr, role: Role, key: Key) -> RawLink {
        RawLink::open_as(address, role, key, Encryption::Preferred)
    }

    pub fn open_as(address: SocketAddr, role: Role, key: Key, encryption: Encryption) -> RawLink {
        let stream = TcpStream::connect(address).unwrap();
        // Without a timeout, a failing test would not end.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let policy = PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 };
        let config = OpenerConfig { role, key, limits: Limits::default(), policy, encryption };
        let fresh = spillway_keys::fresh_link_randomness().unwrap();
        let mut link =
            RawLink { stream, end: OpenerLink::new(&config, Time::ZERO, fresh), buffer: Vec::new() };
        link.flush();
        link
    }

    /// Opens a link, and waits until it is established.
    pub fn establish(address: SocketAddr, role: Role, key: Key) -> RawLink {
        let mut link = RawLink::open(address, role, key);
        assert_eq!(link.next_event(), LinkEvent::Established);
        link.flush();
        link
    }

    pub fn flush(&mut self) {
        while let Some(batch) = self.end.flush(Time::ZERO) {
            // The peer may have closed the link already. Its bytes can still be read.
            let _ = self.stream.write_all(batch.as_slice());
        }
    }

    /// Whether all received bytes are decomposed.
    pub fn is_all_decomposed(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Whether the socket has bytes or has reached its end.
    pub fn has_input(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        !matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    pub fn next_event(&mut self) -> LinkEvent {
        loop {
            let mut input = self.buffer.as_slice();
            let before = input.len();
            let event = match self.end.decompose(Time::ZERO, &mut input) {
                Ok(Some(event)) => Some(translate(event)),
                Ok(None) => None,
                Err(error) => Some(LinkEvent::Broken(error)),
            };
            let used = before - input.len();
            self.buffer.drain(..used);
            if let Some(event) = event {
                return event;
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return LinkEvent::End,
                Ok(received) => {
                    let mut scratch = Scratch::new();
                    let opened = self.end.unseal(Time::ZERO, &buffer[..received], &mut scratch);
                    self.buffer.extend_from_slice(opened);
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return LinkEvent::End,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn translate(event: OpenerEvent<'_>) -> LinkEvent {
    match event {
        OpenerEvent::Established { .. } => LinkEvent::Established,
        OpenerEvent::Accepted { id } => LinkEvent::Accepted(id),
        OpenerEvent::Refused { id, reason } => LinkEvent::Refused(id, reason),
        OpenerEvent::Data { id, bytes } => LinkEvent::Data(id, bytes.to_vec()),
        OpenerEvent::Finished { id } => LinkEvent::Finished(id),
        OpenerEvent::Closed { id, reason } => LinkEvent::Closed(id, reason),
        OpenerEvent::RelayedData { id, bytes, .. } => LinkEvent::Data(id, bytes.to_vec()),
        OpenerEvent::RelayedControl { id, control } => LinkEvent::Control(id, control),
        other => panic!("{other:?}"),
    }
}

/// Waits until the peer has closed or reset the connection.
pub fn assert_closes(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
}
