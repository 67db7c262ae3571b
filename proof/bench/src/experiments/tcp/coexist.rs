//! Cost of a helper on the engine `xdp` for kernel sockets on the same interface. A kernel memcached serves
//! clients of its own, in these variants:
//!
//! - *no program*: the interface has no XDP program;
//! - *pass program*: a program passes every packet. This is the baseline: on a veth each packet is copied for
//!   any XDP program, so a difference from it is the steering program's own cost. Measured twice in each
//!   round (A/A);
//! - *idle helper*: the helper's program is attached, its link to a server on another host is up, and it has
//!   no clients;
//! - *loaded helper*: the helper serves its own clients from its own server. For comparison, the same load
//!   runs on a helper on kernel sockets with the pass program. The helper's work is on the same core and in
//!   the same quota, so these ratios include what any program with that load takes from memcached.
//!
//! All variants have the same offloads and the same memcached process. Each round measures every variant
//! once, in rotating order, and ratios compare within a round. Each variant has two figures:
//!
//! - *Throughput*: 50 connections in a closed loop, while a quota limits the shared host, interface and
//!   helper included. Thus the host is the limit and not its clients; a measurement that does not use up the
//!   quota is not valid. An idle helper's CPU time is in the quota too, where it counts for more than on a
//!   whole core (see `helper_percent`).
//! - *p99*: an open loop at a fixed rate, timed from the intended sending, without a quota: under a quota,
//!   the p99 would measure the times for which the quota stops the host.
//!
//! `kernel_cpu_…` compares the CPU time of memcached and of the interface for a request in the closed loop, without the
//! helper's process. It includes the receive work for a loaded helper, which shares the interface.

mod site;

use std::io::Write;
use std::time::Duration;

use spillway_lab::Quota;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line, spoilt_suffix};
use crate::goodput::Tally;
use crate::measure::{measure_until_valid, not_saturated, spoilt_by, stopped};
use crate::results::{Ratio, Results, Row, few};
use crate::scene::Setting;

use site::{Load, Sample, Site};

/// Minimum number of pairs for differences of a few percent.
const PAIRS_MIN: usize = 15;

/// A variant: what shares the interface with the kernel memcached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Beside {
    NoProgram,
    Pass,
    /// The pass program again.
    PassAgain,
    IdleHelper,
    LoadedHelper,
    /// A loaded helper on kernel sockets, and the pass program.
    LoadedSockets,
}

impl Beside {
    const ALL: [Beside; 6] = [
        Beside::NoProgram,
        Beside::Pass,
        Beside::IdleHelper,
        Beside::PassAgain,
        Beside::LoadedHelper,
        Beside::LoadedSockets,
    ];

    fn name(self) -> &'static str {
        match self {
            Beside::NoProgram => "no program",
            Beside::Pass => "pass program",
            Beside::PassAgain => "pass program again",
            Beside::IdleHelper => "idle helper on xdp",
            Beside::LoadedHelper => "loaded helper on xdp",
            Beside::LoadedSockets => "loaded helper on sockets, pass program",
        }
    }

    fn has_pass_program(self) -> bool {
        matches!(self, Beside::Pass | Beside::PassAgain | Beside::LoadedSockets)
    }

    fn has_program(self) -> bool {
        self != Beside::NoProgram
    }

    /// Whether the helper is on the engine xdp; `None` without a helper.
    fn helper_is_on_xdp(self) -> Option<bool> {
        match self {
            Beside::IdleHelper | Beside::LoadedHelper => Some(true),
            Beside::LoadedSockets => Some(false),
            Beside::NoProgram | Beside::Pass | Beside::PassAgain => None,
        }
    }

    fn is_loaded(self) -> bool {
        matches!(self, Beside::LoadedHelper | Beside::LoadedSockets)
    }
}

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds; each adds a pair to every comparison.
    pub rounds: usize,
    /// Quota of the shared host for throughput.
    pub quota: Quota,
    /// Requests a second for the p99.
    pub rate_per_s: f64,
    /// Requests a second of a loaded helper.
    pub helped_per_s: f64,
    /// Time with load before each measurement.
    pub settle: Duration,
    /// Length of each measurement.
    pub length: Duration,
    /// Maximum number of attempts at a spoilt measurement, the first included.
    pub attempts_max: u32,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            rounds: 16,
            quota: Quota { percent_of_core: 25.0, period: Duration::from_millis(10) },
            rate_per_s: 5_000.0,
            helped_per_s: 2_000.0,
            settle: Duration::from_millis(300),
            length: Duration::from_millis(2_000),
            attempts_max: 3,
        }
    }

    /// The effort of a quick run: below two minutes.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            settle: Duration::from_millis(200),
            length: Duration::from_millis(800),
            attempts_max: 1,
            ..Effort::full()
        }
    }
}

