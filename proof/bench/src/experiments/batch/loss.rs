//! Effects of packet loss on direct and helped clients: a lost packet of a batch delays every client with later bytes
//! on the same link (head-of-line blocking). Packets are lost independently on the cable of the server's host, in both
//! directions, and not on other cables.
//!
//! No host has a quota: the experiment shows loss, not overload. Rounds are interleaved.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use spillway_lab::PacketCounts;
use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{measurement_order, print_line, spoilt_suffix};
use crate::generator::Traffic;
use crate::goodput::Tally;
use crate::results::{Check, Results, Row, left_out};
use crate::scene::Setting;
use crate::stage::{Cost, Stage};

const CONNECTIONS: u32 = 200;
/// The helper's default batch delay.
const MAX_DELAY: Duration = Duration::from_micros(200);
/// Requests above this latency count as delayed: most retransmissions take longer, other requests do not.
const DELAYED_US: u64 = 5_000;
/// Names of rows, and the TCP counters that show how losses were detected.
const COUNTERS: [(&str, &str); 4] = [
    ("segments_sent_again", "Tcp:RetransSegs"),
    ("timeouts", "TcpExt:TCPTimeouts"),
    ("fast_retransmissions", "TcpExt:TCPFastRetrans"),
    ("tail_loss_probes", "TcpExt:TCPLossProbes"),
];

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Shares of packets that are lost, 0 to 1.
    pub shares: Vec<f64>,
    /// Offered rate, in requests a second.
    pub rate_per_s: f64,
    /// Pause before each measurement.
    pub settle: Duration,
    /// Length of each measurement.
    pub length: Duration,
    /// Maximum number of attempts at a spoilt run, the first included.
    pub attempts_max: u32,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            rounds: 5,
            shares: vec![0.0, 0.001, 0.01],
            rate_per_s: 5_000.0,
            settle: Duration::from_millis(1_000),
            length: Duration::from_secs(6),
            attempts_max: 2,
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort { rounds: 2, length: Duration::from_secs(4), attempts_max: 1, ..Effort::full() }
    }
}

#[derive(Clone, Debug)]
struct Measurement {
    cost: Cost,
    packets: PacketCounts,
    /// TCP counters by row name, summed over all hosts.
    counters: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug)]
struct Series {
    helped: bool,
    loss_share: f64,
    measurements: Vec<Measurement>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::create("loss", setting)?;
    let _ = writeln!(
        out,
        "{}; no quota; {}/s offered over {CONNECTIONS} connections",
        setting.placement.description(),
        effort.rate_per_s
    );
    let mut pair = stage.pair(ProtocolKind::Memcached, &[64])?;
    let helper = stage.helper(pair.link, MAX_DELAY)?;
    let mut series: Vec<Series> = Vec::new();
    for &loss_share in &effort.shares {
        let new_series = |helped| Series { helped, loss_share, measurements: Vec::new() };
        series.extend([new_series(false), new_series(true)]);
    }
    let mut tally = Tally::default();
    let machine = stage.machine(&[("memcached", "-V")])?;
    let outcome = measurement_order(effort.rounds, series.len()).try_for_each(|(round, index)| {
        let (helped, loss_share) = (series[index].helped, series[index].loss_share);
        let (target, counted_helper) =
            if helped { (helper.address, Some(&helper)) } else { (pair.plain.address(), None) };
        for _ in 0..effort.attempts_max.max(1) {
            // Connect before loss begins: a lost SYN delays its client by a second, and only requests are measured.
            let mut session = stage.session(target, &Traffic::default(), CONNECTIONS)?;
            let loss = stage.server.drop_packets(loss_share)?;
            let before = read_counters(&stage)?;
            let cost = session.measure(effort.rate_per_s, effort.settle, effort.length, counted_helper)?;
            let measurement = measurement_since(cost, &read_counters(&stage)?, &before);
            drop(loss);
            tally.add(&session.finish()?);
            pair.check()?;
            print_round(out, round, &series[index], &measurement);
            let is_valid = measurement.cost.spoilt.is_none();
            series[index].measurements.push(measurement);
            if is_valid {
                break;
            }
        }
        Ok(())
    });
    let outcome = outcome.and_then(|()| stage.close());
    let mut results = Results::new("loss", machine);
    let description =
        "independent for each IPv4 packet of the server's cable, both ways (XDP, before segments are joined)";
    results.machine.lab.insert("loss".into(), description.into());
    for series in &series {
        add_rows(series, effort, &mut results);
    }
    results.checks = tally.checks();
    results.checks.push(check_loss(&series));
    Ok(results.with_outcome(outcome))
}

