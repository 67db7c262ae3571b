//! A host: a network namespace with an interface, and with its own core, quota and CPU accounts.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cgroup::HostGroup;
use crate::forwarding::Forwarding;
use crate::process::{Confinement, Launch, Process};
use crate::realtime::{RECEIVE_PRIORITY, set_first_in_first_out};
use crate::run::Run;
use crate::tools::Tools;
use crate::{HostCpu, InterfaceCounters, LabError, Loss, Offloads, Quota, addresses, namespace, napi};

/// Settings of every host besides those of [`Forwarding::ipv6`]: backlogs for thousands of clients.
pub(crate) const SYSCTLS: [(&str, &str); 3] = [
    ("net/core/somaxconn", "65535"),
    ("net/ipv4/tcp_max_syn_backlog", "65535"),
    // User-level stacks use the other ports: load generators those below, helpers those above.
    ("net/ipv4/ip_local_port_range", "20000 60999"),
];

/// Congestion control of hosts: the first one that the machine allows in a namespace. Machines whose default
/// is not cubic may restrict it; reno is always allowed. BBR, the default of some machines, paces each
/// connection by timers, which costs CPU and time.
pub(crate) const CONGESTION_CONTROL: (&str, [&str; 2]) =
    ("net/ipv4/tcp_congestion_control", ["cubic", "reno"]);

/// Options of a new host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostOptions {
    /// The core of the host's processes and its interface's thread; `None` (default) pins nothing.
    pub core: Option<usize>,
    /// The quota of the host's processes and its interface's thread together; `None` (default) sets no limit.
    pub quota: Option<Quota>,
    /// Whether the interface's thread runs before all processes, as interrupts do. The thread is then outside
    /// the quota, so a host cannot have both this option and a quota. Off by default.
    pub receive_first: bool,
    /// Whether checksums of sent packets are offloaded. On by default. Must be off for XDP and AF_XDP.
    pub tx_checksums: bool,
    /// Further sysctls of the namespace, below `net/`, such as `("net/ipv4/tcp_sack", "0")`.
    pub sysctls: Vec<(String, String)>,
    /// The index of the switch to which the host is connected, in a lab with [`Forwarding::Switch`]; default: 0.
    pub switch: usize,
    /// Whether the lab attaches a program that passes all packets to the host's interface, in a lab with
    /// [`Forwarding::Switch`]. On by default. Off for a host that attaches its own program, such as a helper on AF_XDP.
    pub pass_program: bool,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            core: None,
            quota: None,
            receive_first: false,
            tx_checksums: true,
            sysctls: Vec::new(),
            switch: 0,
            pass_program: true,
        }
    }
}

/// A host of a [`Lab`](crate::Lab). Clones are handles to the same host and do not keep the lab alive.
#[derive(Clone, Debug)]
pub struct Host(pub(crate) Arc<HostParts>);

#[derive(Debug)]
pub(crate) struct HostParts {
    pub name: String,
    pub namespace: String,
    pub interface: String,
    /// The bridge's namespace, and the name of the cable's end there.
    pub bridge_end: (String, String),
    pub address: Ipv4Addr,
    /// The host has the address only with [`Forwarding::Switch`] and [`Forwarding::Segment`].
    pub ipv6: Ipv6Addr,
    pub core: Option<usize>,
    pub receive_first: bool,
    pub pass_program: bool,
    pub forwarding: Forwarding,
    /// Whether the ends of the host's cable have receive threads.
    pub has_receive_threads: bool,
    /// The interface's threads that [`HostParts::pin_and_account_host_end`] has handled.
    pub accounted: Mutex<Vec<u32>>,
    /// As `accounted`, for the bridge's end.
    pub far_accounted: Mutex<Vec<u32>>,
    pub group: HostGroup,
    /// The bridge's core and group.
    pub bridge: (Option<usize>, HostGroup),
    pub run: Arc<Run>,
    pub tools: Tools,
}

