//! A kernel as the peer of the user-level stack, over a TAP interface; or, for comparison, of another kernel behind an
//! interface of the same kind. Every byte that either side receives is compared.
//!
//! The programs of both kernels run on one core; the loop (our stack with its application, or the cable between two
//! kernels) on another core if the machine has one. The thread that writes a frame to a TAP interface also executes the
//! kernel's receive path up to the socket, so the loop's CPU time contains all protocol work except that of sending
//! programs.

mod forward;
mod pattern;
mod roles;
mod running;
mod sockets;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use spillway_lab::{Host, HostOptions, Lab, Launch, Offloads};
use spillway_tcp::recovery::Algorithm;
use spillway_xdp::{Faulted, FaultsOptions, Tap};

use crate::error::Error;
use crate::machine::Machine;
use crate::scene::Setting;
use crate::steady::Steady;
use crate::stop;

pub(super) use roles::Gate;
use roles::{GRANT_BYTES, Role, Stream};
use running::{LoopResult, Running};

/// Largest IP packet of the stack and of all interfaces, in bytes.
pub(super) const MTU: u16 = 1500;
/// Port on which the stack, or the kernel in its place, listens.
const PORT: u16 = 7000;
/// Timeout for connecting, for each command of the setup, and for the end of a loop.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Settings of both kernels. Receive windows are 1 MB (half of a buffer), as in the stack; every interface's queue is
/// long enough for them. Unsent data waits in the programs, not in megabytes of socket buffers. A connection does not
/// inherit path metrics of an earlier one.
const SYSCTLS: [(&str, &str); 3] = [
    ("net/ipv4/tcp_rmem", "4096 131072 2097152"),
    ("net/ipv4/tcp_notsent_lowat", "262144"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
];
/// Counters of a kernel about loss: name in [`Measured::peer`], name of the kernel.
const COUNTERS: [(&str, &str); 6] = [
    ("segments", "Tcp:OutSegs"),
    ("retransmissions", "Tcp:RetransSegs"),
    ("timeouts", "TcpExt:TCPTimeouts"),
    ("probes", "TcpExt:TCPLossProbes"),
    ("spurious", "TcpExt:TCPSpuriousRTOs"),
    ("duplicates_reported", "TcpExt:TCPDSACKRecv"),
];

/// The system under test, at the other end of the peer's cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum System {
    /// The user-level stack, with its application.
    Spillway,
    /// Another kernel, and a program.
    Linux,
}

impl System {
    pub fn name(self) -> &'static str {
        match self {
            System::Spillway => "spillway",
            System::Linux => "linux",
        }
    }

    const fn subnet(self) -> u8 {
        match self {
            System::Spillway => 78,
            System::Linux => 79,
        }
    }

    fn peer_address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet(), 0, 1)
    }

    fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet(), 0, 2)
    }

    fn peer_interface(self) -> &'static str {
        match self {
            System::Spillway => "spw0",
            System::Linux => "spw1",
        }
    }
}

/// The interface of the kernel in the stack's place.
const OTHER_INTERFACE: &str = "spw0";

/// The work of the system under test on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// The system sends as much as it can.
    Sending,
    /// The peer sends as much as it can.
    Receiving,
    /// The system answers requests of the peer.
    Answering,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plan {
    pub system: System,
    pub work: Work,
    /// Faults on the cable; they begin when the connection is established.
    pub faults: FaultsOptions,
    /// The stack's gate; ignored for [`System::Linux`].
    pub gate: Option<Gate>,
    pub length: Duration,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Throughput at the receiver within the measured time, in bytes a second.
    pub bytes_per_s: f64,
    /// Throughput in the second half of the measured time, in bytes a second.
    pub late_bytes_per_s: f64,
    /// Bytes transferred over the whole connection; for answers, those of the answers.
    pub bytes: u64,
    /// Wrong or missing bytes, pieces, and answers.
    pub wrong: u64,
    /// Latency of each answer in ns, sorted.
    pub latencies_ns: Vec<u64>,
    /// Counters of the peer's kernel over the connection.
    pub peer: BTreeMap<&'static str, u64>,
    pub sender: Sender,
    /// Connections of the stack that were given up or reset, and malformed frames.
    pub trouble: u64,
    pub faulted: Faulted,
    /// CPU time of the loop's thread as a share of its running time.
    pub loop_share: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sender {
    pub timeouts: f64,
    /// Retransmitted data divided by data sent once: payload bytes for the stack, segments for a kernel.
    pub retransmitted_share: f64,
}

impl Measured {
    pub fn round_trips_per_s(&self) -> f64 {
        let seconds = self.latencies_ns.iter().sum::<u64>() as f64 / 1e9;
        self.latencies_ns.len() as f64 / seconds.max(f64::MIN_POSITIVE)
    }

    /// A quantile of the answers' latencies, in µs; `None` without answers.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let last = self.latencies_ns.len().checked_sub(1)?;
        Some(self.latencies_ns[(share * last as f64).round() as usize] as f64 / 1000.0)
    }
}

