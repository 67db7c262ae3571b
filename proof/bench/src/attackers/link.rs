//! A link that can send any frame after its handshake: it lacks the checks of Spillway's link library.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use spillway_auth::{Key, Prover, prove};
use spillway_wire::preamble::{Hello, Role, Verdict, WELCOME_BYTES, Welcome, transcript};

/// The newest link version without encryption, so that attackers can send any frame.
const VERSION: u8 = 3;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// An open link that reads no frames.
pub(super) struct RawLink {
    pub stream: TcpStream,
    pub local_address: SocketAddr,
    /// The highest connection id that the target allows.
    pub connections_max: u32,
}

impl RawLink {
    pub fn open(target: SocketAddr, key: &Key) -> Result<RawLink, String> {
        let failure = |e: std::io::Error| format!("no link to {target}: {e}");
        let mut stream = TcpStream::connect_timeout(&target, HANDSHAKE_TIMEOUT).map_err(failure)?;
        stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT)).map_err(failure)?;
        let nonce = spillway_keys::fresh_nonce().map_err(|e| e.to_string())?;
        let hello =
            Hello { version_min: VERSION, version_max: VERSION, role: Role::Client, key: key.id(), nonce };
        stream.write_all(&hello.emit()).map_err(failure)?;
        let mut bytes = [0; WELCOME_BYTES];
        stream.read_exact(&mut bytes).map_err(failure)?;
        let welcome = Welcome::parse(&bytes).map_err(|e| e.to_string())?;
        if welcome.verdict != Verdict::Proceed {
            return Err(format!("{target} refuses the link: {:?}", welcome.verdict));
        }
        let proof = prove(key, Prover::Opener, &transcript(&hello, &welcome));
        stream.write_all(&proof).map_err(failure)?;
        let local_address = stream.local_addr().map_err(failure)?;
        Ok(RawLink { stream, local_address, connections_max: welcome.connections_max })
    }
}
