//! A client that sends a stream and checks each byte that returns.

use std::net::SocketAddr;

use spillway_tcp::{Stack, StackEvent};
use spillway_transport::{Conn, LostReason, Time, Transport};

/// Maximum number of sent bytes that the server has not returned.
const AHEAD_BYTES: u64 = 12 * 1024;

pub struct Client {
    pub stack: Stack,
    conn: Option<Conn>,
    pub is_open: bool,
    sent: u64,
    pub returned: u64,
    pub lost: Option<LostReason>,
}

/// The byte at an offset of the stream.
fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Client {
    pub fn new(stack: Stack) -> Client {
        Client { stack, conn: None, is_open: false, sent: 0, returned: 0, lost: None }
    }

    pub fn connect(&mut self, now: Time, service: SocketAddr) {
        self.conn = Some(self.stack.connect(now, service).unwrap());
    }

    pub fn address(&self) -> SocketAddr {
        self.stack.local_address(self.conn.unwrap()).unwrap()
    }

    pub fn finish(&mut self) {
        self.stack.finish(self.conn.unwrap());
    }

    pub fn receive(&mut self, now: Time, frame: &[u8]) {
        if let Some(delivery) = self.stack.handle_frame(now, frame) {
            self.check(&frame[delivery.range]);
        }
    }

    fn check(&mut self, bytes: &[u8]) {
        for byte in bytes {
            assert_eq!(*byte, byte_at(self.returned), "offset {}", self.returned);
            self.returned += 1;
        }
        self.stack.grant(self.conn.unwrap(), bytes.len() as u32);
    }

    /// Handles events and timers, and sends more of the stream, if `sends`.
    pub fn turn(&mut self, now: Time, sends: bool) {
        if self.stack.poll_timeout().is_some_and(|at| at <= now) {
            self.stack.handle_timeout(now);
        }
        while let Some((conn, event)) = self.stack.poll_event() {
            match event {
                StackEvent::Opened { .. } => {
                    self.is_open = true;
                    self.stack.grant(conn, 1 << 16);
                }
                StackEvent::Data { bytes, .. } => self.check(&bytes),
                StackEvent::Lost(reason) => self.lost = Some(reason),
                _ => {}
            }
        }
        if let Some(conn) = self.conn.filter(|_| self.is_open && sends && self.lost.is_none()) {
            let length = AHEAD_BYTES.saturating_sub(self.sent - self.returned).min(1000);
            let bytes: Vec<u8> = (self.sent..self.sent + length).map(byte_at).collect();
            self.sent += self.stack.send(conn, &bytes) as u64;
        }
    }

    pub fn has_all(&self) -> bool {
        self.sent == self.returned
    }
}
