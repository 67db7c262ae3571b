//! The stack of one thread with its listeners, as commands from other threads see it.

use std::borrow::{Borrow, BorrowMut};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use spillway_bpf::BpfError;
use spillway_net::{BoundListener, LoadQuerySockets};
use spillway_tcp::{Listener, SettingsError, Stack};
use spillway_transport::Time;

use crate::crossing::CrossingCounters;
use crate::driver::Counters;
use crate::endpoints::{Endpoints, Lease};
use crate::figures::Figures;
use crate::socket::Statistics;

/// Interval at which removed listeners are checked for connections that are left.
const LEFT_INTERVAL: Duration = Duration::from_secs(1);

/// The stack of one thread, its listeners, and the kernel's sockets that belong to them.
pub struct Port {
    /// The stack: a [`Transport`](spillway_transport::Transport).
    pub stack: Stack,
    endpoints: Endpoints,
    listeners: BTreeMap<u16, PortListener>,
    pub(crate) load_queries: LoadQuerySockets,
    /// Leases of removed listeners. Their connections still need packets.
    left: Vec<Lease>,
    /// When to check `left` again.
    check_left_at: Time,
    /// As of the last command.
    pub(crate) device: (Counters, CrossingCounters, Statistics),
    /// Whether this thread's load defers interrupts, as of the last command.
    pub(crate) is_deferring: bool,
    pub(crate) input_patience: Duration,
}

/// What a listener needs besides its entry in the stack.
struct PortListener {
    lease: Lease,
    takes_load_queries: bool,
    /// A bound socket that never listens: see [`reserve`].
    _reserved: OwnedFd,
}

/// Why a listener cannot be added.
#[derive(Debug)]
pub enum PortError {
    /// The address cannot be a listener's.
    Address(SettingsError),
    /// The steering program has no room.
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

    /// Sets the listener of an index, which is closed at first. The sockets of `bound` stay with the kernel: one reserves the
    /// port, the other receives load queries. `is_gated`: acknowledgements wait for
    /// [`release`](spillway_transport::Transport::release).
    ///
    /// # Errors
    /// The address cannot be the stack's, or there is no room for it; the index has no listener then.
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
        // Fails if connections of the kernel are left at the port. Then only the address is in use, as before.
        let reserved = reserve(address).unwrap_or(reserved);
        self.listeners.insert(index, PortListener { lease, takes_load_queries, _reserved: reserved });
        Ok(())
    }

    /// The listener that takes load queries at a local address.
    pub(crate) fn load_query_listener(&self, local: SocketAddr) -> Option<u16> {
        let takes_them =
            |listener: &PortListener| listener.takes_load_queries && listener.lease.address() == local;
        self.listeners.iter().find(|(_, listener)| takes_them(listener)).map(|(index, _)| *index)
    }

    /// Removes a listener. Its connections stay; when the last one has ended, packets to its address go to the kernel again.
    pub fn drop_listener(&mut self, index: u16) {
        let Some(PortListener { lease, .. }) = self.listeners.remove(&index) else { return };
        self.load_queries.remove(index);
        // Cannot fail without a listener.
        let _ = self.stack.set_listener(index, None);
        self.left.push(lease);
    }

    /// Sets the limit of connections, with `connect_reserve` places that only connections opened by this end may take.
    /// Half-open connections have places beside them: forged SYNs do not reduce the number of others. Present connections
    /// beyond the limit stay.
    pub fn set_connections_max(&mut self, connections: usize, connect_reserve: usize) {
        let in_stack = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let places = in_stack(connections).saturating_add(self.stack.settings().half_open_max);
        self.stack.set_connections_max(places, in_stack(connect_reserve));
    }

    /// Sets how long frames may wait for the application's next deadline: if the deadline comes sooner, the thread sleeps
    /// until then and handles them in one turn, which saves wake-ups. Zero means that no frames wait.
    pub fn set_input_patience(&mut self, patience: Duration) {
        self.input_patience = patience;
    }

    /// The steering program and its interface.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// What this thread has counted, for commands of other threads.
    pub fn figures(&self) -> Figures {
        let (driver, crossing, sockets) = self.device;
        // Without a system's answer the program's counters are left out.
        let verdicts = self.endpoints.verdicts().unwrap_or_default();
        let is_deferring = self.is_deferring;
        Figures { driver, crossing, stack: *self.stack.counters(), sockets, verdicts, is_deferring }
    }

    /// Ends the leases of removed listeners without connections.
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

/// Binds a socket that keeps other programs from a port, unless they run as the same user and set SO_REUSEPORT. It has
/// SO_REUSEPORT, because each thread binds one, and because [`BoundListener`] has it. It has no SO_REUSEADDR: with that option,
/// any program that also sets it could bind and listen beside a socket that does not listen, and its clients would get no answer.
/// The option is not needed: the kernel has no connections in TIME-WAIT at the stack's port.
fn reserve(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// std's listeners set SO_REUSEADDR, as nearly all servers do.
    #[test]
    fn a_reserved_port_is_refused_to_servers_with_reuseaddr() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(chosen) = TcpListener::bind(any) else { continue };
            let address = chosen.local_addr().unwrap();
            drop(chosen);
            let of_threads = [reserve(address).unwrap(), reserve(address).unwrap()];
            let error = TcpListener::bind(address).expect_err("the port should be reserved");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            drop(of_threads);
            TcpListener::bind(address).expect("the port should be free again");
        }
    }

    /// As in a helper, where the listener was bound with SO_REUSEADDR at first.
    #[test]
    fn a_port_is_reserved_once_its_first_socket_is_closed() {
        let config = spillway_net::Config::default();
        let bound = spillway_net::Listeners::bind(&[([127, 0, 0, 1], 0).into()], 2, &config).unwrap();
        let address = bound.addresses()[0];
        let reserved = reserve(address).unwrap();
        drop(bound);
        let error = TcpListener::bind(address).expect_err("the port should be reserved");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(reserved);
    }
}