/// Packet counters of the server's cable, and TCP counters of all hosts.
fn read_counters(stage: &Stage) -> Result<(PacketCounts, BTreeMap<&'static str, u64>), Error> {
    let mut counters = BTreeMap::new();
    for host in [&stage.server, &stage.middle_host, &stage.client] {
        let host_counters = host.tcp_counters()?;
        for (name, counter) in COUNTERS {
            *counters.entry(name).or_default() += host_counters.get(counter).copied().unwrap_or(0);
        }
    }
    Ok((stage.server.packet_counts()?, counters))
}

fn measurement_since(
    cost: Cost,
    (packets, counters): &(PacketCounts, BTreeMap<&'static str, u64>),
    (packets_before, counters_before): &(PacketCounts, BTreeMap<&'static str, u64>),
) -> Measurement {
    let packets = PacketCounts {
        seen: packets.seen.saturating_sub(packets_before.seen),
        lost: packets.lost.saturating_sub(packets_before.lost),
    };
    let count_before = |name: &str| counters_before.get(name).copied().unwrap_or(0);
    let counters =
        counters.iter().map(|(name, count)| (*name, count.saturating_sub(count_before(name)))).collect();
    Measurement { cost, packets, counters }
}

impl Series {
    fn name(&self) -> &'static str {
        if self.helped { "helped" } else { "direct, without shim" }
    }
}

impl Measurement {
    fn delayed(&self) -> u64 {
        self.cost.span.latency_us.count_above(DELAYED_US)
    }

    fn lost_share(&self) -> f64 {
        if self.packets.seen > 0 { self.packets.lost as f64 / self.packets.seen as f64 } else { 0.0 }
    }
}

fn add_rows(series: &Series, effort: &Effort, results: &mut Results) {
    let valid: Vec<&Measurement> =
        series.measurements.iter().filter(|measurement| measurement.cost.spoilt.is_none()).collect();
    let reasons: Vec<String> =
        series.measurements.iter().filter_map(|measurement| measurement.cost.spoilt.clone()).collect();
    let spoilt = left_out(&reasons, series.measurements.len());
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Measurement) -> Option<f64>, note: &str| {
        let values: Vec<f64> = valid.iter().filter_map(|measurement| value(measurement)).collect();
        let row = Row::new(series.name(), metric, unit, &values)
            .param("loss_percent", 100.0 * series.loss_share)
            .param("offered_per_s", effort.rate_per_s)
            .note(note)
            .note(&spoilt);
        results.rows.push(row);
    };
    for (metric, quantile) in [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p999_ms", 0.999)] {
        row(
            metric,
            "ms",
            &|measurement| measurement.cost.span.quantile_us(quantile).map(|us| us as f64 / 1000.0),
            "",
        );
    }
    row(
        "delayed_share",
        "%",
        &|measurement| Some(100.0 * measurement.delayed() as f64 / measurement.cost.requests.max(1) as f64),
        "> 5 ms",
    );
    // Lost packets are counted over the whole run, delayed requests without the settling time: scale to the measured
    // span.
    let span_share = effort.length.as_secs_f64() / (effort.length + effort.settle).as_secs_f64();
    row(
        "delayed_per_lost_packet",
        "requests",
        &|measurement| {
            (measurement.packets.lost > 0)
                .then(|| measurement.delayed() as f64 / (measurement.packets.lost as f64 * span_share))
        },
        "requests > 5 ms for each lost packet: above 1 is head-of-line blocking",
    );
    row("machine_stalled_ms", "ms", &|measurement| Some(1000.0 * measurement.cost.used.stalled_s), "");
    row(
        "lost_packets",
        "packets",
        &|measurement| Some(measurement.packets.lost as f64),
        "whole run, both directions",
    );
    row("lost_share", "%", &|measurement| Some(100.0 * measurement.lost_share()), "");
    for (name, _) in COUNTERS {
        row(
            name,
            "of all hosts",
            &|measurement| measurement.counters.get(name).map(|count| *count as f64),
            "",
        );
    }
    if series.helped {
        row("messages_per_batch", "messages", &|measurement| measurement.cost.used.messages_per_batch(), "");
    }
}

