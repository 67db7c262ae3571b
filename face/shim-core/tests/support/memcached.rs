//! A real memcached with the preload library, on free ports.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spillway_ports::free_address;

use super::driver::WAIT_MAX;
use super::process::{Server, library};

/// Starts memcached with these arguments, and these settings of the preload library besides the link port.
pub fn memcached(arguments: &[&str], settings: &[(&str, &str)]) -> Server {
    let command = |plain: SocketAddr| {
        let mut command = Command::new("/usr/bin/memcached");
        command.args(["-u", "nobody", "-l", "127.0.0.1", "-p", &plain.port().to_string()]).args(arguments);
        command.envs(settings.iter().copied());
        command
    };
    Server::start_until(command, |_| true)
}

/// A memcached that runs in the background. Killed when dropped.
pub struct Daemon {
    pid: i32,
    /// The link port.
    pub link: SocketAddr,
}

impl Daemon {
    /// Starts memcached with `pid_file` for its process id.
    pub fn start(pid_file: &Path) -> Daemon {
        let (plain, link) = (free_address(), free_address());
        let mut command = Command::new("/usr/bin/memcached");
        command
            .args(["-d", "-u", "root", "-l", "127.0.0.1", "-p", &plain.port().to_string(), "-P"])
            .arg(pid_file);
        command.env("LD_PRELOAD", library()).env("SPILLWAY_LINK", link.to_string());
        assert!(command.stdin(Stdio::null()).status().expect("run memcached").success());
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let pid = std::fs::read_to_string(pid_file).ok().and_then(|text| text.trim().parse().ok());
            if let Some(pid) = pid
                && TcpStream::connect(plain).is_ok()
            {
                return Daemon { pid, link };
            }
            assert!(Instant::now() < deadline, "the daemon should listen within {WAIT_MAX:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SAFETY: passes no pointers. The daemon itself has written its process id.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}
