//! One memcached under `spillway run` and one helper, on loopback, with a client and tools for tests.

// Each test file uses a part of this module.
#![allow(dead_code)]

pub mod link;
pub mod logs;
pub mod sidecar;
pub mod tampering;
pub mod terminal;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spillway_auth::Key;
use spillway_lab::peers::{Memcached, Peer};
use spillway_lab::{Launch, Place, Process};
use spillway_ports::free_port;

/// Timeout of waits; long, because hosts that run tests are slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const SPILLWAY: &str = env!("CARGO_BIN_EXE_spillway");

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A directory of one test, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("spillway-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Creates a key file with `spillway key new`.
    pub fn key(&self, name: &str) -> (String, Key) {
        let path = self.path(name);
        let status = std::process::Command::new(SPILLWAY)
            .args(["key", "new", &path])
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        let key = Key::parse(&fs::read_to_string(&path).unwrap()).unwrap();
        (path, key)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub struct Scene {
    // Fields are dropped in this order: the helper ends first.
    pub helper: Process,
    pub server: Peer,
    pub place: Place,
    /// The server's link port.
    pub link: SocketAddr,
    /// The helper's port for plain clients.
    pub plain_port: SocketAddr,
    /// The helper's port for library clients.
    pub client_link: SocketAddr,
    pub helper_key: Key,
    pub client_key: Key,
    pub status_socket: String,
    pub scratch: Scratch,
}

pub struct Options {
    pub memcached: Memcached,
    pub helper_files: u64,
    pub helper_arguments: Vec<&'static str>,
    pub run_arguments: Vec<&'static str>,
    /// File for the server's standard error, instead of the laboratory's file.
    pub server_log: Option<String>,
    /// File for the helper's standard error, instead of the laboratory's file.
    pub helper_log: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memcached: Memcached::default(),
            helper_files: 65_536,
            helper_arguments: Vec::new(),
            run_arguments: Vec::new(),
            server_log: None,
            helper_log: None,
        }
    }
}

impl Scene {
    pub fn start() -> Scene {
        Scene::with(Options::default())
    }

    pub fn with(options: Options) -> Scene {
        let place = Place::local().unwrap();
        let scratch = Scratch::new();
        let (helper_file, helper_key) = scratch.key("helper.key");
        let (client_file, client_key) = scratch.key("client.key");
        let [link, plain_port, client_link] = [(); 3].map(|()| loopback(free_port()));
        let link_address = link.to_string();
        let run = [
            SPILLWAY,
            "run",
            "--link",
            &link_address,
            "--key",
            &helper_file,
            "--client-key",
            &client_file,
            "--require",
        ];
        let run = run.into_iter().chain(options.run_arguments).chain(["--"]).map(str::to_owned);
        let arguments = logs::redirect_stderr(options.server_log.as_deref()).into_iter().chain(run);
        let server = options.memcached.wrapper(arguments).start(&place).unwrap();
        let status_socket = scratch.path("helper.sock");
        let launch = Launch::new(SPILLWAY)
            .name("helper")
            .args(["helper", "--service", &format!("cache={link}"), "--listen", &plain_port.to_string()])
            .args(["--link-listen", &client_link.to_string(), "--key", &helper_file])
            .args(["--client-key", &client_file, "--threads", "1", "--status-socket", &status_socket])
            .args(&options.helper_arguments)
            .wrapper(logs::redirect_stderr(options.helper_log.as_deref()))
            .open_files(options.helper_files);
        let helper = place.spawn(&launch).unwrap();
        let scene = Scene {
            helper,
            server,
            place,
            link,
            plain_port,
            client_link,
            helper_key,
            client_key,
            status_socket,
            scratch,
        };
        scene.await_helped();
        scene
    }

    pub fn direct(&self) -> SocketAddr {
        self.server.address()
    }

    /// Waits until the helper serves a plain client.
    pub fn await_helped(&self) {
        eventually("the helper serves", || {
            Client::try_new(self.plain_port).is_some_and(|mut client| client.version().is_some())
        });
    }

    pub fn stat(&self, name: &str) -> u64 {
        let mut client = Client::new(self.direct());
        client.send(b"stats\r\n");
        let mut value_found = None;
        loop {
            let line = client.line();
            if line == "END" {
                return value_found.unwrap_or_else(|| panic!("memcached should report {name}"));
            }
            if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
                value_found = value.parse().ok();
            }
        }
    }

    pub fn status(&self) -> serde_json::Value {
        let output = std::process::Command::new(SPILLWAY)
            .args(["status", "--json", "--socket", &self.status_socket])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Waits until a condition is true; panics after [`PATIENCE`].
#[track_caller]
pub fn eventually(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{description}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sets the flag when dropped, so that clients on other threads end also when the test panics.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Resident memory of a process, bytes.
pub fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Stops a process, and waits until all its threads have stopped, which takes a moment after the signal.
pub fn pause(process: &mut Process) {
    process.signal(Signal::STOP.as_raw()).unwrap();
    let tasks = format!("/proc/{}/task", process.pid());
    let has_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat"));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
    };
    eventually("all threads have stopped", || fs::read_dir(&tasks).unwrap().flatten().all(has_stopped));
}

/// A client of memcached's ASCII protocol that checks every byte.
pub struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    #[track_caller]
    pub fn new(address: SocketAddr) -> Client {
        Client::try_new(address).expect("connect")
    }

    pub fn try_new(address: SocketAddr) -> Option<Client> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Some(Client { reader: BufReader::new(stream) })
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("send");
    }

    /// Reads a line of the reply, without CRLF.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("line of the reply");
        line.strip_suffix("\r\n")
            .unwrap_or_else(|| panic!("a line should end with CRLF: {line:?}"))
            .to_owned()
    }

    pub fn version(&mut self) -> Option<String> {
        self.reader.get_mut().write_all(b"version\r\n").ok()?;
        let mut line = String::new();
        self.reader.read_line(&mut line).ok()?;
        line.strip_prefix("VERSION ").map(|version| version.trim_end().to_owned())
    }

    #[track_caller]
    pub fn set(&mut self, key: &str, value: &[u8]) {
        self.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        self.send(value);
        self.send(b"\r\n");
        assert_eq!(self.line(), "STORED");
    }

    #[track_caller]
    pub fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(format!("get {key}\r\n").as_bytes());
        self.value(key)
    }

    /// Reads the reply to a `get` of one key.
    #[track_caller]
    pub fn value(&mut self, key: &str) -> Option<Vec<u8>> {
        let head = self.line();
        if head == "END" {
            return None;
        }
        let length = head.strip_prefix(&format!("VALUE {key} 0 ")).unwrap_or_else(|| panic!("{head:?}"));
        let mut value = vec![0; length.parse::<usize>().unwrap() + 2];
        self.reader.read_exact(&mut value).expect("value with its end");
        assert!(value.ends_with(b"\r\n"));
        value.truncate(value.len() - 2);
        assert_eq!(self.line(), "END");
        Some(value)
    }

    /// Whether the connection has ended, by reset or end of stream.
    pub fn ended(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.reader.read(&mut byte), Ok(0) | Err(_))
    }
}

/// A value of this length that depends on the key.
pub fn value_of(key: &str, bytes: usize) -> Vec<u8> {
    let seed = key.bytes().fold(17u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    (0..bytes as u32).map(|i| b'a' + (seed.wrapping_add(i.wrapping_mul(i)) % 26) as u8).collect()
}
