//! The user-level TCP stack under a helper: what it needs of this host, and the contexts of its threads.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use spillway_bpf::{AddressRule, ENDPOINTS_MAX, Mode, QUEUES_MAX};
use spillway_net::{Clock, Config as NetConfig};
use spillway_tcp::isn::Key;
use spillway_tcp::{OwnAddress, Resolver, Settings, Stack};
use spillway_transport::Time;
use spillway_xdp::{
    Adapter, AddressWatch, Crossing, Endpoints, Interface, Interrupts, LeasedAddresses, Offload, Parts,
    Socket, SocketOptions, check_reserved, check_unused, find_holder,
};
use tracing::{info, warn};

use super::context::Context;
use super::xdp_error::{AddressProblem, XdpError};
use crate::config::{Engine, HelperConfig, SeparateAddress, StartError, XdpConfig};
use crate::contexts::reserved_for_links;
use crate::log::Entry;
use crate::relay_app::RelayApp;

/// An interface that the helper shares with the kernel, and its own address there, if it has one.
pub struct XdpEngine {
    endpoints: Endpoints,
    sockets: Vec<Socket>,
    interrupts: Option<Interrupts>,
    config: XdpConfig,
    reserved_for_links: usize,
    /// The addresses of the interface with the lengths of their prefixes.
    networks: Vec<(IpAddr, u8)>,
    state: XdpState,
}

/// What stays known of the engine while the helper runs.
#[derive(Clone, Debug)]
pub struct XdpState {
    pub interface: Interface,
    /// The addresses of connections to servers: at most one of each family.
    own: Vec<IpAddr>,
    separate: Option<SeparateAddress>,
    pub mode: Mode,
    /// Whether the driver uses the frames in place.
    pub is_zero_copy: bool,
    /// Listening addresses in use, also those of removed listeners that still have clients.
    leased: LeasedAddresses,
    /// `None` with a separate address.
    watch: Option<AddressWatch>,
}

impl XdpEngine {
    /// Shares the configured interface; `threads` are to serve it. Until listeners are added, all packets go to the kernel, except those for the
    /// configured range of local ports.
    ///
    /// # Errors
    /// Something is missing on this host, or in the configuration.
    pub fn open(config: &HelperConfig, threads: usize) -> Result<XdpEngine, XdpError> {
        let name = config.interface.as_deref().ok_or(XdpError::NoInterface)?;
        check_addresses(config)?;
        let mut interface = Interface::find(name).map_err(XdpError::Interface)?;
        let networks = interface.networks().map_err(XdpError::Host)?;
        let addresses: Vec<_> = networks.iter().map(|(address, _)| *address).collect();
        let separate = config.xdp.separate;
        let own = own_addresses(config, &interface, &addresses)?;
        let ports = &config.xdp.ports;
        match separate {
            Some(separate) if is_local(separate.ip) => return Err(XdpError::KernelHas(separate.ip)),
            Some(separate) => {
                if let Some(mac) = find_holder(&interface, separate.ip).map_err(XdpError::Host)? {
                    return Err(XdpError::OtherHas { ip: separate.ip, mac });
                }
            }
            None => {
                check_listeners(config, &interface, &addresses)?;
                check_reserved(ports).map_err(XdpError::Ports)?;
                check_unused(ports, &own).map_err(XdpError::Ports)?;
            }
        }
        if config.xdp.configure_interface {
            configure(&mut interface, threads)?;
        }
        let options = SocketOptions { frames: config.xdp.frames, has_opened_ring: true };
        let mut adapter = Adapter::open(name, options, |steer| {
            if let Some(separate) = separate {
                return steer
                    .set_address(separate.ip.into(), &AddressRule { ports: None, is_separate: true });
            }
            for address in &addresses {
                let ports = own.contains(address).then(|| ports.clone());
                steer.set_address(*address, &AddressRule { ports, is_separate: false })?;
            }
            Ok(())
        })
        .map_err(XdpError::Adapter)?;
        if adapter.mode() == Mode::Generic {
            if config.engine == Engine::Auto {
                return Err(XdpError::GenericMode { interface: interface.name });
            }
            if config.xdp.configure_interface {
                turn_off(&interface, Offload::GenericReceive)?;
            }
            warn_of_lower_interfaces(&interface);
        }
        // After the program is attached: without receive offload, a veth has receive loops only with a program.
        let interval = config.xdp.defer_interrupts;
        let interrupts = (!interval.is_zero()).then(|| Interrupts::open(&interface, interval)).transpose();
        let interrupts = interrupts.map_err(XdpError::Interrupts)?;
        let (mode, sockets) = (adapter.mode(), adapter.take_sockets());
        let is_zero_copy = sockets.iter().all(Socket::is_zero_copy);
        let endpoints = Endpoints::new(adapter);
        let leased = endpoints.leased().clone();
        let watch = || AddressWatch::new(interface.clone(), own.clone(), leased.clone());
        let watch = separate.is_none().then(watch).transpose().map_err(XdpError::Host)?;
        let state = XdpState { interface, own, separate, mode, is_zero_copy, leased, watch };
        Ok(XdpEngine {
            endpoints,
            sockets,
            interrupts,
            config: config.xdp.clone(),
            reserved_for_links: reserved_for_links(config),
            networks,
            state,
        })
    }

