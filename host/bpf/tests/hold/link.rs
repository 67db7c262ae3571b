//! Two ends of a veth in a network namespace of the test, and raw frames on them.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;

use rustix::io::{Errno, read, write};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The server's interface.
pub const SERVER: &str = "server0";
/// The other end.
pub const CLIENT: &str = "client0";

/// Bytes for frames that a socket has not read, so that none is lost in a test.
const BUFFER_BYTES: libc::c_int = 64 << 20;

/// Moves the calling thread to a new namespace with a veth, whose ends are up. False without the privileges.
pub fn isolated() -> bool {
    // SAFETY: the flags do not include FILES, so descriptors stay shared with the other threads.
    if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        eprintln!("skipped: no network namespace: {error}");
        return false;
    }
    ip(&format!("link add {CLIENT} type veth peer name {SERVER}"));
    for interface in [CLIENT, SERVER, "lo"] {
        ip(&format!("link set {interface} up"));
    }
    true
}

pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// A packet socket at one interface.
pub struct Frames(OwnedFd);

impl Frames {
    /// Frames of IPv4 on an interface. A program's verdict comes first.
    pub fn at(interface: &str) -> Frames {
        let name = std::ffi::CString::new(interface).unwrap();
        // SAFETY: the name ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        assert_ne!(index, 0, "{interface}");
        let protocol = (libc::ETH_P_IP as u16).to_be();
        // SAFETY: the call has no pointers.
        let fd =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, protocol.into()) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the structure consists of integers, for which zero bytes are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as libc::c_int;
        let bytes = BUFFER_BYTES;
        // SAFETY: the kernel reads the structure and the number, which outlive the calls, in their full lengths.
        unsafe {
            let length = size_of_val(&address) as libc::socklen_t;
            assert_eq!(libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length), 0);
            let length = size_of_val(&bytes) as libc::socklen_t;
            let value = (&raw const bytes).cast();
            let set = libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, value, length);
            assert_eq!(set, 0);
        }
        Frames(fd)
    }

    pub fn send(&self, frame: &[u8]) {
        loop {
            match write(&self.0, frame) {
                Ok(_) => return,
                Err(Errno::NOBUFS | Errno::AGAIN) => std::thread::yield_now(),
                Err(errno) => panic!("cannot send a frame: {errno}"),
            }
        }
    }

    /// The next frame that has arrived.
    pub fn next(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 2_048];
        match read(&self.0, &mut frame) {
            Ok(length) => {
                frame.truncate(length);
                Some(frame)
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => panic!("cannot receive a frame: {errno}"),
        }
    }
}
