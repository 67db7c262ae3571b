//! Listening sockets: bound at the start, and listening only while the application enables them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use spillway_transport::Time;

use crate::Config;
use crate::datagrams;
use crate::load_queries::LoadQueries;
use crate::steering::{Steering, SteeringFault, steer_datagrams};
use crate::sys::{allow_free_bind, set_int};

/// Unsent bytes of one connection that the kernel buffers (TCP_NOTSENT_LOWAT). More would only hide a slow reader.
const UNSENT_BYTES_MAX: libc::c_int = 128 << 10;

/// An address could not be bound.
#[derive(Debug)]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// Whether the UDP socket for load queries could not be bound, rather than the TCP socket.
    pub datagrams: bool,
    /// The host's error.
    pub error: io::Error,
}

impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let purpose = if self.datagrams { " for load queries (UDP)" } else { "" };
        write!(f, "cannot listen on {}{purpose}: {}", self.address, self.error)?;
        match self.error.kind() {
            io::ErrorKind::AddrInUse if self.datagrams => f.write_str(
                "; another program is bound there (ss -lunp shows which): give another port, or load_answers = false",
            ),
            io::ErrorKind::AddrInUse => f.write_str("; another program listens there (ss -ltnp shows which)"),
            io::ErrorKind::AddrNotAvailable => f.write_str("; no interface of this host has the address"),
            io::ErrorKind::PermissionDenied => f.write_str("; ports below 1024 need CAP_NET_BIND_SERVICE"),
            _ => Ok(()),
        }
    }
}

// No `source`: the text contains the cause, and a program that prints the chain would print it twice.
impl std::error::Error for BindError {}

/// Sockets bound to the listening addresses, one set for each thread. They do not listen yet.
#[derive(Debug)]
pub struct Listeners {
    addresses: Vec<SocketAddr>,
    contexts: Vec<ContextListeners>,
}

/// The listening sockets of one thread's [`Context`](crate::Context).
#[derive(Debug, Default)]
pub struct ContextListeners(pub(crate) Vec<BoundListener>);

impl ContextListeners {
    /// The sockets in the order of the addresses, for [`Sockets::put_listener`](crate::Sockets::put_listener).
    pub fn into_listeners(self) -> Vec<BoundListener> {
        self.0
    }
}

/// One listening socket of one thread. It does not listen yet.
#[derive(Debug)]
pub struct BoundListener {
    fd: OwnedFd,
    steering: Option<(Arc<Steering>, usize)>,
    load_queries: Option<OwnedFd>,
}

impl BoundListener {
    /// For a program whose connections do not use kernel sockets: the bound TCP socket, which keeps the port from other
    /// programs and need not listen, and the socket for load queries.
    pub fn into_sockets(self) -> (OwnedFd, Option<OwnedFd>) {
        (self.fd, self.load_queries)
    }

    /// The address with its port.
    ///
    /// # Errors
    /// The system has failed.
    pub fn address(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }
}

/// How peers of an address are assigned to threads, and whether datagrams are received at the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The kernel chooses the thread of a connection.
    Plain,
    /// The source port determines the thread of a connection.
    BySourcePort,
    /// The source port determines the thread of a connection and of a datagram: see
    /// [`handle_datagram`](spillway_transport::Application::handle_datagram).
    LoadQueries,
}

impl Listeners {
    /// Binds every address once for each thread. Port 0 is replaced by a free one, the same for all threads.
    /// The address `[::]` accepts only IPv6 peers: for both families, give `0.0.0.0`, too.
    pub fn bind(addresses: &[SocketAddr], threads: usize, config: &Config) -> Result<Listeners, BindError> {
        Listeners::bind_beside(addresses, threads, config, Binding::Plain, &[])
    }

