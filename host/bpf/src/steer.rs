//! The steering program: passes packets of the user-level TCP stack to its sockets.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::{Object, ProgramInput};

use crate::attach::{AttachError, Attachment};
use crate::map::{self, Map};
use crate::object;
use crate::verdict::{Verdict, VerdictCounters};
use crate::{BpfError, QUEUES_MAX};

const NAME: &str = "steer";

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// The number in IP headers.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        }
    }
}

/// An address and port that belong to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The protocol. The same port of the other protocol stays with the kernel.
    pub protocol: Protocol,
    /// Address and port.
    pub address: SocketAddr,
}

impl Endpoint {
    fn key(&self) -> [u8; 20] {
        let mut key = [0; 20];
        key[..16].copy_from_slice(&map::address(self.address.ip()));
        key[16..18].copy_from_slice(&self.address.port().to_be_bytes());
        key[18] = self.protocol.number();
        key
    }
}

/// A connection that belongs to the stack although its local address and port do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The protocol.
    pub protocol: Protocol,
    /// The stack's end.
    pub local: SocketAddr,
    /// The peer's end.
    pub peer: SocketAddr,
}

impl Flow {
    /// The bytes of `struct flow` in `c/flow_key.h`.
    pub(crate) fn key(&self) -> [u8; 40] {
        let mut key = [0; 40];
        key[..16].copy_from_slice(&map::address(self.local.ip()));
        key[16..32].copy_from_slice(&map::address(self.peer.ip()));
        key[32..34].copy_from_slice(&self.local.port().to_be_bytes());
        key[34..36].copy_from_slice(&self.peer.port().to_be_bytes());
        key[36] = self.protocol.number();
        key
    }
}

/// The packets to an address that belong to the stack, besides those of its [endpoints](Steer::add_endpoint)
/// and [flows](Steer::add_flow).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRule {
    /// Local TCP ports of connections that the stack opens. Port 0 must not be among them.
    pub ports: Option<RangeInclusive<u16>>,
    /// Whether the kernel does not have the address: all packets to it, and ARP for it, belong to the stack.
    /// The kernel still gets neighbour solicitations for an IPv6 address, which are multicast packets.
    pub is_separate: bool,
}

impl AddressRule {
    fn value(&self) -> [u8; 6] {
        let (first, last) = self.ports.as_ref().map_or((0, 0), |ports| (*ports.start(), *ports.end()));
        let mut value = [0; 6];
        value[..2].copy_from_slice(&first.to_ne_bytes());
        value[2..4].copy_from_slice(&last.to_ne_bytes());
        value[4] = u8::from(self.is_separate);
        value
    }
}

/// The steering program with its maps. A new one passes every packet to the kernel.
#[derive(Debug)]
pub struct Steer {
    object: Object,
    addresses: Map,
    endpoints: Map,
    flows: Map,
    sockets: Map,
    opened_sockets: Map,
    verdicts: Map,
}

impl Steer {
    /// Loads the program. It does nothing until it is [attached](Self::attach).
    ///
    /// # Errors
    /// The process lacks CAP_BPF or CAP_NET_ADMIN (it needs both), or the kernel is older than 5.18.
    pub fn load() -> Result<Steer, BpfError> {
        let object = object::load(NAME, object::open(NAME, object::STEER)?)?;
        Ok(Steer {
            addresses: Map::of(&object, "addresses")?,
            endpoints: Map::of(&object, "endpoints")?,
            flows: Map::of(&object, "flows")?,
            sockets: Map::of(&object, "sockets")?,
            opened_sockets: Map::of(&object, "opened_sockets")?,
            verdicts: Map::of(&object, "verdicts")?,
            object,
        })
    }

    /// Adds an address of the stack, or changes its rule. Each address of the stack needs a rule: otherwise
    /// packets with more IPv6 extension headers than the program parses pass to the kernel.
    ///
    /// # Errors
    /// The map has its maximum of [`ADDRESSES_MAX`](crate::ADDRESSES_MAX) addresses.
    pub fn set_address(&self, address: IpAddr, rule: &AddressRule) -> Result<(), BpfError> {
        self.addresses.set(&map::address(address), &rule.value())
    }