impl Host {
    /// The host's name, as given to [`Lab::host`](crate::Lab::host).
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The host's address on the lab's network.
    pub fn address(&self) -> IpAddr {
        self.0.address.into()
    }

    /// The host's IPv6 address on the lab's network; only with [`Forwarding::Switch`] and
    /// [`Forwarding::Segment`].
    pub fn ipv6_address(&self) -> Option<IpAddr> {
        self.0.forwarding.has_ipv6().then_some(self.0.ipv6.into())
    }

    /// The Ethernet address of the host's interface.
    pub fn mac(&self) -> [u8; 6] {
        addresses::host_mac(self.0.address)
    }

    /// The name of the host's network namespace, for `ip netns exec`.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// The name of the host's interface.
    pub fn interface(&self) -> &str {
        &self.0.interface
    }

    /// The core to which the host is pinned.
    pub fn core(&self) -> Option<usize> {
        self.0.core
    }

    /// Starts a process in the host's namespace, with its quota and accounts, and on its core.
    pub fn spawn(&self, launch: &Launch) -> Result<Process, LabError> {
        let confinement = Confinement {
            namespace: Some(namespace::open(&self.0.namespace)?),
            task_files: self.0.group.open_task_files()?,
            cores: self.0.core.map(napi::one_core).transpose()?,
            directory: &self.0.run.directory,
            host_name: self.0.name.clone(),
        };
        Process::start(launch, confinement)
    }

