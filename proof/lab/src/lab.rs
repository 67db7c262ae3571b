//! A run of the laboratory: a bridge or switches in their own namespaces, and the hosts that they join.

use std::sync::{Arc, Mutex, PoisonError};

use rustix::thread::{CapabilitySet, capabilities};

use crate::cgroup::{HostGroup, Layout};
use crate::forwarding::{BRIDGE, FarEnd, Forwarding};
use crate::host::{CONGESTION_CONTROL, Host, HostOptions, HostParts, SYSCTLS};
use crate::hub::Hub;
use crate::joint::Joint;
use crate::names::{self, HOSTS_MAX};
use crate::run::Run;
use crate::segment::Segment;
use crate::switch::{LabSwitch, Row, RowOptions};
use crate::tools::Tools;
use crate::{HostCpu, LabError, addresses, namespace, napi};

/// Options of a new lab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabOptions {
    /// The core of the bridge's or the switches' threads and processes; `None` (default) pins nothing.
    pub bridge_core: Option<usize>,
    /// How frames are forwarded between hosts. Default: by the kernel's bridge.
    pub forwarding: Forwarding,
    /// Number of further switches in a row behind the first one, with [`Forwarding::Switch`]. Default: none.
    pub more_switches: usize,
    /// Whether the sender's thread does the receive work of both ends of a cable, as without a lab. By default each
    /// end has a thread, which has the account of its host. Receive work is then in no account, and wakes no thread.
    pub receive_inline: bool,
}

/// Hosts joined by a bridge or by switches. A drop kills its processes and removes its namespaces, groups and files.
#[derive(Debug)]
pub struct Lab {
    run: Arc<Run>,
    tools: Tools,
    layout: Layout,
    options: LabOptions,
    bridge: HostGroup,
    joint: Joint,
    hosts: Mutex<Vec<String>>,
}

/// The reason why this machine cannot make a lab, or `None` if it can. Tests print the reason and skip.
pub fn unavailable() -> Option<String> {
    requirements().err().map(|e| e.to_string())
}

fn requirements() -> Result<(Tools, Layout), LabError> {
    // In a container, root may lack these capabilities.
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    let own = capabilities(None).map_err(LabError::errno("cannot read this process's capabilities"))?;
    if !rustix::process::geteuid().is_root() || !own.effective.contains(needed) {
        return Err(LabError::NotRoot);
    }
    Ok((Tools::find()?, Layout::detect()?))
}

impl Lab {
    /// Makes a lab without hosts. `name` is 1 to 24 lower-case letters, digits and inner hyphens.
    pub fn new(name: &str) -> Result<Lab, LabError> {
        Lab::with_options(name, LabOptions::default())
    }

    /// As [`Lab::new`], with options.
    pub fn with_options(name: &str, options: LabOptions) -> Result<Lab, LabError> {
        options.bridge_core.map(napi::one_core).transpose()?;
        if options.more_switches > 0 && options.forwarding != Forwarding::Switch {
            return Err(LabError::BadOption("more_switches needs Forwarding::Switch".into()));
        }
        let (tools, layout) = requirements()?;
        let run = Run::open(name, Some(layout.clone()))?;
        match make_joint(&run, &tools, &layout, &options) {
            Ok((bridge, joint)) => {
                Ok(Lab { run, tools, layout, options, bridge, joint, hosts: Mutex::default() })
            }
            Err(e) => {
                let _ = run.close();
                Err(e)
            }
        }
    }

