use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_transport::Time;
use spillway_wire::{PROXY_BYTES_MAX, ProxyError, parse_proxy};

use crate::clients::plain::Arrival;
use crate::memory::{Held, Memory};
use crate::reasons::ProxyFault;
use crate::status::{ClientKind, ClientStatus};

/// A load balancer's connection whose PROXY header is not complete yet. It is granted [`PROXY_BYTES_MAX`] bytes.
#[derive(Debug)]
pub(crate) struct AwaitingHeader {
    service: u16,
    peer: SocketAddr,
    since: Time,
    received: Vec<u8>,
    /// Bytes that are counted in [`Memory`].
    counted: usize,
}

/// Outcome of parsing the received bytes.
#[derive(Debug, PartialEq)]
pub(crate) enum Header {
    Incomplete,
    /// The announced client, and the bytes after the header.
    Complete {
        arrival: Arrival,
        rest: Vec<u8>,
    },
    Invalid(ProxyFault),
}

impl AwaitingHeader {
    pub(crate) fn new(now: Time, service: u16, peer: SocketAddr) -> AwaitingHeader {
        AwaitingHeader { service, peer, since: now, received: Vec::new(), counted: 0 }
    }

    pub(crate) fn service(&self) -> u16 {
        self.service
    }

    /// The load balancer's address.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn has_sent_nothing(&self) -> bool {
        self.received.is_empty()
    }

    pub(crate) fn receive(&mut self, bytes: &[u8], memory: &mut Memory) -> Header {
        self.received.extend_from_slice(bytes);
        let counted = core::mem::replace(&mut self.counted, self.received.capacity());
        memory.resize_client(counted, self.counted);
        let header = match parse_proxy(&self.received) {
            Ok(Some(header)) => header,
            Ok(None) if self.received.len() < PROXY_BYTES_MAX => return Header::Incomplete,
            invalid => {
                return Header::Invalid(ProxyFault::Header(invalid.err().unwrap_or(ProxyError::TooLong)));
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
            header_bytes: header.bytes as u16,
        };
        Header::Complete { arrival, rest: self.received[header.bytes..].to_vec() }
    }

    pub(crate) fn release_memory(&mut self, memory: &mut Memory) {
        memory.resize_client(core::mem::take(&mut self.counted), 0);
    }

    /// The connection's memory. The age is 0, because nothing is sent to the peer before the header is complete.
    pub(crate) fn held(&self) -> Held {
        Held {
            waiting_bytes: self.received.len(),
            memory_bytes: self.counted,
            age: core::time::Duration::ZERO,
        }
    }

    pub(crate) fn status(&self) -> ClientStatus {
        ClientStatus {
            buffered: self.received.len(),
            ..ClientStatus::new(self.peer, ClientKind::AwaitingHeader, self.since)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_in_parts_is_counted_until_its_memory_is_released() {
        let mut memory = Memory::new(1 << 20);
        let peer = "10.0.0.9:5000".parse().unwrap();
        let mut awaiting_header = AwaitingHeader::new(Time(0), 0, peer);
        assert!(awaiting_header.has_sent_nothing(), "a new connection should have sent nothing");
        let header = b"PROXY TCP4 10.1.2.3 10.0.0.9 4711 11211\r\nget";
        assert_eq!(awaiting_header.receive(&header[..10], &mut memory), Header::Incomplete);
        assert!(memory.clients() >= 10, "the part of a header should count");
        let Header::Complete { arrival, rest } = awaiting_header.receive(&header[10..], &mut memory) else {
            panic!("the header should be complete")
        };
        assert_eq!((arrival.peer, arrival.via), ("10.1.2.3:4711".parse().unwrap(), Some(peer)));
        assert_eq!((usize::from(arrival.header_bytes), &rest[..]), (header.len() - 3, &b"get"[..]));
        awaiting_header.release_memory(&mut memory);
        assert_eq!(memory.clients(), 0);
    }

    #[test]
    fn bytes_other_than_a_header_are_a_fault() {
        let mut memory = Memory::new(1 << 20);
        let mut awaiting_header = AwaitingHeader::new(Time(0), 0, "10.0.0.9:5000".parse().unwrap());
        let Header::Invalid(ProxyFault::Header(_)) = awaiting_header.receive(b"get key\r\n", &mut memory)
        else {
            panic!("the bytes should be rejected")
        };
    }
}
