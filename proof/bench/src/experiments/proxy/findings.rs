//! Rows and ratios of the experiments `proxy` and `proxy-latency`.

use std::collections::BTreeMap;

use super::case::{Case, Kind, Load, System};
use super::measure::Figures;
use super::{Effort, KIB, Measured};
use crate::results::{Ratio, Results, Row};

/// Size of the objects of ratios.
const RATIO_BYTES: u32 = 256 * KIB;
/// A frontend is the limit if it used at least this share of its quota, in percent.
const SATURATED_PERCENT: f64 = 95.0;

/// A figure of a measurement.
type Value = fn(&Figures) -> f64;

const RATES: [(&str, &str, Value); 2] =
    [("requests_per_s", "1/s", Figures::requests_per_s), ("mb_per_s", "MB/s", Figures::mb_per_s)];
const COSTS: [(&str, &str, Value); 6] = [
    ("frontend_cpu_us_per_request", "µs", |figures| figures.us_per_request(figures.frontend_s())),
    ("frontend_interface_us_per_request", "µs", |figures| {
        figures.us_per_request(figures.frontend_interface_s)
    }),
    ("frontend_cpu_ms_per_gb", "ms/GB", |figures| figures.ms_per_gb(figures.frontend_s())),
    ("backends_cpu_us_per_request", "µs", |figures| figures.us_per_request(figures.backends_s)),
    ("switch_cpu_us_per_request", "µs", |figures| figures.us_per_request(figures.switch_s)),
    ("all_cpu_us_per_request", "µs", |figures| {
        figures.us_per_request(figures.frontend_s() + figures.backends_s + figures.switch_s)
    }),
];
const LATENCIES: [(&str, &str, Value); 3] = [
    ("p50_us", "µs", |figures| figures.p50_us),
    ("p90_us", "µs", |figures| figures.p90_us),
    ("p99_us", "µs", |figures| figures.p99_us),
];

/// Adds all rows and ratios.
pub(super) fn add(measured: &Measured, effort: &Effort, systems: &[System], results: &mut Results) {
    for case in measured.cases.keys() {
        add_case(measured, effort, *case, results);
    }
    let Some(backends) = effort.backends.last().copied() else { return };
    for ours in systems.iter().copied().filter(|system| matches!(system.kind(), Kind::HandOff { .. })) {
        for theirs in systems.iter().copied().filter(|system| system.kind() == Kind::Proxy) {
            if effort.is_of_latency {
                add_latency_ratios(measured, (ours, theirs), backends, results);
            } else {
                add_cost_ratios(measured, effort, (ours, theirs), backends, results);
                add_break_even(measured, (ours, theirs), backends, results);
            }
        }
    }
}

fn add_case(measured: &Measured, effort: &Effort, case: Case, results: &mut Results) {
    let Some(rounds) = measured.cases.get(&case) else { return };
    let mut add = |(metric, unit, value): (&str, &str, Value)| {
        let values: Vec<f64> = rounds.valid().map(value).filter(|value| value.is_finite()).collect();
        let row = Row::new(case.system.name(), metric, unit, &values)
            .param("object_bytes", case.bytes)
            .param("backends", case.backends)
            .param("loop", case.load.name())
            .note(rounds.left_out());
        results.rows.push(row);
    };
    RATES.into_iter().chain(COSTS).chain(LATENCIES).for_each(&mut add);
    add(("client_timeouts", "", |figures| figures.timeouts as f64));
    if matches!(case.system.kind(), Kind::HandOff { .. }) {
        add(("moves_per_request", "", Figures::moves_per_request));
    }
    if case.load == Load::Closed {
        // The value is a function, and cannot have the quota.
        let shares: Vec<f64> = rounds.valid().map(|figures| quota_percent(figures, effort)).collect();
        let row = Row::new(case.system.name(), "frontend_quota_percent", "%", &shares);
        let row = row.param("object_bytes", case.bytes).param("backends", case.backends);
        results.rows.push(row.param("loop", case.load.name()).note(rounds.left_out()));
    }
}

/// The share of its quota that the frontend has used, in percent.
fn quota_percent(figures: &Figures, effort: &Effort) -> f64 {
    100.0 * figures.percent_of_core(figures.frontend_s()) / effort.quota_percent
}

/// What ratios call a system that hands connections off.
fn ours_name(ours: System) -> &'static str {
    match ours {
        System::StackReturn => "ours_with_returns",
        System::Kernel => "ours_on_kernel_sockets",
        System::KernelReturn => "ours_on_kernel_sockets_with_returns",
        _ => "ours",
    }
}

