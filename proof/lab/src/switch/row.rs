//! The switches of a lab in a row, and what is connected to them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_bpf::{Attachment, Pass};
use spillway_rules::PortId;

use super::own_addresses::{SWITCHES_MAX, own_number};
use super::port::{LeadsTo, SwitchPort};
use crate::cgroup::HostGroup;
use crate::forwarding::SWITCH;
use crate::host::{HostParts, pin_and_account_forwarding};
use crate::run::Run;
use crate::tools::Tools;
use crate::{LabError, addresses, ipv6, namespace};

/// All switches of a lab. Each one but the last is connected to the next one by a cable.
#[derive(Debug)]
pub(crate) struct Row {
    pub sites: Vec<Site>,
    pub run: Arc<Run>,
    pub group: HostGroup,
    pub core: Option<usize>,
    tools: Tools,
    pass: Pass,
    /// The pass programs on the hosts' interfaces.
    passes: Mutex<Vec<Attachment>>,
    has_receive_threads: bool,
}

/// The namespace of one switch.
#[derive(Debug)]
pub(crate) struct Site {
    pub name: String,
    pub namespace: String,
    joined: Mutex<Vec<Joined>>,
}

#[derive(Debug)]
struct Joined {
    port: SwitchPort,
    /// `None` for a neighbouring switch, and for a host whose set-up is not complete.
    host: Option<Arc<HostParts>>,
}

/// Settings of a row that the lab's options determine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowOptions {
    pub switches: usize,
    pub core: Option<usize>,
    pub has_receive_threads: bool,
}

impl Row {
    /// Makes the namespaces, and the cables between neighbours.
    pub fn create(
        run: &Arc<Run>,
        tools: &Tools,
        group: HostGroup,
        options: RowOptions,
    ) -> Result<Arc<Row>, LabError> {
        if options.switches > SWITCHES_MAX {
            return Err(LabError::BadOption(format!("a lab has at most {SWITCHES_MAX} switches in a row")));
        }
        let site = |index: usize| {
            let name = if index == 0 { SWITCH.to_owned() } else { format!("{SWITCH}-{}", index + 1) };
            Site { namespace: run.name.namespace(&name), name, joined: Mutex::default() }
        };
        let row = Row {
            sites: (0..options.switches).map(site).collect(),
            run: Arc::clone(run),
            group,
            core: options.core,
            tools: tools.clone(),
            pass: Pass::load().map_err(LabError::bpf)?,
            passes: Mutex::default(),
            has_receive_threads: options.has_receive_threads,
        };
        let _no_removal = run.prevent_removal()?;
        for site in &row.sites {
            tools.ip(None, &format!("netns add {}\n", site.namespace))?;
            namespace::within(&site.namespace, || namespace::set_sysctls(&ipv6::QUIET))?;
        }
        (1..options.switches).try_for_each(|index| row.connect(index - 1, index))?;
        Ok(Arc::new(row))
    }

    /// Makes the cable between two neighbours.
    fn connect(&self, first: usize, second: usize) -> Result<(), LabError> {
        let (first_end, second_end) = self.run.name.trunk(first);
        let first_port = self.new_port(first, first_end, LeadsTo::Switch(second))?;
        let second_port = self.new_port(second, second_end, LeadsTo::Switch(first))?;
        let (first_end, second_end) = (first_port.interface(), second_port.interface());
        let [first_site, second_site] = [first, second].map(|index| &self.sites[index].namespace);
        let queues = "numrxqueues 1 numtxqueues 1";
        self.tools.ip(
            Some(first_site),
            &format!(
                "link add {first_end} {} {queues} type veth peer name {second_end} {} {queues} netns {second_site}\n",
                first_port.far_end().properties,
                second_port.far_end().properties
            ),
        )?;
        for (site, end) in [(first_site, first_end), (second_site, second_end)] {
            self.tools.ethtool(site, &["-K", end, "tx", "off", "tso", "off", "gro", "on"])?;
            self.tools.ip(Some(site), &format!("link set {end} up\n"))?;
            if self.has_receive_threads {
                namespace::within(site, || namespace::write_interface_file(end, "threaded", "1"))?;
            }
        }
        Ok(())
    }

