//! Listening sockets, which are bound first and listen only while the application wants it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use spillway_transport::Time;

use crate::Config;
use crate::datagrams;
use crate::questions::Questions;
use crate::steering::{Steering, steer_datagrams};
use crate::sys::set_int;

/// Unsent bytes of one connection that the kernel buffers (TCP_NOTSENT_LOWAT). More would only hide a slow reader.
const UNSENT_BYTES_MAX: libc::c_int = 128 << 10;

/// An address could not be bound.
#[derive(Debug)]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// Whether the UDP socket for questions failed, rather than the TCP socket.
    pub datagrams: bool,
    /// The host's error.
    pub error: io::Error,
}

impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.datagrams { " for questions of load (UDP)" } else { "" };
        write!(f, "cannot listen on {}{what}: {}", self.address, self.error)?;
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

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Sockets bound to the listening addresses, one set for each context. They do not listen yet.
#[derive(Debug)]
pub struct Listeners {
    addresses: Vec<SocketAddr>,
    contexts: Vec<ContextListeners>,
}

/// The listening sockets of one context.
#[derive(Debug, Default)]
pub struct ContextListeners(pub(crate) Vec<BoundListener>);

impl ContextListeners {
    /// The sockets in the order of the addresses, for [`Sockets::put_listener`](crate::Sockets::put_listener).
    pub fn into_each(self) -> Vec<BoundListener> {
        self.0
    }
}

/// One listening socket of one context. It does not listen yet.
#[derive(Debug)]
pub struct BoundListener {
    fd: OwnedFd,
    steering: Option<(Arc<Steering>, usize)>,
    questions: Option<OwnedFd>,
}

/// How peers of an address are assigned to contexts, and whether the address takes datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The kernel chooses the context of a connection.
    Plain,
    /// The source port determines the context of a connection.
    BySourcePort,
    /// The source port determines the context of a connection and of a datagram: see
    /// [`handle_datagram`](spillway_transport::Application::handle_datagram).
    Questions,
}

impl Listeners {
    /// Binds every address once for each context. Port 0 is replaced by a free one, the same for all contexts.
    /// The address `[::]` accepts only IPv6 peers: for both families, give `0.0.0.0`, too.
    pub fn bind(addresses: &[SocketAddr], contexts: usize, config: &Config) -> Result<Listeners, BindError> {
        Listeners::bind_beside(addresses, contexts, config, Binding::Plain, &[])
    }

    /// Like [`bind`](Self::bind), for a program that already listens on the addresses `ours`: a new address may overlap
    /// with one of them, as `0.0.0.0:80` with `127.0.0.1:80`.
    pub fn bind_beside(
        addresses: &[SocketAddr],
        contexts: usize,
        config: &Config,
        binding: Binding,
        ours: &[SocketAddr],
    ) -> Result<Listeners, BindError> {
        let mut bound = Listeners {
            addresses: Vec::with_capacity(addresses.len()),
            contexts: (0..contexts).map(|_| ContextListeners::default()).collect(),
        };
        for &address in addresses {
            let overlaps = address.port() != 0 && ours.iter().any(|other| other.port() == address.port());
            bound.bind_address(address, config, binding, !overlaps)?;
        }
        Ok(bound)
    }

    fn bind_address(
        &mut self,
        address: SocketAddr,
        config: &Config,
        binding: Binding,
        alone: bool,
    ) -> Result<(), BindError> {
        let failed = |error| BindError { address, datagrams: false, error };
        let contexts = self.contexts.len();
        let (chosen, _probe, questions) = choose(address, contexts, binding, alone)?;
        let steering = (binding != Binding::Plain).then(|| Arc::new(Steering::new(chosen, contexts)));
        let mut questions = questions.into_iter();
        for (index, context) in self.contexts.iter_mut().enumerate() {
            let fd = bind_one(chosen, config).map_err(failed)?;
            let steering = steering.as_ref().map(|steering| (Arc::clone(steering), index));
            context.0.push(BoundListener { fd, steering, questions: questions.next() });
        }
        self.addresses.push(chosen);
        Ok(())
    }

    /// The bound addresses, in the order of their indices.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The sets, one for each context.
    pub fn into_contexts(self) -> Vec<ContextListeners> {
        self.contexts
    }
}

/// How many free ports are tried if the UDP port of the same number is in use.
const PORTS_TRIED: u32 = 32;

