//! Notifications to the service manager by datagrams, as `sd_notify(3)` describes, without its library.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Maximal length of a status line; longer ones are truncated, so that each message fits a datagram.
const STATUS_BYTES_MAX: usize = 1024;

/// The service manager that started this program, if one did. The service does not depend on it: notifications that
/// cannot be sent are dropped.
#[derive(Debug, Default)]
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// The manager named by the environment variables `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub fn from_environment() -> Manager {
        let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let is_for_this_process =
            number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| *usec > 0 && is_for_this_process);
        Manager {
            socket: env::var_os("NOTIFY_SOCKET").and_then(|name| open_socket(&name).ok()),
            watchdog: watchdog.map(Duration::from_micros),
        }
    }

    /// A manager with the socket `name`, a path or `@` and an abstract name, and with the watchdog time `watchdog`.
    ///
    /// # Errors
    /// The name is not valid, or the host has no descriptors left.
    pub fn at(name: &OsString, watchdog: Option<Duration>) -> io::Result<Manager> {
        Ok(Manager { socket: Some(open_socket(name)?), watchdog })
    }

    /// Whether a service manager started this program.
    pub fn is_present(&self) -> bool {
        self.socket.is_some()
    }

    /// The longest interval between calls of [`alive`](Self::alive): half of the manager's watchdog time.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.is_present()).map(|watchdog| watchdog / 2)
    }

    /// Reports that the service is ready. Call it after the start and at the end of each reload.
    pub fn ready(&self, status: &str) {
        self.notify(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Reports that a reload begins. Call [`ready`](Self::ready) at its end.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    /// Reports that the service begins to stop.
    pub fn stopping(&self, status: &str) {
        self.notify(&format!("STOPPING=1\nSTATUS={}", one_line(status)));
    }

    /// Sets the status line of `systemctl status`.
    pub fn status(&self, status: &str) {
        self.notify(&format!("STATUS={}", one_line(status)));
    }

    /// Resets the manager's watchdog. Call it once in each [`watchdog_interval`](Self::watchdog_interval).
    pub fn alive(&self) {
        self.notify("WATCHDOG=1");
    }

    fn notify(&self, message: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

fn open_socket(name: &OsString) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let socket = UnixDatagram::unbound()?;
    // Non-blocking: a manager that does not read must not stop the service.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// Removes line ends from a status and bounds its length: each line of a notification is a separate assignment.
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

    fn listen(name: &str) -> (UnixDatagram, OsString) {
        let name = format!("spillway-notify-{}-{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        (socket, format!("@{name}").into())
    }

    fn receive(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn notifications_have_the_format_of_sd_notify() {
        let (socket, name) = listen("follow");
        let manager = Manager::at(&name, Some(Duration::from_secs(10))).unwrap();
        assert_eq!(manager.watchdog_interval(), Some(Duration::from_secs(5)));
        manager.ready("2 links\nREADY=0");
        assert_eq!(receive(&socket), "READY=1\nSTATUS=2 links READY=0");
        manager.reloading();
        let text = receive(&socket);
        let usec = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(usec.parse::<u64>().unwrap() > 0);
        manager.alive();
        assert_eq!(receive(&socket), "WATCHDOG=1");
        manager.stopping("drained");
        assert_eq!(receive(&socket), "STOPPING=1\nSTATUS=drained");
        manager.status(&"ä".repeat(STATUS_BYTES_MAX));
        assert!(receive(&socket).len() <= STATUS_BYTES_MAX + "STATUS=".len());
    }

    #[test]
    fn notifications_without_a_listener_are_dropped() {
        let (socket, name) = listen("dropped");
        let manager = Manager::at(&name, None).unwrap();
        drop(socket);
        manager.ready("");
        assert_eq!(manager.watchdog_interval(), None);
        Manager::default().stopping("");
        assert!(Manager::at(&"relative".into(), None).is_err());
    }
}
