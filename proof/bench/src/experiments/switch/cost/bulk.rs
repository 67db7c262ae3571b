//! A bulk transfer between two hosts over the kernel's TCP. The receiver compares every byte.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use spillway_lab::Host;

use crate::error::Error;

/// Length of the pattern that is sent again and again. A prime number, so that a lost or repeated segment shifts it.
const PATTERN_BYTES: usize = 65_537;
const WRITE_BYTES: usize = 256 << 10;
const TIMEOUT: Duration = Duration::from_secs(20);

/// One transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transfer {
    /// Bytes that the sender wrote.
    pub sent: u64,
    /// Bytes that arrived.
    pub arrived: u64,
    /// Blocks of bytes among those that arrived which were not those that were sent.
    pub wrong: u64,
    /// Time from the first to the last byte at the receiver.
    pub time: Duration,
}

impl Transfer {
    pub fn gbit_per_s(&self) -> f64 {
        self.arrived as f64 * 8.0 / 1e9 / self.time.as_secs_f64()
    }

    /// Whether all bytes arrived as they were sent.
    pub fn is_complete(&self) -> bool {
        self.wrong == 0 && self.sent == self.arrived
    }
}

/// Sends as fast as possible for this time.
pub fn transfer(client: &Host, server: &Host, length: Duration) -> Result<Transfer, Error> {
    let address = server.address();
    let listener = server.run_inside(|| TcpListener::bind((address, 0)))?.map_err(failed("the receiver"))?;
    let target = listener.local_addr().map_err(failed("the receiver"))?;
    let receiver = server.thread(move || receive(&listener))?;
    let sent = client.run_inside(|| send(target, length))?.map_err(failed("the sender"))?;
    let received = receiver.join().map_err(|_| Error::process("the receiver", "it panicked"))?;
    let transfer = received?.map_err(failed("the receiver"))?;
    Ok(Transfer { sent, ..transfer })
}

fn send(target: SocketAddr, length: Duration) -> io::Result<u64> {
    let pattern = pattern(WRITE_BYTES + PATTERN_BYTES);
    let mut stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let deadline = Instant::now() + length;
    let (mut sent, mut at) = (0, 0);
    while Instant::now() < deadline {
        let written = stream.write(&pattern[at..at + WRITE_BYTES])?;
        sent += written as u64;
        at = (at + written) % PATTERN_BYTES;
    }
    Ok(sent)
}

fn receive(listener: &TcpListener) -> io::Result<Transfer> {
    let pattern = pattern(WRITE_BYTES + PATTERN_BYTES);
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut buffer = vec![0; WRITE_BYTES];
    let mut transfer = Transfer::default();
    let (mut at, mut started_at, mut ended_at) = (0, None, Instant::now());
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        ended_at = Instant::now();
        started_at.get_or_insert(ended_at);
        transfer.arrived += length as u64;
        transfer.wrong += u64::from(buffer[..length] != pattern[at..at + length]);
        at = (at + length) % PATTERN_BYTES;
    }
    transfer.time = ended_at - started_at.unwrap_or(ended_at);
    Ok(transfer)
}

/// Bytes that repeat after [`PATTERN_BYTES`].
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    let block: Vec<u8> = (0..PATTERN_BYTES)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .collect();
    block.iter().copied().cycle().take(length).collect()
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error::System { what: format!("{what} of a bulk transfer"), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_with_missing_or_wrong_bytes_is_not_complete() {
        let whole = Transfer { sent: 1_000, arrived: 1_000, wrong: 0, time: Duration::from_secs(1) };
        assert!(whole.is_complete());
        assert!((whole.gbit_per_s() - 8e-6).abs() < 1e-12);
        assert!(!Transfer { arrived: 999, ..whole }.is_complete());
        assert!(!Transfer { wrong: 1, ..whole }.is_complete());
    }

    #[test]
    fn a_shifted_pattern_differs() {
        let pattern = pattern(2 * PATTERN_BYTES);
        assert_eq!(pattern[..PATTERN_BYTES], pattern[PATTERN_BYTES..]);
        assert_ne!(pattern[..1_448], pattern[1_448..2 * 1_448]);
    }
}
