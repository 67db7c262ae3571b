//! Alternatives to a helper in a burst: data migration as the paper emulates it, and a server that gets the helper's
//! CPU time. Also clients that measure the latency of the direct port while a helper serves all other clients.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_lab::{Host, LabError, Launch, Output, Process, Quota};
use spillway_load::Report;

use super::{Course, RAMP_S, ROUNDS, Series, spoilt};
use crate::error::Error;
use crate::generator::{BIN_REPORT_DELAY, Clients, Generators, Order};
use crate::measure::{Snapshot, Used, stopped};
use crate::relief::{self, Span};
use crate::scenario::{self, Plan};
use crate::scene::{Scene, System};
use crate::stats::median;

/// The paper copies 6.4 GB, a tenth of the data, from a server with 16 hardware threads. Our server has a tenth of one
/// thread, so the volume is divided by the same factor, 160.
pub(super) const COPIED_BYTES: u64 = 40_000_000;
/// Rate of the burst, as a multiple of the direct capacity. A migration leaves half of the clients on the server: half
/// of this rate must be below the capacity, or migration could not help.
pub(super) const BURST_TIMES: f64 = 1.6;
const RUNS: usize = 3;
const LIGHT_MS: u64 = 2_000;
/// Time from the start of the burst to the decision.
const OVERLOAD_MS: u64 = 3_000;
/// Time measured after the decision or, with a migration, after the end of the copy.
const AFTER_MS: u64 = 6_000;
const COPY_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of clients of [`Probe`], and requests per second of all these clients together.
const PROBE: (u32, f64) = (20, 100.0);

/// A burst that data migration or a helper relieved.
#[derive(Clone, Debug, Default)]
pub(super) struct Migration {
    pub helped: bool,
    pub copy_ms: Option<f64>,
    /// Time from the decision until the SLA was kept, in ms.
    pub relief_ms: Option<u64>,
    /// Latencies from the decision to the end of the copy; for helped runs, over the median duration of the copies.
    pub during: Span,
    /// Latencies in the overload before the decision.
    pub before: Span,
    /// Why the run is not valid.
    pub spoilt: Vec<String>,
}

/// Clients that measure the direct port while other clients are helped.
pub(super) struct Probe {
    generators: Generators,
}

impl Probe {
    pub(super) fn start(scene: &Scene) -> Result<Probe, Error> {
        let (connections, rate_per_s) = PROBE;
        let clients = Clients { connections, rate_per_s, ..scene.clients(System::Shimmed) };
        let mut generators = scene.start_probe(&clients)?;
        generators.begin()?;
        Ok(Probe { generators })
    }

    /// Stops the probe's clients. Returns their latencies in the part of the burst that the helper served, and their
    /// whole report.
    pub(super) fn finish(self, run: &scenario::BurstRun) -> Result<(Span, Report), Error> {
        let zero_ns = self.generators.zero_ns();
        let report = self.generators.finish()?;
        // The probe started before the clients of the burst, and each report counts time from its own start.
        let later_ms = run.report.zero_monotonic_ns.saturating_sub(zero_ns) / 1_000_000;
        let (from_ms, to_ms) = run.relieved();
        Ok((Span::of(&report.bins, from_ms + later_ms, to_ms + later_ms), report))
    }
}

