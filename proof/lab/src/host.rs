//! A host: a network namespace with one interface, a core, a quota and its own CPU accounts.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::cgroup::HostGroup;
use crate::process::{Confinement, Launch, Process};
use crate::realtime::{RECEIVE_PRIORITY, set_first_in_first_out};
use crate::run::Run;
use crate::tools::Tools;
use crate::{HostCpu, InterfaceCounters, LabError, Loss, Offloads, Quota, namespace, napi};

/// Settings of every host's namespace: no IPv6 chatter in the accounts, and room for thousands of connections.
pub(crate) const SYSCTLS: [(&str, &str); 5] = [
    ("net/ipv6/conf/all/disable_ipv6", "1"),
    ("net/ipv6/conf/default/disable_ipv6", "1"),
    ("net/core/somaxconn", "65535"),
    ("net/ipv4/tcp_max_syn_backlog", "65535"),
    ("net/ipv4/ip_local_port_range", "20000 64999"),
];

/// How connections of hosts find their rate, the first that the machine allows in a namespace. cubic is Debian's own
/// default, but restricted where the machine has another; reno is everywhere. Machines that default to BBR pace each
/// connection by timers, which costs CPU and time.
pub(crate) const CONGESTION_CONTROL: (&str, [&str; 2]) =
    ("net/ipv4/tcp_congestion_control", ["cubic", "reno"]);

/// How a host is made.
#[derive(Clone, Debug, PartialEq)]
pub struct HostOptions {
    /// The core on which its processes and its interface's thread run; any, by default.
    pub core: Option<usize>,
    /// How much CPU its processes and its interface's thread may use together; no limit, by default.
    pub quota: Option<Quota>,
    /// Its interface's thread runs before all processes, as interrupts do: it is then outside the quota, so this is
    /// for hosts that have none. Off by default.
    pub receive_first: bool,
    /// Checksum offload of its sent packets, on by default. Off where they go through XDP or AF_XDP.
    pub tx_checksums: bool,
    /// More settings of the namespace, as `("net/ipv4/tcp_sack", "0")`. Only those below `net/`.
    pub sysctls: Vec<(String, String)>,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions { core: None, quota: None, receive_first: false, tx_checksums: true, sysctls: Vec::new() }
    }
}

/// A host of a [`Lab`](crate::Lab). Clones are handles to the same host; they do not keep the lab alive.
#[derive(Clone, Debug)]
pub struct Host(pub(crate) Arc<HostParts>);

#[derive(Debug)]
pub(crate) struct HostParts {
    pub name: String,
    pub namespace: String,
    pub interface: String,
    /// The bridge's namespace and the interface's other end there.
    pub far: (String, String),
    pub address: Ipv4Addr,
    pub core: Option<usize>,
    pub receive_first: bool,
    pub group: HostGroup,
    /// The bridge's core and group, for the interface's other end.
    pub bridge: (Option<usize>, HostGroup),
    pub run: Arc<Run>,
    pub tools: Tools,
}

impl Host {
    /// The name given to it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its address on the lab's network.
    pub fn address(&self) -> IpAddr {
        self.0.address.into()
    }

    /// The name of its network namespace, for `ip netns exec`.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// The name of its interface.
    pub fn interface(&self) -> &str {
        &self.0.interface
    }

    /// The core it is pinned to.
    pub fn core(&self) -> Option<usize> {
        self.0.core
    }

    /// Starts a process on the host: in its namespace, its quota and accounts, and on its core.
    pub fn spawn(&self, launch: &Launch) -> Result<Process, LabError> {
        let confinement = Confinement {
            namespace: Some(namespace::open(&self.0.namespace)?),
            entrances: self.0.group.process_entrances()?,
            cores: self.0.core.map(napi::only).transpose()?,
            directory: &self.0.run.directory,
            place: self.0.name.clone(),
        };
        Process::start(launch, confinement)
    }

