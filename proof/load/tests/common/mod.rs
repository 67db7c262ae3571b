//! Servers for the tests: the machine's memcached, and small servers with faults.
#![allow(dead_code, reason = "each test program uses some of these functions")]

pub mod link;
pub mod sessions;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_load::report::{Event, Report};
use spillway_load::{Config, RunIo};

/// Timeout of all waits. A wait ends when its condition holds, so a long timeout costs no time.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A memcached on loopback, killed when dropped.
pub struct Memcached {
    child: Child,
    pub address: SocketAddr,
}

impl Memcached {
    /// `None`, with the reason printed, where memcached is not installed.
    pub fn start() -> Option<Memcached> {
        Memcached::start_on(spillway_ports::free_address())
    }

    pub fn start_on(address: SocketAddr) -> Option<Memcached> {
        let child = Command::new("memcached")
            .args(["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-m", "64", "-c", "4096", "-p"])
            .arg(address.port().to_string())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            println!("skipped: memcached is not installed (apt-get install memcached)");
            return None;
        };
        let mut memcached = Memcached { child, address };
        let deadline = Instant::now() + TIMEOUT;
        while !answers(address, b"version\r\n", b"VERSION ") {
            assert_eq!(
                memcached.child.try_wait().unwrap(),
                None,
                "memcached should run until the end of the test"
            );
            assert!(Instant::now() < deadline, "memcached does not listen on {address}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(memcached)
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server with one thread per connection, which calls `serve`.
pub fn server(
    address: &str,
    serve: impl Fn(TcpStream) + Send + Sync + 'static,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(address)
}

/// Sends received bytes back after `alter` has changed them.
pub fn echo_back(mut stream: TcpStream, mut alter: impl FnMut(&mut [u8])) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 {
            break;
        }
        alter(&mut buffer[..count]);
        if stream.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
}

/// A shared buffer of output lines, which can be read during a run.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// The events of all complete lines so far.
    pub fn events(&self) -> Vec<Event> {
        let bytes = self.0.lock().unwrap().clone();
        let complete_bytes = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let lines = bytes[..complete_bytes].split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    pub fn wait_for(&self, what: &str, matches: impl Fn(&Event) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.events().iter().any(&matches) {
            assert!(Instant::now() < deadline, "no event within 30 s: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A run in a thread of its own. A test controls the run by commands.
pub struct ControlledRun {
    control: UnixStream,
    pub lines: Lines,
    run: JoinHandle<Report>,
}

impl ControlledRun {
    pub fn start(config: &Config) -> ControlledRun {
        let (control, run_control) = UnixStream::pair().unwrap();
        let lines = Lines::default();
        let run_io = RunIo {
            control: Some(run_control.into()),
            events: Some(Box::new(lines.clone())),
            ..RunIo::default()
        };
        let config = config.clone();
        let run = std::thread::spawn(move || spillway_load::run(&config, run_io).unwrap());
        ControlledRun { control, lines, run }
    }

    pub fn command(&mut self, line: &str) {
        self.control.write_all(line.as_bytes()).unwrap();
    }

    pub fn stop(mut self) -> Report {
        self.command("stop\n");
        self.report()
    }

    pub fn report(self) -> Report {
        self.run.join().unwrap()
    }
}

/// Whether a server answers a request. An accepted connection is not enough: a child process of another test may still
/// hold the socket that reserved this free port, until the child executes its own program.
pub fn answers(address: SocketAddr, request: &[u8], reply_start: &[u8]) -> bool {
    let received = TcpStream::connect(address).and_then(|mut stream| {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(request)?;
        let mut bytes = vec![0; reply_start.len()];
        stream.read_exact(&mut bytes)?;
        Ok(bytes)
    });
    received.is_ok_and(|bytes| bytes == reply_start)
}

/// Options of a small, short run, because tests share the machine.
pub fn config(server: SocketAddr) -> Config {
    Config { keys: 1000, connections: 40, duration: Some(Duration::from_millis(600)), ..Config::new(server) }
}

pub fn run(config: &Config) -> Report {
    spillway_load::run(config, RunIo::default()).unwrap()
}