    /// Runs `work` in a thread inside the host's namespace and on its core, and returns the result. Sockets
    /// that `work` opens stay in the namespace. The host's accounts and quota do *not* cover the thread's CPU
    /// time, because cgroup v2 can only move whole processes.
    pub fn run_inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        namespace::within(&self.0.namespace, || {
            self.0.core.map(napi::pin_current).transpose()?;
            Ok(work())
        })
    }

    /// As [`Host::run_inside`], but returns the thread's handle at once.
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, LabError>>, LabError> {
        start_thread(format!("host-{}", self.0.name), &self.0.namespace, self.0.core, work)
    }

    /// The name of the other end of the host's cable, in the bridge's namespace.
    pub fn far_interface(&self) -> &str {
        &self.0.bridge_end.1
    }

    /// As [`Host::thread`], but at the other end of the host's cable: in the bridge's namespace and on the
    /// bridge's core. For a program that replaces the bridge and simulates the rest of the network.
    pub fn far_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, LabError>>, LabError> {
        start_thread(format!("far-{}", self.0.name), &self.0.bridge_end.0, self.0.bridge.0, work)
    }

    /// CPU time used so far by the host's processes and by its interface.
    pub fn cpu(&self) -> Result<HostCpu, LabError> {
        self.0.group.cpu()
    }

    /// Changes the quota; `None` lifts it.
    pub fn set_quota(&self, quota: Option<Quota>) -> Result<(), LabError> {
        self.0.group.set_quota(quota)
    }

    /// Makes the kernel poll the host's interface at this interval under load, instead of by interrupts
    /// (`napi_defer_hard_irqs`, `gro_flush_timeout`), for all programs of the host. Zero: interrupts only.
    pub fn defer_interrupts(&self, interval: Duration) -> Result<(), LabError> {
        // The deferral ends after this number of polls without a packet.
        let empty_polls = if interval.is_zero() { "0" } else { "2" };
        let HostParts { namespace, interface, .. } = &*self.0;
        namespace::within(namespace, || {
            namespace::write_interface_file(interface, "napi_defer_hard_irqs", empty_polls)?;
            namespace::write_interface_file(interface, "gro_flush_timeout", &interval.as_nanos().to_string())
        })
    }

    /// The offloads that are active on the host's interface.
    pub fn offloads(&self) -> Result<Offloads, LabError> {
        self.offloads_of(&self.0.interface)
    }

    /// The offloads that are active on another interface in the host's namespace.
    pub fn offloads_of(&self, interface: &str) -> Result<Offloads, LabError> {
        let text = self.0.tools.ethtool(&self.0.namespace, &["-k", interface])?;
        Ok(Offloads::parse(&text))
    }

    /// The offloads that are active on the bridge's end of the host's cable.
    pub fn bridge_offloads(&self) -> Result<Offloads, LabError> {
        let (namespace, interface) = &self.0.bridge_end;
        let text = self.0.tools.ethtool(namespace, &["-k", interface])?;
        Ok(Offloads::parse(&text))
    }

    /// Turns off generic receive offload at the far end of the host's cable, so that a bridge forwards each packet by
    /// itself, as XDP programs do. Only with [`LabOptions::receive_inline`](crate::LabOptions::receive_inline), because
    /// without this offload a veth has no receive thread.
    pub fn forward_single_packets(&self) -> Result<(), LabError> {
        if self.0.has_receive_threads {
            return Err(LabError::BadOption("forward_single_packets needs a lab with receive_inline".into()));
        }
        let (namespace, interface) = &self.0.bridge_end;
        self.0.tools.ethtool(namespace, &["-K", interface, "gro", "off"]).map(drop)
    }

    /// The congestion control of the host's connections.
    pub fn congestion_control(&self) -> Result<String, LabError> {
        namespace::within(&self.0.namespace, || namespace::sysctl(CONGESTION_CONTROL.0))
    }

    /// The traffic counters of the host's interface.
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

    /// Drops a share (0 to 1) of the IPv4 packets on the host's cable, in both directions, while the [`Loss`] exists.
    pub fn drop_packets(&self, share: f64) -> Result<Loss, LabError> {
        if self.0.forwarding.is_xdp() {
            return Err(LabError::BadOption(
                "the cable's XDP program cannot drop packets: make the lab with Forwarding::Bridge".into(),
            ));
        }
        let (bridge, bridge_interface) = &self.0.bridge_end;
        let threads = || [napi::threads_of(&self.0.interface), napi::threads_of(bridge_interface)];
        let before = threads();
        let loss =
            Loss::between([(&self.0.namespace, &self.0.interface), (bridge, bridge_interface)], share)?;
        // Attaching XDP replaces NAPI threads: pin and account the new ones, too.
        let after = threads();
        if after[0] != before[0] {
            self.0.pin_and_account_host_end()?;
        }
        if after[1] != before[1] {
            self.0.pin_and_account_bridge_end()?;
        }
        Ok(loss)
    }

    /// Packets that arrived at both ends of the host's cable since its start, and those that
    /// [`Host::drop_packets`] dropped.
    pub fn packet_counts(&self) -> Result<PacketCounts, LabError> {
        let (bridge, bridge_interface) = &self.0.bridge_end;
        let mut sum = PacketCounts::default();
        for (namespace, interface) in [(&self.0.namespace, &self.0.interface), (bridge, bridge_interface)] {
            let text = self.0.tools.ethtool(namespace, &["-S", interface])?;
            sum.seen += sum_of(&text, "_xdp_packets:");
            sum.lost += sum_of(&text, "_xdp_drops:");
        }
        Ok(sum)
    }

    /// Packets of this host that the program of [`Forwarding::Xdp`] or [`Forwarding::Switch`] has forwarded.
    pub fn forwarded_packets(&self) -> Result<u64, LabError> {
        let (bridge, bridge_interface) = &self.0.bridge_end;
        let text = self.0.tools.ethtool(bridge, &["-S", bridge_interface])?;
        Ok(sum_of(&text, "_xdp_redirect:"))
    }

    /// The namespace's counters in `/proc/net/snmp` and `/proc/net/netstat`, by names such as `Tcp:RetransSegs` and
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

    /// The kernel threads that do the interface's receive work.
    pub fn interface_threads(&self) -> Vec<u32> {
        napi::threads_of(&self.0.interface)
    }

    /// As [`Host::pin_and_account_interface`], for the cable's other end, on the bridge's core and account.
    pub fn pin_and_account_far_interface(&self) -> Result<(), LabError> {
        self.0.pin_and_account_bridge_end()
    }

    /// Pins the interface's threads and puts them into the host's quota and accounts. Call it after an XDP program was
    /// attached or detached, which replaces these threads.
    pub fn pin_and_account_interface(&self) -> Result<(), LabError> {
        self.0.pin_and_account_host_end()
    }
}