    /// What stays known of the engine.
    pub fn state(&self) -> &XdpState {
        &self.state
    }

    /// The number of receive queues.
    pub fn queues(&self) -> usize {
        self.sockets.len()
    }

    /// The contexts of these applications, one for each thread; there are at most as many as queues.
    ///
    /// # Errors
    /// A privilege, a setting or the host is to blame.
    pub fn into_contexts(
        mut self,
        applications: Vec<RelayApp>,
        net: &NetConfig,
        clock: Clock,
    ) -> Result<(Vec<Context>, XdpState), StartError> {
        let threads = applications.len();
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| StartError::Host(std::io::Error::other(error)))?;
        let ends = match threads {
            1 => vec![(None, self.config.ports.clone())],
            _ => {
                let ends = Crossing::between(threads, &self.config.ports).map_err(StartError::Host)?;
                ends.into_iter().map(|(end, ports)| (Some(end), ports)).collect()
            }
        };
        let mut contexts = Vec::with_capacity(threads);
        let mut sockets = by_thread(std::mem::take(&mut self.sockets), threads);
        for ((application, (crossing, ports)), sockets) in
            applications.into_iter().zip(ends).zip(sockets.drain(..))
        {
            let settings = self.settings(net, ports, Key(key), clock);
            let stack =
                Stack::new(Time::ZERO, settings).map_err(|error| StartError::Xdp(XdpError::Stack(error)))?;
            let (thread, log) = (application.thread, application.log.clone());
            let parts = Parts {
                sockets,
                stack,
                endpoints: self.endpoints.clone(),
                address_watch: self.state.watch.clone(),
                crossing,
                application,
                clock,
                busy_poll: self.config.busy_poll,
                interrupts: self.interrupts.clone(),
                notices: Box::new(move |notice| {
                    log.put(Entry::Xdp { thread, notice });
                }),
            };
            let mut context =
                spillway_xdp::Context::new(parts).map_err(|error| StartError::Xdp(XdpError::Host(error)))?;
            let reserved_for_links = self.reserved_for_links;
            context.command(|_, _, port| {
                port.set_connections_max(net.connections_max, reserved_for_links);
                port.set_input_patience(net.input_patience);
            });
            contexts.push(Context::Xdp(Box::new(context)));
        }
        Ok((contexts, self.state))
    }

    fn settings(&self, net: &NetConfig, ports: RangeInclusive<u16>, key: Key, clock: Clock) -> Settings {
        let interface = &self.state.interface;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let own = &self.state.own;
        let separate = self.state.separate;
        // Of a shared address the kernel has the routes. The stack needs the prefix only to recognise the broadcast address.
        let with_prefix = |ip: &IpAddr| {
            if let Some(separate) = separate {
                return separate.prefix;
            }
            let found = self.networks.iter().find(|(address, _)| address == ip);
            found.map_or(if ip.is_ipv4() { 32 } else { 128 }, |(_, prefix)| *prefix)
        };
        let addresses = own.iter().map(|ip| OwnAddress::new(*ip, with_prefix(ip))).collect();
        // There is one for each server; the stack refuses a placeholder.
        let first = own.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Settings {
            resolver: if separate.is_some() { Resolver::Arp } else { Resolver::Driver },
            gateway: separate.and_then(|separate| separate.gateway),
            ports,
            mtu: u16::try_from(interface.packet_bytes_max()).unwrap_or(u16::MAX),
            send_buffer_bytes: net.queued_bytes_max,
            clock_at_zero: since_1970.saturating_sub(clock.now().since(Time::ZERO)),
            // Links that do not answer are noticed as on kernel sockets.
            user_timeout: Duration::from_secs(100).max(net.stall_timeout),
            addresses,
            ..Settings::new(interface.mac, first, 32, key)
        }
    }
}