    /// Runs `work` in a thread inside the host's namespace and on its core, and returns its result. Sockets made there stay
    /// in the namespace wherever they are used later.
    ///
    /// The thread's CPU time is *not* in the host's accounts, nor under its quota: cgroup v2 moves whole processes only.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        namespace::within(&self.0.namespace, || {
            self.0.core.map(napi::pin_current).transpose()?;
            Ok(work())
        })
    }

    /// Like [`Host::enter`], but returns at once, with the thread's handle.
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, LabError>>, LabError> {
        let handle = namespace::open(&self.0.namespace)?;
        let core = self.0.core;
        let inside = move || {
            namespace::join(&handle).map_err(LabError::errno("cannot enter a network namespace"))?;
            // Or the namespace would live as long as the thread.
            drop(handle);
            core.map(napi::pin_current).transpose()?;
            Ok(work())
        };
        let name = format!("host-{}", self.0.name);
        std::thread::Builder::new().name(name).spawn(inside).map_err(LabError::io("cannot start a thread"))
    }

    /// CPU time used so far by its processes and by its interface.
    pub fn cpu(&self) -> Result<HostCpu, LabError> {
        self.0.group.cpu()
    }

    /// Changes or lifts the quota.
    pub fn set_quota(&self, quota: Option<Quota>) -> Result<(), LabError> {
        self.0.group.set_quota(quota)
    }

    /// The offloads in force on its interface.
    pub fn offloads(&self) -> Result<Offloads, LabError> {
        self.offloads_of(&self.0.interface)
    }

    /// The same of another interface in its namespace.
    pub fn offloads_of(&self, interface: &str) -> Result<Offloads, LabError> {
        let text = self.0.tools.ethtool(&self.0.namespace, &["-k", interface])?;
        Ok(Offloads::parse(&text))
    }

    /// The offloads in force on its interface's other end, at the bridge.
    pub fn bridge_offloads(&self) -> Result<Offloads, LabError> {
        let (namespace, interface) = &self.0.far;
        let text = self.0.tools.ethtool(namespace, &["-k", interface])?;
        Ok(Offloads::parse(&text))
    }

    /// The congestion control of its connections.
    pub fn congestion_control(&self) -> Result<String, LabError> {
        namespace::within(&self.0.namespace, || namespace::sysctl(CONGESTION_CONTROL.0))
    }

    /// What its interface has carried.
    pub fn counters(&self) -> Result<InterfaceCounters, LabError> {
        let text = namespace::within(&self.0.namespace, || {
            let file = "/proc/thread-self/net/dev";
            std::fs::read_to_string(file).map_err(LabError::io(format!("cannot read {file}")))
        })?;
        let missing = || io::Error::new(io::ErrorKind::NotFound, "it is not listed in /proc/net/dev");
        InterfaceCounters::parse(&text, &self.0.interface)
            .ok_or_else(missing)
            .map_err(LabError::io(format!("interface {} of {}", self.0.interface, self.0.name)))
    }

    /// Loses this share (0 to 1) of the packets on its cable, in each direction, until the result is dropped.
    pub fn lose(&self, share: f64) -> Result<Loss, LabError> {
        let (bridge, far) = &self.0.far;
        let threads = || [napi::threads_of(&self.0.interface), napi::threads_of(far)];
        let before = threads();
        let loss = Loss::between([(&self.0.namespace, &self.0.interface), (bridge, far)], share)?;
        // Where attaching has replaced threads, the new ones belong where the old ones were.
        let after = threads();
        if after[0] != before[0] {
            self.0.settle_own_threads()?;
        }
        if after[1] != before[1] {
            self.0.settle_far_threads()?;
        }
        Ok(loss)
    }

    /// Packets that arrived at either end of its cable since it was made, and those that [`Host::lose`] dropped.
    pub fn lost_packets(&self) -> Result<LostPackets, LabError> {
        let (bridge, far) = &self.0.far;
        let mut sum = LostPackets::default();
        for (namespace, interface) in [(&self.0.namespace, &self.0.interface), (bridge, far)] {
            let text = self.0.tools.ethtool(namespace, &["-S", interface])?;
            let count = |name: &str| {
                let values =
                    text.lines().filter_map(|line| line.split_once(name)?.1.trim().parse::<u64>().ok());
                values.sum::<u64>()
            };
            sum.seen += count("_xdp_packets:");
            sum.lost += count("_xdp_drops:");
        }
        Ok(sum)
    }

    /// What the namespace counts about TCP: `/proc/net/snmp` and `/proc/net/netstat`, by name as in `Tcp:RetransSegs` and
    /// `TcpExt:TCPTimeouts`.
    pub fn tcp_counters(&self) -> Result<BTreeMap<String, u64>, LabError> {
        let text = namespace::within(&self.0.namespace, || {
            let read = |file: &str| {
                std::fs::read_to_string(file).map_err(LabError::io(format!("cannot read {file}")))
            };
            Ok(read("/proc/thread-self/net/snmp")? + &read("/proc/thread-self/net/netstat")?)
        })?;
        Ok(namespace::named_counters(&text))
    }

    /// The kernel threads that do its interface's receive work.
    pub fn interface_threads(&self) -> Vec<u32> {
        napi::threads_of(&self.0.interface)
    }

    /// Finds the interface's threads again, pins them, and puts them into the host's quota and accounts. Needed after an XDP
    /// program was attached or detached, which replaces them.
    pub fn adopt_interface(&self) -> Result<(), LabError> {
        adopt(&self.0.interface, self.0.core, &self.0.group)
    }
}

/// Packets that passed a lossy cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostPackets {
    /// Arrived at either end.
    pub seen: u64,
    /// Of these, those that were dropped.
    pub lost: u64,
}

impl HostParts {
    /// Puts the interface's threads where they belong.
    pub(crate) fn settle_own_threads(&self) -> Result<(), LabError> {
        adopt(&self.interface, self.core, &self.group)?;
        if self.receive_first {
            run_first(&self.interface, &self.group);
        }
        Ok(())
    }

    /// The same at the bridge's end of the cable.
    pub(crate) fn settle_far_threads(&self) -> Result<(), LabError> {
        let (core, group) = &self.bridge;
        adopt(&self.far.1, *core, group)?;
        // A switch forwards whatever its hosts are doing: on a core that it shares, the bridge does not wait for them,
        // and its rings of 256 packets do not overflow.
        run_first(&self.far.1, group);
        Ok(())
    }
}

/// Lets an interface's threads run before processes. Where the kernel does not allow that, they wait like everybody.
fn run_first(interface: &str, group: &HostGroup) {
    for thread in napi::threads_of(interface) {
        // It keeps its CPU account, but the group of a quota has no real-time allowance.
        group.leave_quota_group(thread);
        let _ = set_first_in_first_out(thread, RECEIVE_PRIORITY);
    }
}

/// Pins an interface's threads and puts them into a group.
fn adopt(interface: &str, core: Option<usize>, group: &HostGroup) -> Result<(), LabError> {
    let threads = napi::threads_of(interface);
    if threads.is_empty() {
        return Err(LabError::NotReady {
            what: format!(
                "interface {interface} got no NAPI thread: a kernel of 5.12 or later is needed, and generic receive \
                 offload on the interface"
            ),
            output: String::new(),
        });
    }
    for thread in threads {
        group.adopt_interface_thread(thread)?;
        if let Some(core) = core {
            napi::pin(thread, core)?;
        }
    }
    Ok(())
}
