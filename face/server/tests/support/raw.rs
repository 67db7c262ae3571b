//! A link in the hands of somebody who does not keep to what the libraries do.

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
pub enum Heard {
    Established,
    Accepted(Id),
    Refused(Id, RefuseReason),
    Data(Id, Vec<u8>),
    Finished(Id),
    Closed(Id, CloseReason),
    /// Of a connection that carries a session.
    Control(Id, Control),
    Broken(LinkError),
    /// The other side closed the link.
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
        // Only so that a failing test ends.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let policy = PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 };
        let config = OpenerConfig { role, key, limits: Limits::default(), policy, encryption };
        let fresh = spillway_keys::fresh().unwrap();
        let mut link =
            RawLink { stream, end: OpenerLink::new(&config, Time::ZERO, fresh), buffer: Vec::new() };
        link.flush();
        link
    }

    /// A link that is up.
    pub fn establish(address: SocketAddr, role: Role, key: Key) -> RawLink {
        let mut link = RawLink::open(address, role, key);
        assert_eq!(link.hear(), Heard::Established);
        link.flush();
        link
    }

    pub fn flush(&mut self) {
        while let Some(batch) = self.end.flush(Time::ZERO) {
            // The other side may have closed already; what it said is still there to hear.
            let _ = self.stream.write_all(batch.as_slice());
        }
    }

    /// Whether nothing is left of what was received.
    pub fn is_used_up(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Whether something has come since.
    pub fn has_something(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        !matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// What the other side says next.
    pub fn hear(&mut self) -> Heard {
        loop {
            let mut input = self.buffer.as_slice();
            let before = input.len();
            let heard = match self.end.decompose(Time::ZERO, &mut input) {
                Ok(Some(event)) => Some(translate(event)),
                Ok(None) => None,
                Err(error) => Some(Heard::Broken(error)),
            };
            let used = before - input.len();
            self.buffer.drain(..used);
            if let Some(heard) = heard {
                return heard;
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Heard::End,
                Ok(received) => {
                    let mut scratch = Scratch::new();
                    let opened = self.end.unseal(Time::ZERO, &buffer[..received], &mut scratch);
                    self.buffer.extend_from_slice(opened);
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Heard::End,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn translate(event: OpenerEvent<'_>) -> Heard {
    match event {
        OpenerEvent::Established { .. } => Heard::Established,
        OpenerEvent::Accepted { id } => Heard::Accepted(id),
        OpenerEvent::Refused { id, reason } => Heard::Refused(id, reason),
        OpenerEvent::Data { id, bytes } => Heard::Data(id, bytes.to_vec()),
        OpenerEvent::Finished { id } => Heard::Finished(id),
        OpenerEvent::Closed { id, reason } => Heard::Closed(id, reason),
        OpenerEvent::RelayedData { id, bytes, .. } => Heard::Data(id, bytes.to_vec()),
        OpenerEvent::RelayedControl { id, control } => Heard::Control(id, control),
        other => panic!("{other:?}"),
    }
}

/// The other side closes a plain connection without saying anything sensible.
pub fn assert_closes(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
}
