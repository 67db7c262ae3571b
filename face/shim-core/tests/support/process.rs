//! A server process of any program with the preload library, on free ports; its standard error is recorded.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spillway_ports::free_address;

use super::driver::WAIT_MAX;

/// The preload library of the same build.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().expect("path of the test program");
    let candidates = program.ancestors().skip(1).take(3).flat_map(|folder| {
        [folder.join("libspillway_shim.so"), folder.join("deps").join("libspillway_shim.so")]
    });
    let found = candidates.into_iter().find(|path| path.exists());
    found.expect(
        "libspillway_shim.so beside the test program: run `cargo build --release -p spillway-shim` first",
    )
}

/// A running server. Killed when dropped.
pub struct Server {
    child: Child,
    /// The ordinary port.
    pub plain: SocketAddr,
    /// The link port.
    pub link: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts the program of `command`, which gets the address to listen on. Waits for both ports.
    pub fn start(command: impl Fn(SocketAddr) -> Command) -> Server {
        Server::start_until(command, |server| TcpStream::connect(server.link).is_ok())
    }

    /// Like [`start`](Self::start), but waits for the ordinary port and `is_up`.
    pub fn start_until(command: impl Fn(SocketAddr) -> Command, is_up: impl Fn(&Server) -> bool) -> Server {
        // Several attempts, because another process may take a port before the server binds it.
        for _ in 0..10 {
            if let Some(server) = Server::start_at(free_address(), free_address(), &command, &is_up) {
                return server;
            }
        }
        panic!("the server should start within ten attempts");
    }

    /// Like [`start_until`](Self::start_until), on these two ports; `None` if the server ends before it is up.
    pub fn start_at(
        plain: SocketAddr,
        link: SocketAddr,
        command: &impl Fn(SocketAddr) -> Command,
        is_up: &impl Fn(&Server) -> bool,
    ) -> Option<Server> {
        let mut server = Server::spawn(plain, link, command);
        let deadline = Instant::now() + WAIT_MAX;
        while server.child.try_wait().unwrap().is_none() {
            if TcpStream::connect(server.plain).is_ok() && is_up(&server) {
                return Some(server);
            }
            assert!(
                Instant::now() < deadline,
                "the server should listen within {WAIT_MAX:?}:\n{}",
                server.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn spawn(plain: SocketAddr, link: SocketAddr, command: &impl Fn(SocketAddr) -> Command) -> Server {
        let mut command = command(plain);
        command.env("LD_PRELOAD", library());
        if !command.get_envs().any(|(name, _)| name == "SPILLWAY_LINK") {
            command.env("SPILLWAY_LINK", link.to_string());
        }
        let mut child =
            command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start the server program");
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, log_of_thread) = (BufReader::new(child.stderr.take().unwrap()), log.clone());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("server: {line}");
                let mut log = log_of_thread.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Server { child, plain, link, log }
    }

    /// Starts the ignored test `server` of the calling test program as a server process of this kind.
    pub fn of_kind(kind: &str) -> Server {
        Server::start(|address| kind_command(kind, address))
    }

    /// Ends the server with SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the server's end. Returns its exit code, `None` if a signal ended it.
    pub fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the server should end within {WAIT_MAX:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The server's standard error so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the server has written this text to standard error.
    pub fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + WAIT_MAX;
        while !self.log().contains(text) {
            assert!(
                Instant::now() < deadline,
                "{text:?} should be in the log within {WAIT_MAX:?}:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process ids of the server's children.
    pub fn children(&self) -> Vec<i32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten();
        let of_task = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).ok();
        let all: Vec<String> = tasks.filter_map(of_task).collect();
        all.iter().flat_map(|text| text.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// CPU time of all the server's threads, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let of_task = |path: PathBuf| {
            std::fs::read_to_string(path.join("schedstat"))
                .ok()
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
        };
        tasks.filter_map(Result::ok).map(|task| of_task(task.path())).sum()
    }

    pub fn resident_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.pid())).unwrap();
        text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap() * 4096
    }
}

/// Ends a child process of a test's server.
pub fn kill(pid: i32) {
    // SAFETY: passes no pointers.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

pub fn kind_command(kind: &str, address: SocketAddr) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "server", "--ignored", "--nocapture"]).stdout(Stdio::null());
    command.env("SERVER_KIND", kind).env("SERVER_ADDRESS", address.to_string());
    command
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
