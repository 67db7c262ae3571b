//! Opens the interface with its steering program, and makes the stack and the agent.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use spillway_bpf::{AddressRule, Mode};
use spillway_handoff::{Agent, Limits, MoveTimes, Peer, Service, Settings as AgentSettings};
use spillway_moves::Server;
use spillway_net::Clock;
use spillway_rules::Mode as SwitchMode;
use spillway_tcp::isn::Key;
use spillway_tcp::{Listener, OwnAddress, Resolver, Settings, Stack};
use spillway_transport::{Time, Transport};
use spillway_wire::handoff::Run;
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::{Adapter, Endpoints, Interface, KernelSide, Lease, Socket, SocketOptions, reserve};

use crate::error::EngineError;
use crate::settings::{EngineSettings, MoveSettings, PeerServer};

/// Heartbeats in each `owner_timeout`. The agent becomes mute after half of that time without an answer.
const HEARTBEATS_PER_TIMEOUT: u32 = 10;
/// Maximum interval of heartbeats with a policy: the others decide by the load that they state.
const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_millis(10);
/// Time from the end of a connection until its flow is released at the switch. The last segments may be retransmitted in
/// this time.
const RELEASE_AFTER: Duration = Duration::from_secs(5);
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

/// This server among its peers, by its Ethernet address.
fn own_peer(
    moves: &MoveSettings,
    interface: &Interface,
    service: SocketAddr,
) -> Result<PeerServer, EngineError> {
    let no_own_peer = || EngineError::NoOwnPeer { interface: interface.name.clone(), mac: interface.mac };
    let own = moves.peers.iter().find(|peer| peer.mac == interface.mac).ok_or_else(no_own_peer)?;
    if own.place.is_ipv4() != service.is_ipv4() {
        return Err(EngineError::Settings(format!(
            "the place {} of server {:?} has another address family than the service {service}",
            own.place, own.name
        )));
    }
    Ok(own.clone())
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

fn agent_of(
    settings: &EngineSettings,
    moves: &MoveSettings,
    own: &PeerServer,
    now: Time,
) -> Result<Agent, EngineError> {
    let original = moves.peers.iter().find(|peer| peer.place == settings.service);
    let original = original.ok_or(EngineError::NoOriginal(settings.service))?.id;
    let service = Service { endpoint: settings.service.into(), place: own.place.into(), original };
    Ok(Agent::new(
        now,
        AgentSettings {
            id: own.id,
            key: moves.key.clone(),
            peers_key: moves.peers_key.clone(),
            run: fresh_run()?,
            mac: own.mac,
            services: vec![service],
            peers: moves.peers.iter().map(|peer| Peer { id: peer.id, mac: peer.mac }).collect(),
            heartbeat: heartbeat(moves),
            owner_timeout: moves.owner_timeout,
            times: MoveTimes::default(),
            time_wait: RELEASE_AFTER,
            limits: Limits::default(),
        },
    ))
}

fn heartbeat(moves: &MoveSettings) -> Duration {
    let longest = moves.owner_timeout / HEARTBEATS_PER_TIMEOUT;
    if moves.policy.is_some() { longest.min(HEARTBEAT_INTERVAL_MAX) } else { longest }
}

fn set_policy(server: &mut Server, settings: &EngineSettings) -> Result<(), EngineError> {
    let Some(policy) = settings.moves.as_ref().and_then(|moves| moves.policy) else { return Ok(()) };
    let mut seed = [0; 8];
    random(&mut seed)?;
    server
        .set_policy(policy, u64::from_ne_bytes(seed))
        .map_err(|error| EngineError::Settings(error.to_string()))
}

fn fresh_run() -> Result<Run, EngineError> {
    loop {
        let mut bytes = [0; 8];
        random(&mut bytes)?;
        if let Some(run) = Run::new(u64::from_ne_bytes(bytes)) {
            return Ok(run);
        }
    }
}

fn random(bytes: &mut [u8]) -> Result<(), EngineError> {
    getrandom::fill(bytes).map_err(|error| EngineError::Host(io::Error::other(error)))
}

/// Checks that no two servers have the same name, id or Ethernet address, and that all have an Ethernet address.
pub(crate) fn check_peers(peers: &[PeerServer]) -> Result<(), EngineError> {
    let twice = |what: &str| Err(EngineError::Settings(format!("two [[moves.peer]] have the {what}")));
    for (index, peer) in peers.iter().enumerate() {
        let others = &peers[..index];
        let has = |same: fn(&PeerServer, &PeerServer) -> bool| others.iter().any(|other| same(other, peer));
        if has(|one, other| one.name == other.name) {
            return twice(&format!("name {:?}", peer.name));
        }
        if has(|one, other| one.id == other.id) {
            return twice(&format!("id {}", peer.id));
        }
        if peer.mac == Mac::ZERO {
            return Err(EngineError::Settings(format!("server {:?}: `mac` is zero", peer.name)));
        }
        if has(|one, other| one.mac == other.mac) {
            return twice(&format!("Ethernet address {}", peer.mac));
        }
    }
    Ok(())
}
