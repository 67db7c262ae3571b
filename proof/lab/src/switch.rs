//! Switches of a lab: namespaces with the far ends of the hosts' cables, for the switch's XDP program or its daemon.
//!
//! XDP programs forward between veths only under these conditions, which the lab meets: hosts compute the checksums of
//! sent packets themselves; each host's interface has GRO, and a program that passes all packets, without which frames
//! that a program answers with `XDP_TX` would be lost; and GRO was changed after the switch's program was attached
//! ([`LabSwitch::prepare_hosts`]). Otherwise the kernel drops the packets, and counts them at the port of the switch where
//! they arrived.

mod own_addresses;
mod port;
mod row;
mod running;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use spillway_auth::SwitchKey;
use spillway_rules::ServerId;
use spillway_rules::config::{Config, FLOWS_DEFAULT, OWNER_TIMEOUT_DEFAULT, Port, Server, Services, Station};
use spillway_wire::packet::ethernet::Mac;

use crate::host::HostParts;
use crate::process::{Confinement, Launch, Process};
use crate::{Host, LabError, namespace, napi};

pub use port::SwitchPort;
pub(crate) use row::{Row, RowOptions};
pub use running::RunningSwitch;

/// UDP port of a switch for control messages, in configurations of [`LabSwitch::config`].
pub const CONTROL_PORT: u16 = 7_710;

/// A switch of a [`Lab`](crate::Lab) with [`Forwarding::Switch`](crate::Forwarding::Switch). Clones are handles to the
/// same switch and do not keep the lab alive.
#[derive(Clone, Debug)]
pub struct LabSwitch {
    row: Arc<Row>,
    index: usize,
}

impl LabSwitch {
    pub(crate) fn new(row: &Arc<Row>, index: usize) -> LabSwitch {
        LabSwitch { row: Arc::clone(row), index }
    }

    /// Reserves the next port for a host.
    pub(crate) fn new_port(
        &self,
        interface: &str,
        ipv4: Ipv4Addr,
        ipv6: Ipv6Addr,
    ) -> Result<SwitchPort, LabError> {
        self.row.port_for_host(self.index, interface, ipv4, ipv6)
    }

    /// Joins a host whose cable is up.
    pub(crate) fn join(&self, port: &SwitchPort, host: &Arc<HostParts>) -> Result<(), LabError> {
        self.row.join(self.index, port, host)
    }

    /// The switch's name: `switch` for the first one, `switch-2` for the next.
    pub fn name(&self) -> &str {
        &self.row.sites[self.index].name
    }

    /// Position in the row, from 0 on.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The name of the switch's network namespace, for `ip netns exec`.
    pub fn namespace(&self) -> &str {
        &self.row.sites[self.index].namespace
    }

    /// The switch's own addresses, IPv4 and IPv6, which its kernel has at every port that leads to a host. Control
    /// messages of the hosts at this switch are sent to them.
    pub fn addresses(&self) -> [IpAddr; 2] {
        let (ipv4, ipv6) = own_addresses::own_addresses(own_addresses::own_number(self.index));
        [ipv4.into(), ipv6.into()]
    }

    /// Where the hosts at this switch send control messages, by IPv4 and by IPv6.
    pub fn control(&self) -> [SocketAddr; 2] {
        self.addresses().map(|address| SocketAddr::new(address, CONTROL_PORT))
    }

    /// The ports, in the order of their numbers. Those to neighbouring switches are first.
    pub fn ports(&self) -> Vec<SwitchPort> {
        self.row.ports(self.index)
    }

    /// The port to which a host is connected; `None` if it is connected to another switch.
    pub fn port_of(&self, host: &Host) -> Option<SwitchPort> {
        self.ports().into_iter().find(|port| port.interface() == host.far_interface())
    }

    /// A configuration with all ports of the switch and with all hosts of the lab as stations, without servers and
    /// services. Its keys are public. Valid until a host is added to the lab.
    pub fn config(&self) -> Config {
        let port = |port: &SwitchPort| Port {
            id: port.id(),
            mac: Mac(port.mac()),
            is_server: false,
            may_own: Services::NONE,
            mtu: 1500,
        };
        let station = |(mac, port): ([u8; 6], SwitchPort)| Station { mac: Mac(mac), port: port.id() };
        Config {
            mode: spillway_rules::Mode::Gateway,
            ports: self.ports().iter().map(port).collect(),
            stations: self.row.stations(self.index).into_iter().map(station).collect(),
            prefixes: Vec::new(),
            own_addresses: self.addresses().into_iter().map(Into::into).collect(),
            control: self.control().into_iter().map(Into::into).collect(),
            daemon_key: SwitchKey::from_bytes(*b"the daemon's key"),
            servers: Vec::new(),
            places: Vec::new(),
            owner_timeout: OWNER_TIMEOUT_DEFAULT,
            flows_max: FLOWS_DEFAULT,
            service_flows_max: Default::default(),
        }
    }

    /// Makes a host a server in a configuration of [`LabSwitch::config`]. It has this address for control messages, and may
    /// own the flows of all services.
    ///
    /// # Errors
    /// The host is connected to another switch.
    pub fn add_server(
        &self,
        config: &mut Config,
        (host, address): (&Host, IpAddr),
        id: ServerId,
        key: SwitchKey,
    ) -> Result<(), LabError> {
        let Some(port) = self.port_of(host) else {
            return Err(LabError::BadOption(format!(
                "host {:?} cannot be a server of {}: it is connected to another switch",
                host.name(),
                self.name()
            )));
        };
        for settings in config.ports.iter_mut().filter(|settings| settings.id == port.id()) {
            (settings.is_server, settings.may_own) = (true, Services::ALL);
        }
        let mac = Mac(host.mac());
        let (address, port) = (address.into(), port.id());
        config.servers.push(Server { id, key, address, mac, port, encapsulation: None });
        Ok(())
    }

    /// Loads the switch's XDP program without pins, attaches it to all ports, and prepares the hosts. Add all hosts
    /// before.
    ///
    /// # Errors
    /// The configuration is not valid, or the kernel refuses the program.
    pub fn load(&self, config: &Config) -> Result<RunningSwitch, LabError> {
        let running = RunningSwitch::start(self, config)?;
        self.prepare_hosts()?;
        Ok(running)
    }

    /// Makes the switch's hosts receive what XDP programs forward to them. Call it after a daemon has attached the
    /// programs. Also pins and accounts the threads of both ends of all cables, which an attachment replaces.
    pub fn prepare_hosts(&self) -> Result<(), LabError> {
        self.row.prepare(self.index)
    }

    /// Starts a process in the switch's namespace and on its core.
    pub fn spawn(&self, launch: &Launch) -> Result<Process, LabError> {
        let row = &self.row;
        let confinement = Confinement {
            namespace: Some(namespace::open(self.namespace())?),
            task_files: row.group.open_task_files()?,
            cores: row.core.map(napi::one_core).transpose()?,
            directory: &row.run.directory,
            host_name: self.name().to_owned(),
        };
        Process::start(launch, confinement)
    }

    /// Runs `work` in a thread inside the switch's namespace and on its core, and returns the result.
    pub fn run_inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        namespace::within(self.namespace(), || {
            self.row.core.map(napi::pin_current).transpose()?;
            Ok(work())
        })
    }

    /// As [`LabSwitch::run_inside`], but returns the thread's handle at once.
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, LabError>>, LabError> {
        crate::host::start_thread("switch".into(), self.namespace(), self.row.core, work)
    }
}