    /// Like [`bind`](Self::bind), for a program that already listens on the addresses `own`: a new address may overlap
    /// with one of them, as `0.0.0.0:80` with `127.0.0.1:80`.
    pub fn bind_beside(
        addresses: &[SocketAddr],
        threads: usize,
        config: &Config,
        binding: Binding,
        own: &[SocketAddr],
    ) -> Result<Listeners, BindError> {
        let mut bound = Listeners {
            addresses: Vec::with_capacity(addresses.len()),
            contexts: (0..threads).map(|_| ContextListeners::default()).collect(),
        };
        for &address in addresses {
            let is_own = own.iter().any(|other| overlap(*other, address));
            bound.bind_address(address, config, binding, !is_own)?;
        }
        Ok(bound)
    }

    fn bind_address(
        &mut self,
        address: SocketAddr,
        config: &Config,
        binding: Binding,
        must_be_free: bool,
    ) -> Result<(), BindError> {
        let failed = |error| BindError { address, datagrams: false, error };
        let threads = self.contexts.len();
        let (chosen, _probe, datagrams) = choose_port(address, threads, config, binding, must_be_free)?;
        let steering = (binding != Binding::Plain)
            .then(|| Arc::new(Steering::new(chosen, threads, datagrams.steering_fault)));
        let mut load_queries = datagrams.sockets.into_iter();
        for (index, context) in self.contexts.iter_mut().enumerate() {
            let fd = bind_listener(chosen, config).map_err(failed)?;
            let steering = steering.as_ref().map(|steering| (Arc::clone(steering), index));
            context.0.push(BoundListener { fd, steering, load_queries: load_queries.next() });
        }
        self.addresses.push(chosen);
        Ok(())
    }

    /// The bound addresses, in the order of their indices.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The sets, one for each thread's [`Context`](crate::Context).
    pub fn into_contexts(self) -> Vec<ContextListeners> {
        self.contexts
    }
}

/// Whether a socket bound to one of the addresses excludes a socket bound to the other. IPv4 and IPv6 addresses do not
/// overlap, because IPv6 sockets accept only IPv6 peers. Port 0 overlaps with no port: it stands for a free one.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (a, b) = (one.ip(), other.ip());
    let same_port = one.port() == other.port() && one.port() != 0;
    let same_address = a == b || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()));
    same_port && same_address
}

/// Maximum number of free TCP ports that are tried to find one whose number is free for UDP, too.
const PORTS_TRIED_MAX: u32 = 32;

/// The UDP sockets of all threads at one address. Empty if the address takes no load queries.
#[derive(Default)]
struct DatagramSockets {
    sockets: Vec<OwnedFd>,
    steering_fault: Option<SteeringFault>,
}

/// Chooses the port for port 0. Returns the address with its port, the socket that reserves a chosen port until the
/// port is bound, and the UDP sockets if `binding` needs them.
fn choose_port(
    address: SocketAddr,
    threads: usize,
    config: &Config,
    binding: Binding,
    must_be_free: bool,
) -> Result<(SocketAddr, Option<OwnedFd>, DatagramSockets), BindError> {
    let failed = |datagrams: bool| move |error: io::Error| BindError { address, datagrams, error };
    let mut ports_tried = 0;
    loop {
        let mut chosen = address;
        // With port 0 the probe chooses and reserves the port; with a given port it only detects other listeners.
        let mut probe =
            if must_be_free { Some(probe(address, config).map_err(failed(false))?) } else { None };
        if address.port() != 0 {
            probe = None;
        }
        if let Some(probe) = &probe {
            let name = rustix::net::getsockname(probe).map_err(|error| failed(false)(error.into()))?;
            chosen = SocketAddr::try_from(name).map_err(|error| failed(false)(error.into()))?;
        }
        if binding != Binding::LoadQueries {
            return Ok((chosen, probe, DatagramSockets::default()));
        }
        ports_tried += 1;
        match bind_datagrams(chosen, threads, config, must_be_free) {
            Ok(datagrams) => return Ok((chosen, probe, datagrams)),
            Err(error) if address.port() == 0 && error.kind() == io::ErrorKind::AddrInUse => {
                if ports_tried >= PORTS_TRIED_MAX {
                    return Err(failed(true)(error));
                }
            }
            Err(error) => return Err(failed(true)(error)),
        }
    }
}

