//! Requests to an interface (netdevice(7)).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Performs a request and returns the structure with the kernel's answer.
pub(crate) fn request(socket: &OwnedFd, name: &str, code: libc::Ioctl) -> io::Result<libc::ifreq> {
    let mut request = empty_request(name);
    // SAFETY: the kernel reads and writes one `ifreq`, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(request) }
}

pub(crate) fn name_of(socket: &OwnedFd, index: u32) -> io::Result<String> {
    let mut request = empty_request("");
    request.ifr_ifru.ifru_ifindex = index.cast_signed();
    // SAFETY: the kernel reads and writes one `ifreq`, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = request.ifr_name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8(name).map_err(io::Error::other)
}

/// Performs a request of <linux/ethtool.h>. The kernel writes its answer into `command`.
///
/// # Safety
/// `command` must begin with the request's number and have its layout: the kernel reads and writes it.
pub(crate) unsafe fn ethtool<T>(socket: &OwnedFd, name: &str, command: &mut T) -> io::Result<()> {
    let mut request = empty_request(name);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(command).cast();
    // SAFETY: the kernel reads one `ifreq`, and reads and writes the command, as the caller promises; both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An empty request for an interface. The name must be shorter than its field, so that the last byte stays 0.
fn empty_request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` consists of integers, raw pointers and unions of them, for which all-zero bytes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (target, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *target = byte as libc::c_char;
    }
    request
}
