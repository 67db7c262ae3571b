//! Opens the interface with its steering program, and makes the stack.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use spillway_bpf::{AddressRule, Mode};
use spillway_moves::Server;
use spillway_net::Clock;
use spillway_rules::Mode as SwitchMode;
use spillway_tcp::isn::Key;
use spillway_tcp::{Listener, OwnAddress, Resolver, Settings, Stack};
use spillway_transport::{Time, Transport};
use spillway_xdp::{Adapter, Endpoints, Interface, KernelSide, Lease, Socket, SocketOptions, reserve};

use crate::agent::{agent_of, own_peer, random, set_policy};
use crate::error::EngineError;
use crate::settings::{EngineSettings, PeerServer};

/// One of this many connections is reserved for imports, so that clients cannot prevent moves to this server.
const IMPORTS_ONE_IN: u32 = 16;
/// Index of the link port's listener, if there is one.
pub(crate) const LINK_LISTENER: u16 = 1;
/// Prefix lengths, in bits, of an IPv4 and of an IPv6 address that the interface does not have: a network of one host.
const HOST_PREFIXES: (u8, u8) = (32, 128);

/// An opened interface, with the stack and the agent.
pub(crate) struct Opened {
    pub(crate) sockets: Vec<Socket>,
    pub(crate) endpoints: Endpoints,
    pub(crate) kernel: KernelSide,
    pub(crate) server: Server,
    pub(crate) held: Held,
    pub(crate) place: SocketAddr,
    pub(crate) mode: Mode,
    /// This server among its peers.
    pub(crate) own: Option<PeerServer>,
}

/// Reservations of the server's ports: for the stack at the steering program, and against programs of the kernel.
pub(crate) struct Held {
    /// The steering program directs the ports' packets to the stack.
    _leases: Vec<Lease>,
    /// Bound sockets that never listen.
    _reserved: Vec<OwnedFd>,
}

/// Opens the interface in the calling thread's network namespace.
pub(crate) fn open(settings: &EngineSettings, clock: &Clock) -> Result<Opened, EngineError> {
    let interface = Interface::find(&settings.interface)
        .map_err(|error| EngineError::Adapter(spillway_xdp::AdapterError::Interface(error)))?;
    let own = settings.moves.as_ref().map(|moves| own_peer(moves, &interface, settings.service));
    let own = own.transpose()?;
    let place = own.as_ref().map_or(settings.service, |own| own.place);
    if let Some(link) = settings.link.filter(|link| link.ip() != place.ip() || link.port() == place.port()) {
        return Err(EngineError::Settings(format!(
            "the link port {link} must have the address of the service here, {}, and another port",
            place.ip()
        )));
    }
    let ports = || std::iter::once(place).chain(settings.link);
    let reserved = ports()
        .map(|port| reserve(port).map_err(|error| EngineError::Port(port, error)))
        .collect::<Result<_, _>>()?;
    let mut adapter = Adapter::open(&settings.interface, SocketOptions::default(), |steer| {
        steer.set_address(place.ip(), &AddressRule { ports: None, is_separate: false })
    })
    .map_err(EngineError::Adapter)?;
    let (mode, sockets) = (adapter.mode(), adapter.take_sockets());
    let endpoints = Endpoints::new(adapter);
    let mut stack = Stack::new(Time::ZERO, stack_settings(settings, &interface, place, clock)?)
        .map_err(EngineError::Stack)?;
    // Clients connect to the original owner only: at other servers the listener stays closed.
    stack.set_listening(0, place == settings.service);
    if settings.link.is_some() {
        stack.set_listening(LINK_LISTENER, true);
    }
    let agent = settings.moves.as_ref().zip(own.as_ref());
    let agent = agent.map(|(moves, own)| agent_of(settings, moves, own, clock.now())).transpose()?;
    let mut server = Server::new(stack, agent, [settings.service.into()]);
    if receives_one_way(settings) {
        server.reply_as(settings.service, place);
    }
    set_policy(&mut server, settings)?;
    let kernel = KernelSide::open(&interface).map_err(EngineError::Host)?;
    let leases = ports().map(|port| endpoints.lease(port).map_err(EngineError::Program));
    let leases = leases.collect::<Result<_, _>>()?;
    Ok(Opened {
        sockets,
        endpoints,
        kernel,
        server,
        held: Held { _leases: leases, _reserved: reserved },
        place,
        mode,
        own,
    })
}

fn stack_settings(
    settings: &EngineSettings,
    interface: &Interface,
    place: SocketAddr,
    clock: &Clock,
) -> Result<Settings, EngineError> {
    let mut key = [0; 16];
    random(&mut key)?;
    let networks = interface.networks().map_err(EngineError::Host)?;
    let found = networks.iter().find(|(address, _)| *address == place.ip());
    let unknown = if place.is_ipv4() { HOST_PREFIXES.0 } else { HOST_PREFIXES.1 };
    let prefix = found.map_or(unknown, |(_, prefix)| *prefix);
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let defaults = Settings::new(interface.mac, place.ip(), prefix, Key(key));
    Ok(Settings {
        resolver: Resolver::Driver,
        addresses: vec![OwnAddress::new(place.ip(), prefix)],
        mtu: u16::try_from(interface.packet_bytes_max()).unwrap_or(u16::MAX),
        listeners: std::iter::once(place)
            .chain(settings.link)
            .map(|address| Listener { address, is_gated: false })
            .collect(),
        connections_max: settings.connections_max.saturating_add(defaults.half_open_max),
        connect_reserve: settings.connections_max / IMPORTS_ONE_IN,
        clock_at_zero: since_1970.saturating_sub(clock.now().since(Time::ZERO)),
        one_way_at: (receives_one_way(settings) && place != settings.service).then_some(place),
        ..defaults
    })
}

/// Whether the segments of connections that moved here come from another host's program: replies take another way.
fn receives_one_way(settings: &EngineSettings) -> bool {
    settings.moves.as_ref().is_some_and(|moves| moves.mode == SwitchMode::Host)
}
