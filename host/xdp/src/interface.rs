//! A network interface: its properties that the stack needs, and checks that they stay.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketType, socket};
use spillway_wire::packet::ethernet::Mac;

use crate::ethtool::{self, Offload};
use crate::frame_bytes::PACKET_BYTES_MAX;
use crate::ioctl::{name_of, request};

/// An interface of the network namespace in which it was looked up.
#[derive(Clone, Debug)]
pub struct Interface {
    /// A socket of the interface's network namespace, so that threads of any namespace can use it.
    control: Arc<OwnedFd>,
    /// Name at the time of the lookup.
    pub name: String,
    /// Index of the interface in its network namespace.
    pub index: u32,
    /// Ethernet address.
    pub mac: Mac,
    /// MTU: bytes of the largest IP packet.
    pub mtu: u32,
    /// Number of queues that receive packets.
    pub queues: u32,
    /// Whether it is up.
    pub is_up: bool,
}

/// Why an interface cannot be used.
#[derive(Debug)]
pub struct InterfaceError {
    name: String,
    problem: &'static str,
    source: Option<io::Error>,
}

impl fmt::Display for InterfaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interface {}: {}", self.name, self.problem)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        f.write_str("; `ip link` lists the interfaces")
    }
}

impl std::error::Error for InterfaceError {}