    /// Adds a host. Its interface has generic receive offload and its own NAPI thread, which the host's quota covers.
    pub fn host(&self, name: &str, options: HostOptions) -> Result<Host, LabError> {
        self.check(name, &options)?;
        let switch = self.joint.switch(options.switch)?;
        let _no_removal = self.run.prevent_removal()?;
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if self.joint.has_place(name) || hosts.iter().any(|taken| taken == name) {
            return Err(LabError::BadOption(format!("this lab already has a host named {name:?}")));
        }
        if hosts.len() == HOSTS_MAX {
            return Err(LabError::BadOption(format!("a lab has at most {HOSTS_MAX} hosts")));
        }
        // If a later step fails, the name stays taken, because parts of the host may exist.
        let index = hosts.len();
        hosts.push(name.to_owned());

        let (interface, bridge_interface) = self.run.name.interfaces(index);
        let octet = u8::try_from(index + 1).unwrap_or(u8::MAX);
        let (address, ipv6) = (addresses::ipv4(octet), addresses::ipv6(octet));
        let port = switch.map(|switch| switch.new_port(&bridge_interface, address, ipv6)).transpose()?;
        let bridge_namespace =
            switch.map_or_else(|| self.run.name.namespace(BRIDGE), |switch| switch.namespace().to_owned());
        let host = Host(Arc::new(HostParts {
            name: name.to_owned(),
            namespace: self.run.name.namespace(name),
            interface,
            bridge_end: (bridge_namespace, bridge_interface),
            address,
            ipv6,
            core: options.core,
            receive_first: options.receive_first,
            pass_program: options.pass_program,
            forwarding: self.options.forwarding,
            has_receive_threads: !self.options.receive_inline,
            accounted: Mutex::default(),
            far_accounted: Mutex::default(),
            bridge: (self.options.bridge_core, self.bridge.clone()),
            group: self.layout.create_host(&self.run.name.to_string(), name)?,
            run: Arc::clone(&self.run),
            tools: self.tools.clone(),
        }));
        let parts = &host.0;
        let far_end = match &port {
            Some(port) => port.far_end(),
            None => FarEnd::of_bridge(&parts.bridge_end.1),
        };
        self.make_namespace_and_cable(parts, &far_end, &options)?;
        match &self.joint {
            Joint::Hub(hub) => hub.join(parts)?,
            Joint::Segment(segment) => segment.join(parts)?,
            Joint::Bridge | Joint::Switches(_) => {}
        }
        if let (Some(switch), Some(port)) = (switch, &port) {
            switch.join(port, parts)?;
        }
        parts.pin_and_account_host_end()?;
        parts.pin_and_account_bridge_end()?;
        parts.group.set_quota(options.quota)?;
        Ok(host)
    }

    fn check(&self, name: &str, options: &HostOptions) -> Result<(), LabError> {
        names::check("host", name)?;
        options.core.map(napi::one_core).transpose()?;
        options.quota.map(|quota| quota.micros()).transpose()?;
        if options.receive_first && options.quota.is_some() {
            return Err(LabError::BadOption(format!(
                "host {name:?}: receive_first takes the interface's thread out of the quota: give only one of the two"
            )));
        }
        if self.options.forwarding.is_xdp() && options.tx_checksums {
            return Err(LabError::BadOption(format!(
                "host {name:?}: packets that XDP programs see need checksums: turn tx_checksums off"
            )));
        }
        Ok(())
    }

    /// The switches, in the order of the row; none without [`Forwarding::Switch`].
    pub fn switches(&self) -> Vec<LabSwitch> {
        self.joint.switches().to_vec()
    }

    /// `spillway-NAME-PID-N`: the prefix of the names of this run's namespaces, groups and files.
    pub fn run_name(&self) -> String {
        self.run.name.to_string()
    }

    /// CPU time of the bridge, which does a switch's work, or of all switches. All of it is in [`HostCpu::interface`], but
    /// for processes that [`LabSwitch::spawn`] started.
    pub fn bridge_cpu(&self) -> Result<HostCpu, LabError> {
        self.bridge.cpu()
    }

