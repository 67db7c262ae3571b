//! The stack of one thread with its listeners: what commands from other threads work on.

use std::borrow::{Borrow, BorrowMut};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use spillway_bpf::BpfError;
use spillway_net::{BoundListener, LoadQuerySockets};
use spillway_tcp::{Listener, SettingsError, Stack};
use spillway_transport::Time;

use crate::crossing::CrossingCounters;
use crate::driver::Counters;
use crate::endpoints::{Endpoints, Lease};
use crate::figures::Figures;
use crate::reserve::reserve;
use crate::socket::Statistics;

/// Interval at which removed listeners are checked for remaining connections.
const LEFT_INTERVAL: Duration = Duration::from_secs(1);

/// The stack of one thread, its listeners, and the kernel's sockets that belong to them.
pub struct Port {
    /// The stack: a [`Transport`](spillway_transport::Transport).
    pub stack: Stack,
    endpoints: Endpoints,
    listeners: BTreeMap<u16, PortListener>,
    pub(crate) load_queries: LoadQuerySockets,
    /// Leases of removed listeners that still had connections at the last check.
    left: Vec<Lease>,
    check_left_at: Time,
    /// Counters of the driver, the crossing and the sockets, as of the last command.
    pub(crate) device: (Counters, CrossingCounters, Statistics),
    /// Whether this thread's load defers interrupts, as of the last command.
    pub(crate) is_deferring: bool,
    pub(crate) input_patience: Duration,
}

/// What a listener needs besides its entry in the stack.
struct PortListener {
    lease: Lease,
    takes_load_queries: bool,
    /// A bound socket that never listens: see [`reserve`](crate::reserve()).
    _reserved: OwnedFd,
}

/// Why a listener cannot be added.
#[derive(Debug)]
pub enum PortError {
    /// The stack cannot listen at the address.
    Address(SettingsError),
    /// The steering program has no room for another endpoint.
    Program(BpfError),
    /// The system has failed.
    Host(io::Error),
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortError::Address(error) => error.fmt(f),
            PortError::Program(error) => error.fmt(f),
            PortError::Host(error) => write!(f, "cannot add a listener: {error}"),
        }
    }
}

impl std::error::Error for PortError {}

impl Port {
    /// A stack without listeners.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn new(stack: Stack, endpoints: Endpoints) -> io::Result<Port> {
        Ok(Port {
            stack,
            endpoints,
            listeners: BTreeMap::new(),
            load_queries: LoadQuerySockets::new()?,
            left: Vec::new(),
            check_left_at: Time::ZERO,
            device: Default::default(),
            is_deferring: false,
            input_patience: Duration::ZERO,
        })
    }

    /// Replaces the listener of an index; the new one is closed at first. The sockets of `bound` stay open:
    /// one reserves the port, the other receives load queries. `is_gated`: acknowledgements wait for
    /// [`release`](spillway_transport::Transport::release).
    ///
    /// # Errors
    /// The stack cannot listen at the address, or the program has no room. The index then has no listener.
    pub fn put_listener(
        &mut self,
        now: Time,
        index: u16,
        bound: BoundListener,
        is_gated: bool,
    ) -> Result<(), PortError> {
        self.drop_listener(index);
        let address = bound.address().map_err(PortError::Host)?;
        let lease = self.endpoints.lease(address).map_err(PortError::Program)?;
        self.stack.set_listener(index, Some(Listener { address, is_gated })).map_err(PortError::Address)?;
        let (reserved, load_queries) = bound.into_sockets();
        let takes_load_queries = load_queries.is_some();
        if let Some(socket) = load_queries {
            self.load_queries.put(now, index, socket);
        }
        // Fails if the kernel still has connections at the port. Then the listener's own socket reserves the
        // port, beside which programs with SO_REUSEADDR can listen.
        let reserved = reserve(address).unwrap_or(reserved);
        self.listeners.insert(index, PortListener { lease, takes_load_queries, _reserved: reserved });
        Ok(())
    }

    /// The listener that accepts load queries at a local address.
    pub(crate) fn load_query_listener(&self, local: SocketAddr) -> Option<u16> {
        let takes_them =
            |listener: &PortListener| listener.takes_load_queries && listener.lease.address() == local;
        self.listeners.iter().find(|(_, listener)| takes_them(listener)).map(|(index, _)| *index)
    }

    /// Removes a listener. Its connections stay. When the last of them has ended, packets to the listener's
    /// address go to the kernel again.
    pub fn drop_listener(&mut self, index: u16) {
        let Some(PortListener { lease, .. }) = self.listeners.remove(&index) else { return };
        self.load_queries.remove(index);
        // Cannot fail: only a new listener can be invalid.
        let _ = self.stack.set_listener(index, None);
        self.left.push(lease);
    }

    /// Sets the maximum number of connections. The last `connect_reserve` of them can only be opened by this
    /// end. Half-open connections do not count, so forged SYNs do not reduce the number of others. Present
    /// connections beyond the limit stay.
    pub fn set_connections_max(&mut self, connections: usize, connect_reserve: usize) {
        let in_stack = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let places = in_stack(connections).saturating_add(self.stack.settings().half_open_max);
        self.stack.set_connections_max(places, in_stack(connect_reserve));
    }

    /// Sets the input patience. If the application's next deadline is at most this far away, frames of
    /// accepted connections do not wake the thread before, which saves wake-ups. Zero: all frames wake it.
    pub fn set_input_patience(&mut self, patience: Duration) {
        self.input_patience = patience;
    }

    /// The interface with its steering program.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The counters of this thread, up to the present command.
    pub fn figures(&self) -> Figures {
        let (driver, crossing, sockets) = self.device;
        // After an error of the system the program's counters are 0.
        let verdicts = self.endpoints.verdicts().unwrap_or_default();
        let is_deferring = self.is_deferring;
        Figures { driver, crossing, stack: *self.stack.counters(), sockets, verdicts, is_deferring }
    }

    pub(crate) fn check_left(&mut self, now: Time) {
        if self.left.is_empty() || now < self.check_left_at {
            return;
        }
        self.check_left_at = now + LEFT_INTERVAL;
        let stack = &self.stack;
        self.left.retain(|lease| stack.has_connections_at(lease.address()));
    }

    /// When to call [`check_left`](Self::check_left) and answer load queries next.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let check = (!self.left.is_empty()).then_some(self.check_left_at);
        [check, self.load_queries.next_retry()].into_iter().flatten().min()
    }
}

impl Borrow<Stack> for Port {
    fn borrow(&self) -> &Stack {
        &self.stack
    }
}

impl BorrowMut<Stack> for Port {
    fn borrow_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }
}
