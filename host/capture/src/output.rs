//! Blocks what a socket sends. The means is an IPsec policy of the socket, which blocks its output: the kernel then finds no route
//! for the socket's packets, whatever part of TCP makes them: an acknowledgement, a timer, or a window that opens. Bytes that were
//! not sent stay unsent. No other socket is affected.
//!
//! A kernel without such policies (CONFIG_XFRM_USER) blocks nothing.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Once;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};

use crate::error::{CaptureError, system};
use crate::system::{IPV6_XFRM_POLICY, clear, set_slice};

// `struct xfrm_userpolicy_info` of <linux/xfrm.h>. All other fields are 0: the policy applies to all packets of the socket.
const POLICY_BYTES: usize = 168;
const FAMILY_AT: usize = 40;
const DIRECTION_AT: usize = 160;
const ACTION_AT: usize = 161;
const XFRM_POLICY_OUT: u8 = 1;
const XFRM_POLICY_BLOCK: u8 = 1;

/// What decides how the output of a socket is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// AF_INET6, also if the connection is one of IPv4.
    pub is_ipv6_socket: bool,
    /// The packets are those of IPv4.
    pub is_ipv4: bool,
}

impl Output {
    pub(crate) fn of(socket_address: IpAddr) -> Output {
        Output { is_ipv6_socket: socket_address.is_ipv6(), is_ipv4: socket_address.to_canonical().is_ipv4() }
    }

    /// Blocks the output of a connected socket. A kernel that has no such policies changes nothing.
    pub(crate) fn block(self, fd: &OwnedFd) -> Result<(), CaptureError> {
        let result = match self.set_policy(fd) {
            Err(error) if is_missing(&error) && load_module() => self.set_policy(fd),
            result => result,
        };
        ignore_missing(result).map_err(system("block the socket's output"))
    }

    /// Permits the output again.
    pub(crate) fn permit(self, fd: &OwnedFd) -> Result<(), CaptureError> {
        let (level, name) = self.option();
        match ignore_missing(clear(fd, level, name)) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(CaptureError::Permission),
            result => result.map_err(system("permit the socket's output")),
        }
    }

    fn set_policy(self, fd: &OwnedFd) -> io::Result<()> {
        let mut policy = [0_u8; POLICY_BYTES];
        let family = if self.is_ipv4 { libc::AF_INET } else { libc::AF_INET6 } as u16;
        policy[FAMILY_AT..FAMILY_AT + 2].copy_from_slice(&family.to_ne_bytes());
        policy[DIRECTION_AT] = XFRM_POLICY_OUT;
        policy[ACTION_AT] = XFRM_POLICY_BLOCK;
        let (level, name) = self.option();
        set_slice(fd, level, name, &policy)
    }

    fn option(self) -> (libc::c_int, libc::c_int) {
        if self.is_ipv6_socket {
            (libc::IPPROTO_IPV6, IPV6_XFRM_POLICY)
        } else {
            (libc::IPPROTO_IP, libc::IP_XFRM_POLICY)
        }
    }
}

/// Whether the kernel has no policies of sockets: it lacks the feature, or the module that reads them is not loaded.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOPROTOOPT | libc::EOPNOTSUPP))
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if is_missing(&error) => Ok(()),
        result => result,
    }
}

/// Makes the kernel load the module, once in the life of the process. Returns whether this call has done so.
fn load_module() -> bool {
    static LOADED: Once = Once::new();
    let mut is_first = false;
    LOADED.call_once(|| {
        is_first = true;
        // The kernel loads the module for such a socket, which is not needed itself.
        let _ =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::XFRM));
    });
    is_first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_the_families_of_the_socket_and_of_its_packets() {
        let of = |text: &str| Output::of(text.parse().unwrap());
        assert_eq!(of("192.0.2.1"), Output { is_ipv6_socket: false, is_ipv4: true });
        assert_eq!(of("2001:db8::1"), Output { is_ipv6_socket: true, is_ipv4: false });
        assert_eq!(of("::ffff:192.0.2.1"), Output { is_ipv6_socket: true, is_ipv4: true });
    }

    #[test]
    fn a_kernel_without_policies_is_no_error() {
        for missing in [libc::EINVAL, libc::ENOPROTOOPT, libc::EOPNOTSUPP] {
            assert!(ignore_missing(Err(io::Error::from_raw_os_error(missing))).is_ok());
        }
        assert!(ignore_missing(Err(io::Error::from_raw_os_error(libc::ENOMEM))).is_err());
    }
}
