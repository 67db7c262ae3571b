//! The laboratory: hosts as network namespaces, with real servers and proxies on them.
//!
//! A [`Lab`] is one run. A bridge in its own namespace joins the hosts' namespaces, so a run does not change
//! the machine's interfaces and routes. Instead of the bridge, Spillway's switch can join them ([`LabSwitch`]). A
//! [`Host`] can be pinned to a core and limited by a CPU quota for *its processes and its interface's receive
//! work*, which have separate CPU accounts. [`peers`] starts real memcached, Redis and proxies on a host or,
//! without privileges, on loopback. [`Host::drop_packets`] drops packets on a host's cable.
//!
//! By default veth does a receiver's work on the sender's core and in the sender's CPU account. In a lab
//! every veth end has generic receive offload and its own NAPI thread, which is pinned and put into its
//! host's cpu cgroup. The work of the bridge's ends has its own account ([`Lab::bridge_cpu`]). TCP
//! segmentation offload is off at every end, because with TSO on the sender, veth bypasses the NAPI thread.
//! So the sending host cuts segments of 1,448 bytes and the receiving host joins them: large batches cost a
//! little more than with a network card that segments.
//!
//! The names of a run's namespaces, cgroups and files begin with `spillway-NAME-PID-N`. The lab removes all
//! of these and kills the run's processes when the [`Lab`] is dropped, on a panic, on `exit`, and on SIGINT,
//! SIGTERM or SIGHUP. After SIGKILL, [`clean`] removes them.
//!
//! A lab needs root, iproute2, ethtool and a cpu controller of cgroup v1 or v2. [`unavailable`] names what is missing.

mod addresses;
mod agent;
mod awake;
mod burner;
mod cgroup;
mod clean;
mod cpu;
mod echo;
mod error;
mod forwarding;
mod host;
mod hub;
mod ipv6;
mod joint;
mod lab;
mod loss;
mod names;
mod namespace;
mod napi;
mod offloads;
mod pins;
mod place;
mod process;
mod realtime;
mod run;
mod segment;
mod spawner;
mod stall_detector;
mod switch;
mod tools;

pub mod browser;
pub mod peers;

pub use agent::{Agent, Relayed};
pub use awake::IdlePolling;
pub use burner::{Burner, Slowdown};
pub use clean::{CleanReport, KeptRun, RemovedRun, clean, clean_all_runs};
pub use cpu::{HostCpu, Quota};
pub use echo::serve_echo;
pub use error::LabError;
pub use forwarding::Forwarding;
pub use host::{Host, HostOptions, PacketCounts};
pub use lab::{Lab, LabOptions, unavailable};
pub use loss::Loss;
pub use namespace::InterfaceCounters;
pub use offloads::Offloads;
pub use place::{Loopback, Place};
pub use process::{Launch, Output, Process};
pub use run::{interrupted, set_exit_grace};
pub use stall_detector::StallDetector;
pub use switch::{CONTROL_PORT, LabSwitch, RunningSwitch, SwitchPort};