pub(super) struct Site {
    /// The peer; one TAP interface leads to the stack, another one to the other kernel.
    peer: Host,
    /// The kernel in the stack's place.
    other: Host,
    /// The host of the loop.
    cable: Host,
    /// `None` while a measurement uses it, and after one that failed.
    to_stack: Option<Tap>,
    /// Both ends of the cable between kernels; `None` as for `to_stack`.
    to_other: Option<[Tap; 2]>,
    /// Congestion control of the stack and of both kernels.
    algorithm: Algorithm,
    steady: Steady,
    placement: String,
    lab: Lab,
}

impl Site {
    pub fn create(name: &str, setting: &Setting) -> Result<Site, Error> {
        let lab = Lab::new(name)?;
        let placement = setting.placement;
        let host = |name: &str, core| {
            let sysctls = SYSCTLS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
            lab.host(name, HostOptions { core: Some(core), sysctls, ..HostOptions::default() })
        };
        let (peer, other) = (host("peer", placement.clients)?, host("other", placement.clients)?);
        let cable = host("cable", placement.server)?;
        let to_stack =
            create_interface(&peer, System::Spillway.peer_interface(), System::Spillway.peer_address())?;
        let to_other = [
            create_interface(&peer, System::Linux.peer_interface(), System::Linux.peer_address())?,
            create_interface(&other, OTHER_INTERFACE, System::Linux.address())?,
        ];
        let algorithm = peer
            .run_inside(sockets::algorithm)?
            .map_err(system_error("cannot choose a congestion control"))?;
        let placement = format!(
            "programs of both kernels on core {}; the stack and its application, or the cable between kernels, on core {}",
            setting.placement.clients, setting.placement.server
        );
        Ok(Site {
            peer,
            other,
            cable,
            to_stack: Some(to_stack),
            to_other: Some(to_other),
            algorithm,
            steady: Steady::start(setting.idle_cores_poll),
            placement,
            lab,
        })
    }

    /// Describes the machine and the site. Fails if interfaces have different offloads.
    pub fn machine(&self) -> Result<Machine, Error> {
        let mut machine = Machine::here();
        let offloads_of =
            |host: &Host, interface: &str| -> Result<Offloads, Error> { Ok(host.offloads_of(interface)?) };
        let offloads = offloads_of(&self.peer, System::Spillway.peer_interface())?;
        let others = [
            offloads_of(&self.peer, System::Linux.peer_interface())?,
            offloads_of(&self.other, OTHER_INTERFACE)?,
        ];
        if others.iter().any(|other| *other != offloads) {
            return Err(Error::Usage(
                "the TAP interfaces have different offloads: their results cannot be compared".into(),
            ));
        }
        machine.offloads = format!("of all TAP interfaces: {offloads}");
        machine.lab.extend([
            ("placement".to_owned(), self.placement.clone()),
            ("mtu".into(), MTU.to_string()),
            ("congestion control".into(), format!("{}, of all", sockets::name_of(self.algorithm))),
            ("path, spillway".into(), "stack and application | TAP | kernel | program".into()),
            (
                "path, linux".into(),
                "program | kernel | TAP | cable: our loop | TAP | kernel | program".into(),
            ),
            ("window".into(), format!("at most {} KB, of the stack and of the kernels", GRANT_BYTES / 1024)),
            (
                "faults".into(),
                "in the loop, at the peer's TAP, by the same seeds, after the handshake".into(),
            ),
        ]);
        machine.lab.extend(self.steady.description());
        Ok(machine)
    }