impl Interface {
    /// Looks up an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, or it is not Ethernet.
    pub fn find(name: &str) -> Result<Interface, InterfaceError> {
        let error = |problem| {
            let name = name.to_owned();
            move |source| InterfaceError { name, problem, source: Some(source) }
        };
        let problem = |problem| InterfaceError { name: name.to_owned(), problem, source: None };
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)
            .map_err(|errno| error("cannot be looked up")(errno.into()))?;
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            return Err(problem("a name has 1 to 15 bytes"));
        }
        let control = Arc::new(socket);
        let request = |code| request(&control, name, code);
        let found = request(libc::SIOCGIFINDEX).map_err(error("cannot be found"))?;
        // SAFETY: after SIOCGIFINDEX the kernel has written the number.
        let index = unsafe { found.ifr_ifru.ifru_ifindex };
        let flags = request(libc::SIOCGIFFLAGS).map_err(error("cannot read its flags"))?;
        // SAFETY: after SIOCGIFFLAGS the kernel has written the flags.
        let flags = libc::c_int::from(unsafe { flags.ifr_ifru.ifru_flags });
        let hardware = request(libc::SIOCGIFHWADDR).map_err(error("cannot read its Ethernet address"))?;
        // SAFETY: after SIOCGIFHWADDR the kernel has written an address.
        let hardware = unsafe { hardware.ifr_ifru.ifru_hwaddr };
        if flags & libc::IFF_LOOPBACK != 0 || hardware.sa_family != libc::ARPHRD_ETHER {
            return Err(problem(
                "not an Ethernet interface: choose one for which `ip link` prints link/ether",
            ));
        }
        let mtu = request(libc::SIOCGIFMTU).map_err(error("cannot read its MTU"))?;
        // SAFETY: after SIOCGIFMTU the kernel has written the MTU.
        let mtu = unsafe { mtu.ifr_ifru.ifru_mtu };
        Ok(Interface {
            name: name.to_owned(),
            index: index.unsigned_abs(),
            mac: mac(hardware),
            mtu: mtu.unsigned_abs(),
            queues: ethtool::queues(&control, name).map_err(error("cannot count its queues"))?,
            is_up: flags & libc::IFF_UP != 0,
            control,
        })
    }

    /// The interface's first IPv4 address, if any, and the length of its prefix in bits.
    ///
    /// # Errors
    /// The interface was removed, or the system has failed.
    pub fn address(&self) -> io::Result<Option<(Ipv4Addr, u8)>> {
        let ask = |code| request(&self.control, &self.name, code);
        let address = match ask(libc::SIOCGIFADDR) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => return Ok(None),
            outcome => outcome?,
        };
        let mask = ask(libc::SIOCGIFNETMASK)?;
        // SAFETY: after SIOCGIFADDR the kernel has written an address.
        let address = ipv4(unsafe { address.ifr_ifru.ifru_addr });
        // SAFETY: after SIOCGIFNETMASK the kernel has written a mask.
        let mask = ipv4(unsafe { mask.ifr_ifru.ifru_netmask });
        Ok(Some((address, mask.to_bits().leading_ones() as u8)))
    }

    /// Bytes of the stack's largest IP packet: the MTU, at most [`PACKET_BYTES_MAX`].
    pub fn packet_bytes_max(&self) -> u32 {
        self.mtu.min(PACKET_BYTES_MAX)
    }

    /// Checks that the interface still exists, has the same Ethernet address and number of queues as at the lookup, and
    /// an MTU that is not too small. Its name may change, and it may be down for a while: the answer says whether it is up.
    /// Any thread may call it, about once a second: it makes a few system calls.
    ///
    /// # Errors
    /// The interface was removed, or has another Ethernet address, another number of queues, or a smaller MTU.
    pub fn check(&self) -> Result<InterfaceState, InterfaceChange> {
        let change = |what| self.change(what);
        // All other requests need the name, which may have changed.
        let name = name_of(&self.control, self.index).map_err(|_| change(Change::Removed))?;
        let request = |code| request(&self.control, &name, code).map_err(|_| change(Change::Removed));
        let flags = request(libc::SIOCGIFFLAGS)?;
        // SAFETY: after SIOCGIFFLAGS the kernel has written the flags.
        let is_up = libc::c_int::from(unsafe { flags.ifr_ifru.ifru_flags }) & libc::IFF_UP != 0;
        let hardware = request(libc::SIOCGIFHWADDR)?;
        // SAFETY: after SIOCGIFHWADDR the kernel has written an address.
        let now = mac(unsafe { hardware.ifr_ifru.ifru_hwaddr });
        if now != self.mac {
            return Err(change(Change::Mac { before: self.mac, now }));
        }
        let mtu = request(libc::SIOCGIFMTU)?;
        // SAFETY: after SIOCGIFMTU the kernel has written the MTU.
        let now = unsafe { mtu.ifr_ifru.ifru_mtu }.unsigned_abs();
        if now < self.packet_bytes_max() {
            return Err(change(Change::Mtu { before: self.mtu, now }));
        }
        match ethtool::queues(&self.control, &name) {
            Ok(queues) if queues != self.queues => {
                Err(change(Change::Queues { before: self.queues, now: queues }))
            }
            _ => Ok(if is_up { InterfaceState::Up } else { InterfaceState::Down }),
        }
    }

    /// The active offloads that keep packets from the stack.
    ///
    /// # Errors
    /// The interface was removed, or the system has failed.
    pub fn harmful_offloads(&self) -> io::Result<Vec<Offload>> {
        ethtool::harmful_offloads(&self.control, &self.name)
    }

    /// Whether the kernel joins received packets (generic receive offload).
    ///
    /// # Errors
    /// The interface was removed, or the system has failed.
    pub fn joins_packets(&self) -> io::Result<bool> {
        ethtool::joins_packets(&self.control, &self.name)
    }

    /// The lowest interfaces under this one, such as the cards under a VLAN or a bond; empty if no interface
    /// is below. Reads `/sys`, which must show the calling thread's network namespace.
    pub fn lowest(&self) -> Vec<String> {
        lowest(Path::new("/sys/class/net"), &self.name)
    }

    /// Turns an offload off.
    ///
    /// # Errors
    /// The driver refuses, or the process has no CAP_NET_ADMIN.
    pub fn turn_off(&self, offload: Offload) -> io::Result<()> {
        ethtool::turn_off(&self.control, &self.name, offload)
    }

    /// Raises the number of receive queues to `queues` or the driver's maximum. A card pauses for it.
    ///
    /// # Errors
    /// The driver refuses, or the process has no CAP_NET_ADMIN.
    pub fn raise_queues(&mut self, queues: u32) -> io::Result<()> {
        if queues > self.queues {
            self.queues = ethtool::set_queues(&self.control, &self.name, queues)?;
        }
        Ok(())
    }

    /// The loss of the stack's program. `program_id`: the program that replaced it, if any.
    pub(crate) fn lost_program(&self, program_id: Option<u32>) -> InterfaceChange {
        self.change(Change::Program { now: program_id })
    }

    fn change(&self, what: Change) -> InterfaceChange {
        InterfaceChange { interface: self.name.clone(), what }
    }
}

