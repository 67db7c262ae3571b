//! Reads TS.Recent of connections of the kernel (RFC 7323 §4.3), which no socket option tells.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libbpf_rs::{Object, ProgramInput};

use crate::error::Needs;
use crate::{BpfError, object};

const NAME: &str = "peer_timestamp";

/// Bytes of `struct question` in `c/peer_timestamp.bpf.c`.
const QUESTION_BYTES: usize = 64;
/// Offset of `ends_bytes` in it.
const ENDS_BYTES_AT: usize = 44;
/// Offset of the answer in it.
const ANSWER_AT: usize = 48;

/// The latest timestamp that a connection has accepted from its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTimestamp {
    /// TS.Recent, in units of the peer's clock.
    pub recent: u32,
    /// Time since it arrived, in whole seconds.
    pub age: Duration,
}

/// Reads the timestamps of TCP connections in the network namespace of the calling thread.
#[derive(Debug)]
pub struct PeerTimestamps(Object);

impl PeerTimestamps {
    /// Loads the program.
    ///
    /// # Errors
    /// The process lacks CAP_BPF, CAP_NET_ADMIN or CAP_PERFMON; it needs all three.
    pub fn load() -> Result<PeerTimestamps, BpfError> {
        let load = || object::load(NAME, object::open(NAME, object::PEER_TIMESTAMP)?);
        load().map(PeerTimestamps).map_err(|error| error.needing(Needs::Both))
    }

    /// The timestamp of the connection with these ends and this cookie (`SO_COOKIE`). `None` if there is no such connection in
    /// the calling thread's network namespace, or no timestamp has arrived.
    ///
    /// # Errors
    /// The kernel does not run the program.
    pub fn read(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        cookie: u64,
    ) -> Result<Option<PeerTimestamp>, BpfError> {
        let question = question(local, peer, cookie);
        let mut answered = [0; QUESTION_BYTES];
        let input = ProgramInput {
            data_in: Some(&question),
            data_out: Some(&mut answered),
            repeat: 1,
            ..ProgramInput::default()
        };
        object::program(NAME, &self.0)
            .test_run(input)
            .map_err(BpfError::of(format!("cannot run the program `{NAME}`")))?;
        Ok(PeerTimestamp::parse(&answered))
    }
}

impl PeerTimestamp {
    fn parse(answered: &[u8; QUESTION_BYTES]) -> Option<PeerTimestamp> {
        let number = |index: usize| {
            let bytes = answered[ANSWER_AT + 4 * index..].first_chunk().copied().unwrap_or_default();
            u32::from_ne_bytes(bytes)
        };
        let [is_known, recent, age_s] = [0, 1, 2].map(number);
        (is_known != 0).then(|| PeerTimestamp { recent, age: Duration::from_secs(age_s.into()) })
    }
}

/// A `struct question` of `c/peer_timestamp.bpf.c`.
fn question(local: SocketAddr, peer: SocketAddr, cookie: u64) -> [u8; QUESTION_BYTES] {
    let mut ends = Vec::with_capacity(ENDS_BYTES_AT);
    for address in [peer.ip(), local.ip()] {
        match address.to_canonical() {
            IpAddr::V4(address) => ends.extend(address.octets()),
            IpAddr::V6(address) => ends.extend(address.octets()),
        }
    }
    for end in [peer, local] {
        ends.extend(end.port().to_be_bytes());
    }
    let mut question = [0; QUESTION_BYTES];
    question[..8].copy_from_slice(&cookie.to_ne_bytes());
    // Ends of different families have a length that the program does not know: it finds no connection.
    question[8..8 + ends.len()].copy_from_slice(&ends);
    question[ENDS_BYTES_AT..ANSWER_AT].copy_from_slice(&(ends.len() as u32).to_ne_bytes());
    question
}
