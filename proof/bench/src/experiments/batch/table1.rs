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
use crate::experiments::common::rounds::{Rounds, print_line, spoilt_suffix, turns};
use crate::experiments::common::saturation::{few, limit, limit_note, spoilt};
use crate::generator::Traffic;
use crate::goodput::Tally;
use crate::measure::again;
use crate::results::{Ratio, Results, Row};
use crate::scene::{Setting, quota_text};
use crate::stage::{QUOTA, Stage, Taken};
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
    /// Most attempts at a spoilt measurement, the first included.
    pub tries: u32,
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
            tries: 3,
        }
    }

    /// For a run of two minutes.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            settle: Duration::from_millis(200),
            length: Duration::from_millis(800),
            tries: 2,
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
    fn of(taken: &Taken, quota: Quota) -> Measurement {
        let used = &taken.step.used;
        let (served, packets) = (taken.step.span.served as f64, taken.wire.packets as f64);
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
    let stage = Stage::set("table1", setting)?;
    let quota = Some(effort.quota);
    let _ = writeln!(out, "{}; server: {}", setting.placement.description(), quota_text(quota));
    let mut echo = stage.echo()?;
    let one = |&size: &usize| Series { size, rounds: Rounds::default() };
    let mut series: Vec<Series> = effort.sizes.iter().map(one).collect();
    let mut tally = Tally::default();
    let mut machine = stage.machine(&[])?;
    let course = turns(effort.rounds, series.len()).try_for_each(|(round, at)| {
        let series = &mut series[at];
        let speech = ProtocolKind::Echo;
        let traffic = Traffic { speech, value_size: series.size, closed: true, ..Traffic::default() };
        // No quota while clients connect: only the measurement is limited.
        stage.server.set_quota(None)?;
        let mut session = stage.session(echo.plain, &traffic, effort.connections)?;
        stage.server.set_quota(quota)?;
        series.rounds.take(again(
            effort.tries,
            || {
                let taken = session.step(0.0, effort.settle, effort.length, None)?;
                let seen = Measurement::of(&taken, effort.quota);
                let spoilt = spoilt(&taken.step.used, LIMITING_HOST, seen.quota_share);
                print_round(out, round, series.size, &seen, spoilt.as_deref());
                Ok((seen, spoilt))
            },
            |(_, spoilt)| spoilt.is_none(),
        )?);
        tally.add(&session.finish()?);
        echo.check()
    });
    drop(echo);
    let course = course.and_then(|()| stage.close());
    machine.server = "echo server".into();
    // The stage states the encryption of links; this experiment uses no link.
    machine.lab.remove("links");
    machine.lab.insert(QUOTA.into(), quota_text(quota));
    machine.lab.insert("connections".into(), format!("{} closed loops", effort.connections));
    let mut results = Results::new("table1", machine);
    add_results(&series, &mut results);
    results.checks = tally.checks();
    Ok(results.after(course))
}

fn add_results(series: &[Series], results: &mut Results) {
    for series in series {
        let note = limit_note(series.rounds.good().filter_map(|seen| seen.limit.as_deref()));
        let spoilt = series.rounds.left_out();
        let mut row = |metric: &str, unit: &str, note: &str, value: &dyn Fn(&Measurement) -> f64| {
            let values: Vec<f64> = series.rounds.good().map(value).collect();
            let row = Row::new("kernel TCP", metric, unit, &values).param("message_bytes", series.size);
            results.rows.push(row.note(note).note(&spoilt));
        };
        row("messages_per_s", "1/s", &note, &|seen| seen.messages_per_s);
        row("goodput_gbit_per_s", "Gbit/s", "payload, one way", &|seen| seen.gbit_per_s(series.size));
        row("goodput_gbit_per_s_per_core", "Gbit/s", "", &|seen| seen.gbit_per_core(series.size));
        row("server_cpu_us_per_message", "µs", "", &|seen| seen.server_us);
        row("server_cpu_us_per_packet", "µs", "in or out, acknowledgements too", &|seen| seen.packet_us);
        row("packets_per_message", "packets", "in and out", &|seen| seen.packets);
    }
    let (Some(small), Some(large)) = (series.first(), series.last()) else { return };
    let mut ratio = |name: &str, value: &dyn Fn(&Measurement, usize) -> f64, note: &str| {
        let ours = large.rounds.each(|seen| value(seen, large.size));
        let theirs = small.rounds.each(|seen| value(seen, small.size));
        let rounds = paired_ratios(&ours, &theirs);
        let ratio = Ratio::new(&format!("{name}_{}_over_{}", large.size, small.size), &rounds);
        results.ratios.push(ratio.void_if(few(rounds.len())).note(note));
    };
    ratio("goodput", &|seen, size| seen.gbit_per_s(size), "by a server of the same quota; paper: 3.8");
    let per_core: &dyn Fn(&Measurement, usize) -> f64 = &|seen, size| seen.gbit_per_core(size);
    ratio("goodput_per_core", per_core, "paper: 14, from 2.4 Gbit/s by 8 cores and 9.1 by 2.2");
    ratio("cpu_per_message", &|seen, _| seen.server_us, "what the larger message costs");
}

fn print_round(out: &mut dyn Write, round: usize, size: usize, seen: &Measurement, spoilt: Option<&str>) {
    let limit = seen.limit.as_ref().map_or(String::new(), |limit| format!(" ({limit})"));
    let spoilt = spoilt_suffix(spoilt);
    print_line(
        out,
        format_args!(
            "round {}: {size} B: {:.0} messages/s, {:.3} Gbit/s, {:.2} µs of server CPU for a message{limit}{spoilt}",
            round + 1,
            seen.messages_per_s,
            seen.gbit_per_s(size),
            seen.server_us,
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
            let seen = Measurement { messages_per_s, server_us, packet_us: 2.0, ..Measurement::default() };
            Series { size, rounds: vec![Some(seen); 3].into_iter().collect() }
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