/// A value of each round, of one system; `None` if the round was spoilt.
fn each(measured: &Measured, case: Case, value: Value) -> Vec<Option<f64>> {
    measured.cases.get(&case).map(|rounds| rounds.each(value)).unwrap_or_default()
}

/// Adds the ratios of throughput and of CPU time.
fn add_cost_ratios(
    measured: &Measured,
    effort: &Effort,
    (ours, theirs): (System, System),
    backends: usize,
    results: &mut Results,
) {
    let case = |system: System, load: Load| Case { system, backends, bytes: RATIO_BYTES, load };
    let (us, them) = (ours_name(ours), theirs.name());
    let what = describe(ours, theirs, backends);
    let cost: Value = |figures| figures.us_per_request(figures.frontend_s());
    for (load, suffix) in [(Load::Open, ""), (Load::Closed, "_closed")] {
        let name = format!("frontend_cpu_{them}_over_{us}{suffix}_256k");
        let [their_costs, our_costs] = [theirs, ours].map(|system| each(measured, case(system, load), cost));
        let note = format!("CPU time of the frontend for a request, {} loop; {what}", load.name());
        results.ratios.push(Ratio::paired(&name, &their_costs, &our_costs).note(note));
    }
    let name = match us.strip_prefix("ours_") {
        Some(which) => format!("throughput_{which}_over_{them}_256k"),
        None => format!("throughput_over_{them}_256k"),
    };
    let [our_rates, their_rates] =
        [ours, theirs].map(|system| each(measured, case(system, Load::Closed), Figures::requests_per_s));
    let shares =
        each(measured, case(theirs, Load::Closed), |figures| figures.percent_of_core(figures.frontend_s()));
    let share = shares.into_iter().flatten().reduce(f64::min);
    let limit = match share.map(|percent| 100.0 * percent / effort.quota_percent) {
        Some(share) if share >= SATURATED_PERCENT => format!("{them}'s frontend is the limit"),
        Some(share) => format!("{them}'s frontend is not the limit: it used {share:.0} % of its quota"),
        None => String::new(),
    };
    let ratio = Ratio::paired(&name, &our_rates, &their_rates);
    results.ratios.push(ratio.note(format!("closed loop; {what}")).note(limit));
}

fn add_latency_ratios(
    measured: &Measured,
    (ours, theirs): (System, System),
    backends: usize,
    results: &mut Results,
) {
    let (us, them) = (ours_name(ours), theirs.name());
    let what = describe(ours, theirs, backends);
    for (load, suffix) in [(Load::Open, ""), (Load::Closed, "_closed")] {
        for (metric, _, value) in LATENCIES {
            let name = format!("{}_{us}_over_{them}{suffix}_256k", metric.trim_end_matches("_us"));
            let [our_times, their_times] = [ours, theirs]
                .map(|system| each(measured, Case { system, backends, bytes: RATIO_BYTES, load }, value));
            let note = format!("latency, {} loop; {what}", load.name());
            results.ratios.push(Ratio::paired(&name, &our_times, &their_times).note(note));
        }
    }
}

fn describe(ours: System, theirs: System, backends: usize) -> String {
    format!("{} against {}, {backends} backends, objects of 256 KiB", ours.name(), theirs.name())
}

/// Adds the smallest size from which on a system serves at least as many requests as a proxy.
fn add_break_even(
    measured: &Measured,
    (ours, theirs): (System, System),
    backends: usize,
    results: &mut Results,
) {
    let closed = |system: System| {
        let of =
            move |case: &Case| (case.system, case.backends, case.load) == (system, backends, Load::Closed);
        let rounds = measured.cases.iter().filter(move |(case, _)| of(case));
        rounds
            .map(|(case, rounds)| (case.bytes, rounds.each(Figures::requests_per_s)))
            .collect::<BTreeMap<_, _>>()
    };
    let (ours_by_size, theirs_by_size) = (closed(ours), closed(theirs));
    let rounds = ours_by_size.values().map(Vec::len).max().unwrap_or(0);
    let at = |by_size: &BTreeMap<u32, Vec<Option<f64>>>, bytes: u32, round: usize| {
        by_size.get(&bytes).and_then(|each| each.get(round).copied().flatten())
    };
    let mut values = Vec::new();
    for round in 0..rounds {
        let pairs = ours_by_size.keys().map(|bytes| {
            Some((*bytes, at(&ours_by_size, *bytes, round)?, at(&theirs_by_size, *bytes, round)?))
        });
        // A round in which a size was spoilt does not show where the systems cross.
        if let Some(pairs) = pairs.collect::<Option<Vec<_>>>() {
            values.extend(break_even(&pairs).map(f64::from));
        }
    }
    results.rows.push(
        Row::new(ours.name(), "break_even_bytes", "B", &values)
            .param("over", theirs.name())
            .param("backends", backends)
            .param("loop", Load::Closed.name())
            .note("the smallest measured size from which on it serves at least as many requests a second"),
    );
}

