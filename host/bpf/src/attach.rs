//! Attaches XDP programs to interfaces.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Program, ProgramMut, Xdp, XdpFlags};
use libbpf_sys::bpf_xdp_query_opts;
use rustix::io::Errno;
use rustix::net::netdevice::{index_to_name_inlined, name_to_index};
use rustix::net::{AddressFamily, SocketType, socket};

use crate::BpfError;
use crate::switch::{self, NextProgram, NextProgramError, Present as Behind};

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel allocates a socket buffer for the packet.
    Native,
    /// After the driver, on a socket buffer. Slower; for drivers without XDP.
    Generic,
}

impl Mode {
    /// The mode of an interface's only program. `None`: it has no program, or several.
    fn of(attached: &bpf_xdp_query_opts) -> Option<Mode> {
        // XDP_ATTACHED_DRV and XDP_ATTACHED_SKB of <linux/if_link.h>.
        match attached.attach_mode {
            1 => Some(Mode::Native),
            2 => Some(Mode::Generic),
            _ => None,
        }
    }
}

/// The program that runs at an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    /// The program's number.
    pub(crate) program_id: u32,
    /// The mode in which it runs.
    pub(crate) mode: Mode,
}

/// A program that is attached to an interface. Dropping the value detaches the program.
#[derive(Debug)]
pub struct Attachment {
    place: Place,
    mode: Mode,
    program_id: u32,
}

/// Where a program is attached.
#[derive(Debug)]
enum Place {
    /// At an interface.
    Interface(Link),
    /// Behind the program of a switch in host mode.
    Behind(NextProgram),
}

/// Whether a program is still attached to its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentState {
    /// The program is attached.
    Attached,
    /// Another process has detached the program, or the interface was removed.
    Detached,
    /// Another process has replaced the program.
    Replaced {
        /// The other program's number.
        program_id: u32,
    },
}

/// Why a program was not attached.
#[derive(Debug)]
pub enum AttachError {
    /// The namespace has no interface of this name.
    Unknown {
        /// The interface's name.
        interface: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another program is attached.
    Occupied {
        /// The interface's name.
        interface: String,
        /// The other program's number.
        program_id: u32,
    },
    /// Another program is attached, which may be that of a switch: this process cannot read the pins of all switches.
    OccupiedBySwitch {
        /// The interface's name.
        interface: String,
        /// The other program's number.
        program_id: u32,
        /// The directory with pins that this process cannot read.
        directory: PathBuf,
    },
    /// The interface has the program of a switch in host mode, and another process has a program behind that one.
    BehindSwitch {
        /// The interface's name.
        interface: String,
        /// The directory with the switch's pins.
        directory: PathBuf,
    },
    /// The program does not work at `lo`.
    Loopback {
        /// The interface's name.
        interface: String,
    },
    /// The driver or the kernel refused the program.
    Refused {
        /// The interface's name.
        interface: String,
        /// The system's error.
        source: libbpf_rs::Error,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Unknown { interface, source } => {
                write!(f, "cannot find interface {interface}: {source}; `ip link` lists the interfaces")
            }
            AttachError::Occupied { interface, program_id } => write!(
                f,
                "interface {interface} has another XDP program, number {program_id}: inspect it with `bpftool prog show \
                 id {program_id}`, and stop the program that attached it"
            ),
            AttachError::OccupiedBySwitch { interface, program_id, directory } => write!(
                f,
                "interface {interface} has another XDP program, number {program_id}: if it is that of a switch in host mode, behind \
                 which this process can run, give the process access to {}, for example by running it as the user of the \
                 switch's daemon; if not, stop the program that attached it (`bpftool prog show id {program_id}`)",
                directory.display()
            ),
            AttachError::BehindSwitch { interface, directory } => write!(
                f,
                "interface {interface} has the program of a switch in host mode (pins in {}), and another process has \
                 placed a program behind it: stop that process",
                directory.display()
            ),
            AttachError::Loopback { interface } => write!(
                f,
                "packets of connections that move here cannot be held at {interface}, where they are injected later: name the \
                 interfaces on which clients' packets arrive"
            ),
            AttachError::Refused { interface, source } => write!(
                f,
                "cannot attach an XDP program to interface {interface}: {source:#}; it needs CAP_NET_ADMIN and an MTU that \
                 fits one page (`ip link set {interface} mtu 1500`); on a veth, MTUs of at most 3,506 at both ends, and as many \
                 receive queues as the other end has for sending (`ethtool -L`)"
            ),
        }
    }
}

impl std::error::Error for AttachError {}

impl Attachment {
    /// Attaches a program, in native mode if the driver supports it, otherwise in generic mode.
    pub(crate) fn new(program: &ProgramMut<'_>, interface: &str) -> Result<Attachment, AttachError> {
        check_free(interface)?;
        let link = link(program, interface)?;
        let attached = query(interface)?;
        let mode = Mode::of(&attached).ok_or_else(|| AttachError::Refused {
            interface: interface.to_owned(),
            source: io::Error::other("another process has detached it at once").into(),
        })?;
        Ok(Attachment { place: Place::Interface(link), mode, program_id: attached.prog_id })
    }

