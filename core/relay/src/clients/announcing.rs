//! A load balancer's connection until it has said, by a PROXY header, whose it is.

use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_transport::Time;
use spillway_wire::{PROXY_BYTES_MAX, ProxyError, parse_proxy};

use crate::clients::raw::Arrival;
use crate::memory::{Held, Memory};
use crate::reasons::ProxyFault;
use crate::status::{ClientKind, ClientStatus};

/// A connection whose header is still to come. At most [`PROXY_BYTES_MAX`] bytes are granted to it.
#[derive(Debug)]
pub(crate) struct Announcing {
    service: u16,
    peer: SocketAddr,
    since: Time,
    /// What has come of it.
    bytes: Vec<u8>,
    /// Of their memory, what the relay's counts.
    counted: usize,
}

/// What has come so far.
#[derive(Debug, PartialEq)]
pub(crate) enum Header {
    /// The header is not complete.
    Incomplete,
    /// This client, and what it has sent already.
    Complete { arrival: Arrival, rest: Vec<u8> },
    /// No header.
    Wrong(ProxyFault),
}

impl Announcing {
    pub(crate) fn new(now: Time, service: u16, peer: SocketAddr) -> Announcing {
        Announcing { service, peer, since: now, bytes: Vec::new(), counted: 0 }
    }

    pub(crate) fn service(&self) -> u16 {
        self.service
    }

    /// The load balancer.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// It has said nothing yet.
    pub(crate) fn is_silent(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn receive(&mut self, bytes: &[u8], memory: &mut Memory) -> Header {
        self.bytes.extend_from_slice(bytes);
        let counted = core::mem::replace(&mut self.counted, self.bytes.capacity());
        memory.changed(counted, self.counted);
        let header = match parse_proxy(&self.bytes) {
            Ok(Some(header)) => header,
            Ok(None) if self.bytes.len() < PROXY_BYTES_MAX => return Header::Incomplete,
            wrong => {
                return Header::Wrong(ProxyFault::Header(wrong.err().unwrap_or(ProxyError::TooLong)));
            }
        };
        let client = header.client.unwrap_or(self.peer);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a header has at most PROXY_BYTES_MAX, 4,096 bytes"
        )]
        let arrival = Arrival {
            peer: SocketAddr::new(client.ip().to_canonical(), client.port()),
            via: header.client.map(|_| self.peer),
            granted: PROXY_BYTES_MAX.saturating_sub(header.bytes),
            before: header.bytes as u16,
        };
        Header::Complete { arrival, rest: self.bytes[header.bytes..].to_vec() }
    }

    /// Nothing of it counts any more.
    pub(crate) fn over(&mut self, memory: &mut Memory) {
        memory.changed(core::mem::take(&mut self.counted), 0);
    }

    /// What it holds. What the transport has queued for it is nothing: nothing is sent before the header.
    pub(crate) fn held(&self) -> Held {
        Held { waits: self.bytes.len(), bytes: self.counted, age: core::time::Duration::ZERO }
    }

    pub(crate) fn status(&self) -> ClientStatus {
        ClientStatus {
            buffered: self.bytes.len(),
            ..ClientStatus::new(self.peer, ClientKind::Announcing, self.since)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_in_pieces_and_is_counted_until_it_is_over() {
        let mut memory = Memory::new(1 << 20);
        let peer = "10.0.0.9:5000".parse().unwrap();
        let mut announcing = Announcing::new(Time(0), 0, peer);
        assert!(announcing.is_silent());
        let header = b"PROXY TCP4 10.1.2.3 10.0.0.9 4711 11211\r\nget";
        assert_eq!(announcing.receive(&header[..10], &mut memory), Header::Incomplete);
        assert!(memory.clients() >= 10);
        let Header::Complete { arrival, rest } = announcing.receive(&header[10..], &mut memory) else {
            panic!()
        };
        assert_eq!((arrival.peer, arrival.via), ("10.1.2.3:4711".parse().unwrap(), Some(peer)));
        assert_eq!((usize::from(arrival.before), &rest[..]), (header.len() - 3, &b"get"[..]));
        announcing.over(&mut memory);
        assert_eq!(memory.clients(), 0);
    }

    #[test]
    fn what_is_no_header_is_a_fault() {
        let mut memory = Memory::new(1 << 20);
        let mut announcing = Announcing::new(Time(0), 0, "10.0.0.9:5000".parse().unwrap());
        let Header::Wrong(ProxyFault::Header(_)) = announcing.receive(b"get key\r\n", &mut memory) else {
            panic!()
        };
    }
}
