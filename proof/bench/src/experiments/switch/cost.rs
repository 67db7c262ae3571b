//! Time of a packet and of a control message in the switch's program, and what it costs between hosts.
//!
//! **Runs of the program.** The kernel runs the program on single frames (`BPF_PROG_TEST_RUN`, repeat 1: most runs rewrite
//! the frame) and measures each run. Figures are medians of a round's runs. They include a reading of the kernel's clock
//! and the first misses of caches after a system call, which a stream of packets does not have. A program that only
//! returns, and the laboratory's hub program, are measured in the same rounds; `…_above_return` is what is left without the
//! first of them.
//!
//! **Tags.** A message is verified under its sender's key, and its answer or relayed copy tagged under the receiver's. The
//! program has no switch that turns tags off, so `…_without_tags` is a difference: a message with a wrong tag and a
//! datagram without the magic take the same path up to the tag, and differ by the look-up of a key and one tag. Twice this
//! difference is subtracted.
//!
//! **Round trips and transfers** run between hosts with real sockets. The daemon is a process in the switch's namespace that
//! has the same rules in Rust and a socket; the program passes its datagrams to the kernel.

mod answering;
mod bed;
mod bulk;
mod echo;
mod findings;
mod frames;
mod program;
mod site;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use spillway_lab::HostCpu;

use crate::error::Error;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line, spoilt_suffix};
use crate::experiments::{Options, selects};
use crate::machine::Machine;
use crate::measure::{Snapshot, disturbed, measure_until_valid, stopped};
use crate::results::{Check, Results};
use crate::scene::Setting;
use crate::stats::median;
use crate::steady::Steady;

use bulk::Transfer;
use program::{Programs, Work};
use site::{Joined, Site, Trip};

pub use answering::serve;

/// The parts that `--only` selects.
pub const PARTS: [&str; 3] = ["program", "round-trips", "throughput"];
const ATTEMPTS_MAX: u32 = 3;
/// Length of the first transfers, which are not counted: until windows and caches have their size.
const WARM_UP: Duration = Duration::from_millis(200);

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Runs of the program of each kind in a round.
    pub runs: usize,
    /// Round trips of each kind in a round.
    pub round_trips: usize,
    /// Length of a bulk transfer.
    pub transfer: Duration,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort { rounds: 21, runs: 5_000, round_trips: 5_000, transfer: Duration::from_secs(1) }
    }

    /// The effort of a quick run: about a minute.
    pub fn quick() -> Effort {
        Effort { rounds: 7, runs: 1_000, round_trips: 1_000, transfer: Duration::from_millis(400) }
    }
}

/// All rounds.
#[derive(Debug, Default)]
struct Measured {
    /// Time of a run, in ns.
    works: BTreeMap<Work, Rounds<f64>>,
    trips: BTreeMap<Trip, Rounds<Times>>,
    /// Transfers, in the order of [`Joined::ALL`].
    transfers: [Rounds<Transfer>; 4],
    /// Runs of the program whose result was compared.
    runs: u64,
    /// Round trips whose reply was compared.
    round_trips: u64,
    /// All transfers, spoilt ones included.
    sum: Transfer,
    offloads: Vec<String>,
}

/// Times of a round's round trips, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    median: f64,
    p99: f64,
}

impl Times {
    fn of(mut times: Vec<f64>) -> Times {
        times.sort_unstable_by(f64::total_cmp);
        let p99 = times.get(times.len() * 99 / 100).copied();
        Times { median: median(&times).unwrap_or(f64::NAN), p99: p99.unwrap_or(f64::NAN) }
    }
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, &options.only, out)
}

/// Runs some parts of the experiment, or all of them if `only` is empty, with a given effort.
pub fn run_with(
    setting: &Setting,
    effort: &Effort,
    only: &[String],
    out: &mut dyn Write,
) -> Result<Results, Error> {
    let steady = Steady::start(setting.idle_cores_poll);
    let mut machine = Machine::held(&steady);
    let mut measured = Measured::default();
    let mut outcome = Ok(());
    if selects(only, "program") {
        outcome = measure_program(&steady, effort, &mut measured, out);
    }
    let (trips, transfers) = (selects(only, "round-trips"), selects(only, "throughput"));
    if outcome.is_ok() && (trips || transfers) {
        outcome = Site::create(setting).and_then(|mut site| {
            site.describe(&mut machine)?;
            measured.offloads = site.offloads()?;
            if trips {
                measure_trips(&mut site, &steady, effort, &mut measured, out)?;
            }
            if transfers {
                measure_transfers(&mut site, &steady, effort, &mut measured, out)?;
            }
            site.close()
        });
    }
    let mut results = Results::new("switch-cost", machine);
    findings::add(&measured, &mut results);
    results.checks = measured.checks(outcome.is_ok());
    Ok(results.with_outcome(outcome))
}

fn measure_program(
    steady: &Steady,
    effort: &Effort,
    measured: &mut Measured,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let (all, mut programs) = (Work::all(), Programs::load()?);
    let outcome = measurement_order(effort.rounds, all.len()).try_for_each(|(round, index)| {
        let no_process = |_: &Programs| Ok(HostCpu::default());
        let measure = |programs: &mut Programs| programs.measure(all[index], effort.runs);
        let (times, spoilt) = watched(steady, &mut programs, no_process, measure)?;
        for (work, ns) in times {
            print_line(
                out,
                format_args!("round {}: {work}: {ns:.0} ns{}", round + 1, spoilt_suffix(spoilt.as_deref())),
            );
            measured.works.entry(work).or_default().push((ns, spoilt.clone()));
        }
        Ok(())
    });
    measured.runs = programs.runs();
    outcome
}