/// Binds a socket without SO_REUSEPORT, which fails if another program listens on the address. Sockets with
/// SO_REUSEPORT would silently share the port with another program of the same user.
fn probe(address: SocketAddr, config: &Config) -> io::Result<OwnedFd> {
    let probe = new_socket(address)?;
    sockopt::set_socket_reuseaddr(&probe, true)?;
    if let SocketAddr::V6(_) = address {
        sockopt::set_ipv6_v6only(&probe, true)?;
    }
    if config.free_bind {
        allow_free_bind(&probe)?;
    }
    rustix::net::bind(&probe, &address)?;
    Ok(probe)
}

fn bind_datagrams(
    address: SocketAddr,
    threads: usize,
    config: &Config,
    must_be_free: bool,
) -> io::Result<DatagramSockets> {
    let bind = |is_shared| datagrams::bind(address, is_shared, config.free_bind);
    if must_be_free {
        drop(bind(false)?);
    }
    let sockets: io::Result<Vec<OwnedFd>> = (0..threads).map(|_| bind(true)).collect();
    let sockets = sockets?;
    let steering_fault = steer_datagrams(&sockets, address).err();
    Ok(DatagramSockets { sockets, steering_fault })
}

fn bind_listener(address: SocketAddr, config: &Config) -> io::Result<OwnedFd> {
    let fd = new_socket(address)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    sockopt::set_socket_reuseport(&fd, true)?;
    if let SocketAddr::V6(_) = address {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    if config.free_bind {
        allow_free_bind(&fd)?;
    }
    // Accepted sockets inherit these options, which saves system calls per connection.
    configure(&fd, config)?;
    rustix::net::bind(&fd, &address)?;
    Ok(fd)
}

/// A non-blocking TCP socket of the address's family.
pub fn new_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Sets the options of every connection.
pub fn configure(fd: &OwnedFd, config: &Config) -> io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    // Urgent data stays in the stream; without this option its byte would be missing.
    sockopt::set_socket_oobinline(fd, true)?;
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)?;
    if config.keep_alive.is_some() { set_keep_alive(fd, config.keep_alive) } else { Ok(()) }
}

/// Sets the idle time before keep-alive probes, at least 1 s; `None` switches them off.
pub fn set_keep_alive(fd: &OwnedFd, idle: Option<Duration>) -> io::Result<()> {
    sockopt::set_socket_keepalive(fd, idle.is_some())?;
    if let Some(idle) = idle {
        let idle = idle.max(Duration::from_secs(1));
        sockopt::set_tcp_keepidle(fd, idle)?;
        sockopt::set_tcp_keepintvl(fd, (idle / 3).max(Duration::from_secs(1)))?;
        sockopt::set_tcp_keepcnt(fd, 3)?;
    }
    Ok(())
}

/// One listening socket of a thread.
#[derive(Debug)]
pub struct Listener {
    pub fd: Arc<OwnedFd>,
    /// The steering of the address, and the index of this thread.
    steering: Option<(Arc<Steering>, usize)>,
    pub load_queries: Option<LoadQueries>,
    /// Whether the application has enabled the listener.
    pub is_enabled: bool,
    pub is_listening: bool,
    /// Time at which accepting or opening is tried again.
    pub retry_at: Option<Time>,
}

impl Listener {
    pub fn new(bound: BoundListener) -> Listener {
        Listener {
            fd: Arc::new(bound.fd),
            steering: bound.steering,
            load_queries: bound.load_queries.map(LoadQueries::new),
            is_enabled: false,
            is_listening: false,
            retry_at: None,
        }
    }

