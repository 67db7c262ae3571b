//! The host of the engine with its two cables, a TAP interface and a veth, and one measurement on one of them.
//!
//! At the far end of either cable is an AF_XDP socket of the network, in its own thread on another core, so
//! neither cable involves the kernel's TCP.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_bpf::{AddressRule, Mode};
use spillway_lab::{Host, HostCpu, HostOptions, Lab, LabError, LabOptions, Launch};
use spillway_transport::Transport;
use spillway_xdp::{Adapter, Crossing, Device, Hosted, Queues, SocketOptions, Tap};

use super::network::{self, Network, Pace, Seen};
use super::paths::{Path, Reflect, ReflectAndCross};
use super::turns::{self, Crossed, Receiver, Signals, Used, Window};
use crate::error::Error;
use crate::experiments::common::script::{CLIENT_IP, MTU, PORT, STACK_IP};
use crate::experiments::tcp::stack::{EchoApplication, SERVER, relay, stack};
use crate::machine::Machine;
use crate::measure::{Snapshot, disturbed, stopped};
use crate::scene::Setting;
use crate::steady::Steady;
use crate::stop;

/// The kernel's end of the TAP interface.
const TAP: &str = "spw0";
/// Share of a fixed rate that must be reached.
const RATE_SHARE_MIN: f64 = 0.97;
/// Timeout of each command of the setup.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The kind of cable between the engine and the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wire {
    Tap,
    AfXdp,
}

