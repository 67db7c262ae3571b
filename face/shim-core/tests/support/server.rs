//! A real memcached with the shim, on free ports.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spillway_ports::free_address;

use super::driver::PATIENCE;

/// The preload library of the same build.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a program knows its path");
    let candidates = program.ancestors().skip(1).take(3).flat_map(|folder| {
        [folder.join("libspillway_shim.so"), folder.join("deps").join("libspillway_shim.so")]
    });
    let found = candidates.into_iter().find(|path| path.exists());
    found.expect(
        "libspillway_shim.so is not beside this test: run `cargo build --release -p spillway-shim` first",
    )
}

/// A running memcached. Killed when dropped.
pub struct Memcached {
    child: Child,
    /// The process that went into the background.
    daemon: Option<u32>,
    /// The ordinary port.
    pub plain: SocketAddr,
    /// The link port.
    pub link: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Memcached {
    /// With these arguments, and these settings of the shim besides the link port.
    pub fn start(arguments: &[&str], settings: &[(&str, &str)]) -> Memcached {
        // Another process may take a port between our asking and memcached's binding: try again then.
        for _ in 0..10 {
            if let Some(server) = Memcached::try_start(arguments, settings) {
                return server;
            }
        }
        panic!("memcached did not start ten times in a row");
    }

    fn try_start(arguments: &[&str], settings: &[(&str, &str)]) -> Option<Memcached> {
        let plain = free_address();
        let link = free_address();
        let mut command = Command::new("/usr/bin/memcached");
        command.args(["-u", "nobody", "-l", "127.0.0.1", "-p", &plain.port().to_string()]).args(arguments);
        command.env("LD_PRELOAD", library()).env("SPILLWAY_LINK", link.to_string());
        command.envs(settings.iter().copied());
        let mut child =
            command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("memcached is installed");
        let log = Arc::new(Mutex::new(String::new()));
        let (lines, copy) = (BufReader::new(child.stderr.take().expect("it is piped")), log.clone());
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                eprintln!("memcached: {line}");
                let mut log = copy.lock().expect("nobody panics with it");
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut server = Memcached { child, daemon: None, plain, link, log };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(plain).is_err() {
            if server.child.try_wait().expect("a child can be waited for").is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "memcached does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }

    /// In the background, with its process id in this file.
    pub fn start_daemon(pid_file: &Path) -> Memcached {
        let plain = free_address();
        let link = free_address();
        let mut command = Command::new("/usr/bin/memcached");
        command
            .args(["-d", "-u", "root", "-l", "127.0.0.1", "-p", &plain.port().to_string(), "-P"])
            .arg(pid_file);
        command.env("LD_PRELOAD", library()).env("SPILLWAY_LINK", link.to_string());
        let child = command.stdin(Stdio::null()).spawn().expect("memcached is installed");
        let mut server = Memcached { child, daemon: None, plain, link, log: Arc::default() };
        let deadline = Instant::now() + PATIENCE;
        while server.daemon.is_none() || TcpStream::connect(plain).is_err() {
            assert!(Instant::now() < deadline, "the daemon does not listen");
            let text = fs::read_to_string(pid_file).unwrap_or_default();
            server.daemon = text.trim().parse().ok();
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    pub fn pid(&self) -> u32 {
        self.daemon.unwrap_or(self.child.id())
    }

    /// What it has written to standard error.
    pub fn log(&self) -> String {
        self.log.lock().expect("nobody panics with it").clone()
    }

    /// Waits until it has written this.
    pub fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} in the log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// CPU time of all its threads, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let of_task = |path: PathBuf| {
            fs::read_to_string(path.join("schedstat"))
                .ok()
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
        };
        tasks.filter_map(Result::ok).map(|task| of_task(task.path())).sum()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/statm", self.pid())).expect("it runs");
        status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("statm") * 4096
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon {
            // SAFETY: a signal to the process whose id the daemon itself wrote.
            unsafe { libc::kill(daemon as i32, libc::SIGKILL) };
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
