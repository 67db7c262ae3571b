//! The process at the other end of a UNIX socket, and groups of users.

use std::ffi::CString;
use std::fmt::{self, Display};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::str::FromStr;

/// Largest number of supplementary groups of a process (`NGROUPS_MAX` of Linux).
const GROUPS_MAX: usize = 65_536;
/// Largest buffer for one entry of the group database, which lists the group's members.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The number that a user or group has in a user namespace where it is not mapped (user_namespaces(7)).
const OVERFLOW_ID: u32 = 65_534;

/// User and groups that a peer had when it connected (socket(7), `SO_PEERCRED` and `SO_PEERGROUPS`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) user: u32,
    pub(crate) groups: Vec<u32>,
}

impl Peer {
    /// The process at the other end of a stream.
    ///
    /// # Errors
    /// The kernel has no such option (`SO_PEERGROUPS` needs Linux 4.13).
    pub(crate) fn of(stream: &UnixStream) -> io::Result<Peer> {
        let credentials = rustix::net::sockopt::socket_peercred(stream)?;
        let mut groups = supplementary_groups(stream)?;
        groups.push(credentials.gid.as_raw());
        Ok(Peer { user: credentials.uid.as_raw(), groups })
    }

    /// Whether the peer is root, the user of this process, or a member of the group.
    pub(crate) fn may_operate(&self, group: u32) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let is_own = self.user == own && own != OVERFLOW_ID;
        self.user == 0 || is_own || self.groups.contains(&group)
    }
}

#[allow(unsafe_code, reason = "no safe interface to SO_PEERGROUPS exists")]
fn supplementary_groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: `groups` holds `bytes` bytes that the kernel may write, and outlives the call.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let needed = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel has set `bytes` to the space that the groups need.
        if error.raw_os_error() != Some(libc::ERANGE) || needed <= groups.len() || needed > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(needed, 0);
    }
}

/// The group whose members operate a daemon: its name, or its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminGroup {
    name: String,
    pub(crate) id: u32,
}

impl FromStr for AdminGroup {
    type Err = String;

    /// Looks the group up in the host's database. Fails if no group has this name, the database cannot be read, or the
    /// number is that of unmapped groups.
    fn from_str(name: &str) -> Result<AdminGroup, String> {
        match group_id(name)? {
            OVERFLOW_ID => Err(format!(
                "{name} cannot be the admin group: every group outside the user namespace has this number"
            )),
            id => Ok(AdminGroup { name: name.to_owned(), id }),
        }
    }
}

impl Display for AdminGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[allow(unsafe_code, reason = "no safe interface to the group database exists in the standard library")]
fn group_id(name: &str) -> Result<u32, String> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let unknown = || format!("there is no group {name:?} on this host");
    let c_name = CString::new(name).map_err(|_| unknown())?;
    let mut buffer = vec![0_u8; 4096];
    loop {
        let mut group = MaybeUninit::<libc::group>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers point to live values, and `buffer.len()` is the length of the buffer.
        let error = unsafe {
            libc::getgrnam_r(
                c_name.as_ptr(),
                group.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        match error {
            libc::ERANGE if buffer.len() < ENTRY_BYTES_MAX => buffer.resize(buffer.len() * 4, 0),
            libc::EINTR => {}
            0 if found.is_null() => return Err(unknown()),
            // SAFETY: `found` is not null, so `getgrnam_r` has written `group`.
            0 => return Ok(unsafe { group.assume_init_ref() }.gr_gid),
            // These mean "not found" in some databases (getgrnam(3)).
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Err(unknown()),
            error => return Err(format!("group {name:?}: {}", io::Error::from_raw_os_error(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_the_groups_of_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
        let mut expected: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        expected.push(rustix::process::getegid().as_raw());
        for group in expected {
            assert!(peer.groups.contains(&group), "{peer:?} should have group {group}");
        }
    }

    #[test]
    fn root_the_daemons_user_and_group_members_may_operate() {
        let peer = |user: u32, groups: &[u32]| Peer { user, groups: groups.to_vec() };
        let own = rustix::process::geteuid().as_raw();
        assert!(
            peer(0, &[]).may_operate(7)
                && peer(own, &[]).may_operate(7)
                && peer(4711, &[3, 7]).may_operate(7)
        );
        assert!(!peer(4711, &[3]).may_operate(7) && !peer(OVERFLOW_ID, &[OVERFLOW_ID]).may_operate(7));
    }

    #[test]
    fn group_is_found_by_name_or_number() {
        assert_eq!(group_id("root"), Ok(0));
        assert_eq!(group_id("4711"), Ok(4711));
        assert!(group_id("no such group").unwrap_err().contains("no group \"no such group\""));
        assert!(group_id("a\0b").is_err());
        assert!("65534".parse::<AdminGroup>().is_err());
    }
}
