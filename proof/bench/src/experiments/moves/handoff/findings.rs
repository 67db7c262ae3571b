//! Rows and ratios of the experiment.

use serde_json::Value;
use spillway_stack_server::step_name;

use super::cpu::Cpu;
use super::latency::{Kind, Latency};
use super::steps::{Interval, LINES, PARTS_OF_BLOCK};
use super::system::System;
use super::{CONNECTIONS, KINDS, Measured, SYSTEMS};
use crate::experiments::moves::distribution::Distribution;
use crate::results::{Ratio, Results, Row};

/// What is expected of the kernel's hand-offs, by direction, in µs.
const TOTAL_US_EXPECTED: [(&str, f64); 3] =
    [("frontend_to_backend", 110.0), ("backend_to_frontend", 80.0), ("backend_to_backend", 92.0)];

/// Adds all rows and ratios of the parts that were measured.
pub(super) fn add(measured: &Measured, results: &mut Results) {
    for (index, system) in SYSTEMS.into_iter().enumerate() {
        let mut rows = Rows { system, rows: Vec::new() };
        rows.add_latency(&measured.latency[index], measured.cores);
        rows.add_cpu(&measured.cpu[index]);
        if measured.counts.of(system).requests > 0 {
            rows.add_late(measured);
        }
        results.rows.extend(rows.rows);
    }
    if !measured.parse.is_empty() {
        let note = "of the servers' parser for one request, in a loop: the source parses it, and so does the target; the paper's \
                    lines Serialize HTTP (2 µs) and Deserialize HTTP (3 µs) are its parser's state, which does not move here";
        results.rows.push(Row::new("both", "http_parse_us", "µs", &measured.parse).note(note));
    }
    add_ratios(measured, results);
}

/// The rows of a system.
struct Rows {
    system: System,
    rows: Vec<Row>,
}

impl Rows {
    /// A row with the value of each round.
    fn push<T>(
        &mut self,
        (metric, unit): (&str, &str),
        rounds: &[T],
        value: impl Fn(&T) -> f64,
        params: &Params,
    ) {
        let values: Vec<f64> = rounds.iter().map(value).collect();
        let row = Row::new(self.system.name(), metric, unit, &values);
        let row = params.values.iter().fold(row, |row, (name, value)| row.param(name, value.clone()));
        self.rows.push(row.note(&params.note));
    }

    /// Rows of the quantiles of each round.
    fn push_distribution<T>(
        &mut self,
        metric: &str,
        rounds: &[T],
        value: impl Fn(&T) -> Distribution,
        params: &Params,
    ) {
        for (index, (quantile, _)) in Distribution::of(Vec::new()).named().into_iter().enumerate() {
            let of_round = |round: &T| value(round).named()[index].1;
            self.push((metric, "µs"), rounds, of_round, &params.clone().with("quantile", quantile));
        }
    }

    fn add_latency(&mut self, rounds: &[Latency], cores: [usize; 3]) {
        if rounds.is_empty() {
            return;
        }
        for (index, kind) in KINDS.into_iter().enumerate() {
            let (source, target) = kind.servers;
            let cores = if cores[source] == cores[target] { "one" } else { "two" };
            let params = Params::new().with("direction", kind.direction).with("cores", cores);
            self.add_kind(rounds, |latency| &latency.kinds[index], kind.direction, &params);
        }
        let by_servers = Params::new().with("by", "servers").noted(
            "a → b → a: the sum of both hand-offs; expected ≤ 118; paper: 232 µs with 114 of TLS and two hand-offs between servers",
        );
        self.push_distribution("cycle_us", rounds, |latency| latency.cycle, &by_servers);
        let by_client = Params::new()
            .with("by", "client")
            .noted("what both requests of a cycle take longer than the medians of requests without hand-off at these servers");
        self.push_distribution("cycle_us", rounds, |latency| latency.cycle_at_client, &by_client);
        let quiet = Params::new().noted("requests without hand-off, at the client");
        self.push_distribution("request_us", rounds, |latency| latency.quiet, &quiet);
    }