fn measure_trips(
    site: &mut Site,
    steady: &Steady,
    effort: &Effort,
    measured: &mut Measured,
    out: &mut dyn Write,
) -> Result<(), Error> {
    measurement_order(effort.rounds, Trip::ALL.len()).try_for_each(|(round, index)| {
        let trip = Trip::ALL[index];
        let measure = |site: &mut Site| site.round_trips(trip, effort.round_trips);
        let (times, spoilt) = watched(steady, site, Site::cpu, measure)?;
        measured.round_trips += times.len() as u64;
        let times = Times::of(times);
        print_line(
            out,
            format_args!(
                "round {}: {}: {:.1} µs, p99 {:.1}{}",
                round + 1,
                trip.name(),
                times.median,
                times.p99,
                spoilt_suffix(spoilt.as_deref())
            ),
        );
        measured.trips.entry(trip).or_default().push((times, spoilt));
        Ok(())
    })
}

fn measure_transfers(
    site: &mut Site,
    steady: &Steady,
    effort: &Effort,
    measured: &mut Measured,
    out: &mut dyn Write,
) -> Result<(), Error> {
    for joined in Joined::ALL {
        site.transfer(joined, WARM_UP)?;
    }
    measurement_order(effort.rounds, Joined::ALL.len()).try_for_each(|(round, index)| {
        let joined = Joined::ALL[index];
        let sum = &mut measured.sum;
        let (transfer, spoilt) = watched(steady, site, Site::cpu, |site| {
            let transfer = site.transfer(joined, effort.transfer)?;
            sum.sent += transfer.sent;
            sum.arrived += transfer.arrived;
            sum.wrong += transfer.wrong;
            Ok(transfer)
        })?;
        print_line(
            out,
            format_args!(
                "round {}: {}: {:.2} Gbit/s{}",
                round + 1,
                joined.name(),
                transfer.gbit_per_s(),
                spoilt_suffix(spoilt.as_deref())
            ),
        );
        measured.transfers[index].push((transfer, spoilt));
        Ok(())
    })
}

/// Measures until no other work on the machine disturbs. `cpu`: CPU time of the experiment's other processes.
fn watched<S, T>(
    steady: &Steady,
    subject: &mut S,
    cpu: impl Fn(&S) -> Result<HostCpu, Error>,
    mut measure: impl FnMut(&mut S) -> Result<T, Error>,
) -> Result<(T, Option<String>), Error> {
    let snapshot = |subject: &S| -> Result<Snapshot, Error> {
        let none = HostCpu::default();
        Ok(Snapshot::now(none, none, none, cpu(subject)?, steady.stalled()))
    };
    measure_until_valid(
        ATTEMPTS_MAX,
        || {
            let before = snapshot(subject)?;
            let value = measure(subject)?;
            let used = snapshot(subject)?.since(&before);
            Ok((value, disturbed(&used).or_else(|| stopped(&used))))
        },
        |(_, spoilt)| spoilt.is_none(),
    )
}

impl Measured {
    /// A wrong frame or reply is an error that ends the experiment, which is then incomplete.
    fn checks(&self, is_complete: bool) -> Vec<Check> {
        let mut checks = Vec::new();
        if is_complete {
            let detail = format!(
                "{} runs of the program and {} replies, each compared with what was expected",
                self.runs, self.round_trips
            );
            checks.push(Check::new("wrong", true, detail));
        }
        if self.sum.sent > 0 {
            let Transfer { sent, arrived, wrong, .. } = self.sum;
            let detail = format!("{arrived} bytes of {sent} arrived; {wrong} blocks with wrong bytes");
            checks.push(Check::new("transferred", self.sum.is_complete(), detail));
        }
        if let Some((first, others)) = self.offloads.split_first() {
            let is_equal = others.iter().all(|offloads| offloads == first);
            checks.push(Check::new("equal offloads", is_equal, self.offloads.join(" | ")));
        }
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_bytes_and_unequal_offloads_fail_the_checks() {
        let transfer = Transfer { sent: 10, arrived: 10, wrong: 0, time: Duration::from_secs(1) };
        let good = Measured { sum: transfer, offloads: vec!["tso off".into(); 4], ..Measured::default() };
        assert!(good.checks(true).iter().all(|check| check.ok) && good.checks(true).len() == 3);
        assert_eq!(
            good.checks(false).len(),
            2,
            "an incomplete run does not state that all results were right"
        );
        let mut bad = good;
        bad.sum.arrived = 9;
        bad.offloads[2] = "tso on".into();
        let failed = bad.checks(true).iter().filter(|check| !check.ok).count();
        assert_eq!(failed, 2);
    }

    #[test]
    fn times_are_those_of_the_middle_and_of_the_slow_end() {
        let times = Times::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((times.median, times.p99), (50.5, 100.0));
        assert!(Times::of(Vec::new()).median.is_nan());
    }
}