    /// Reserves the next port of a switch for a host.
    pub fn port_for_host(
        &self,
        index: usize,
        interface: &str,
        ipv4: Ipv4Addr,
        ipv6: Ipv6Addr,
    ) -> Result<SwitchPort, LabError> {
        let leads_to = LeadsTo::Host { ipv4, ipv6, switch_number: own_number(index) };
        self.new_port(index, interface.to_owned(), leads_to)
    }

    fn new_port(&self, index: usize, interface: String, leads_to: LeadsTo) -> Result<SwitchPort, LabError> {
        let mut joined = lock(&self.sites[index].joined);
        let id = u8::try_from(joined.len()).ok().and_then(PortId::new).filter(|id| *id != PortId::DAEMON);
        let Some(id) = id else {
            return Err(LabError::BadOption(format!(
                "a switch has at most {} ports: connect the host to another switch (HostOptions::switch)",
                PortId::DAEMON
            )));
        };
        let switch = u8::try_from(index).unwrap_or(u8::MAX);
        // Locally administered, and different from those of hosts, whose second byte is 0.
        let port = SwitchPort::new(id, interface, [2, 1, 0, 0, switch, id.number()], leads_to);
        joined.push(Joined { port: port.clone(), host: None });
        Ok(port)
    }

    /// Joins a host whose cable is up. Attaches the pass program to its interface, unless the host will attach its own.
    pub fn join(&self, index: usize, port: &SwitchPort, host: &Arc<HostParts>) -> Result<(), LabError> {
        if host.pass_program {
            let attach = || self.pass.attach(&host.interface).map_err(LabError::bpf);
            lock(&self.passes).push(namespace::within(&host.namespace, attach)?);
        }
        let mut joined = lock(&self.sites[index].joined);
        let slot = joined.iter_mut().find(|joined| joined.port.id() == port.id());
        let slot = slot.expect("the port was reserved by port_for_host, and ports are never removed");
        slot.host = Some(Arc::clone(host));
        Ok(())
    }

    pub fn ports(&self, index: usize) -> Vec<SwitchPort> {
        lock(&self.sites[index].joined).iter().map(|joined| joined.port.clone()).collect()
    }

    /// The Ethernet addresses of all hosts of the lab, each with the port of one switch that leads to it.
    pub fn stations(&self, index: usize) -> Vec<([u8; 6], SwitchPort)> {
        let mut stations = Vec::new();
        let ports = self.ports(index);
        for (at, site) in self.sites.iter().enumerate() {
            let trunk = match at.cmp(&index) {
                std::cmp::Ordering::Less => Some(LeadsTo::Switch(index - 1)),
                std::cmp::Ordering::Equal => None,
                std::cmp::Ordering::Greater => Some(LeadsTo::Switch(index + 1)),
            };
            for joined in lock(&site.joined).iter() {
                let LeadsTo::Host { ipv4, .. } = joined.port.leads_to() else { continue };
                let port = match trunk {
                    None => Some(&joined.port),
                    Some(neighbour) => ports.iter().find(|port| port.leads_to() == neighbour),
                };
                let port = port.expect("each switch has a cable to each neighbour");
                stations.push((addresses::host_mac(ipv4), port.clone()));
            }
        }
        stations
    }

    /// Makes the hosts of a switch receive forwarded packets, and handles the new receive threads of both ends.
    pub fn prepare(&self, index: usize) -> Result<(), LabError> {
        let joined = lock(&self.sites[index].joined);
        for Joined { port, host, .. } in joined.iter() {
            match host {
                Some(host) => {
                    host.accept_redirected()?;
                    host.pin_and_account_host_end()?;
                    host.pin_and_account_bridge_end()?;
                }
                None if self.has_receive_threads => {
                    pin_and_account_forwarding(port.interface(), self.core, &self.group)?;
                }
                None => {}
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