/// Whether an interface carries frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceState {
    /// The interface is up.
    Up,
    /// The interface is down (`ip link set down`): its sockets neither receive nor send until it is up again.
    Down,
}

/// A change of an interface since its lookup that the stack cannot handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceChange {
    interface: String,
    what: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Removed,
    Mac {
        before: Mac,
        now: Mac,
    },
    Queues {
        before: u32,
        now: u32,
    },
    Mtu {
        before: u32,
        now: u32,
    },
    /// `now`: the program that replaced the stack's, if any.
    Program {
        now: Option<u32>,
    },
}

impl From<InterfaceChange> for io::Error {
    fn from(change: InterfaceChange) -> io::Error {
        io::Error::new(io::ErrorKind::NetworkDown, change)
    }
}

impl fmt::Display for InterfaceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = &self.interface;
        match self.what {
            Change::Removed => write!(f, "interface {interface} was removed"),
            Change::Mac { before, now } => write!(
                f,
                "interface {interface} has the Ethernet address {now} now and had {before}: restart, so that frames to it reach \
                 the stack"
            ),
            Change::Queues { before, now } => write!(
                f,
                "interface {interface} has {now} queues now and had {before}: restart, so that each queue has a socket"
            ),
            Change::Mtu { before, now } => write!(
                f,
                "interface {interface} has an MTU of {now} bytes now and had {before}: restart, so that no packet is too long"
            ),
            Change::Program { now: None } => write!(
                f,
                "the steering program of interface {interface} was detached: the kernel resets all connections; restart, \
                 and find out who has detached the program"
            ),
            Change::Program { now: Some(id) } => write!(
                f,
                "the steering program of interface {interface} was replaced by program {id}, which `bpftool prog show id \
                 {id}` describes: restart when that one is gone"
            ),
        }
    }
}

impl std::error::Error for InterfaceChange {}

/// The IPv4 address of a `sockaddr_in`, in which it follows two bytes of the port.
fn ipv4(address: libc::sockaddr) -> Ipv4Addr {
    Ipv4Addr::from(std::array::from_fn::<u8, 4, _>(|at| address.sa_data[2 + at] as u8))
}

/// Maximum levels of interfaces, such as 3 below a macvlan on a VLAN on a bond on two cards.
const LEVELS_MAX: usize = 8;

/// The lowest interfaces under one, each once. `directory` has a directory for each interface, with a link
/// `lower_NAME` for each interface directly below.
fn lowest(directory: &Path, name: &str) -> Vec<String> {
    let below = |name: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(directory.join(name)).into_iter().flatten().flatten();
        let lower =
            |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_prefix("lower_")?.to_owned());
        entries.filter_map(lower).collect()
    };
    let (mut level, mut lowest) = (below(name), BTreeSet::new());
    for _ in 0..LEVELS_MAX {
        let mut next = BTreeSet::new();
        for name in level {
            let mut below = below(&name);
            match below.is_empty() {
                true => drop(lowest.insert(name)),
                false => next.append(&mut below),
            }
        }
        level = next;
    }
    lowest.into_iter().collect()
}

fn mac(address: libc::sockaddr) -> Mac {
    Mac(std::array::from_fn(|at| address.sa_data[at] as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_interfaces_are_found_through_all_levels() {
        let directory = std::env::temp_dir().join(format!("spillway-lower-{}", std::process::id()));
        for path in
            ["eth0", "eth1", "bond0/lower_eth0", "bond0/lower_eth1", "vlan5/lower_bond0", "mac0/lower_vlan5"]
        {
            fs::create_dir_all(directory.join(path)).unwrap();
        }
        let of = |name| lowest(&directory, name);
        assert_eq!(of("mac0"), ["eth0", "eth1"]);
        assert_eq!(of("bond0"), ["eth0", "eth1"]);
        assert!(of("eth0").is_empty() && of("no-such-if").is_empty());
        fs::remove_dir_all(directory).unwrap();
    }
}
