//! Peers: memcached, Redis and proxies as unmodified Debian programs, on a host or on loopback.

mod http_proxy;
mod memcached;
mod proxy;
mod redis;

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpgid};

use crate::process::{Launch, Process};
use crate::{LabError, Place};

pub use http_proxy::HttpProxy;
pub use memcached::Memcached;
pub use proxy::Proxy;
pub use redis::Redis;

/// Maximum time until a peer is ready; long enough for a loaded machine.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum attempts with a free port, which another process may take before the peer.
const START_ATTEMPTS_MAX: usize = 8;
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Maximum lines of the reply with the process id.
const REPLY_LINES_MAX: usize = 400;
const LISTENING: &str = "0A";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommonOptions {
    pub port: Option<u16>,
    pub extra: Vec<String>,
    pub wrapper: Vec<String>,
    pub environment: Vec<(String, String)>,
}

/// How to start one kind of peer, and how to check that it is ready.
trait PeerKind: Send + Sync {
    fn program(&self) -> &'static str;
    fn debian_package(&self) -> &'static str;
    fn common(&self) -> &CommonOptions;
    /// The command without wrapper. Writes the program's configuration file, if it has one.
    fn launch(&self, place: &Place, listen: SocketAddr) -> Result<Launch, LabError>;
    fn readiness(&self) -> Readiness;
}

/// How to check that a peer is ready, and that the started process serves the port.
enum Readiness {
    /// The peer answers a request with its process id.
    Answers {
        request: &'static [u8],
        /// Start of the line with the process id.
        pid_prefix: &'static str,
        /// Start of the line that ends the reply.
        last_line: &'static str,
    },
    /// The process listens at its address.
    Listens,
}

/// A running peer. Dropping the handle kills the process.
pub struct Peer {
    kind: Box<dyn PeerKind>,
    place: Place,
    process: Process,
    address: SocketAddr,
    pid: u32,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("address", &self.address).field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Peer {
    fn start(kind: Box<dyn PeerKind>, place: &Place) -> Result<Peer, LabError> {
        let fixed_port = kind.common().port;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let port = fixed_port.map_or_else(|| place.free_port(), Ok)?;
            let address = SocketAddr::new(place.address(), port);
            match start_and_wait(kind.as_ref(), place, address) {
                Ok((process, pid)) => return Ok(Peer { kind, place: place.clone(), process, address, pid }),
                // Another process may have taken the port.
                Err(StartError::Ended(_)) if fixed_port.is_none() && attempts < START_ATTEMPTS_MAX => {}
                Err(StartError::Ended(e) | StartError::Failed(e)) => return Err(e),
            }
        }
    }