    /// Undoes [`set_address`](Self::set_address).
    ///
    /// # Errors
    /// The system has failed.
    pub fn remove_address(&self, address: IpAddr) -> Result<(), BpfError> {
        self.addresses.remove(&map::address(address))
    }

    /// Steers packets to an address and port to the stack.
    ///
    /// # Errors
    /// The map is full.
    pub fn add_endpoint(&self, endpoint: Endpoint) -> Result<(), BpfError> {
        self.endpoints.set(&endpoint.key(), &[1])
    }

    /// Passes packets to an address and port to the kernel again.
    ///
    /// # Errors
    /// The system has failed.
    pub fn remove_endpoint(&self, endpoint: Endpoint) -> Result<(), BpfError> {
        self.endpoints.remove(&endpoint.key())
    }

    /// Steers the packets of one connection to the stack.
    ///
    /// # Errors
    /// The map is full.
    pub fn add_flow(&self, flow: Flow) -> Result<(), BpfError> {
        self.flows.set(&flow.key(), &[1])
    }

    /// Undoes [`add_flow`](Self::add_flow).
    ///
    /// # Errors
    /// The system has failed.
    pub fn remove_flow(&self, flow: Flow) -> Result<(), BpfError> {
        self.flows.remove(&flow.key())
    }

    /// Sets the AF_XDP socket that receives the stack's packets of a queue. The socket must be bound to this
    /// queue of the interface. After the socket was closed, the program drops the queue's packets.
    ///
    /// # Errors
    /// The queue's number is [`QUEUES_MAX`] or more, or the descriptor is not an AF_XDP socket.
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), BpfError> {
        debug_assert!(queue < QUEUES_MAX, "the interface was checked to have at most this many queues");
        self.sockets.set(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }

    /// Sets the AF_XDP socket that receives, instead of that of [`set_socket`](Self::set_socket), a queue's
    /// packets of connections that the stack has opened: those to an address's [ports](AddressRule::ports).
    ///
    /// # Errors
    /// As [`set_socket`](Self::set_socket).
    pub fn set_opened_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), BpfError> {
        debug_assert!(queue < QUEUES_MAX, "the interface was checked to have at most this many queues");
        self.opened_sockets.set(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }

    /// Number of packets by verdict, since the program was loaded.
    ///
    /// # Errors
    /// The system has failed.
    pub fn counters(&self) -> Result<VerdictCounters, BpfError> {
        let mut counters = VerdictCounters::default();
        for (verdict, packets) in Verdict::ALL.into_iter().zip(&mut counters.0) {
            *packets = self.verdicts.sum(verdict as u32)?;
        }
        Ok(counters)
    }

    /// Attaches the program to an interface of the calling thread's network namespace; if the interface has the program of a
    /// switch in host mode, behind that one: it gets what the switch passes to the host.
    ///
    /// # Errors
    /// Another program is attached, or the driver refuses this one.
    pub fn attach(&self, interface: &str) -> Result<Attachment, AttachError> {
        Attachment::new_or_behind(&object::program(NAME, &self.object), interface)
    }

    /// Runs the program once on a frame of queue 0 (`BPF_PROG_TEST_RUN`).
    ///
    /// # Errors
    /// The kernel refuses the frame: it is shorter than an Ethernet header or longer than a page.
    pub fn test_run(&self, frame: &[u8]) -> Result<TestRun, BpfError> {
        let program = object::program(NAME, &self.object);
        let mut frame_after = vec![0; frame.len()];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut frame_after),
            repeat: 1,
            ..ProgramInput::default()
        };
        let output =
            program.test_run(input).map_err(BpfError::of("cannot run the program `steer` on a frame"))?;
        let action = output.return_value;
        Ok(TestRun { action, frame: frame_after })
    }
}

/// The result of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// `XDP_PASS`, `XDP_DROP` or `XDP_REDIRECT` as a number.
    pub action: u32,
    /// The frame after the run.
    pub frame: Vec<u8>,
}
