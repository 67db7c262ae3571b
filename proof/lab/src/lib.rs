//! The laboratory: hosts as network namespaces, with real peers on them.
//!
//! A [`Lab`] is one run. Its hosts are network namespaces, joined by a bridge that lives in a namespace of its own,
//! so the machine's own interfaces and routes are never touched. Each [`Host`] can be pinned to a core and held to a
//! CPU quota that covers *its processes and its interface's receive work*, and tells both apart in its accounting.
//! [`peers`] starts real memcached and redis, and proxies, in a host, or on loopback without any privilege.
//! [`Host::lose`] makes a host's cable lossy.
//!
//! By default a veth runs the receiver's work on the sender's core, in the sender's name. Here every veth end has
//! generic receive offload and a NAPI thread of its own, which is pinned and put into the cpu cgroup of its host; the
//! bridge's ends are accounted apart ([`Lab::bridge_cpu`]). TCP segmentation offload is off at every end, because veth
//! passes TCP by the NAPI thread where the sender has it: so segments are cut by the sending host, 1,448 bytes each, and
//! joined again by the receiving one. That makes large batches a little dearer than on a network card that does it.
//!
//! Everything a run makes (namespaces, cgroups, files, processes) carries its name, `spillway-NAME-PID-N`, and goes
//! away when the [`Lab`] is dropped, on a panic, on `exit`, and on SIGINT, SIGTERM or SIGHUP. [`clean`] removes what
//! a run left that was killed with SIGKILL.
//!
//! A lab needs root, iproute2, ethtool and the cpu controller of cgroup v1 or v2; [`unavailable`] says what is missing.

mod awake;
mod burner;
mod canary;
mod cgroup;
mod clean;
mod cpu;
mod error;
mod host;
mod lab;
mod loss;
mod names;
mod namespace;
mod napi;
mod offloads;
mod place;
mod process;
mod realtime;
mod run;
mod spawner;
mod tools;

pub mod browser;
pub mod peers;

pub use awake::Awake;
pub use burner::{Burner, Slowdown};
pub use canary::Canary;
pub use clean::{CleanReport, KeptRun, RemovedRun, clean, clean_everything};
pub use cpu::{HostCpu, Quota};
pub use error::LabError;
pub use host::{Host, HostOptions, LostPackets};
pub use lab::{Lab, LabOptions, unavailable};
pub use loss::Loss;
pub use namespace::InterfaceCounters;
pub use offloads::Offloads;
pub use place::{LocalPlace, Place};
pub use process::{Launch, Output, Process};
pub use run::{finish_within, interrupted};