    /// Starts listening.
    pub fn open(&mut self, backlog: i32) -> io::Result<()> {
        let listen = || Ok(rustix::net::listen(&self.fd, backlog)?);
        match &self.steering {
            Some((steering, thread)) => steering.open(*thread, &self.fd, listen)?,
            None => listen()?,
        }
        self.is_listening = true;
        Ok(())
    }

    /// Stops listening. The socket stays bound, as Linux defines `shutdown` of a listening socket. The kernel refuses
    /// new peers and resets those that wait to be accepted.
    pub fn close(&mut self) {
        if !std::mem::take(&mut self.is_listening) {
            return;
        }
        // `shutdown` fails only if the socket does not listen.
        let close = || {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Read);
        };
        match &self.steering {
            Some((steering, thread)) => steering.close(*thread, close),
            None => close(),
        }
    }

    /// A fault of the steering that no thread has reported yet.
    pub fn take_steering_fault(&self) -> Option<SteeringFault> {
        self.steering.as_ref()?.0.take_fault()
    }

    /// Time at which accepting, opening or answering is tried again.
    pub fn next_retry(&self) -> Option<Time> {
        [self.retry_at, self.load_queries.as_ref().and_then(LoadQueries::retry_at)]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Closing removes the socket from the steering of its address.
impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::Notice;
    use crate::sockets::Sockets;

    #[test]
    fn more_threads_than_can_be_steered_cause_a_notice() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let (notices, received) = channel();
        let fd = bind_listener(address, &Config::default()).unwrap();
        let steering = Some((Arc::new(Steering::new(address, 2_000, None)), 0));
        let listeners = ContextListeners(vec![BoundListener { fd, steering, load_queries: None }]);
        let hook = Box::new(move |notice| notices.send(notice).unwrap());
        let mut sockets = Sockets::new(Config::default(), listeners, hook).unwrap();
        sockets.open_listener(0);
        let expected = Notice::NotSteered { listener: 0, fault: SteeringFault::TooManyThreads(2_000) };
        assert_eq!(received.try_iter().collect::<Vec<_>>(), [expected]);
        sockets.close_listener(0);
        sockets.open_listener(0);
        assert!(received.try_iter().next().is_none(), "a fault should be reported once");
    }

    #[test]
    fn addresses_overlap_by_port_and_by_address() {
        let overlap = |one: &str, other: &str| {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(super::overlap(one, other), super::overlap(other, one));
            super::overlap(one, other)
        };
        assert!(overlap("127.0.0.1:80", "127.0.0.1:80"));
        assert!(overlap("0.0.0.0:80", "127.0.0.1:80"));
        assert!(overlap("[::]:80", "[::1]:80"));
        assert!(!overlap("127.0.0.1:80", "10.0.0.1:80"));
        assert!(!overlap("127.0.0.1:80", "127.0.0.1:81"));
        assert!(!overlap("0.0.0.0:80", "[::]:80"));
        assert!(!overlap("0.0.0.0:0", "127.0.0.1:0"));
    }

    /// The other program has the same user and has set SO_REUSEPORT: without the check both would accept peers.
    #[test]
    fn other_programs_listener_is_detected_although_this_program_listens_on_the_same_port_number() {
        let other = new_socket("127.0.0.2:0".parse().unwrap()).unwrap();
        sockopt::set_socket_reuseport(&other, true).unwrap();
        rustix::net::bind(&other, &SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
        rustix::net::listen(&other, 1).unwrap();
        let taken = SocketAddr::try_from(rustix::net::getsockname(&other).unwrap()).unwrap();
        let own = SocketAddr::from(([127, 0, 0, 1], taken.port()));
        let bind = |own| Listeners::bind_beside(&[taken], 1, &Config::default(), Binding::Plain, &[own]);
        assert_eq!(bind(own).unwrap_err().error.kind(), io::ErrorKind::AddrInUse);
        assert!(bind(taken).is_ok(), "the program's own listener at the address should not prevent the bind");
    }
}