    fn add_kind(
        &mut self,
        rounds: &[Latency],
        kind: impl Fn(&Latency) -> &Kind,
        direction: &str,
        params: &Params,
    ) {
        let expected = TOTAL_US_EXPECTED.into_iter().find(|(name, _)| *name == direction).map(|(_, us)| us);
        let expected = expected.map_or(String::new(), |us| format!("; expected ≤ {us} at the median"));
        let total =
            params.clone().noted(&format!("from the decision to hand off to the live connection{expected}"));
        self.push_distribution("total_us", rounds, |latency| kind(latency).total, &total);
        let note = "the client's packets are held, until the connection is live; expected ≤ 70 at the median";
        let blackout = params.clone().noted(note);
        self.push_distribution("blackout_us", rounds, |latency| kind(latency).blackout, &blackout);
        for (index, interval) in LINES.iter().enumerate() {
            self.push(
                ("line_us", "µs"),
                rounds,
                |latency| kind(latency).lines[index],
                &params.clone().between(interval),
            );
        }
        for (index, interval) in PARTS_OF_BLOCK.iter().enumerate() {
            self.push(
                ("part_us", "µs"),
                rounds,
                |latency| kind(latency).parts_of_block[index],
                &params.clone().between(interval),
            );
        }
        let request = params.clone().noted("requests with this hand-off, at the client");
        self.push_distribution("handed_off_request_us", rounds, |latency| kind(latency).request, &request);
    }

    fn add_cpu(&mut self, rounds: &[Vec<Cpu>; CONNECTIONS.len()]) {
        let (metric, expected) = match self.system {
            System::Kernel => ("kernel_host_cpu_us", 45),
            System::Stack => ("user_host_cpu_us", 10),
        };
        for (connections, rounds) in CONNECTIONS.into_iter().zip(rounds) {
            if rounds.is_empty() {
                continue;
            }
            let params = Params::new().with("connections", connections);
            let note = format!(
                "processes and receive threads of both hosts, for a hand-off, less those of a request without; expected ≤ {expected}"
            );
            self.push((metric, "µs"), rounds, |cpu| cpu.hand_off, &params.clone().noted(&note));
            let note = "processes and receive thread of the server's host, for a request without hand-off";
            self.push(("request_host_cpu_us", "µs"), rounds, |cpu| cpu.request, &params.clone().noted(note));
            self.push(("hand_offs_per_s", "1/s"), rounds, |cpu| cpu.hand_offs_per_s, &params);
        }
    }

    fn add_late(&mut self, measured: &Measured) {
        let counts = measured.counts.of(self.system);
        let note = format!("that took 190 ms or more, of {} hand-offs; expected 0", counts.hand_offs);
        let params = Params::new().noted(&note);
        self.push(("requests_after_timeout", "requests"), &[counts], |counts| counts.late as f64, &params);
    }
}

/// Parameters and note of a row.
#[derive(Clone, Debug, Default)]
struct Params {
    values: Vec<(&'static str, Value)>,
    note: String,
}

impl Params {
    fn new() -> Params {
        Params::default()
    }

    fn with(mut self, name: &'static str, value: impl Into<Value>) -> Params {
        self.values.push((name, value.into()));
        self
    }

    fn noted(mut self, note: &str) -> Params {
        self.note = note.to_owned();
        self
    }

    fn between(self, interval: &Interval) -> Params {
        self.with("line", interval.line)
            .with("from", step_name(interval.from))
            .with("to", step_name(interval.to))
            .noted(&format!("median of each round; {}", interval.note))
    }
}

fn add_ratios(measured: &Measured, results: &mut Results) {
    let [kernel, stack] = &measured.cpu;
    for (index, connections) in CONNECTIONS.into_iter().enumerate() {
        if kernel[index].is_empty() || stack[index].is_empty() {
            continue;
        }
        let values = |rounds: &[Cpu]| rounds.iter().map(|cpu| Some(cpu.hand_off)).collect::<Vec<_>>();
        let name = format!("host_cpu_kernel_over_user_{connections}_connections");
        let note = "paper (Capybara): 45.7 µs over 3.7 µs, 12.4";
        results.ratios.push(Ratio::paired(&name, &values(&kernel[index]), &values(&stack[index])).note(note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn the_ratio_of_both_systems_is_that_of_the_same_rounds() {
        let of = |hand_off: f64| Cpu { hand_off, request: 1.0, hand_offs_per_s: 1.0 };
        let mut measured = Measured::default();
        for round in 1..=5 {
            measured.cpu[0][1].push(of(40.0 * f64::from(round)));
            measured.cpu[1][1].push(of(10.0 * f64::from(round)));
        }
        let mut results = Results::new("handoff", Machine::default());
        add(&measured, &mut results);
        assert_eq!(results.ratios.len(), 1);
        assert_eq!((results.ratios[0].median, results.ratios[0].valid), (Some(4.0), true));
        let metrics: Vec<&str> = results.rows.iter().map(|row| row.metric.as_str()).collect();
        assert_eq!(
            metrics.iter().filter(|metric| metric.ends_with("_host_cpu_us")).count(),
            4,
            "{metrics:?}"
        );
        assert!(!metrics.contains(&"total_us"), "the other part was not measured");
    }
}
