//! Whether an interface that is known by its index can carry frames now, and its name.

use std::io;

use rustix::net::{AddressFamily, SocketType, socket};

use crate::ioctl::{name_of, request};

/// The present state of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// The interface's name.
    pub name: String,
    /// Whether an administrator has set it up (`ip link set IF up`).
    pub is_up: bool,
    /// Whether it has a carrier. False while it is down.
    pub has_carrier: bool,
}

impl Presence {
    /// The state of the interface with this index in the calling thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, or the system has failed.
    pub fn of(index: u32) -> io::Result<Presence> {
        let control = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        let name = name_of(&control, index)?;
        let flags = request(&control, &name, libc::SIOCGIFFLAGS)?;
        // SAFETY: after SIOCGIFFLAGS the kernel has written the flags.
        let flags = libc::c_int::from(unsafe { flags.ifr_ifru.ifru_flags });
        Ok(Presence {
            name,
            is_up: flags & libc::IFF_UP != 0,
            has_carrier: flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_name_and_others_are_errors() {
        assert_eq!(Presence::of(1).unwrap().name, "lo");
        assert!(Presence::of(u32::MAX >> 1).is_err());
    }
}
