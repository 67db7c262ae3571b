//! Servers for the tests: the machine's memcached, and small ones that misbehave as they are told.
#![allow(dead_code, reason = "every test program uses its own part")]

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
use spillway_load::{Config, Surroundings};

/// Generous: for waiting for conditions, never for judging speed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A memcached of our own on loopback; ended when dropped.
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
        let deadline = Instant::now() + PATIENCE;
        while !answers(address, b"version\r\n", b"VERSION ") {
            assert_eq!(memcached.child.try_wait().unwrap(), None, "memcached ended");
            assert!(Instant::now() < deadline, "memcached does not listen on {address}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(memcached)
    }

    /// As by `kill -9`.
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

/// A server with one thread per connection, which handles the connection's bytes as `serve` says. Its threads
/// end with their connections.
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

/// Sends back what `alter` makes of what it gets.
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

/// A place to write to that can be read meanwhile.
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
    /// Every whole line so far, read as an event.
    pub fn events(&self) -> Vec<Event> {
        let bytes = self.0.lock().unwrap().clone();
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
        let lines = bytes[..whole].split(|&b| b == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// Waits until an event is as wanted.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Event) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.events().iter().any(&wanted) {
            assert!(Instant::now() < deadline, "no event: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A run that is told things meanwhile.
pub struct Steered {
    control: UnixStream,
    pub lines: Lines,
    run: JoinHandle<Report>,
}

impl Steered {
    pub fn start(config: &Config) -> Steered {
        let (control, theirs) = UnixStream::pair().unwrap();
        let lines = Lines::default();
        let surroundings = Surroundings {
            control: Some(theirs.into()),
            events: Some(Box::new(lines.clone())),
            ..Surroundings::default()
        };
        let config = config.clone();
        let run = std::thread::spawn(move || spillway_load::run(&config, surroundings).unwrap());
        Steered { control, lines, run }
    }

    pub fn say(&mut self, words: &str) {
        self.control.write_all(words.as_bytes()).unwrap();
    }

    pub fn stop(mut self) -> Report {
        self.say("stop\n");
        self.report()
    }

    /// Waits for a run that ends by itself.
    pub fn report(self) -> Report {
        self.run.join().unwrap()
    }
}

/// Whether the server that was started answers. That somebody takes a connection says little: a child of another test that
/// has not begun its own program yet holds the socket by which this port was found to be free.
pub fn answers(address: SocketAddr, question: &[u8], answer: &[u8]) -> bool {
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(question)?;
        let mut begin = vec![0; answer.len()];
        stream.read_exact(&mut begin)?;
        Ok(begin)
    });
    asked.is_ok_and(|begin| begin == answer)
}

/// Small and short: tests share the machine.
pub fn config(server: SocketAddr) -> Config {
    Config { keys: 1000, connections: 40, duration: Some(Duration::from_millis(600)), ..Config::new(server) }
}

pub fn run(config: &Config) -> Report {
    spillway_load::run(config, Surroundings::default()).unwrap()
}