pub(crate) fn start_thread<T: Send + 'static>(
    name: String,
    namespace: &str,
    core: Option<usize>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<Result<T, LabError>>, LabError> {
    let handle = namespace::open(namespace)?;
    let inside = move || {
        namespace::join(&handle).map_err(LabError::errno("cannot enter a network namespace"))?;
        // An open handle would keep the namespace alive until the thread ends.
        drop(handle);
        core.map(napi::pin_current).transpose()?;
        Ok(work())
    };
    std::thread::Builder::new().name(name).spawn(inside).map_err(LabError::io("cannot start a thread"))
}

fn sum_of(text: &str, name: &str) -> u64 {
    text.lines().filter_map(|line| line.split_once(name)?.1.trim().parse::<u64>().ok()).sum()
}

/// Packet counts of both ends of a host's cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Packets that arrived.
    pub seen: u64,
    /// Packets among `seen` that were dropped.
    pub lost: u64,
}

impl HostParts {
    /// Makes the host's end accept packets that an XDP program at the far end redirects to it. The kernel prepares for
    /// them only when an offload changes.
    pub(crate) fn accept_redirected(&self) -> Result<(), LabError> {
        for gro in ["off", "on"] {
            self.tools.ethtool(&self.namespace, &["-K", &self.interface, "gro", gro])?;
        }
        Ok(())
    }

    pub(crate) fn pin_and_account_host_end(&self) -> Result<(), LabError> {
        if !self.has_receive_threads {
            return Ok(());
        }
        let mut accounted = self.accounted.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = napi::threads_of(&self.interface);
        // After `run_first` a thread cannot enter the quota's group again, because it has real-time priority.
        if !threads.is_empty() && *accounted == threads {
            return Ok(());
        }
        pin_and_account(&self.interface, self.core, &self.group)?;
        *accounted = threads;
        if self.receive_first {
            run_first(&self.interface, &self.group);
        }
        Ok(())
    }

    pub(crate) fn pin_and_account_bridge_end(&self) -> Result<(), LabError> {
        if !self.has_receive_threads {
            return Ok(());
        }
        let mut accounted = self.far_accounted.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = napi::threads_of(&self.bridge_end.1);
        // As in `pin_and_account_host_end`.
        if !threads.is_empty() && *accounted == threads {
            return Ok(());
        }
        let (core, group) = &self.bridge;
        pin_and_account_forwarding(&self.bridge_end.1, *core, group)?;
        *accounted = threads;
        Ok(())
    }
}

/// Pins and accounts the threads of an interface of the bridge or of a switch. These forward at any load of the hosts: so
/// their threads run before processes on a shared core; otherwise their rings of 256 packets overflow.
pub(crate) fn pin_and_account_forwarding(
    interface: &str,
    core: Option<usize>,
    group: &HostGroup,
) -> Result<(), LabError> {
    pin_and_account(interface, core, group)?;
    run_first(interface, group);
    Ok(())
}

/// Gives an interface's threads real-time priority, unless the kernel refuses.
fn run_first(interface: &str, group: &HostGroup) {
    for thread in napi::threads_of(interface) {
        // The quota group has no real-time allowance; the thread stays in its accounting group.
        group.leave_quota_group(thread);
        let _ = set_first_in_first_out(thread, RECEIVE_PRIORITY);
    }
}

fn pin_and_account(interface: &str, core: Option<usize>, group: &HostGroup) -> Result<(), LabError> {
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
