//! Real peers: unmodified programs as Debian ships them, in a host or on loopback.

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

pub use memcached::Memcached;
pub use proxy::Proxy;
pub use redis::Redis;

/// How long a peer may take until it answers; a loaded machine is slow.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Ports tried when others are faster to take them.
const PORTS_TRIED: usize = 8;
/// For a connection or an answer while waiting for readiness.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a peer may take to end by itself.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Lines read of a peer's answer about itself.
const ANSWER_LINES_MAX: usize = 400;
/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// What all peers have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Common {
    pub port: Option<u16>,
    pub extra: Vec<String>,
    pub wrapper: Vec<String>,
    pub environment: Vec<(String, String)>,
}

/// How to start one kind of peer and how to ask it who it is.
trait Kind: Send + Sync {
    /// For messages.
    fn name(&self) -> &'static str;
    /// The Debian package that has it.
    fn package(&self) -> &'static str;
    fn common(&self) -> &Common;
    /// The command without wrapper, for this address; writes what it reads at its start.
    fn launch(&self, place: &Place, listen: SocketAddr) -> Result<Launch, LabError>;
    /// How it is told that it is ready, and that it is no stranger.
    fn sign(&self) -> Sign;
}

/// What shows that a peer is ready.
enum Sign {
    /// It tells its own process id when asked.
    Answers {
        /// The request,
        question: &'static [u8],
        /// what the line with the id begins with,
        pid_prefix: &'static str,
        /// and what the line after which there is no use waiting begins with.
        last_line: &'static str,
    },
    /// The process that was started listens at its address.
    Listens,
}

/// A running peer. Dropping it kills it.
pub struct Peer {
    kind: Box<dyn Kind>,
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
    fn start(kind: Box<dyn Kind>, place: &Place) -> Result<Peer, LabError> {
        let fixed = kind.common().port;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let port = fixed.map_or_else(|| place.free_port(), Ok)?;
            let address = SocketAddr::new(place.address(), port);
            match begin(kind.as_ref(), place, address) {
                Ok((process, pid)) => return Ok(Peer { kind, place: place.clone(), process, address, pid }),
                // Somebody else may have taken the port first.
                Err(Start::Ended(_)) if fixed.is_none() && attempts < PORTS_TRIED => {}
                Err(Start::Ended(e) | Start::Failed(e)) => return Err(e),
            }
        }
    }

    /// Where it listens. Reach it from a thread in the lab, see [`Place::enter`].
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id of the server itself, also behind a wrapper.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process as started, wrapper included.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Asks it to end and waits.
    pub fn stop(&mut self) {
        self.process.stop(STOP_GRACE);
    }

    /// Kills it (SIGKILL) and waits.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Ends it if it still runs and starts it afresh at the same address, empty.
    pub fn restart(&mut self) -> Result<(), LabError> {
        self.stop();
        let (process, pid) = begin(self.kind.as_ref(), &self.place, self.address).map_err(|e| match e {
            Start::Ended(e) | Start::Failed(e) => e,
        })?;
        (self.process, self.pid) = (process, pid);
        Ok(())
    }
}

/// Why a peer did not come up.
enum Start {
    /// It ended by itself, as it does when its port is taken.
    Ended(LabError),
    Failed(LabError),
}