/// Chooses the port. Returns the address with its port, the socket that reserves a chosen port until it is bound, and the
/// UDP socket of each context if `binding` needs them.
fn choose(
    address: SocketAddr,
    contexts: usize,
    binding: Binding,
    alone: bool,
) -> Result<(SocketAddr, Option<OwnedFd>, Vec<OwnedFd>), BindError> {
    let failed = |datagrams: bool| move |error: io::Error| BindError { address, datagrams, error };
    let mut tried = 0;
    loop {
        let mut chosen = address;
        // With port 0 the probe chooses and reserves the port; with a given port it only detects other listeners.
        let mut probe = if alone { Some(probe(address).map_err(failed(false))?) } else { None };
        if address.port() != 0 {
            probe = None;
        }
        if let Some(probe) = &probe {
            let name = rustix::net::getsockname(probe).map_err(|error| failed(false)(error.into()))?;
            chosen = SocketAddr::try_from(name).map_err(|error| failed(false)(error.into()))?;
        }
        if binding != Binding::Questions {
            return Ok((chosen, probe, Vec::new()));
        }
        tried += 1;
        match bind_datagrams(chosen, contexts, alone) {
            Ok(questions) => return Ok((chosen, probe, questions)),
            Err(error) if address.port() == 0 && error.kind() == io::ErrorKind::AddrInUse => {
                if tried >= PORTS_TRIED {
                    return Err(failed(true)(error));
                }
            }
            Err(error) => return Err(failed(true)(error)),
        }
    }
}

/// Binds a socket without SO_REUSEPORT, which fails if another program listens on the address. Sockets with SO_REUSEPORT
/// would silently share the port with another program of the same user.
fn probe(address: SocketAddr) -> io::Result<OwnedFd> {
    let probe = new_socket(address)?;
    sockopt::set_socket_reuseaddr(&probe, true)?;
    if let SocketAddr::V6(_) = address {
        sockopt::set_ipv6_v6only(&probe, true)?;
    }
    rustix::net::bind(&probe, &address)?;
    Ok(probe)
}

fn bind_datagrams(address: SocketAddr, contexts: usize, alone: bool) -> io::Result<Vec<OwnedFd>> {
    if alone {
        drop(datagrams::bind(address, false)?);
    }
    let sockets: io::Result<Vec<OwnedFd>> = (0..contexts).map(|_| datagrams::bind(address, true)).collect();
    let sockets = sockets?;
    // If the host does not support steering, the kernel chooses the context that answers.
    let _ = steer_datagrams(&sockets, address);
    Ok(sockets)
}

fn bind_one(address: SocketAddr, config: &Config) -> io::Result<OwnedFd> {
    let fd = new_socket(address)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    sockopt::set_socket_reuseport(&fd, true)?;
    if let SocketAddr::V6(_) = address {
        sockopt::set_ipv6_v6only(&fd, true)?;
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

/// One listening socket of a context.
#[derive(Debug)]
pub struct Listener {
    pub fd: Arc<OwnedFd>,
    /// The steering of the address, and the index of this context.
    steering: Option<(Arc<Steering>, usize)>,
    pub questions: Option<Questions>,
    /// Whether the application wants the socket to listen.
    pub wanted: bool,
    /// Whether the socket listens.
    pub open: bool,
    /// When accepting or opening is tried again.
    pub retry: Option<Time>,
}

impl Listener {
    pub fn new(bound: BoundListener) -> Listener {
        Listener {
            fd: Arc::new(bound.fd),
            steering: bound.steering,
            questions: bound.questions.map(Questions::new),
            wanted: false,
            open: false,
            retry: None,
        }
    }

    /// Starts listening.
    pub fn open(&mut self, backlog: i32) -> io::Result<()> {
        let listen = || Ok(rustix::net::listen(&self.fd, backlog)?);
        match &self.steering {
            Some((steering, context)) => steering.open(*context, &self.fd, listen)?,
            None => listen()?,
        }
        self.open = true;
        Ok(())
    }

    /// Stops listening; the socket stays bound, as Linux defines `shutdown` of a listening socket. The host refuses new
    /// peers and resets those not yet accepted.
    pub fn close(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        // Fails only if the socket does not listen.
        let close = || {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Read);
        };
        match &self.steering {
            Some((steering, context)) => steering.close(*context, close),
            None => close(),
        }
    }

    /// When accepting, opening or answering is tried again.
    pub fn next_retry(&self) -> Option<Time> {
        [self.retry, self.questions.as_ref().and_then(Questions::retry)].into_iter().flatten().min()
    }
}

/// Closing removes the socket from the steering of its address.
impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}
