//! CPU time of the clients for each request, on kernel sockets and on the user-level stack; and whether the
//! server's CPU time depends on the clients' engine.
//!
//! Rounds are interleaved: each measures both engines once, in rotating order. Ratios compare within a round.

use std::io::Write;
use std::time::Duration;

use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rates::{Effort, Path, RateMeasurement, Series, find};
use crate::generator::{Engine, Traffic};
use crate::results::{Ratio, Results};
use crate::scene::Setting;
use crate::stage::{Cost, Stage};

const CONNECTIONS: u32 = 1000;
const ENGINES: [Engine; 2] = [Engine::Sockets, Engine::Xdp];

fn full() -> Effort {
    Effort {
        rounds: 7,
        rates: vec![2_000.0, 10_000.0, 20_000.0],
        main_rate_per_s: 10_000.0,
        settle: Duration::from_millis(400),
        length: Duration::from_millis(2_000),
        attempts_max: 3,
    }
}

fn quick() -> Effort {
    Effort {
        rounds: 3,
        rates: vec![2_000.0, 10_000.0],
        length: Duration::from_millis(1_000),
        attempts_max: 2,
        ..full()
    }
}

impl Path for Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Sockets => "clients on sockets",
            Engine::Xdp => "clients on xdp",
        }
    }
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { quick() } else { full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    // Both engines have the same network: no host leaves checksums to its interface.
    let stage = Stage::create_with_checksums("clients", setting, 1)?;
    let _ = writeln!(out, "{}; no quota; {CONNECTIONS} connections", setting.placement.description());
    let mut pair = stage.pair(ProtocolKind::Memcached, &[64])?;
    let machine = stage.machine(&[("memcached", "-V")])?;
    let mut measurement = RateMeasurement { effort, pair: &mut pair, out };
    let (series, tally, outcome) = measurement.run(
        &ENGINES,
        |pair, engine| {
            let traffic = Traffic { engine, ..Traffic::default() };
            Ok((stage.session(pair.plain.address(), &traffic, CONNECTIONS)?, None))
        },
        |cost| {
            let (clients, bridge, server) = (cost.clients_us(), cost.bridge_us(), cost.server_us());
            format!(
                "{clients:.1} µs in the clients, {bridge:.1} µs in the bridge, {server:.1} µs at the server"
            )
        },
    );
    let outcome = outcome.and_then(|()| stage.close());
    let mut results = Results::new("client-cost", machine);
    series.iter().for_each(|series| add_rows(series, &mut results));
    add_ratios(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

fn add_rows(series: &Series<Engine>, results: &mut Results) {
    let mut row = |metric: &str, value: &dyn Fn(&Cost) -> Option<f64>| {
        results.rows.push(series.row(metric, "µs", value, ""));
    };
    row("clients_cpu_us_per_request", &|cost| Some(cost.clients_us()));
    row("bridge_cpu_us_per_request", &|cost| Some(cost.bridge_us()));
    row("server_cpu_us_per_request", &|cost| Some(cost.server_us()));
    row("p50_us", &|cost| cost.span.quantile_us(0.5).map(|us| us as f64));
    row("p99_us", &|cost| cost.span.quantile_us(0.99).map(|us| us as f64));
}

fn add_ratios(series: &[Series<Engine>], effort: &Effort, results: &mut Results) {
    for &rate in &effort.rates {
        let (Some(sockets), Some(xdp)) =
            (find(series, Engine::Sockets, rate), find(series, Engine::Xdp, rate))
        else {
            continue;
        };
        let mut ratio = |name: &str, value: fn(&Cost) -> f64, note: &str| {
            let name = format!("{name}{}", effort.suffix(rate));
            let ratio = Ratio::paired(&name, &xdp.each(value), &sockets.each(value));
            results.ratios.push(ratio.note(format!("{note} at {rate}/s")));
        };
        ratio("clients_xdp_over_sockets", Cost::clients_us, "CPU of the clients, process and interface,");
        ratio("server_xdp_over_sockets", Cost::server_us, "CPU of the server; expected 0.95 to 1.05,");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::measure::Used;

    #[test]
    fn the_engines_are_compared_within_a_round() {
        let series = |engine, us: [f64; 5]| {
            let cost = |us: f64| {
                let used =
                    Used { seconds: 1.0, clients_s: us * 0.01, server_process_s: 0.3, ..Used::default() };
                Some(Cost { used, requests: 10_000, ..Cost::default() })
            };
            Series { path: engine, rate_per_s: 10_000.0, costs: us.map(cost).into_iter().collect() }
        };
        let all = [series(Engine::Sockets, [40.0; 5]), series(Engine::Xdp, [20.0; 5])];
        let mut results = Results::new("client-cost", Machine::default());
        all.iter().for_each(|series| add_rows(series, &mut results));
        add_ratios(&all, &full(), &mut results);
        let medians: Vec<_> = results.ratios.iter().map(|ratio| (&*ratio.name, ratio.median)).collect();
        assert_eq!(
            medians,
            [("clients_xdp_over_sockets", Some(0.5)), ("server_xdp_over_sockets", Some(1.0))]
        );
        assert_eq!(results.rows.len(), 2 * 5);
    }
}