    /// As [`new`](Self::new). If the interface has the program of a switch in host mode, the program runs behind that one.
    pub(crate) fn new_or_behind(
        program: &ProgramMut<'_>,
        interface: &str,
    ) -> Result<Attachment, AttachError> {
        let occupied = match Attachment::new(program, interface) {
            Err(error @ AttachError::Occupied { .. }) => error,
            outcome => return outcome,
        };
        let refused = |source| AttachError::Refused { interface: interface.to_owned(), source };
        let program_id = Program::id_from_fd(program.as_fd()).map_err(refused)?;
        let index = index_of(interface)?.unsigned_abs();
        match NextProgram::place(program.as_fd(), program_id, index) {
            Ok(Some(next)) => Ok(Attachment { mode: next.mode(), place: Place::Behind(next), program_id }),
            Ok(None) => Err(match (occupied, switch::unreadable(Path::new(switch::PINS))) {
                (AttachError::Occupied { interface, program_id }, Some(directory)) => {
                    AttachError::OccupiedBySwitch { interface, program_id, directory }
                }
                (occupied, _) => occupied,
            }),
            Err(NextProgramError::Occupied(directory)) => {
                Err(AttachError::BehindSwitch { interface: interface.to_owned(), directory })
            }
            Err(NextProgramError::Lock(directory, error)) => {
                Err(refused(io::Error::other(format!("cannot lock {}: {error}", directory.display())).into()))
            }
            Err(NextProgramError::Bpf(error)) => Err(refused(io::Error::other(error).into())),
        }
    }

    /// Whether the program runs behind that of a switch in host mode.
    pub fn is_behind_switch(&self) -> bool {
        matches!(self.place, Place::Behind(_))
    }

    /// The mode in which the program runs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the program is still attached. Other processes with CAP_NET_ADMIN can detach or replace it,
    /// for example with `bpftool link detach`. Works in any network namespace.
    ///
    /// # Errors
    /// The system has failed.
    pub fn state(&self) -> Result<AttachmentState, BpfError> {
        let link = match &self.place {
            Place::Interface(link) => link,
            Place::Behind(next) => {
                return Ok(match next.present()? {
                    Behind::Own => AttachmentState::Attached,
                    Behind::Other(program_id) => AttachmentState::Replaced { program_id },
                    Behind::None => AttachmentState::Detached,
                });
            }
        };
        let link = link.info().map_err(BpfError::of("cannot read the link of an XDP program"))?;
        Ok(match link.info {
            // The kernel reports index 0 for a link without an interface.
            LinkTypeInfo::Xdp(at) if at.ifindex == 0 => AttachmentState::Detached,
            _ if link.prog_id != self.program_id => AttachmentState::Replaced { program_id: link.prog_id },
            _ => AttachmentState::Attached,
        })
    }

    /// The program's number, as `bpftool prog` and `ip link` print it.
    pub fn program_id(&self) -> u32 {
        self.program_id
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Place::Interface(link) = &self.place {
            // Closing the descriptor is not enough: a process that was just forked has a copy until it calls
            // exec. The call fails only if the interface was removed, and the program with it.
            let _ = link.detach();
        }
    }
}

/// The number of the XDP program on an interface of the calling thread's network namespace, if any.
///
/// # Errors
/// The interface does not exist, or the query failed.
pub fn attached_program(interface: &str) -> io::Result<Option<u32>> {
    let found = query_index(interface_index(interface)?).map_err(io::Error::other)?;
    Ok((found.prog_id != 0).then_some(found.prog_id))
}

/// Checks that an interface exists and has no XDP program.
pub(crate) fn check_free(interface: &str) -> Result<(), AttachError> {
    match query(interface)?.prog_id {
        0 => Ok(()),
        program_id => Err(AttachError::Occupied { interface: interface.to_owned(), program_id }),
    }
}

/// Attaches a program to an interface that [`check_free`] has checked.
pub(crate) fn link(program: &ProgramMut<'_>, interface: &str) -> Result<Link, AttachError> {
    program
        .attach_xdp(index_of(interface)?)
        .map_err(|source| AttachError::Refused { interface: interface.to_owned(), source })
}

/// The XDP program at the interface with this index in the calling thread's network namespace. `None`: no program, or no such
/// interface.
pub(crate) fn program_at(index: u32) -> Result<Option<Present>, BpfError> {
    let failed = || BpfError::of(format!("cannot read the XDP program of interface number {index}"));
    let number = i32::try_from(index).map_err(io::Error::other).map_err(libbpf_rs::Error::from);
    match number.and_then(query_index) {
        Ok(found) => Ok(Mode::of(&found).map(|mode| Present { program_id: found.prog_id, mode })),
        Err(error) => match exists(index) {
            Ok(false) => Ok(None),
            Ok(true) => Err(failed()(error)),
            Err(error) => Err(failed()(error.into())),
        },
    }
}

/// Whether the calling thread's network namespace has an interface with this index.
fn exists(index: u32) -> io::Result<bool> {
    match index_to_name_inlined(socket(AddressFamily::INET, SocketType::DGRAM, None)?, index) {
        Err(Errno::NODEV) => Ok(false),
        outcome => Ok(outcome.map(|_| true)?),
    }
}

/// The index of an interface of the calling thread's network namespace.
pub(crate) fn index_of(interface: &str) -> Result<i32, AttachError> {
    interface_index(interface)
        .map_err(|source| AttachError::Unknown { interface: interface.to_owned(), source })
}

fn query(interface: &str) -> Result<bpf_xdp_query_opts, AttachError> {
    query_index(index_of(interface)?)
        .map_err(|source| AttachError::Refused { interface: interface.to_owned(), source })
}

/// The XDP program of the interface with this index.
fn query_index(index: i32) -> libbpf_rs::Result<bpf_xdp_query_opts> {
    // The query uses only the interface's index, but the library's type needs a descriptor.
    let none = std::fs::File::open("/dev/null")?;
    Xdp::new(none.as_fd()).query(index, XdpFlags::NONE)
}

fn interface_index(interface: &str) -> io::Result<i32> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let index = name_to_index(&socket, interface)?;
    i32::try_from(index).map_err(io::Error::other)
}
