//! Throughput and CPU time of the kernel's TCP stack, for messages of 64 B to 64 KB (PostMan, Table 1). The difference
//! in cost between small and large messages is the reason for batching.
//!
//! A plain echo server without a helper. Its host has a quota, so that the server is the limit and not the clients;
//! closed loops keep it busy. Rounds are interleaved.

use std::io::Write;
use std::time::Duration;

use spillway_lab::Quota;
use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line, spoilt_suffix};
use crate::experiments::common::saturation::{few, limit, limit_note, spoilt};
use crate::generator::Traffic;
use crate::goodput::Tally;
use crate::measure::measure_until_valid;
use crate::results::{Ratio, Results, Row};
use crate::scene::{Setting, quota_text};
use crate::stage::{MeasuredStep, QUOTA_ENTRY, Stage};
use crate::stats::paired_ratios;

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Sizes of messages, rising, in bytes. Ratios compare the last with the first.
    pub sizes: Vec<usize>,
    /// Quota of the server's host.
    pub quota: Quota,
    /// Number of closed loops.
    pub connections: u32,
    /// Pause before each measurement.
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
            rounds: 9,
            sizes: vec![64, 256, 1_024, 1_460, 4_096, 16_384, 65_536],
            quota: Quota { percent_of_core: 20.0, period: Duration::from_millis(20) },
            connections: 100,
            settle: Duration::from_millis(300),
            length: Duration::from_millis(1_500),
            attempts_max: 3,
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            settle: Duration::from_millis(200),
            length: Duration::from_millis(800),
            attempts_max: 2,
            ..Effort::full()
        }
    }
}

#[derive(Clone, Debug)]
struct Series {
    size: usize,
    rounds: Rounds<Measurement>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Measurement {
    messages_per_s: f64,
    /// CPU time of the server's host for each message, in µs.
    server_us: f64,
    /// CPU time of the server's host for each packet, in or out, in µs.
    packet_us: f64,
    /// Packets for each message, in and out.
    packets: f64,
    quota_share: f64,
    limit: Option<String>,
}

impl Measurement {
    fn of(measured: &MeasuredStep, quota: Quota) -> Measurement {
        let used = &measured.step.used;
        let (served, packets) = (measured.step.span.served as f64, measured.wire.packets as f64);
        let server_us = used.server_s() * 1e6;
        let quota_share = used.quota_share(Some(quota)).unwrap_or(0.0);
        Measurement {
            messages_per_s: served / used.seconds,
            server_us: server_us / served,
            packet_us: server_us / packets,
            packets: packets / served,
            quota_share,
            limit: limit(used, LIMITING_HOST, quota_share),
        }
    }

    fn gbit_per_s(&self, size: usize) -> f64 {
        self.messages_per_s * size as f64 * 8.0 / 1e9
    }