impl Wire {
    pub fn name(self) -> &'static str {
        match self {
            Wire::Tap => "tap",
            Wire::AfXdp => "af_xdp",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plan {
    pub wire: Wire,
    pub path: Path,
    pub clients: usize,
    pub pace: Pace,
    pub window: Window,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    pub used: Used,
    pub seen: Seen,
    /// The other thread of [`Path::Crossing`], over the whole run.
    pub crossed: Option<Crossed>,
    /// Why the measurement is not valid.
    pub spoilt: Option<String>,
}

/// Both ends of a cable: the engine's device and the network's.
type Ends<D> = (D, Queues);

pub(super) struct Site {
    host: Host,
    /// `None` while a measurement uses it, and after one that failed.
    tap: Option<Ends<Tap>>,
    /// `None` as for `tap`.
    veth: Option<Ends<Queues>>,
    /// Programs at both ends of the veth and at the kernel's end of the TAP interface, and whether they run in the driver.
    adapters: [Adapter; 3],
    steady: Steady,
    placement: String,
    lab: Lab,
}

impl Site {
    pub fn create(setting: &Setting) -> Result<Site, Error> {
        let placement = setting.placement;
        let options = LabOptions { bridge_core: Some(placement.bridge), ..LabOptions::default() };
        let lab = Lab::with_options("engine", options)?;
        // Like a helper's host: receive work runs before processes, and packets have complete checksums.
        let options = HostOptions {
            core: Some(placement.helper),
            receive_first: true,
            tx_checksums: false,
            ..HostOptions::default()
        };
        let host = lab.host("engine", options)?;
        let tap = host.run_inside(|| Tap::open(TAP))?.map_err(|error| Error::Usage(error.to_string()))?;
        run_command(&host, &["ip", "link", "set", TAP, "mtu", &MTU.to_string(), "up"])?;
        let network_addresses = [IpAddr::from(CLIENT_IP), IpAddr::from(*SERVER.ip())];
        let mut at_tap = host.run_inside(|| open(TAP, &network_addresses))??;
        let interface = host.interface().to_owned();
        let mut at_engine = host.run_inside(|| open(&interface, &[STACK_IP.into()]))??;
        host.pin_and_account_interface()?;
        let far = host.far_interface().to_owned();
        let thread = host.far_thread(move || open(&far, &network_addresses))?;
        let mut at_network = thread.join().map_err(|_| Error::process("the far end", "it panicked"))???;
        host.pin_and_account_far_interface()?;
        let ends = |adapter: &mut Adapter| Queues::new(adapter.take_sockets());
        Ok(Site {
            tap: Some((tap, ends(&mut at_tap))),
            veth: Some((ends(&mut at_engine), ends(&mut at_network))),
            adapters: [at_engine, at_network, at_tap],
            host,
            steady: Steady::start(setting.idle_cores_poll),
            placement: format!(
                "the engine and its interface's receive thread on core {}, the network on core {}",
                placement.helper, placement.bridge
            ),
            lab,
        })
    }

    pub fn machine(&self) -> Result<Machine, Error> {
        let mut machine = Machine::here();
        machine.offloads = self.host.offloads()?.to_string();
        let modes = self.adapters.each_ref().map(|adapter| match adapter.mode() {
            Mode::Native => "native",
            Mode::Generic => "generic",
        });
        machine.lab.extend([
            ("placement".to_owned(), self.placement.clone()),
            (
                "programs".into(),
                format!(
                    "{} at the engine's end of the veth, {} at its far end, {} at the TAP interface; frames are copied",
                    modes[0], modes[1], modes[2]
                ),
            ),
            ("path, af_xdp".into(), "engine | AF_XDP | veth | AF_XDP | network".into()),
            ("path, tap".into(), "engine | TAP | AF_XDP | network".into()),
            ("link".into(), "encrypted (link version 4, AES-256-GCM), batches of one turn".into()),
        ]);
        machine.lab.extend(self.steady.description());
        Ok(machine)
    }

    pub fn measure(&mut self, plan: &Plan) -> Result<Measured, Error> {
        stop::check()?;
        let before = self.snapshot()?;
        let mut measured = match plan.wire {
            Wire::Tap => {
                let ends = self.tap.take().ok_or_else(cable_lost)?;
                let (ends, measured) = self.run(plan, ends)?;
                self.tap = Some(ends);
                measured
            }
            Wire::AfXdp => {
                let ends = self.veth.take().ok_or_else(cable_lost)?;
                let (ends, measured) = self.run(plan, ends)?;
                self.veth = Some(ends);
                measured
            }
        };
        let used = self.snapshot()?.since(&before);
        measured.spoilt =
            disturbed(&used).or_else(|| stopped(&used)).or_else(|| missed_rate(plan.pace, &measured.used));
        Ok(measured)
    }

    fn snapshot(&self) -> Result<Snapshot, Error> {
        let (host, bridge, none) = (self.host.cpu()?, self.lab.bridge_cpu()?, HostCpu::default());
        Ok(Snapshot::now(host, none, none, bridge, self.steady.stalled()))
    }

    fn run<D: Device + Send + 'static>(
        &self,
        plan: &Plan,
        (mut near, mut far): Ends<D>,
    ) -> Result<(Ends<D>, Measured), Error> {
        drain(&mut near).and_then(|()| drain(&mut far)).map_err(system_error("a device"))?;
        let signals = Arc::new(Signals::new().map_err(system_error("an eventfd"))?);
        let network = Network::new(plan.path, plan.clients, plan.pace)
            .map_err(|why| Error::process("the network", why))?;
        let (plan, host, shared) = (*plan, self.host.clone(), Arc::clone(&signals));
        let engine = self.host.thread(move || {
            let outcome = run_engine(near, &plan, &host, &shared);
            // Stop the network, too, if the engine fails.
            shared.stop.set();
            outcome
        })?;
        let shared = Arc::clone(&signals);
        let network = self.host.far_thread(move || network::run(far, network, &shared));
        if network.is_err() {
            signals.stop.set();
        }
        let network = network.map(|thread| joined(thread, "the network"));
        let (near, used, crossed) = joined(engine, "the engine")?;
        let (far, seen) = network??;
        let used = match used {
            Some(used) => used,
            // Lost requests are a result, and stop the run.
            None if seen.lost > 0 => Used::default(),
            None => return Err(Error::process("the engine", "it ended before the measurement did")),
        };
        Ok(((near, far), Measured { used, seen, crossed, spoilt: None }))
    }

    pub fn close(self) -> Result<(), Error> {
        drop((self.tap, self.veth, self.adapters, self.steady));
        Ok(self.lab.close()?)
    }
}

fn run_engine<D: Device>(
    device: D,
    plan: &Plan,
    host: &Host,
    signals: &Signals,
) -> io::Result<(D, Option<Used>, Option<Crossed>)> {
    match plan.path {
        Path::Driver => {
            let (device, used) = turns::run(device, Reflect::default(), host, plan.window, signals)?;
            Ok((device, used, None))
        }
        Path::Crossing => {
            // Assigns the clients' port to the second thread, so that every request crosses.
            let ends = Crossing::between(2, &(PORT - 1..=PORT))?;
            let [(first, _), (second, _)] =
                <[_; 2]>::try_from(ends).map_err(|_| io::Error::other("two ends"))?;
            let receiver = Receiver::start(host, second)?;
            let endpoint = ReflectAndCross { reflect: Reflect::default(), crossing: first };
            let outcome = turns::run(device, endpoint, host, plan.window, signals);
            let crossed = receiver.stop()?;
            let (device, used) = outcome?;
            Ok((device, used, Some(crossed)))
        }
        Path::Stack => {
            let mut stack = stack(false).map_err(io::Error::other)?;
            stack.set_listening(0, true);
            let endpoint = Hosted { stack, application: EchoApplication };
            let (device, used) = turns::run(device, endpoint, host, plan.window, signals)?;
            Ok((device, used, None))
        }
        Path::Relay => {
            let (stack, application) =
                (stack(false).map_err(io::Error::other)?, relay().map_err(io::Error::other)?);
            let (device, used) =
                turns::run(device, Hosted { stack, application }, host, plan.window, signals)?;
            Ok((device, used, None))
        }
    }
}

/// Why a measurement is not valid: clients at a fixed rate did not reach that rate.
fn missed_rate(pace: Pace, used: &Used) -> Option<String> {
    let Pace::Rate(per_s) = pace else { return None };
    let reached = used.counts.requests as f64 / used.wall.as_secs_f64();
    (reached < RATE_SHARE_MIN * per_s).then(|| format!("{reached:.0} instead of {per_s} requests a second"))
}

fn joined<T>(thread: JoinHandle<Result<io::Result<T>, LabError>>, what: &'static str) -> Result<T, Error> {
    let outcome = thread.join().map_err(|_| Error::process(what, "it panicked"))?;
    outcome?.map_err(system_error(what))
}

/// Opens AF_XDP sockets in the calling thread's namespace, for all packets to these addresses and for ARP.
fn open(interface: &str, addresses: &[IpAddr]) -> Result<Adapter, Error> {
    let rule = AddressRule { ports: None, is_separate: true };
    let adapter = Adapter::open(interface, SocketOptions::default(), |steer| {
        addresses.iter().try_for_each(|address| steer.set_address(*address, &rule))
    });
    adapter.map_err(|error| Error::Usage(error.to_string()))
}

/// Discards frames of an earlier measurement.
fn drain(device: &mut impl Device) -> io::Result<()> {
    while device.receive()?.is_some() {}
    Ok(())
}

fn run_command(host: &Host, arguments: &[&str]) -> Result<(), Error> {
    let mut process = host.spawn(&Launch::new(arguments[0]).args(&arguments[1..]))?;
    match process.wait(TIMEOUT) {
        Some(status) if status.success() => Ok(()),
        _ => Err(Error::process(format!("{} failed", arguments.join(" ")), process.last_output())),
    }
}

fn cable_lost() -> Error {
    Error::Usage("a cable was lost by a measurement that failed: run the experiment again".into())
}

fn system_error(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error::System { what: what.into(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::tcp::engine::clocked::TurnCounts;

    #[test]
    fn a_rate_that_was_not_reached_spoils_a_measurement() {
        let counts = TurnCounts { requests: 980, ..TurnCounts::default() };
        let used = Used { wall: Duration::from_millis(100), counts, ..Used::default() };
        assert_eq!(missed_rate(Pace::Rate(10_000.0), &used), None);
        assert_eq!(missed_rate(Pace::Bursts, &used), None);
        let why = missed_rate(Pace::Rate(30_000.0), &used).unwrap();
        assert!(why.contains("9800 instead of 30000"), "{why}");
    }
}