impl XdpState {
    /// Addresses in use that the interface does not have at present.
    pub fn missing_addresses(&self) -> Vec<IpAddr> {
        self.watch.as_ref().map(AddressWatch::missing).unwrap_or_default()
    }

    /// Checks new settings of a running helper.
    ///
    /// # Errors
    /// A listening address or a server is not one of the interface, or there are too many listening addresses.
    pub fn check(&self, config: &HelperConfig) -> Result<(), XdpError> {
        check_addresses(config)?;
        // Present listeners end only after the new ones are added, and not before their last client.
        let mut present = self.leased.addresses();
        present.extend(listening(config).filter(|address| address.port() != 0));
        present.sort_unstable();
        present.dedup();
        let new = listening(config).filter(|address| address.port() == 0).count();
        check_count(listening(config).count(), present.len() + new)?;
        let addresses = self.interface.addresses().map_err(XdpError::Host)?;
        if config.xdp.separate.is_none() {
            check_listeners(config, &self.interface, &addresses)?;
        }
        for own in own_addresses(config, &self.interface, &addresses)? {
            // Those of a stack do not change while it runs.
            let of_family = self.own.iter().find(|present| present.is_ipv4() == own.is_ipv4());
            match of_family {
                Some(present) if *present == own => {}
                Some(present) => return Err(XdpError::SeveralOwn { own: [*present, own] }),
                None => return Err(XdpError::NewFamily(own)),
            }
        }
        Ok(())
    }
}

impl fmt::Display for XdpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interface { name, queues, .. } = &self.interface;
        let mode = match (self.mode, self.is_zero_copy) {
            (Mode::Generic, _) => {
                return write!(
                    f,
                    "interface {name} with {queues} queues, in generic mode, which is slow: its driver has no XDP; turn \
                     receive offload off (ethtool -K {name} gro off)"
                );
            }
            (Mode::Native, true) => "in native mode without copies",
            (Mode::Native, false) => "in native mode",
        };
        write!(f, "interface {name} with {queues} queues, {mode}")
    }
}

/// Sets what the engine needs of its own interface: offloads, and a receive queue for each thread.
fn configure(interface: &mut Interface, threads: usize) -> Result<(), XdpError> {
    let name = interface.name.clone();
    let offloads = interface.harmful_offloads().map_err(|source| XdpError::Configure {
        interface: name.clone(),
        what: "read its offloads".to_owned(),
        next: format!("ethtool -k {name}"),
        source,
    })?;
    offloads.into_iter().try_for_each(|offload| turn_off(interface, offload))?;
    let (before, wanted) = (interface.queues, u32::try_from(threads).unwrap_or(u32::MAX).min(QUEUES_MAX));
    interface.raise_queues(wanted).map_err(|source| XdpError::Configure {
        what: format!("set {wanted} receive queues"),
        next: format!("ethtool -L {name} combined {wanted}"),
        interface: name.clone(),
        source,
    })?;
    if interface.queues != before {
        info!("interface {name}: {} receive queues, {before} before", interface.queues);
    }
    Ok(())
}

fn turn_off(interface: &Interface, offload: Offload) -> Result<(), XdpError> {
    let name = &interface.name;
    interface.turn_off(offload).map_err(|source| XdpError::Configure {
        interface: name.clone(),
        what: format!("turn off {offload}"),
        next: format!("ethtool -K {name} {} off", offload.name()),
        source,
    })?;
    info!("interface {name}: {offload} is off now");
    Ok(())
}

/// Warns of interfaces below this one that join packets: generic mode sees the joined ones.
fn warn_of_lower_interfaces(interface: &Interface) {
    for lower in interface.lowest() {
        // An interface that cannot be read is named, too: the command does no harm.
        let is_off = Interface::find(&lower)
            .is_ok_and(|lower| lower.joins_packets().is_ok_and(|joins_packets| !joins_packets));
        if !is_off {
            warn!(
                "interface {} lies on {lower}, which joins packets: long requests and replies do not arrive, because joined \
                 packets are longer than a frame; run `ethtool -K {lower} gro off`",
                interface.name
            );
        }
    }
}