    /// Payload in one direction for each core that the server uses, in Gbit/s.
    fn gbit_per_core(&self, size: usize) -> f64 {
        size as f64 * 8.0 / 1e3 / self.server_us
    }
}

const LIMITING_HOST: &str = "the server";

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::create("table1", setting)?;
    let quota = Some(effort.quota);
    let _ = writeln!(out, "{}; server: {}", setting.placement.description(), quota_text(quota));
    let mut echo = stage.echo()?;
    let new_series = |&size: &usize| Series { size, rounds: Rounds::default() };
    let mut series: Vec<Series> = effort.sizes.iter().map(new_series).collect();
    let mut tally = Tally::default();
    let mut machine = stage.machine(&[])?;
    let outcome = measurement_order(effort.rounds, series.len()).try_for_each(|(round, index)| {
        let series = &mut series[index];
        let protocol = ProtocolKind::Echo;
        let traffic = Traffic { protocol, value_size: series.size, closed: true, ..Traffic::default() };
        // No quota while clients connect: only the measurement is limited.
        stage.server.set_quota(None)?;
        let mut session = stage.session(echo.plain, &traffic, effort.connections)?;
        stage.server.set_quota(quota)?;
        series.rounds.push(measure_until_valid(
            effort.attempts_max,
            || {
                let measured = session.step(0.0, effort.settle, effort.length, None)?;
                let measurement = Measurement::of(&measured, effort.quota);
                let spoilt = spoilt(&measured.step.used, LIMITING_HOST, measurement.quota_share);
                print_round(out, round, series.size, &measurement, spoilt.as_deref());
                Ok((measurement, spoilt))
            },
            |(_, spoilt)| spoilt.is_none(),
        )?);
        tally.add(&session.finish()?);
        echo.check()
    });
    drop(echo);
    let outcome = outcome.and_then(|()| stage.close());
    machine.server = "echo server".into();
    // The stage states the encryption of links; this experiment uses no link.
    machine.lab.remove("links");
    machine.lab.insert(QUOTA_ENTRY.into(), quota_text(quota));
    machine.lab.insert("connections".into(), format!("{} closed loops", effort.connections));
    let mut results = Results::new("table1", machine);
    add_results(&series, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

fn add_results(series: &[Series], results: &mut Results) {
    for series in series {
        let note = limit_note(series.rounds.valid().filter_map(|measurement| measurement.limit.as_deref()));
        let spoilt = series.rounds.left_out();
        let mut row = |metric: &str, unit: &str, note: &str, value: &dyn Fn(&Measurement) -> f64| {
            let values: Vec<f64> = series.rounds.valid().map(value).collect();
            let row = Row::new("kernel TCP", metric, unit, &values).param("message_bytes", series.size);
            results.rows.push(row.note(note).note(&spoilt));
        };
        row("messages_per_s", "1/s", &note, &|measurement| measurement.messages_per_s);
        row("goodput_gbit_per_s", "Gbit/s", "payload, one way", &|measurement| {
            measurement.gbit_per_s(series.size)
        });
        row("goodput_gbit_per_s_per_core", "Gbit/s", "", &|measurement| {
            measurement.gbit_per_core(series.size)
        });
        row("server_cpu_us_per_message", "µs", "", &|measurement| measurement.server_us);
        row("server_cpu_us_per_packet", "µs", "in or out, acknowledgements too", &|measurement| {
            measurement.packet_us
        });
        row("packets_per_message", "packets", "in and out", &|measurement| measurement.packets);
    }
    let (Some(small), Some(large)) = (series.first(), series.last()) else { return };
    let mut ratio = |name: &str, value: &dyn Fn(&Measurement, usize) -> f64, note: &str| {
        let large_values = large.rounds.each(|measurement| value(measurement, large.size));
        let small_values = small.rounds.each(|measurement| value(measurement, small.size));
        let rounds = paired_ratios(&large_values, &small_values);
        let ratio = Ratio::new(&format!("{name}_{}_over_{}", large.size, small.size), &rounds);
        results.ratios.push(ratio.void_if(few(rounds.len())).note(note));
    };
    ratio(
        "goodput",
        &|measurement, size| measurement.gbit_per_s(size),
        "by a server of the same quota; paper: 3.8",
    );
    let per_core: &dyn Fn(&Measurement, usize) -> f64 = &|measurement, size| measurement.gbit_per_core(size);
    ratio("goodput_per_core", per_core, "paper: 14, from 2.4 Gbit/s by 8 cores and 9.1 by 2.2");
    ratio(
        "cpu_per_message",
        &|measurement, _| measurement.server_us,
        "the larger message's cost, as a multiple of the smaller one's",
    );
}

fn print_round(
    out: &mut dyn Write,
    round: usize,
    size: usize,
    measurement: &Measurement,
    spoilt: Option<&str>,
) {
    let limit = measurement.limit.as_ref().map_or(String::new(), |limit| format!(" ({limit})"));
    let spoilt = spoilt_suffix(spoilt);
    print_line(
        out,
        format_args!(
            "round {}: {size} B: {:.0} messages/s, {:.3} Gbit/s, {:.2} µs of server CPU for a message{limit}{spoilt}",
            round + 1,
            measurement.messages_per_s,
            measurement.gbit_per_s(size),
            measurement.server_us,
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn large_messages_are_compared_with_small_ones() {
        let series = |size: usize, messages_per_s: f64, server_us: f64| {
            let measurement =
                Measurement { messages_per_s, server_us, packet_us: 2.0, ..Measurement::default() };
            Series { size, rounds: vec![Some(measurement); 3].into_iter().collect() }
        };
        let all = [series(64, 20_000.0, 10.0), series(1_024, 10_000.0, 20.0), series(65_536, 1_000.0, 200.0)];
        let mut results = Results::new("table1", Machine::default());
        add_results(&all, &mut results);
        let ratio = |name: &str| results.ratios.iter().find(|r| r.name == name).unwrap();
        let goodput = ratio("goodput_65536_over_64");
        assert!(goodput.valid && (goodput.median.unwrap() - 1_024.0 / 20.0).abs() < 1e-9, "{goodput:?}");
        assert!((ratio("goodput_per_core_65536_over_64").median.unwrap() - 1_024.0 / 20.0).abs() < 1e-9);
        assert_eq!(ratio("cpu_per_message_65536_over_64").median, Some(20.0));
        let gbit = results.rows.iter().rfind(|row| row.metric == "goodput_gbit_per_s").unwrap();
        assert!((gbit.median.unwrap() - 0.524_288).abs() < 1e-9, "{gbit:?}");
        assert_eq!(results.rows.iter().filter(|row| row.metric == "packets_per_message").count(), 3);
    }
}