/// All rounds of one variant.
#[derive(Clone, Debug)]
struct Series {
    beside: Beside,
    closed: Rounds<Sample>,
    at_rate: Rounds<Sample>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let mut site = Site::create(setting)?;
    let machine = site.machine(effort.quota)?;
    let new = |beside| Series { beside, closed: Rounds::default(), at_rate: Rounds::default() };
    let mut all = Beside::ALL.map(new);
    let mut tally = Tally::default();
    let outcome = measurement_order(effort.rounds, all.len()).try_for_each(|(round, index)| {
        let beside = all[index].beside;
        let present = site.prepare(beside, effort.helped_per_s)?;
        let closed = measure(&site, Load::Closed(effort.quota), effort, &mut tally)?;
        let at_rate = measure(&site, Load::Rate(effort.rate_per_s), effort, &mut tally)?;
        tally.add(&site.end(present)?);
        print_round(out, round, beside, &closed, &at_rate);
        all[index].closed.push(closed);
        all[index].at_rate.push(at_rate);
        site.check()
    });
    let outcome = outcome.and_then(|()| site.close());
    let mut results = Results::new("coexist", machine);
    all.iter().for_each(|series| add_rows(series, effort, &mut results));
    add_ratios(&all, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

/// Measures until the result is valid. Returns the last result, and why it is not valid.
fn measure(
    site: &Site,
    load: Load,
    effort: &Effort,
    tally: &mut Tally,
) -> Result<(Sample, Option<String>), Error> {
    measure_until_valid(
        effort.attempts_max,
        || {
            let sample = site.measure(load, effort.settle, effort.length, tally)?;
            let spoilt = spoilt(&sample, load);
            Ok((sample, spoilt))
        },
        |(_, spoilt)| spoilt.is_none(),
    )
}

fn spoilt(sample: &Sample, load: Load) -> Option<String> {
    let Sample { step, .. } = sample;
    let (quota, lag_us) = match load {
        // In a closed loop requests have no due time that clients could lag behind.
        Load::Closed(quota) => (Some(quota), 0),
        Load::Rate(_) => (None, step.lag_p99_us),
    };
    spoilt_by(&step.used, lag_us).or_else(|| stopped(&step.used)).or_else(|| not_saturated(&step.used, quota))
}

fn add_rows(series: &Series, effort: &Effort, results: &mut Results) {
    let Series { beside, closed, at_rate } = series;
    let loaded = if beside.is_loaded() { effort.helped_per_s } else { 0.0 };
    let mut row = |rounds: &Rounds<Sample>,
                   metric: &str,
                   unit: &str,
                   value: &dyn Fn(&Sample) -> Option<f64>,
                   load: &str| {
        let values: Vec<f64> = rounds.valid().filter_map(value).collect();
        let row = Row::new(beside.name(), metric, unit, &values).param("load", load);
        results.rows.push(row.param("helped_per_s", loaded).note(rounds.left_out()));
    };
    row(closed, "kernel_throughput", "1/s", &|sample| Some(sample.served_per_s()), "closed loop, quota");
    row(closed, "kernel_cpu_us_per_request", "µs", &|sample| Some(sample.kernel_us()), "closed loop, quota");
    let rate = format!("{}/s", effort.rate_per_s);
    row(at_rate, "kernel_p50_us", "µs", &|sample| sample.quantile_us(0.5), &rate);
    row(at_rate, "kernel_p99_us", "µs", &|sample| sample.quantile_us(0.99), &rate);
    if beside.helper_is_on_xdp().is_some() {
        row(
            closed,
            "helper_percent",
            "% of a core",
            &|sample| Some(sample.helper_percent()),
            "closed loop, quota",
        );
        row(at_rate, "helper_percent", "% of a core", &|sample| Some(sample.helper_percent()), &rate);
    }
}

/// Comparisons: name, variant, reference variant, note.
const COMPARISONS: [(&str, Beside, Beside, &str); 6] = [
    ("with_over_without", Beside::IdleHelper, Beside::Pass, "idle helper on xdp over pass program"),
    ("a_over_a", Beside::PassAgain, Beside::Pass, "pass program over pass program: the noise"),
    ("pass_over_no_program", Beside::Pass, Beside::NoProgram, "what any program costs on a veth"),
    ("with_over_no_program", Beside::IdleHelper, Beside::NoProgram, "idle helper on xdp over no program"),
    (
        "with_load_over_without",
        Beside::LoadedHelper,
        Beside::Pass,
        "loaded helper on xdp over pass program; the helper's work is on the same core and in the same quota",
    ),
    (
        "with_load_over_sockets",
        Beside::LoadedHelper,
        Beside::LoadedSockets,
        "the same load on a helper on xdp over one on sockets with a pass program",
    ),
];

fn add_ratios(all: &[Series], effort: &Effort, results: &mut Results) {
    let find = |beside| all.iter().find(|series| series.beside == beside);
    for (name, with, without, what) in COMPARISONS {
        let (Some(with), Some(without)) = (find(with), find(without)) else { continue };
        let mut ratio = |figure: &str, with: Vec<Option<f64>>, without: Vec<Option<f64>>, note: &str| {
            let ratio = Ratio::paired(&format!("kernel_{figure}_{name}"), &with, &without);
            let too_few = few(ratio.runs, "pairs", PAIRS_MIN);
            results.ratios.push(ratio.void_if(too_few).note(format!("{what}{note}")));
        };
        let is_aim = name == "with_over_without";
        let expected = |text| if is_aim { text } else { "" };
        ratio(
            "throughput",
            with.closed.each(Sample::served_per_s),
            without.closed.each(Sample::served_per_s),
            expected("; expected ≥ 0.97"),
        );
        let p99 =
            |series: &Series| series.at_rate.each(|sample| sample.quantile_us(0.99).unwrap_or(f64::NAN));
        let at = format!("; at {}/s{}", effort.rate_per_s, expected(", expected ≤ 1.05"));
        ratio("p99", p99(with), p99(without), &at);
        ratio(
            "cpu",
            with.closed.each(Sample::kernel_us),
            without.closed.each(Sample::kernel_us),
            "; CPU time of memcached and interface for a request",
        );
    }
}

fn print_round(
    out: &mut dyn Write,
    round: usize,
    beside: Beside,
    (closed, closed_spoilt): &(Sample, Option<String>),
    (at_rate, rate_spoilt): &(Sample, Option<String>),
) {
    print_line(
        out,
        format_args!(
            "round {}: {}: {:.0}/s, {:.1} µs a request{}; p99 {:.0} µs{}; helper {:.2} and {:.2} % of a core",
            round + 1,
            beside.name(),
            closed.served_per_s(),
            closed.kernel_us(),
            spoilt_suffix(closed_spoilt.as_deref()),
            at_rate.quantile_us(0.99).unwrap_or(f64::NAN),
            spoilt_suffix(rate_spoilt.as_deref()),
            closed.helper_percent(),
            at_rate.helper_percent()
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::measure::{Step, Used};
    use crate::relief::Span;

    fn sample(served: u64, p99_us: u64) -> Sample {
        let mut span = Span { offered: served, served, ..Span::default() };
        span.latency_us.record(p99_us, served);
        let used = Used { seconds: 2.0, server_process_s: 0.3, server_interface_s: 0.2, ..Used::default() };
        Sample { step: Step { span, used, ..Step::default() }, memcached: Duration::from_millis(300) }
    }

    fn series(beside: Beside, rounds: usize, served: u64, p99_us: u64) -> Series {
        let all = || (0..rounds).map(|_| Some(sample(served, p99_us))).collect();
        Series { beside, closed: all(), at_rate: all() }
    }

    fn results(rounds: usize) -> Results {
        let all = [
            series(Beside::NoProgram, rounds, 12_000, 100),
            series(Beside::Pass, rounds, 10_000, 200),
            series(Beside::PassAgain, rounds, 10_000, 200),
            series(Beside::IdleHelper, rounds, 9_900, 210),
            series(Beside::LoadedHelper, rounds, 8_000, 240),
        ];
        let mut results = Results::new("coexist", Machine::default());
        all.iter().for_each(|series| add_rows(series, &Effort::full(), &mut results));
        add_ratios(&all, &Effort::full(), &mut results);
        results
    }

    #[test]
    fn the_pass_program_is_the_baseline() {
        let results = results(16);
        let ratio = |name: &str| results.ratios.iter().find(|ratio| ratio.name == name).unwrap();
        let median = |name: &str| (ratio(name).median.unwrap() * 100.0).round() / 100.0;
        assert_eq!(median("kernel_throughput_with_over_without"), 0.99);
        assert_eq!(median("kernel_p99_with_over_without"), 1.05);
        assert_eq!(median("kernel_cpu_with_over_without"), 1.01);
        assert_eq!(
            (median("kernel_throughput_a_over_a"), median("kernel_p99_pass_over_no_program")),
            (1.0, 2.0)
        );
        assert_eq!(median("kernel_throughput_with_load_over_without"), 0.8);
        assert!(ratio("kernel_p99_with_over_without").why.contains("expected ≤ 1.05"));
        assert!(!ratio("kernel_p99_a_over_a").why.contains("expected"));
        assert!(results.ratios.iter().all(|ratio| ratio.valid && !ratio.name.contains("sockets")));
        let helped = results.rows.iter().filter(|row| row.metric == "helper_percent").count();
        assert_eq!(helped, 2 * 2, "of two helpers, in two loads");
    }

    #[test]
    fn differences_of_a_few_percent_need_15_pairs() {
        assert!(
            results(14).ratios.iter().all(|ratio| !ratio.valid && ratio.why.contains("14 pairs, not 15"))
        );
        assert!(Effort::full().rounds >= PAIRS_MIN);
    }

    #[test]
    fn a_closed_loop_that_does_not_use_up_the_quota_is_spoilt() {
        let quota = Quota { percent_of_core: 25.0, period: Duration::from_millis(10) };
        assert_eq!(spoilt(&sample(100, 100), Load::Closed(quota)), None);
        let more = Quota { percent_of_core: 50.0, ..quota };
        assert!(spoilt(&sample(100, 100), Load::Closed(more)).is_some_and(|why| why.contains("50.0 %")));
        assert_eq!(spoilt(&sample(100, 100), Load::Rate(5_000.0)), None);
    }

    #[test]
    fn a_helper_on_xdp_brings_its_own_program() {
        for beside in Beside::ALL {
            let on_xdp = beside.helper_is_on_xdp() == Some(true);
            assert_eq!(beside.has_program(), beside.has_pass_program() || on_xdp, "{beside:?}");
            assert!(!beside.is_loaded() || beside.helper_is_on_xdp().is_some());
        }
    }
}
