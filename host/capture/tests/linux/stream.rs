//! Streams whose every byte is known, and the queues of a socket.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use rustix::io::ioctl_fionread;

/// One direction of a connection: the byte at each offset is known.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    seed: u64,
    at: u64,
}

impl Pattern {
    pub fn new(seed: u64) -> Pattern {
        Pattern { seed, at: 0 }
    }

    /// The same stream from another offset on.
    pub fn after(self, at: u64) -> Pattern {
        Pattern { at, ..self }
    }

    fn byte(&self, offset: u64) -> u8 {
        let word = (offset / 8 + 1).wrapping_add(self.seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ word >> 29).to_le_bytes()[(offset % 8) as usize]
    }

    /// The next bytes of the stream.
    pub fn next(&self, length: usize) -> Vec<u8> {
        (self.at..self.at + length as u64).map(|offset| self.byte(offset)).collect()
    }

    pub fn advance(&mut self, length: usize) {
        self.at += length as u64;
    }

    pub fn position(&self) -> u64 {
        self.at
    }

    /// Writes all of the next bytes.
    pub fn write(&mut self, mut stream: &TcpStream, length: usize) {
        stream.write_all(&self.next(length)).unwrap();
        self.advance(length);
    }

    /// Reads all of the next bytes and checks them.
    pub fn read(&mut self, mut stream: &TcpStream, length: usize) {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).unwrap();
        self.check(&bytes);
    }

    pub fn check(&mut self, bytes: &[u8]) {
        let expected = self.next(bytes.len());
        if let Some(wrong) = bytes.iter().zip(&expected).position(|(byte, right)| byte != right) {
            panic!("byte {} of the stream is wrong", self.at + wrong as u64);
        }
        self.advance(bytes.len());
    }

    /// Writes what the socket accepts without waiting, at most `length` bytes.
    pub fn write_some(&mut self, mut stream: &TcpStream, length: usize) -> usize {
        match stream.write(&self.next(length)) {
            Ok(written) => {
                self.advance(written);
                written
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("cannot write: {error}"),
        }
    }
}

pub fn unread(stream: &TcpStream) -> u64 {
    ioctl_fionread(stream).unwrap()
}

#[test]
fn a_wrong_byte_is_noticed() {
    let right = Pattern::new(3).next(10_000);
    Pattern::new(3).check(&right);
    for place in [0, 4_999, 9_999] {
        let mut wrong = right.clone();
        wrong[place] ^= 1;
        assert!(std::panic::catch_unwind(|| Pattern::new(3).check(&wrong)).is_err());
    }
    assert_ne!(right, Pattern::new(4).next(10_000));
    for shift in 1..1_000 {
        assert_ne!(right[shift..shift + 64], right[..64], "lost bytes would not be noticed");
    }
}