impl Course<'_> {
    /// Measures bursts that data migration relieves, and the same bursts with a helper.
    pub(super) fn measure_migrations(&mut self, scene: &mut Scene) -> Result<(), Error> {
        if self.quick {
            self.measured.left_out.push("nutcracker and data migration (--quick)".into());
            return Ok(());
        }
        for run in 0..RUNS {
            for helped in [run % 2 == 1, run % 2 == 0] {
                let migration =
                    if helped { self.run_with_helper(scene)? } else { self.run_with_migration(scene)? };
                let ms_text = |ms: Option<f64>| ms.map_or("never".into(), |ms| format!("{ms:.0} ms"));
                let copying = if helped {
                    "helped".into()
                } else {
                    format!("copied in {}", ms_text(migration.copy_ms))
                };
                let relief = ms_text(migration.relief_ms.map(|ms| ms as f64));
                let why = spoilt(&migration.spoilt);
                let _ = writeln!(
                    self.out,
                    "burst of {BURST_TIMES} × capacity: {copying}; under the SLA after {relief}{why}"
                );
                self.measured.migrations.push(migration);
            }
        }
        Ok(())
    }

    /// Ramps the server without a helper, but with the CPU time that the helper used at its goodput.
    pub(super) fn measure_iso_cpu(&mut self, scene: &mut Scene) -> Result<(), Error> {
        if self.quick {
            self.measured.left_out.push("iso-CPU (--quick)".into());
            return Ok(());
        }
        let Some(quota) = scene.setting().quota else { return Ok(()) };
        let sla_us = self.measured.calibration.sla_us;
        let helped = self.measured.series.iter().find(|s| {
            s.system == System::Helped && s.sla_us == sla_us && !s.has_burner && s.iso_percent.is_none()
        });
        let best_steps =
            helped.map(|series| series.rounds.iter().flatten().filter_map(|ramped| ramped.best.as_ref()));
        let percents: Vec<f64> =
            best_steps.into_iter().flatten().map(|step| step.used.percent(step.used.helper_s)).collect();
        let Some(helper_percent) = median(&percents) else {
            self.measured.left_out.push("iso-CPU (the helper's CPU time was not measured)".into());
            return Ok(());
        };
        let iso = Quota { percent_of_core: quota.percent_of_core + helper_percent, ..quota };
        let _ = writeln!(
            self.out,
            "iso-CPU: the server has {:.0} % of a core and no helper",
            iso.percent_of_core
        );
        scene.set_quota(Some(iso))?;
        let index = self.measured.series.len();
        self.measured.series.push(Series {
            system: System::Plain,
            sla_us,
            max_delay: Duration::ZERO,
            has_burner: false,
            is_repetition: false,
            iso_percent: Some(iso.percent_of_core),
            rounds: Vec::new(),
        });
        for round in 0..ROUNDS {
            let ramped = if self.has_time_for(RAMP_S) { Some(self.run_ramp(scene, index)?) } else { None };
            self.print_round(index, round, ramped.as_ref());
            self.measured.series[index].rounds.push(ramped);
        }
        scene.set_quota(Some(quota))
    }

    /// Runs a burst, and copies data from the server's host; half of the clients leave when the copy is complete.
    fn run_with_migration(&mut self, scene: &mut Scene) -> Result<Migration, Error> {
        let (capacity, sla_us) = (self.measured.calibration.direct_per_s, self.measured.calibration.sla_us);
        let clients = scene.clients(System::Plain);
        let half = Clients { connections: clients.connections / 2, ..clients };
        let mut staying = scene.start_on(0, &half)?;
        let mut leaving = scene.start_on(1, &half)?;
        for generators in [&mut staying, &mut leaving] {
            generators.begin()?;
            generators.order(&Order::Rate(capacity / 6.0))?;
        }
        staying.sleep_until_ms(LIGHT_MS);
        for generators in [&mut staying, &mut leaving] {
            generators.order(&Order::Rate(BURST_TIMES * capacity / 2.0))?;
        }
        let decision_ms = LIGHT_MS + OVERLOAD_MS;
        staying.sleep_until_ms(decision_ms);
        let before = scene.snapshot()?;
        let copy = Copy::start(scene)?;
        let copied = copy.wait(&staying)?;
        let copied_at_ms = staying.now_ms();
        // From now on, half of the clients would use the copy on another server. The laboratory has no such server, so
        // these clients stop.
        self.measured.tally.add_report(&leaving.finish()?);
        let end_ms = copied_at_ms.max(decision_ms) + AFTER_MS;
        staying.sleep_until_ms(end_ms);
        let spoilt = stalls(scene, &before)?;
        std::thread::sleep(BIN_REPORT_DELAY);
        let report = staying.finish()?;
        self.measured.tally.add_report(&report);
        Ok(Migration {
            helped: false,
            copy_ms: Some(copied.as_secs_f64() * 1000.0),
            relief_ms: relief::relief_ms(&report.bins, decision_ms, end_ms, sla_us),
            during: Span::of(&report.bins, decision_ms, copied_at_ms),
            before: Span::of(&report.bins, LIGHT_MS + OVERLOAD_MS / 2, decision_ms),
            spoilt,
        })
    }

    /// Runs the same burst with a helper.
    fn run_with_helper(&mut self, scene: &mut Scene) -> Result<Migration, Error> {
        let (capacity, sla_us) = (self.measured.calibration.direct_per_s, self.measured.calibration.sla_us);
        let plan = Plan::new(capacity, LIGHT_MS / 1000, OVERLOAD_MS / 1000, AFTER_MS / 1000, 2);
        let plan = Plan { burst_per_s: BURST_TIMES * capacity, ..plan };
        let run = scenario::run(scene, plan, sla_us, &mut |_| {})?;
        self.measured.tally.add_report(&run.report);
        let copies = self.measured.migrations.iter().filter_map(|migration| migration.copy_ms);
        let copy_duration_ms = median(&copies.collect::<Vec<_>>()).map_or(1_000, |ms| ms as u64);
        let used = run.between(plan.decision_ms, plan.over_ms).0;
        Ok(Migration {
            helped: true,
            copy_ms: None,
            relief_ms: run.relief_ms(),
            during: run.span((plan.decision_ms, (plan.decision_ms + copy_duration_ms).min(plan.over_ms))),
            before: run.span((plan.burst_ms + OVERLOAD_MS / 2, plan.decision_ms)),
            spoilt: stopped(&used).into_iter().collect(),
        })
    }
}

