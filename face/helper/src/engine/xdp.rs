//! Opens the user-level TCP stack of a helper on an interface, and makes the contexts of its threads.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::time::SystemTime;

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
use crate::log::Entry;
use crate::relay_app::RelayApp;
use crate::threads::reserved_for_links;

/// The opened interface, and what the stacks of the threads need.
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

/// State of the engine while the helper runs, for the status and for checks of new settings.
#[derive(Clone, Debug)]
pub struct XdpState {
    pub interface: Interface,
    /// Local addresses of connections to servers: at most one of each family.
    own: Vec<IpAddr>,
    separate: Option<SeparateAddress>,
    pub mode: Mode,
    /// Whether the driver uses the stack's frames without a copy.
    pub is_zero_copy: bool,
    /// Listening addresses in use, also those of removed listeners that still have clients.
    leased: LeasedAddresses,
    /// Reports addresses that were removed from the interface; `None` with a separate address.
    watch: Option<AddressWatch>,
}

impl XdpEngine {
    /// Attaches the steering program, and opens a socket for each receive queue; with `configure_interface`,
    /// there are then `threads` queues, if possible. Until listeners are added, the stack receives only
    /// packets to its local ports, or to the separate address.
    ///
    /// # Errors
    /// The host or the configuration lacks something that the engine needs.
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
            Some(separate) if is_local(separate.ip.into()) => return Err(XdpError::KernelHas(separate.ip)),
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
                // Packets to the range have a receive ring of their own: replies of servers end a thread's wait.
                let rule = AddressRule { ports: Some(ports.clone()), is_separate: true };
                return steer.set_address(separate.ip.into(), &rule);
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
        // The program must be attached before: without GRO, a veth has receive loops only with a program.
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

    pub fn state(&self) -> &XdpState {
        &self.state
    }

    pub fn queues(&self) -> usize {
        self.sockets.len()
    }

    /// Makes one context for each application. There must be at most as many applications as receive queues.
    ///
    /// # Errors
    /// The stack refuses a setting, or the system has failed.
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
        // The kernel has the routes of a shared address: its prefix only determines the broadcast address.
        let with_prefix = |ip: &IpAddr| {
            if let Some(separate) = separate {
                return separate.prefix;
            }
            let found = self.networks.iter().find(|(address, _)| address == ip);
            found.map_or(if ip.is_ipv4() { 32 } else { 128 }, |(_, prefix)| *prefix)
        };
        let addresses = own.iter().map(|ip| OwnAddress::new(*ip, with_prefix(ip))).collect();
        // `own` is empty only without services. The stack refuses the unspecified address.
        let first = own.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Settings {
            resolver: if separate.is_some() { Resolver::Arp } else { Resolver::Driver },
            gateway: separate.and_then(|separate| separate.gateway),
            ports,
            mtu: u16::try_from(interface.packet_bytes_max()).unwrap_or(u16::MAX),
            send_buffer_bytes: net.queued_bytes_max,
            clock_at_zero: since_1970.saturating_sub(clock.now().since(Time::ZERO)),
            opened_user_timeout: Some(net.stall_timeout),
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
    /// The engine cannot listen at an address or reach a server, or there are too many listening addresses.
    pub fn check(&self, config: &HelperConfig) -> Result<(), XdpError> {
        check_addresses(config)?;
        // Present listeners count, too: they end after the new ones are added, and after their last client.
        let mut present = self.leased.addresses();
        present.extend(listening(config).filter(|address| address.port() != 0));
        present.sort_unstable();
        present.dedup();
        let new = listening(config).filter(|address| address.port() == 0).count();
        check_count(listening(config).count(), present.len() + new)?;
        let addresses = self.interface.addresses().map_err(XdpError::Host)?;
        match self.separate {
            Some(separate) if is_local(separate.ip.into()) => return Err(XdpError::KernelHas(separate.ip)),
            Some(_) => {}
            None => check_listeners(config, &self.interface, &addresses)?,
        }
        for own in own_addresses(config, &self.interface, &addresses)? {
            // The addresses of a stack do not change while it runs.
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

/// Turns harmful offloads of the interface off, and gives it a receive queue for each thread.
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

/// Warns of interfaces below this one that join packets (GRO): generic mode receives the joined packets.
fn warn_of_lower_interfaces(interface: &Interface) {
    for lower in interface.lowest() {
        // Also warns if the setting cannot be read: the proposed command is harmless.
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

/// Whether `ip` is an address of this host.
fn is_local(ip: IpAddr) -> bool {
    // The port does not matter, because nothing is sent.
    address_towards((ip, 1).into()) == Some(ip)
}

/// Checks the listening addresses of a configuration, as far as this is possible without the interface.
///
/// # Errors
/// The stack cannot listen at one of the addresses, or there are too many.
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

/// Checks that the steering program has room. `total` includes present listeners that are to be removed.
fn check_count(configured: usize, total: usize) -> Result<(), XdpError> {
    match total <= ENDPOINTS_MAX {
        true => Ok(()),
        false => Err(XdpError::TooManyListeners { configured, leaving: total - configured.min(total) }),
    }
}

impl AddressProblem {
    /// Why the stack cannot listen at `address` on any interface.
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

/// Local addresses for connections to the servers, one for each family in use: the separate address, or those
/// that the kernel chooses for the servers, which the interface must have.
fn own_addresses(
    config: &HelperConfig,
    interface: &Interface,
    addresses: &[IpAddr],
) -> Result<Vec<IpAddr>, XdpError> {
    let servers = || config.services.iter().map(|service| service.server);
    if let Some(local) = servers().find(|server| is_local(server.ip())) {
        return Err(XdpError::LocalServer(local));
    }
    if let Some(separate) = config.xdp.separate {
        return match servers().find(|server| !separate.reaches(server.ip())) {
            Some(server) => Err(XdpError::Unreachable { server: server.ip(), separate }),
            None => Ok(vec![separate.ip.into()]),
        };
    }
    let mut own: Vec<IpAddr> = Vec::new();
    for server in servers() {
        let from = address_towards(server);
        let error = || XdpError::Server { address: server, from, interface: interface.name.clone() };
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

fn by_thread(sockets: Vec<Socket>, threads: usize) -> Vec<Vec<Socket>> {
    let mut divided: Vec<Vec<Socket>> = (0..threads).map(|_| Vec::new()).collect();
    for (at, socket) in sockets.into_iter().enumerate() {
        divided[at % threads].push(socket);
    }
    divided
}