    /// The kind of control groups that enforces the quotas, for reports.
    pub fn control_groups(&self) -> &'static str {
        self.layout.describe()
    }

    /// Removes the lab, as a drop does, but returns a failure, which a drop only prints.
    pub fn close(self) -> Result<(), LabError> {
        self.run.close()
    }

    fn make_namespace_and_cable(
        &self,
        host: &HostParts,
        far_end: &FarEnd,
        options: &HostOptions,
    ) -> Result<(), LabError> {
        let HostParts { namespace, interface, bridge_end: (bridge, bridge_interface), address, .. } = host;
        self.tools.ip(None, &format!("netns add {namespace}\n"))?;
        namespace::within(namespace, || {
            namespace::set_sysctls(self.options.forwarding.ipv6())?;
            namespace::set_sysctls(&SYSCTLS)?;
            let (setting, values) = CONGESTION_CONTROL;
            namespace::set_first_allowed(setting, &values)?;
            let host_sysctls: Vec<_> =
                options.sysctls.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            namespace::set_sysctls(&host_sysctls)
        })?;
        // With one queue, an end has one NAPI thread, which does all its receive work.
        self.tools.ip(
            Some(bridge),
            &format!(
                "link add {bridge_interface} {} numrxqueues 1 numtxqueues 1 type veth \
                 peer name {interface} address {} numrxqueues 1 numtxqueues 1 netns {namespace}\n{}",
                far_end.properties,
                addresses::mac_text(addresses::host_mac(*address)),
                far_end.before_up
            ),
        )?;
        // With TSO on the sending end, veth bypasses the receiver's NAPI thread: the sender would do the receive work.
        let checksums = if options.tx_checksums { "on" } else { "off" };
        for (namespace, interface) in [(namespace, interface), (bridge, bridge_interface)] {
            self.tools.ethtool(namespace, &["-K", interface, "tx", checksums, "tso", "off", "gro", "on"])?;
        }
        let up = format!("link set lo up\naddr add {address}/24 dev {interface}\nlink set {interface} up\n");
        let ipv6 = match host.forwarding.has_ipv6() {
            true => format!("addr add {}/64 dev {interface} nodad\n", host.ipv6),
            false => String::new(),
        };
        self.tools.ip(Some(namespace), &(up + &ipv6))?;
        self.tools.ip(Some(bridge), &format!("link set {bridge_interface} up\n{}", far_end.after_up))?;
        if self.options.receive_inline {
            return Ok(());
        }
        namespace::within(namespace, || namespace::write_interface_file(interface, "threaded", "1"))?;
        namespace::within(bridge, || namespace::write_interface_file(bridge_interface, "threaded", "1"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(e) = self.run.close() {
            eprintln!("lab: {e}");
        }
    }
}

fn make_joint(
    run: &Arc<Run>,
    tools: &Tools,
    layout: &Layout,
    options: &LabOptions,
) -> Result<(HostGroup, Joint), LabError> {
    let group = {
        let _no_removal = run.prevent_removal()?;
        layout.create_host(&run.name.to_string(), options.forwarding.group())?
    };
    let joint = match options.forwarding {
        Forwarding::Bridge => make_bridge(run, tools).map(|()| Joint::Bridge)?,
        Forwarding::Xdp => {
            make_bridge(run, tools)?;
            Joint::Hub(Hub::load()?)
        }
        Forwarding::Segment => {
            make_bridge(run, tools)?;
            Joint::Segment(Segment::load()?)
        }
        Forwarding::Switch => {
            let options = RowOptions {
                switches: options.more_switches + 1,
                core: options.bridge_core,
                has_receive_threads: !options.receive_inline,
            };
            Joint::of(&Row::create(run, tools, group.clone(), options)?)
        }
    };
    Ok((group, joint))
}

fn make_bridge(run: &Run, tools: &Tools) -> Result<(), LabError> {
    let _no_removal = run.prevent_removal()?;
    let name = run.name.namespace(BRIDGE);
    tools.ip(None, &format!("netns add {name}\n"))?;
    namespace::within(&name, || namespace::set_sysctls(Forwarding::Bridge.ipv6()))?;
    tools.ip(
        Some(&name),
        "link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0\nlink set br0 up\n",
    )
}