/// Starts a peer and waits until it answers, and answers as the very process that was started.
fn begin(kind: &dyn Kind, place: &Place, address: SocketAddr) -> Result<(Process, u32), Start> {
    let Common { extra, wrapper, environment, .. } = kind.common();
    let launch = kind.launch(place, address).map_err(Start::Failed)?;
    let mut launch = launch.args(extra).wrapper(wrapper).name(kind.name());
    for (name, value) in environment {
        launch = launch.env(name, value);
    }
    let mut process = place.spawn(&launch).map_err(Start::Failed)?;
    let what = |problem: &str| format!("{} ({address}, package {}) {problem}", kind.name(), kind.package());
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        if let Some(status) = process.exit() {
            let what = what(&format!("ended at once with {status}"));
            return Err(Start::Ended(LabError::NotReady { what, output: process.tail() }));
        }
        let answer = match kind.sign() {
            Sign::Answers { question, pid_prefix, last_line } => {
                place.enter(|| ask(address, question, pid_prefix, last_line)).map_err(Start::Failed)?
            }
            Sign::Listens => listener(process.pid(), address),
        };
        let problem = match answer {
            Ok(pid) if in_group(pid, process.pid()) => return Ok((process, pid)),
            // A stranger has the port: ours will notice and end.
            Ok(pid) => format!("is not what answers there, but process {pid}"),
            Err(e) => format!("does not answer: {e}"),
        };
        if Instant::now() >= deadline {
            return Err(Start::Failed(LabError::NotReady { what: what(&problem), output: process.tail() }));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is the one started or belongs to it.
fn in_group(pid: u32, leader: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| getpgid(Some(pid)).is_ok_and(|group| group.as_raw_pid().unsigned_abs() == leader))
}

fn ask(address: SocketAddr, question: &[u8], pid_prefix: &str, last_line: &str) -> io::Result<u32> {
    let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.write_all(question)?;
    find_pid(BufReader::new(stream), pid_prefix, last_line)
}

/// The id of a process, once it listens at an address in its own network namespace.
fn listener(pid: u32, address: SocketAddr) -> io::Result<u32> {
    let process = Path::new("/proc").join(pid.to_string());
    let sockets = fs::read_to_string(process.join("net/tcp"))?;
    let inode = listening_inode(&sockets, address)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "nobody listens there"))?;
    let ours = format!("socket:[{inode}]");
    let mut files = fs::read_dir(process.join("fd"))?.flatten();
    match files.any(|file| fs::read_link(file.path()).is_ok_and(|target| target == Path::new(&ours))) {
        true => Ok(pid),
        false => Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody else listens there")),
    }
}

/// Finds a listening socket in the text of `/proc/net/tcp`.
fn listening_inode(table: &str, address: SocketAddr) -> Option<u64> {
    let SocketAddr::V4(address) = address else { return None };
    // The kernel prints the address as one number in the machine's own byte order.
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port());
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let listens = words.get(1) == Some(&local.as_str()) && words.get(3) == Some(&LISTENING);
        if listens { words.get(9)?.parse().ok() } else { None }
    })
}

fn find_pid(answer: impl BufRead, prefix: &str, last: &str) -> io::Result<u32> {
    let mut pid = None;
    for line in answer.lines().take(ANSWER_LINES_MAX) {
        let line = line?;
        if let Some(value) = line.strip_prefix(prefix) {
            pid = value.trim().parse().ok();
        }
        if line.starts_with(last) || pid.is_some() {
            break;
        }
    }
    pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it does not tell its process id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_id_is_found_in_an_answer() {
        let memcached = "STAT pid 77\r\nSTAT uptime 1\r\nEND\r\n";
        assert_eq!(find_pid(memcached.as_bytes(), "STAT pid ", "END").unwrap(), 77);
        let redis = "$99\r\n# Server\r\nredis_version:7.0.15\r\nprocess_id:4242\r\n\r\n";
        assert_eq!(find_pid(redis.as_bytes(), "process_id:", "-").unwrap(), 4242);
        assert!(find_pid("-ERR no\r\nprocess_id:1\r\n".as_bytes(), "process_id:", "-").is_err());
        assert!(find_pid("STAT pid x\r\nEND\r\n".as_bytes(), "STAT pid ", "END").is_err());
        let endless = "a\r\n".repeat(ANSWER_LINES_MAX) + "STAT pid 1\r\n";
        assert!(find_pid(endless.as_bytes(), "STAT pid ", "END").is_err());
    }

    #[test]
    fn a_listening_socket_is_found_by_its_address() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:1B58 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n\
            \x20  1: 0100007F:1B59 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n";
        if cfg!(target_endian = "little") {
            assert_eq!(listening_inode(table, "127.0.0.1:7000".parse().unwrap()), Some(4711));
            assert_eq!(listening_inode(table, "127.0.0.1:7001".parse().unwrap()), None, "connected only");
            assert_eq!(listening_inode(table, "127.0.0.2:7000".parse().unwrap()), None);
        }
    }
}