    /// The peer's address, reachable from inside the lab only: see [`Place::run_inside`].
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id of the server itself, not of its wrapper.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The started process, which is the wrapper if the peer has one.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends SIGTERM, and SIGKILL after 5 s, and waits until the process has ended.
    pub fn stop(&mut self) {
        self.process.stop(STOP_GRACE);
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops the peer and starts it again at the same address, without its data.
    pub fn restart(&mut self) -> Result<(), LabError> {
        self.stop();
        let (process, pid) =
            start_and_wait(self.kind.as_ref(), &self.place, self.address).map_err(|e| match e {
                StartError::Ended(e) | StartError::Failed(e) => e,
            })?;
        (self.process, self.pid) = (process, pid);
        Ok(())
    }
}

enum StartError {
    /// The process ended, for example because its port is taken.
    Ended(LabError),
    Failed(LabError),
}

/// Starts a peer and waits until it is ready. Checks that the started process, and no other, serves the address.
fn start_and_wait(
    kind: &dyn PeerKind,
    place: &Place,
    address: SocketAddr,
) -> Result<(Process, u32), StartError> {
    let CommonOptions { extra, wrapper, environment, .. } = kind.common();
    let launch = kind.launch(place, address).map_err(StartError::Failed)?;
    let mut launch = launch.args(extra).wrapper(wrapper).name(kind.program());
    for (name, value) in environment {
        launch = launch.env(name, value);
    }
    let mut process = place.spawn(&launch).map_err(StartError::Failed)?;
    let message = |problem: &str| {
        format!("{} ({address}, package {}) {problem}", kind.program(), kind.debian_package())
    };
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        if let Some(status) = process.exit_status() {
            let what = message(&format!("ended at once with {status}"));
            return Err(StartError::Ended(LabError::NotReady { what, output: process.last_output() }));
        }
        let answer = match kind.readiness() {
            Readiness::Answers { request, pid_prefix, last_line } => place
                .run_inside(|| request_pid(address, request, pid_prefix, last_line))
                .map_err(StartError::Failed)?,
            Readiness::Listens => listener(process.pid(), address),
        };
        let problem = match answer {
            Ok(pid) if in_process_group(pid, process.pid()) => return Ok((process, pid)),
            // Another process has the port. The started one will fail to bind, and end.
            Ok(pid) => format!("did not get its port: process {pid} answers there"),
            Err(e) => format!("does not answer: {e}"),
        };
        if Instant::now() >= deadline {
            return Err(StartError::Failed(LabError::NotReady {
                what: message(&problem),
                output: process.last_output(),
            }));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn in_process_group(pid: u32, leader: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| getpgid(Some(pid)).is_ok_and(|group| group.as_raw_pid().unsigned_abs() == leader))
}

fn request_pid(address: SocketAddr, request: &[u8], pid_prefix: &str, last_line: &str) -> io::Result<u32> {
    let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.write_all(request)?;
    find_pid(BufReader::new(stream), pid_prefix, last_line)
}

/// Returns `pid` if that process listens at `address` in its network namespace, and an error otherwise.
fn listener(pid: u32, address: SocketAddr) -> io::Result<u32> {
    let process = Path::new("/proc").join(pid.to_string());
    let sockets = fs::read_to_string(process.join("net/tcp"))?;
    let inode = listening_inode(&sockets, address)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no socket listens there"))?;
    let socket_link = format!("socket:[{inode}]");
    let mut files = fs::read_dir(process.join("fd"))?.flatten();
    match files.any(|file| fs::read_link(file.path()).is_ok_and(|target| target == Path::new(&socket_link))) {
        true => Ok(pid),
        false => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
    }
}

fn listening_inode(table: &str, address: SocketAddr) -> Option<u64> {
    let SocketAddr::V4(address) = address else { return None };
    // The kernel prints the address as one number in the machine's byte order.
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port());
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_listening = fields.get(1) == Some(&local.as_str()) && fields.get(3) == Some(&LISTENING);
        if is_listening { fields.get(9)?.parse().ok() } else { None }
    })
}

fn find_pid(reply: impl BufRead, pid_prefix: &str, last_line: &str) -> io::Result<u32> {
    let mut pid = None;
    for line in reply.lines().take(REPLY_LINES_MAX) {
        let line = line?;
        if let Some(value) = line.strip_prefix(pid_prefix) {
            pid = value.trim().parse().ok();
        }
        if line.starts_with(last_line) || pid.is_some() {
            break;
        }
    }
    pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the reply holds no process id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_id_is_found_in_a_reply() {
        let memcached = "STAT pid 77\r\nSTAT uptime 1\r\nEND\r\n";
        assert_eq!(find_pid(memcached.as_bytes(), "STAT pid ", "END").unwrap(), 77);
        let redis = "$99\r\n# Server\r\nredis_version:7.0.15\r\nprocess_id:4242\r\n\r\n";
        assert_eq!(find_pid(redis.as_bytes(), "process_id:", "-").unwrap(), 4242);
        assert!(find_pid("-ERR no\r\nprocess_id:1\r\n".as_bytes(), "process_id:", "-").is_err());
        assert!(find_pid("STAT pid x\r\nEND\r\n".as_bytes(), "STAT pid ", "END").is_err());
        let long_reply = "a\r\n".repeat(REPLY_LINES_MAX) + "STAT pid 1\r\n";
        assert!(find_pid(long_reply.as_bytes(), "STAT pid ", "END").is_err());
    }

    #[test]
    fn a_listening_socket_is_found_by_its_address() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:1B58 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n\
            \x20  1: 0100007F:1B59 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n";
        if cfg!(target_endian = "little") {
            assert_eq!(listening_inode(table, "127.0.0.1:7000".parse().unwrap()), Some(4711));
            assert_eq!(
                listening_inode(table, "127.0.0.1:7001".parse().unwrap()),
                None,
                "a connected socket should not count"
            );
            assert_eq!(listening_inode(table, "127.0.0.2:7000".parse().unwrap()), None);
        }
    }
}