/// Whether this host has an address.
fn is_local(ip: Ipv4Addr) -> bool {
    // Any port: nothing is sent.
    address_towards((ip, 1).into()) == Some(ip.into())
}

/// Checks that the stack can have all listening addresses of a configuration, as far as that can be seen without the
/// interface.
///
/// # Errors
/// The first address that it cannot have, or there are too many.
pub fn check_addresses(config: &HelperConfig) -> Result<(), XdpError> {
    for address in listening(config) {
        if let Some(problem) = AddressProblem::of(address) {
            return Err(XdpError::Listen { address, problem });
        }
        if let Some(separate) = config.xdp.separate
            && address.ip() != IpAddr::from(separate.ip)
        {
            let problem = AddressProblem::NotSeparate(separate.ip);
            return Err(XdpError::Listen { address, problem });
        }
    }
    let count = listening(config).count();
    check_count(count, count)
}

/// The listening addresses of all services.
fn listening(config: &HelperConfig) -> impl Iterator<Item = SocketAddr> + '_ {
    config.services.iter().flat_map(|service| service.listen.iter().chain(&service.link_listen)).copied()
}

/// Checks that the steering program has room. `total` also counts addresses of present listeners that are to be removed.
fn check_count(configured: usize, total: usize) -> Result<(), XdpError> {
    match total <= ENDPOINTS_MAX {
        true => Ok(()),
        false => Err(XdpError::TooManyListeners { configured, leaving: total - configured.min(total) }),
    }
}

impl AddressProblem {
    /// Why the stack cannot listen at an address, whatever the interface.
    pub fn of(address: SocketAddr) -> Option<AddressProblem> {
        match address.ip() {
            ip if ip.is_unspecified() => Some(AddressProblem::Wildcard),
            ip if ip.is_loopback() => Some(AddressProblem::Loopback),
            _ => None,
        }
    }
}

fn check_listeners(config: &HelperConfig, interface: &Interface, own: &[IpAddr]) -> Result<(), XdpError> {
    for address in listening(config) {
        if !own.contains(&address.ip()) {
            let (interface, own) = (interface.name.clone(), own.to_vec());
            let problem = AddressProblem::NotOfInterface { interface, own };
            return Err(XdpError::Listen { address, problem });
        }
    }
    Ok(())
}

/// The addresses from which all servers are reached, one for each family in use: the helper's own, or those from which the
/// kernel reaches them, which must be the interface's.
fn own_addresses(
    config: &HelperConfig,
    interface: &Interface,
    addresses: &[IpAddr],
) -> Result<Vec<IpAddr>, XdpError> {
    let mut own: Vec<IpAddr> = Vec::new();
    for service in &config.services {
        let from = address_towards(service.server);
        if from == Some(service.server.ip()) {
            return Err(XdpError::LocalServer(service.server));
        }
        if let Some(separate) = config.xdp.separate {
            if !separate.reaches(service.server.ip()) {
                return Err(XdpError::Unreachable { server: service.server.ip(), separate });
            }
            own = vec![separate.ip.into()];
            continue;
        }
        let error = || XdpError::Server { address: service.server, from, interface: interface.name.clone() };
        let from = from.filter(|from| addresses.contains(from)).ok_or_else(error)?;
        match own.iter().find(|other| other.is_ipv4() == from.is_ipv4()) {
            Some(other) if *other != from => return Err(XdpError::SeveralOwn { own: [*other, from] }),
            Some(_) => {}
            None => own.push(from),
        }
    }
    Ok(own)
}

/// The address that the kernel chooses for packets to another host. Sends nothing.
fn address_towards(target: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 16], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Divides the queues among threads.
fn by_thread(sockets: Vec<Socket>, threads: usize) -> Vec<Vec<Socket>> {
    let mut divided: Vec<Vec<Socket>> = (0..threads).map(|_| Vec::new()).collect();
    for (at, socket) in sockets.into_iter().enumerate() {
        divided[at % threads].push(socket);
    }
    divided
}
