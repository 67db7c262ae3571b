//! An interface that stack and kernel share, with a steering program, and a socket at each queue.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_bpf::{AttachError, Attachment, AttachmentState, BpfError, Mode, QUEUES_MAX, Steer};

use crate::interface::{Interface, InterfaceError, InterfaceState};
use crate::socket::{Socket, SocketError, SocketOptions};

/// An interface with a steering program. All other traffic passes to the kernel as before. Dropping the adapter detaches the
/// program: the kernel then answers the stack's packets with resets.
#[derive(Debug)]
pub struct Adapter {
    interface: Interface,
    /// Dropped before the sockets: an attached program without sockets drops the stack's packets.
    attachment: Attachment,
    steer: Steer,
    sockets: Vec<Socket>,
    /// As the last check has found it.
    is_up: AtomicBool,
}

/// Why an interface cannot be shared.
#[derive(Debug)]
pub enum AdapterError {
    /// The interface cannot be used.
    Interface(InterfaceError),
    /// The interface is down.
    Down(String),
    /// The interface has more queues than the steering program supports.
    Queues {
        /// The interface's name.
        interface: String,
        /// The number of its queues.
        queues: u32,
    },
    /// The steering program could not be loaded or changed.
    Program(BpfError),
    /// The steering program could not be attached.
    Attach(AttachError),
    /// A socket could not be opened.
    Socket(SocketError),
}

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdapterError::Interface(error) => error.fmt(f),
            AdapterError::Down(interface) => {
                write!(f, "interface {interface} is down: `ip link set {interface} up`")
            }
            AdapterError::Queues { interface, queues } => write!(
                f,
                "interface {interface} has {queues} queues, and at most {QUEUES_MAX} can be used: `ethtool -L {interface} \
                 combined {QUEUES_MAX}`"
            ),
            AdapterError::Program(error) => error.fmt(f),
            AdapterError::Attach(error) => error.fmt(f),
            AdapterError::Socket(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AdapterError {}

impl Adapter {
    /// Attaches a steering program to an interface of the calling thread's network namespace, and opens a
    /// socket at each of its queues. Then calls `prepare`, which adds the stack's addresses. Until then all
    /// packets pass to the kernel.
    ///
    /// # Errors
    /// The interface does not exist, is down, has too many queues, or is used by another program; privileges are missing.
    pub fn open(
        name: &str,
        options: SocketOptions,
        prepare: impl FnOnce(&Steer) -> Result<(), BpfError>,
    ) -> Result<Adapter, AdapterError> {
        let interface = Interface::find(name).map_err(AdapterError::Interface)?;
        if !interface.is_up {
            return Err(AdapterError::Down(interface.name));
        }
        if interface.queues > QUEUES_MAX {
            let (interface, queues) = (interface.name, interface.queues);
            return Err(AdapterError::Queues { interface, queues });
        }
        let steer = Steer::load().map_err(AdapterError::Program)?;
        // Attached first, because some drivers have queues for sockets only while a program is attached. No packet is
        // steered before `prepare`.
        let attachment = steer.attach(&interface.name).map_err(AdapterError::Attach)?;
        let sockets = (0..interface.queues)
            .map(|queue| Socket::open(&interface, queue, options).map_err(AdapterError::Socket))
            .collect::<Result<Vec<_>, _>>()?;
        for socket in &sockets {
            steer.set_socket(socket.queue(), socket.as_fd()).map_err(AdapterError::Program)?;
            if let Some(opened) = socket.opened_fd() {
                steer.set_opened_socket(socket.queue(), opened).map_err(AdapterError::Program)?;
            }
        }
        prepare(&steer).map_err(AdapterError::Program)?;
        Ok(Adapter { interface, attachment, steer, sockets, is_up: AtomicBool::new(true) })
    }

    /// The interface, as it was when the adapter was opened.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The steering program, with the addresses and ports whose packets belong to the stack.
    pub fn steer(&self) -> &Steer {
        &self.steer
    }

    /// The mode in which the steering program runs.
    pub fn mode(&self) -> Mode {
        self.attachment.mode()
    }

    /// The steering program's number, as `bpftool prog` and `ip link` print it.
    pub fn program_id(&self) -> u32 {
        self.attachment.program_id()
    }

    /// Checks that the interface is as it was when the adapter was opened, and that the steering program is still attached.
    /// The interface may be down for a while: returns its state if the state has changed since the last check of any
    /// thread. Any thread may call it, about once a second: it makes a few system calls.
    ///
    /// # Errors
    /// The interface was removed, has another Ethernet address, another number of queues or a smaller MTU, or the program was
    /// detached or replaced.
    pub fn check(&self) -> io::Result<Option<InterfaceState>> {
        let state = self.interface.check()?;
        match self.attachment.state().map_err(io::Error::other)? {
            AttachmentState::Attached => {
                let is_up = state == InterfaceState::Up;
                let was_up = self.is_up.swap(is_up, Ordering::Relaxed);
                Ok((is_up != was_up).then_some(state))
            }
            AttachmentState::Detached => Err(self.interface.lost_program(None).into()),
            AttachmentState::Replaced { program_id } => {
                Err(self.interface.lost_program(Some(program_id)).into())
            }
        }
    }

    /// The sockets, by queue; none from the second call on. Packets of a queue with a closed socket are
    /// dropped.
    pub fn take_sockets(&mut self) -> Vec<Socket> {
        std::mem::take(&mut self.sockets)
    }
}