    pub fn measure(&mut self, plan: &Plan) -> Result<Measured, Error> {
        stop::check()?;
        let before = self.counters(plan.system)?;
        let mut measured = match plan.system {
            System::Spillway => self.measure_stack(plan)?,
            System::Linux => self.measure_kernel(plan)?,
        };
        let after = self.counters(plan.system)?;
        let [peer, other] = [0, 1].map(|index| differences(&after[index], &before[index]));
        let kernel = match (plan.system, plan.work) {
            (_, Work::Receiving | Work::Answering) => Some(&peer),
            (System::Linux, Work::Sending) => Some(&other),
            (System::Spillway, Work::Sending) => None,
        };
        if let Some(kernel) = kernel {
            let count = |name: &str| kernel.get(name).copied().unwrap_or(0) as f64;
            measured.sender = Sender {
                timeouts: count("timeouts"),
                retransmitted_share: count("retransmissions") / count("segments").max(1.0),
            };
        }
        measured.peer = peer;
        Ok(measured)
    }

    fn measure_stack(&mut self, plan: &Plan) -> Result<Measured, Error> {
        let tap = self.to_stack.take().ok_or_else(interface_lost)?;
        let role = match plan.work {
            Work::Sending => Role::Source(plan.length),
            Work::Receiving => Role::Sink(plan.length),
            Work::Answering => Role::Echo,
        };
        let listener = SocketAddrV4::new(System::Spillway.address(), PORT);
        let running = Running::stack(&self.cable, tap, listener, self.algorithm, role, plan)?;
        let outcome = self.run_peer(plan, &running);
        let (tap, loop_result) = running.stop()?;
        self.to_stack = Some(tap);
        let mut measured = outcome.map_err(|error| describe(plan, error, &loop_result))?;
        if plan.work == Work::Sending {
            measured.wrong += measured.bytes.abs_diff(loop_result.sent);
            measured.sender = loop_result.sender;
        } else {
            measured.set_received(loop_result.received, plan);
        }
        measured.set_loop_use(&loop_result);
        Ok(measured)
    }

    fn measure_kernel(&mut self, plan: &Plan) -> Result<Measured, Error> {
        let taps = self.to_other.take().ok_or_else(interface_lost)?;
        let listener = self.other.run_inside(|| TcpListener::bind((System::Linux.address(), PORT)))?;
        let listener = listener.map_err(system_error("cannot listen at the other kernel"))?;
        let (work, length, algorithm) = (plan.work, plan.length, self.algorithm);
        let program = self.other.thread(move || {
            let (stream, _) = listener.accept()?;
            sockets::prepare(&stream, algorithm)?;
            Ok::<_, std::io::Error>(match work {
                Work::Sending => Stream { bytes: sockets::send(&stream, length)?, ..Stream::default() },
                Work::Receiving => sockets::receive(&stream, length)?,
                Work::Answering => Stream { bytes: sockets::echo(&stream)?, ..Stream::default() },
            })
        })?;
        let running = Running::cable(&self.cable, taps, plan)?;
        let outcome = self.run_peer(plan, &running);
        // After a success the program's connection has ended, so it returns. After a failure it may still wait for a
        // connection; closing the laboratory ends it.
        let other = match &outcome {
            Ok(_) => Some(
                program.join().map_err(|_| Error::process("a program of the other kernel", "it panicked"))?,
            ),
            Err(_) => None,
        };
        let (taps, loop_result) = running.stop()?;
        self.to_other = Some(taps);
        let mut measured = outcome.map_err(|error| describe(plan, error, &loop_result))?;
        if let Some(other) = other {
            let other = other?.map_err(system_error("the program of the other kernel"))?;
            match work {
                Work::Sending => measured.wrong += measured.bytes.abs_diff(other.bytes),
                Work::Receiving | Work::Answering => measured.set_received(other, plan),
            }
        }
        measured.set_loop_use(&loop_result);
        Ok(measured)
    }

