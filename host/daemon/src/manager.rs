//! The service manager: told what goes on by datagrams, as of `sd_notify(3)`, without its library.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A status line is cut to this, so that every message fits a datagram.
const STATUS_BYTES_MAX: usize = 1024;

/// Whoever started this program as a service, if anybody did. Telling it something never fails: a service does not
/// depend on being heard.
#[derive(Debug, Default)]
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// As the environment says: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    pub fn from_environment() -> Manager {
        let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| *usec > 0 && for_us);
        Manager {
            socket: env::var_os("NOTIFY_SOCKET").and_then(|name| open(&name).ok()),
            watchdog: watchdog.map(Duration::from_micros),
        }
    }

    /// A manager that listens on the socket of this name: a path, or `@` and an abstract name.
    ///
    /// # Errors
    /// The name is none, or the host has no descriptors left.
    pub fn at(name: &OsString, watchdog: Option<Duration>) -> io::Result<Manager> {
        Ok(Manager { socket: Some(open(name)?), watchdog })
    }

    /// Whether anybody listens.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// How often [`alive`](Self::alive) is to be said, at least: half of what the manager waits for.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.is_there()).map(|usec| usec / 2)
    }

    /// The service works. Also said when a reload is over.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// A reload begins; [`ready`](Self::ready) ends it.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    /// The service ends.
    pub fn stopping(&self, status: &str) {
        self.tell(&format!("STOPPING=1\nSTATUS={}", one_line(status)));
    }

    /// A line for `systemctl status`.
    pub fn status(&self, status: &str) {
        self.tell(&format!("STATUS={}", one_line(status)));
    }

    /// The service has not come to a standstill.
    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    fn tell(&self, message: &str) {
        if let Some((socket, address)) = &self.socket {
            // A manager that does not listen any more is no reason to stop.
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

fn open(name: &OsString) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let socket = UnixDatagram::unbound()?;
    // Rather unheard than stopped by a manager that does not read.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// Each line of a message is an assignment of its own.
fn one_line(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = line.len().min(STATUS_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening(name: &str) -> (UnixDatagram, OsString) {
        let name = format!("spillway-notify-{}-{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        (socket, format!("@{name}").into())
    }

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn says_what_a_manager_waits_for() {
        let (socket, name) = listening("says");
        let manager = Manager::at(&name, Some(Duration::from_secs(10))).unwrap();
        assert_eq!(manager.watchdog_interval(), Some(Duration::from_secs(5)));
        manager.ready("2 links\nREADY=0");
        assert_eq!(heard(&socket), "READY=1\nSTATUS=2 links READY=0");
        manager.reloading();
        let text = heard(&socket);
        let usec = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(usec.parse::<u64>().unwrap() > 0);
        manager.alive();
        assert_eq!(heard(&socket), "WATCHDOG=1");
        manager.stopping("drained");
        assert_eq!(heard(&socket), "STOPPING=1\nSTATUS=drained");
        manager.status(&"ä".repeat(STATUS_BYTES_MAX));
        assert!(heard(&socket).len() <= STATUS_BYTES_MAX + "STATUS=".len());
    }

    #[test]
    fn a_manager_that_is_gone_is_no_trouble() {
        let (socket, name) = listening("gone");
        let manager = Manager::at(&name, None).unwrap();
        drop(socket);
        manager.ready("");
        assert_eq!(manager.watchdog_interval(), None);
        Manager::default().stopping("");
        assert!(Manager::at(&"relative".into(), None).is_err());
    }
}
