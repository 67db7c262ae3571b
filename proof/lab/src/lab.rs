//! A run of the laboratory: a bridge in a namespace of its own, and the hosts around it.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::thread::{CapabilitySet, capabilities};

use crate::cgroup::{HostGroup, Layout};
use crate::host::{CONGESTION_CONTROL, Host, HostOptions, HostParts, SYSCTLS};
use crate::names::{self, HOSTS_MAX};
use crate::run::Run;
use crate::tools::Tools;
use crate::{HostCpu, LabError, namespace, napi};

/// The name of the bridge's namespace and group; no host may have it.
const BRIDGE: &str = "bridge";

/// How a lab is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabOptions {
    /// The core on which the bridge's work runs: any, by default.
    pub bridge_core: Option<usize>,
}

/// Hosts joined by a bridge. Dropping it ends their processes and removes everything.
#[derive(Debug)]
pub struct Lab {
    run: Arc<Run>,
    tools: Tools,
    layout: Layout,
    options: LabOptions,
    bridge: HostGroup,
    hosts: Mutex<Vec<String>>,
}

/// Why no lab can be made here, or `None` if one can: for tests that skip.
pub fn unavailable() -> Option<String> {
    requirements().err().map(|e| e.to_string())
}

fn requirements() -> Result<(Tools, Layout), LabError> {
    // In a container root may lack them.
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    let ours = capabilities(None).map_err(LabError::errno("cannot read this process's capabilities"))?;
    if !rustix::process::geteuid().is_root() || !ours.effective.contains(needed) {
        return Err(LabError::NotRoot);
    }
    Ok((Tools::find()?, Layout::detect()?))
}

impl Lab {
    /// Makes a lab with no hosts yet. `name` is lower-case letters, digits and hyphens.
    pub fn new(name: &str) -> Result<Lab, LabError> {
        Lab::with_options(name, LabOptions::default())
    }

    /// The same with options.
    pub fn with_options(name: &str, options: LabOptions) -> Result<Lab, LabError> {
        options.bridge_core.map(napi::only).transpose()?;
        let (tools, layout) = requirements()?;
        let run = Run::open(name, Some(layout.clone()))?;
        match make_bridge(&run, &tools, &layout) {
            Ok(bridge) => Ok(Lab { run, tools, layout, options, bridge, hosts: Mutex::default() }),
            Err(e) => {
                let _ = run.close();
                Err(e)
            }
        }
    }

    /// Adds a host. Its interface has generic receive offload and a NAPI thread of its own, in the host's quota.
    pub fn host(&self, name: &str, options: HostOptions) -> Result<Host, LabError> {
        names::check("host", name)?;
        options.core.map(napi::only).transpose()?;
        options.quota.map(|quota| quota.micros()).transpose()?;
        if options.receive_first && options.quota.is_some() {
            return Err(LabError::BadOption(format!("host {name:?}: receive_first would escape its quota")));
        }
        let _adding = self.run.adding()?;
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if name == BRIDGE || hosts.iter().any(|taken| taken == name) {
            return Err(LabError::BadOption(format!("this lab already has a host named {name:?}")));
        }
        if hosts.len() == HOSTS_MAX {
            return Err(LabError::BadOption(format!("a lab has at most {HOSTS_MAX} hosts")));
        }
        // Taken even if what follows fails, for parts of it may exist then.
        let index = hosts.len();
        hosts.push(name.to_owned());

        let (interface, far) = self.run.name.interfaces(index);
        let octet = u8::try_from(index + 1).unwrap_or(u8::MAX);
        let parts = HostParts {
            name: name.to_owned(),
            namespace: self.run.name.namespace(name),
            interface,
            far: (self.run.name.namespace(BRIDGE), far),
            address: Ipv4Addr::new(10, 77, 0, octet),
            core: options.core,
            receive_first: options.receive_first,
            bridge: (self.options.bridge_core, self.bridge.clone()),
            group: self.layout.create_host(&self.run.name.to_string(), name)?,
            run: Arc::clone(&self.run),
            tools: self.tools.clone(),
        };
        self.wire(&parts, &options)?;
        parts.settle_own_threads()?;
        parts.settle_far_threads()?;
        parts.group.set_quota(options.quota)?;
        Ok(Host(Arc::new(parts)))
    }

    /// The name that everything of this run carries.
    pub fn run_name(&self) -> String {
        self.run.name.to_string()
    }

    /// CPU time of the bridge: what a switch would do. In [`HostCpu::interface`]; it has no processes.
    pub fn bridge_cpu(&self) -> Result<HostCpu, LabError> {
        self.bridge.cpu()
    }

    /// Which control groups hold the quotas, for reports.
    pub fn control_groups(&self) -> &'static str {
        self.layout.describe()
    }

    /// Ends all processes and removes everything, and reports a failure to do so; dropping only prints it.
    pub fn close(self) -> Result<(), LabError> {
        self.run.close()
    }

    /// Makes a host's namespace and its cable to the bridge.
    fn wire(&self, host: &HostParts, options: &HostOptions) -> Result<(), LabError> {
        let HostParts { namespace, interface, far: (bridge, far), address, .. } = host;
        self.tools.ip(None, &format!("netns add {namespace}\n"))?;
        namespace::within(namespace, || {
            namespace::set_sysctls(&SYSCTLS)?;
            let (setting, values) = CONGESTION_CONTROL;
            namespace::set_first_allowed(setting, &values)?;
            let more: Vec<_> = options.sysctls.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            namespace::set_sysctls(&more)
        })?;
        // One queue at each end: one NAPI thread, hence one place where receive work happens.
        self.tools.ip(
            Some(bridge),
            &format!(
                "link add {far} numrxqueues 1 numtxqueues 1 type veth \
                 peer name {interface} numrxqueues 1 numtxqueues 1 netns {namespace}\n\
                 link set {far} master br0\n"
            ),
        )?;
        // A veth whose sending end has TSO passes TCP by the receiver's NAPI thread: the receive work would be the sender's.
        let sums = if options.tx_checksums { "on" } else { "off" };
        for (place, end) in [(namespace, interface), (bridge, far)] {
            self.tools.ethtool(place, &["-K", end, "tx", sums, "tso", "off", "gro", "on"])?;
        }
        let up = format!("link set lo up\naddr add {address}/24 dev {interface}\nlink set {interface} up\n");
        self.tools.ip(Some(namespace), &up)?;
        self.tools.ip(Some(bridge), &format!("link set {far} up\n"))?;
        namespace::within(namespace, || namespace::write_interface_file(interface, "threaded", "1"))?;
        namespace::within(bridge, || namespace::write_interface_file(far, "threaded", "1"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(e) = self.run.close() {
            eprintln!("lab: {e}");
        }
    }
}

fn make_bridge(run: &Run, tools: &Tools, layout: &Layout) -> Result<HostGroup, LabError> {
    let _adding = run.adding()?;
    let group = layout.create_host(&run.name.to_string(), BRIDGE)?;
    let name = run.name.namespace(BRIDGE);
    tools.ip(None, &format!("netns add {name}\n"))?;
    namespace::within(&name, || namespace::set_sysctls(&SYSCTLS[..2]))?;
    tools.ip(
        Some(&name),
        "link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0\nlink set br0 up\n",
    )?;
    Ok(group)
}
