//! Carries frames between the user-level TCP stack and a network.
//!
//! A [`Device`] sends and receives Ethernet frames: a [`Socket`] shares an ordinary interface with the kernel
//! by AF_XDP, [`Tap`] is the user-space end of a kernel interface, [`Ring`] a pair of queues in memory.
//! [`Faults`] wraps a device and injects faults. A [`Driver`] connects a device with an [`Endpoint`], such as
//! a stack with its application ([`Hosted`]). A driver works in turns: [`Driver::run`] takes turns and waits
//! between them, [`Driver::turn`] takes a single one. A [`Context`] does all of this on one thread and runs
//! commands that other threads send it.

mod adapter;
mod address_probe;
mod address_watch;
mod addresses;
mod context;
mod crossing;
mod device;
mod driver;
mod endpoints;
mod ethtool;
mod faults;
mod figures;
mod frame_bytes;
mod hosted;
mod interface;
mod interrupts;
mod ioctl;
mod kernel_side;
mod kernel_sockets;
mod neighbours;
mod netlink;
mod notice;
mod port;
mod presence;
mod queues;
mod reserve;
mod reserved_ports;
mod ring;
mod separate;
mod shared;
mod socket;
mod tap;

pub use adapter::{Adapter, AdapterError};
pub use address_probe::find_holder;
pub use address_watch::AddressWatch;
pub use context::{Context, NoticeHook, Parts};
pub use crossing::{Crossing, CrossingCounters};
pub use device::{Device, FRAME_BYTES_MAX, Stop, send};
pub use driver::{BATCH_FRAMES, Counters, Driver, Endpoint, Turn};
pub use endpoints::{Endpoints, Lease, LeasedAddresses};
pub use ethtool::Offload;
pub use faults::{Faulted, Faults, FaultsOptions};
pub use figures::Figures;
pub use frame_bytes::{FRAME_BYTES, PACKET_BYTES_MAX, RECEIVED_BYTES_MAX};
pub use hosted::Hosted;
pub use interface::{Interface, InterfaceChange, InterfaceError, InterfaceState};
pub use interrupts::{Interrupts, InterruptsError, ThreadInterrupts};
pub use kernel_side::KernelSide;
pub use kernel_sockets::KernelSocket;
pub use neighbours::{KernelNeighbours, Resolved, TARGETS_MAX};
pub use notice::Notice;
pub use port::{Port, PortError};
pub use presence::Presence;
pub use queues::Queues;
pub use reserve::reserve;
pub use reserved_ports::{PortsError, check_reserved, check_unused};
pub use ring::Ring;
pub use shared::Shared;
pub use socket::{Socket, SocketError, SocketOptions, Statistics};
pub use tap::{Tap, TapError};