/// Checks that packets were lost in runs with loss, and in no other.
fn check_loss(series: &[Series]) -> Check {
    let lost_packets = |with_loss: bool| {
        let runs = series
            .iter()
            .filter(move |series| (series.loss_share > 0.0) == with_loss)
            .flat_map(|series| &series.measurements);
        runs.map(|measurement| measurement.packets.lost).sum::<u64>()
    };
    let has_lossy_runs =
        series.iter().any(|series| series.loss_share > 0.0 && !series.measurements.is_empty());
    let detail = format!(
        "{} packets lost in runs with loss, {} in runs without",
        lost_packets(true),
        lost_packets(false)
    );
    Check::new(
        "loss_as_asked",
        lost_packets(false) == 0 && (lost_packets(true) > 0 || !has_lossy_runs),
        detail,
    )
}

fn print_round(out: &mut dyn Write, round: usize, series: &Series, measurement: &Measurement) {
    let quantile_text = |quantile: f64| {
        measurement
            .cost
            .span
            .quantile_us(quantile)
            .map_or("unanswered".into(), |us| format!("{:.1} ms", us as f64 / 1000.0))
    };
    let spoilt = spoilt_suffix(measurement.cost.spoilt.as_deref());
    print_line(
        out,
        format_args!(
            "round {}: {} at {} % loss: p50 {}, p99 {}, p99.9 {}; {} packets of {} lost{spoilt}",
            round + 1,
            series.name(),
            100.0 * series.loss_share,
            quantile_text(0.5),
            quantile_text(0.99),
            quantile_text(0.999),
            measurement.packets.lost,
            measurement.packets.seen
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::relief::Span;
    use spillway_load::histogram::Histogram;

    fn measurement(delayed: u64, lost: u64) -> Measurement {
        let mut latency_us = Histogram::default();
        latency_us.record(400, 1_000 - delayed);
        latency_us.record(210_000, delayed);
        let span = Span { offered: 1_000, served: 1_000, latency_us };
        let cost = Cost { requests: 1_000, span, ..Cost::default() };
        Measurement {
            cost,
            packets: PacketCounts { seen: 4_000, lost },
            counters: BTreeMap::from([("timeouts", lost)]),
        }
    }

    fn series(helped: bool, loss_share: f64, measurements: Vec<Measurement>) -> Series {
        Series { helped, loss_share, measurements }
    }

    #[test]
    fn delayed_requests_are_counted_for_each_lost_packet() {
        let effort = Effort { settle: Duration::ZERO, ..Effort::full() };
        let mut results = Results::new("loss", Machine::default());
        add_rows(&series(true, 0.01, vec![measurement(80, 4)]), &effort, &mut results);
        let value = |metric: &str| results.rows.iter().find(|r| r.metric == metric).unwrap().median;
        assert_eq!(value("delayed_per_lost_packet"), Some(20.0));
        assert!((209.0..212.0).contains(&value("p99_ms").unwrap()));
        assert_eq!(value("delayed_share"), Some(8.0));
        assert_eq!((value("lost_share"), value("timeouts")), (Some(0.1), Some(4.0)));
    }

    #[test]
    fn unexpected_or_missing_packet_loss_fails_the_check() {
        let as_expected =
            [series(false, 0.0, vec![measurement(0, 0)]), series(false, 0.01, vec![measurement(3, 3)])];
        assert!(check_loss(&as_expected).ok);
        assert!(!check_loss(&[series(false, 0.0, vec![measurement(0, 1)])]).ok);
        assert!(!check_loss(&[series(true, 0.01, vec![measurement(0, 0)])]).ok);
    }

    #[test]
    fn a_measurement_has_the_differences_of_counters() {
        let counters =
            |lost, count| (PacketCounts { seen: 10 * lost, lost }, BTreeMap::from([("timeouts", count)]));
        let measurement = measurement_since(Cost::default(), &counters(9, 7), &counters(4, 5));
        assert_eq!(
            (measurement.packets.lost, measurement.packets.seen, measurement.counters["timeouts"]),
            (5, 50, 2)
        );
    }
}