/// The smallest size from which on our throughput is at least theirs. The pairs are in ascending order of sizes.
fn break_even(pairs: &[(u32, f64, f64)]) -> Option<u32> {
    let losing = pairs.iter().rposition(|(_, ours, theirs)| ours < theirs);
    pairs.get(losing.map_or(0, |at| at + 1)).map(|(bytes, ..)| *bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn figures(replies: u64, bytes: u32, frontend_s: f64) -> Figures {
        Figures {
            seconds: 1.0,
            replies,
            bytes,
            frontend_process_s: frontend_s,
            p50_us: 10.0,
            ..Figures::default()
        }
    }

    fn results() -> Results {
        results_of(&Effort { backends: vec![5], ..Effort::quick() })
    }

    fn results_of(effort: &Effort) -> Results {
        let mut measured = Measured::default();
        for (system, factor, frontend_s) in [(System::Stack, 4, 0.01), (System::Nginx, 1, 0.1)] {
            for bytes in [64, 256 * KIB] {
                for load in [Load::Closed, Load::Open] {
                    let factor = if bytes == 64 { 1 } else { factor };
                    // At 64 bytes nginx serves more.
                    let more = u64::from(bytes == 64 && system == System::Nginx);
                    let case = Case { system, backends: 5, bytes, load };
                    let rounds = measured.cases.entry(case).or_default();
                    for _ in 0..5 {
                        rounds.push((figures(100 * factor + more, bytes, frontend_s), None));
                    }
                }
            }
        }
        let mut results = Results::new("proxy", Machine::default());
        add(&measured, effort, &[System::Stack, System::Nginx], &mut results);
        results
    }

    #[test]
    fn ratios_and_the_break_even_size_have_the_names_of_the_plan() {
        let results = results();
        let ratio = |name: &str| {
            let found = results.ratios.iter().find(|ratio| ratio.name == name);
            found.unwrap_or_else(|| panic!("no ratio {name}"))
        };
        let cost = ratio("frontend_cpu_nginx_over_ours_256k");
        assert!(cost.valid && (cost.median.unwrap() - 40.0).abs() < 1e-9);
        let throughput = ratio("throughput_over_nginx_256k");
        assert_eq!((throughput.median, throughput.valid), (Some(4.0), true));
        assert!(throughput.why.contains("is the limit"), "{}", throughput.why);
        let row = results.rows.iter().find(|row| row.metric == "break_even_bytes").unwrap();
        assert_eq!((row.median, row.runs), (Some(f64::from(256 * KIB)), 5));
    }

    #[test]
    fn latency_has_ratios_of_three_quantiles_in_both_loops() {
        let results = results_of(&Effort { backends: vec![5], ..Effort::quick().of_latency() });
        let names: Vec<&str> = results.ratios.iter().map(|ratio| ratio.name.as_str()).collect();
        assert_eq!(names.len(), 6);
        assert!(
            names.contains(&"p50_ours_over_nginx_256k") && names.contains(&"p99_ours_over_nginx_closed_256k")
        );
        assert_eq!(results.ratios[0].median, Some(1.0));
    }

    #[test]
    fn each_case_has_throughput_costs_and_latencies() {
        let results = results();
        let is_of = |row: &&Row| {
            row.system == "nginx" && row.params["object_bytes"] == 64 && row.params["loop"] == "closed"
        };
        let metrics: Vec<_> = results.rows.iter().filter(is_of).map(|row| row.metric.as_str()).collect();
        for metric in [
            "requests_per_s",
            "frontend_cpu_us_per_request",
            "frontend_cpu_ms_per_gb",
            "p99_us",
            "frontend_quota_percent",
        ] {
            assert!(metrics.contains(&metric), "{metric} in {metrics:?}");
        }
        assert!(!metrics.contains(&"moves_per_request"), "a proxy moves no connection");
    }

    #[test]
    fn a_size_after_which_the_other_system_wins_again_is_no_break_even() {
        assert_eq!(break_even(&[(1, 9.0, 10.0), (2, 10.0, 10.0), (3, 20.0, 10.0)]), Some(2));
        assert_eq!(break_even(&[(1, 20.0, 10.0), (2, 9.0, 10.0)]), None);
        assert_eq!(break_even(&[(1, 20.0, 10.0)]), Some(1));
        assert_eq!(break_even(&[]), None);
    }
}
