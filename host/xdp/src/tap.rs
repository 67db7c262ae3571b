//! A TAP interface: an Ethernet interface of the kernel whose other end is a file descriptor of this process.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, write};

use crate::device::{Device, FRAME_BYTES_MAX, poll_with};

const CONTROL: &str = "/dev/net/tun";

/// The user-space end of a TAP interface in the network namespace of the thread that opened it. Dropping the
/// value removes the interface.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: String,
    received: Box<[u8]>,
    slot: Box<[u8]>,
}

/// Why a TAP interface could not be created.
#[derive(Debug)]
pub enum TapError {
    /// The name is invalid. It must have 1 to 15 letters, digits, hyphens, dots or underscores, and not begin with a dot.
    Name(String),
    /// The control file `/dev/net/tun` cannot be opened.
    Control(io::Error),
    /// The kernel refuses to create the interface.
    Interface {
        /// The interface's name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for TapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TapError::Name(name) => write!(
                f,
                "{name:?} is no name for an interface: it has 1 to 15 letters, digits, hyphens, dots or underscores"
            ),
            TapError::Control(source) => write!(
                f,
                "cannot open {CONTROL}: {source}; it needs the kernel's module `tun` (modprobe tun), in a container \
                 the device as well"
            ),
            TapError::Interface { name, source } if source.raw_os_error() == Some(libc::EBUSY) => write!(
                f,
                "cannot make interface {name}: it is there already: choose another name, or remove it (ip link del \
                 {name})"
            ),
            TapError::Interface { name, source } => {
                write!(f, "cannot make interface {name}: {source}; it takes root, or CAP_NET_ADMIN")
            }
        }
    }
}

impl std::error::Error for TapError {}

impl Tap {
    /// Creates an interface of this name. The interface is down and has no address. Its offloads are off:
    /// frames from the kernel have valid checksums and respect the interface's MTU.
    ///
    /// # Errors
    /// The name is invalid or taken, the kernel does not support TAP, or the process may not create interfaces.
    pub fn open(name: &str) -> Result<Tap, TapError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let fits = (1..libc::IFNAMSIZ).contains(&name.len()) && name.bytes().all(is_plain);
        if !fits || name.starts_with('.') {
            return Err(TapError::Name(name.to_owned()));
        }
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = open(CONTROL, flags, Mode::empty()).map_err(|errno| TapError::Control(errno.into()))?;
        match attach(&fd, name) {
            Ok(()) => {
                let buffer = || vec![0; FRAME_BYTES_MAX].into_boxed_slice();
                Ok(Tap { fd, name: name.to_owned(), received: buffer(), slot: buffer() })
            }
            Err(source) => Err(TapError::Interface { name: name.to_owned(), source }),
        }
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Attaches the descriptor to a new interface. Frames have no `tun_pi` header (IFF_NO_PI).
fn attach(fd: &OwnedFd, name: &str) -> io::Result<()> {
    // SAFETY: `ifreq` consists of integers, raw pointers and unions of them, for which all-zero bytes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The caller has checked that the name is shorter than the field: the last byte stays zero.
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
    request.ifr_ifru.ifru_flags = flags as libc::c_short; // 16 bits suffice: IFF_TUN_EXCL is the highest one
    // SAFETY: the kernel reads and writes one `ifreq`, which outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Device for Tap {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        match read(&self.fd, &mut *self.received) {
            Ok(length) => Ok(Some(&self.received[..length])),
            // EIO: the interface is down.
            Err(Errno::AGAIN | Errno::INTR | Errno::IO) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn transmit(&mut self) -> io::Result<Option<&mut [u8]>> {
        Ok(Some(&mut self.slot))
    }

    fn commit(&mut self, length: usize) -> io::Result<bool> {
        match write(&self.fd, &self.slot[..length]) {
            Ok(_) => Ok(true),
            // The interface is down, the kernel has no memory, or it rejects the frame: the frame is lost.
            Err(Errno::AGAIN | Errno::INTR | Errno::IO | Errno::NOBUFS | Errno::NOMEM | Errno::INVAL) => {
                Ok(false)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Does nothing: [`commit`](Self::commit) has sent the frames.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, wakes: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let polled = poll_with(&[self.fd.as_fd()], timeout, wakes)?;
        if polled.events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                format!("interface {} is gone", self.name),
            ));
        }
        Ok(polled.is_woken)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_are_refused_before_the_kernel_is_asked() {
        for name in ["", "a name", "tap%d", "a/b", "a:b", ".", "..", "sixteen-bytes-no"] {
            assert!(matches!(Tap::open(name), Err(TapError::Name(_))), "{name:?}");
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let busy =
            TapError::Interface { name: "t0".into(), source: io::Error::from_raw_os_error(libc::EBUSY) };
        assert!(busy.to_string().contains("ip link del t0"), "{busy}");
        let denied =
            TapError::Interface { name: "t0".into(), source: io::Error::from_raw_os_error(libc::EPERM) };
        assert!(denied.to_string().contains("CAP_NET_ADMIN"), "{denied}");
        let missing = TapError::Control(io::Error::from_raw_os_error(libc::ENOENT));
        assert!(missing.to_string().contains("modprobe tun"), "{missing}");
    }
}