    /// Runs the peer's program: connects, starts the faults, and does the peer's side of the work.
    fn run_peer<T>(&self, plan: &Plan, running: &Running<T>) -> std::io::Result<Measured> {
        let target = SocketAddr::from((plan.system.address(), PORT));
        let outcome = self.peer.run_inside(|| {
            let stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
            sockets::prepare(&stream, self.algorithm)?;
            running.begin_faults();
            let mut measured = Measured::default();
            match plan.work {
                Work::Sending => {
                    let received = sockets::receive(&stream, plan.length)?;
                    measured.set_received(received, plan);
                }
                Work::Receiving => measured.bytes = sockets::send(&stream, plan.length)?,
                Work::Answering => {
                    let (latencies_ns, wrong) = sockets::request(&stream, plan.length)?;
                    measured.bytes = (latencies_ns.len() * sockets::MESSAGE_BYTES) as u64;
                    (measured.latencies_ns, measured.wrong) = (latencies_ns, wrong);
                    measured.latencies_ns.sort_unstable();
                }
            }
            Ok(measured)
        });
        outcome.map_err(std::io::Error::other)?
    }

    fn counters(&self, system: System) -> Result<[BTreeMap<String, u64>; 2], Error> {
        let other = if system == System::Linux { self.other.tcp_counters()? } else { BTreeMap::new() };
        Ok([self.peer.tcp_counters()?, other])
    }

    pub fn close(self) -> Result<(), Error> {
        drop((self.to_stack, self.to_other, self.steady));
        Ok(self.lab.close()?)
    }
}

impl Measured {
    /// Adopts the receiving end's counts, and compares its bytes with the sent bytes if these are known.
    fn set_received(&mut self, stream: Stream, plan: &Plan) {
        self.wrong += stream.wrong;
        if plan.work == Work::Sending {
            self.bytes = stream.bytes;
        } else {
            self.wrong += self.bytes.abs_diff(stream.bytes);
        }
        let seconds = plan.length.as_secs_f64();
        self.bytes_per_s = stream.counted as f64 / seconds;
        self.late_bytes_per_s = stream.late as f64 / (seconds / 2.0);
    }

    fn set_loop_use(&mut self, result: &LoopResult) {
        (self.faulted, self.loop_share, self.trouble) = (result.faulted, result.loop_share, result.trouble);
    }
}

fn differences(after: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<&'static str, u64> {
    let value = |counters: &BTreeMap<String, u64>, counter: &str| counters.get(counter).copied().unwrap_or(0);
    COUNTERS
        .iter()
        .map(|(name, counter)| (*name, value(after, counter).saturating_sub(value(before, counter))))
        .collect()
}

/// Creates a TAP interface on a host, with an address and up. The returned handle is its other end.
fn create_interface(host: &Host, name: &str, address: Ipv4Addr) -> Result<Tap, Error> {
    let tap = host.run_inside(|| Tap::open(name))?.map_err(|error| Error::Usage(error.to_string()))?;
    run_command(host, &["ip", "addr", "add", &format!("{address}/24"), "dev", name])?;
    run_command(host, &["ip", "link", "set", name, "mtu", &MTU.to_string(), "up"])?;
    Ok(tap)
}

fn run_command(host: &Host, arguments: &[&str]) -> Result<(), Error> {
    let mut process = host.spawn(&Launch::new(arguments[0]).args(&arguments[1..]))?;
    match process.wait(TIMEOUT) {
        Some(status) if status.success() => Ok(()),
        _ => Err(Error::process(format!("{} failed", arguments.join(" ")), process.last_output())),
    }
}

fn interface_lost() -> Error {
    Error::Usage("an interface was lost by a measurement that failed: run the experiment again".into())
}

fn system_error(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |cause| Error::System { what: what.into(), cause }
}

fn describe(plan: &Plan, error: std::io::Error, result: &LoopResult) -> Error {
    Error::process(format!("{plan:?}: {error}"), format!("{result:?}"))
}