fn stalls(scene: &Scene, since: &Snapshot) -> Result<Vec<String>, Error> {
    let used: Used = scene.snapshot()?.since(since);
    Ok(stopped(&used).into_iter().collect())
}

/// A process on the server's host, within the server's quota, that sends dummy data to another host. As in the paper,
/// the process does not read the data from the server's memory; this favours migration.
struct Copy {
    sender: Process,
    receiver: Receiver,
    started_at: Instant,
}

impl Copy {
    fn start(scene: &Scene) -> Result<Copy, Error> {
        let (receiver_address, receiver) = receive(scene.helper_host())?;
        let script = format!(
            "exec head -c {COPIED_BYTES} /dev/zero > /dev/tcp/{}/{}",
            receiver_address.ip(),
            receiver_address.port()
        );
        let launch = Launch::new("bash").name("copy").args(["-c", &script]).output(Output::Files);
        let started_at = Instant::now();
        let sender = scene.server_host().spawn(&launch)?;
        Ok(Copy { sender, receiver, started_at })
    }

    /// Waits for the end of the copy and returns its duration.
    fn wait(mut self, clients: &Generators) -> Result<Duration, Error> {
        while !self.receiver.is_finished() {
            clients.check()?;
            std::thread::sleep(Duration::from_millis(2));
        }
        let duration = self.started_at.elapsed();
        self.sender.kill();
        let printed = self.sender.last_output();
        let received =
            self.receiver.join().map_err(|_| Error::process("the receiver of copied data panicked", ""))?;
        match received? {
            Ok(COPIED_BYTES) => Ok(duration),
            Ok(bytes) => Err(Error::process(format!("only {bytes} bytes were copied"), printed)),
            Err(cause) => Err(Error::System { what: "cannot receive copied data".into(), cause }),
        }
    }
}

/// A thread on a host that returns the number of received bytes.
type Receiver = JoinHandle<Result<io::Result<u64>, LabError>>;

/// Listens on a host, accepts one connection, and counts the received bytes.
fn receive(host: &Host) -> Result<(SocketAddr, Receiver), Error> {
    let failure = |cause| Error::System { what: "cannot listen for copied data".into(), cause };
    let listener = host.run_inside(|| TcpListener::bind((host.address(), 0)))?.map_err(failure)?;
    let address = listener.local_addr().map_err(failure)?;
    listener.set_nonblocking(true).map_err(failure)?;
    let count = move || {
        let deadline = Instant::now() + COPY_TIMEOUT;
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(e),
            }
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(COPY_TIMEOUT))?;
        let (mut buffer, mut total) = (vec![0; 256 << 10], 0);
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(total),
                Ok(bytes) => total += bytes as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    };
    Ok((address, host.thread(count)?))
}
