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
use crate::experiments::common::rounds::{print_line, spoilt_suffix, turns};
use crate::generator::Traffic;
use crate::goodput::Tally;
use crate::results::{Check, Results, Row, left_out};
use crate::scene::Setting;
use crate::stage::{Cost, Stage};

const CONNECTIONS: u32 = 200;
/// The helper's default batch delay.
const MAX_DELAY: Duration = Duration::from_micros(200);
/// Requests above this latency count as delayed: retransmissions take longer, almost everything else is faster.
const DELAYED_US: u64 = 5_000;
/// Names of rows, and TCP counters of how lost packets were noticed.
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
    /// Most attempts at a spoilt run, the first included.
    pub tries: u32,
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
            tries: 2,
        }
    }

    /// For a run of two minutes.
    pub fn quick() -> Effort {
        Effort { rounds: 2, length: Duration::from_secs(4), tries: 1, ..Effort::full() }
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
    share: f64,
    seen: Vec<Measurement>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::set("loss", setting)?;
    let _ = writeln!(
        out,
        "{}; no quota; {}/s offered over {CONNECTIONS} connections",
        setting.placement.description(),
        effort.rate_per_s
    );
    let mut pair = stage.pair(ProtocolKind::Memcached, &[64])?;
    let helper = stage.helper(pair.link, MAX_DELAY)?;
    let mut series: Vec<Series> = Vec::new();
    for &share in &effort.shares {
        let one = |helped| Series { helped, share, seen: Vec::new() };
        series.extend([one(false), one(true)]);
    }
    let mut tally = Tally::default();
    let machine = stage.machine(&[("memcached", "-V")])?;
    let course = turns(effort.rounds, series.len()).try_for_each(|(round, at)| {
        let (helped, share) = (series[at].helped, series[at].share);
        let (target, through) =
            if helped { (helper.address, Some(&helper)) } else { (pair.plain.address(), None) };
        for _ in 0..effort.tries.max(1) {
            // Connect before loss begins: a lost SYN delays its client by a second, and only requests are measured.
            let mut session = stage.session(target, &Traffic::default(), CONNECTIONS)?;
            let loss = stage.server.lose(share)?;
            let begin = read_counters(&stage)?;
            let cost = session.measure(effort.rate_per_s, effort.settle, effort.length, through)?;
            let seen = since(cost, &read_counters(&stage)?, &begin);
            drop(loss);
            tally.add(&session.finish()?);
            pair.check()?;
            print_round(out, round, &series[at], &seen);
            let good = seen.cost.spoilt.is_none();
            series[at].seen.push(seen);
            if good {
                break;
            }
        }
        Ok(())
    });
    let course = course.and_then(|()| stage.close());
    let mut results = Results::new("loss", machine);
    let how =
        "each IPv4 packet of the server's cable by itself, both directions (XDP, before segments are joined)";
    results.machine.lab.insert("loss".into(), how.into());
    for series in &series {
        rows(series, effort, &mut results);
    }
    results.checks = tally.checks();
    results.checks.push(lossy(&series));
    Ok(results.after(course))
}

/// Packet counters of the server's cable, and TCP counters of all hosts.
fn read_counters(stage: &Stage) -> Result<(PacketCounts, BTreeMap<&'static str, u64>), Error> {
    let mut counters = BTreeMap::new();
    for host in [&stage.server, &stage.middle, &stage.client] {
        let all = host.tcp_counters()?;
        for (name, counter) in COUNTERS {
            *counters.entry(name).or_default() += all.get(counter).copied().unwrap_or(0);
        }
    }
    Ok((stage.server.lost_packets()?, counters))
}

fn since(
    cost: Cost,
    (packets, counters): &(PacketCounts, BTreeMap<&'static str, u64>),
    (packets_before, counters_before): &(PacketCounts, BTreeMap<&'static str, u64>),
) -> Measurement {
    let packets = PacketCounts {
        seen: packets.seen.saturating_sub(packets_before.seen),
        lost: packets.lost.saturating_sub(packets_before.lost),
    };
    let before = |name: &str| counters_before.get(name).copied().unwrap_or(0);
    let counters = counters.iter().map(|(name, count)| (*name, count.saturating_sub(before(name)))).collect();
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

fn rows(series: &Series, effort: &Effort, results: &mut Results) {
    let good: Vec<&Measurement> = series.seen.iter().filter(|seen| seen.cost.spoilt.is_none()).collect();
    let reasons: Vec<String> = series.seen.iter().filter_map(|seen| seen.cost.spoilt.clone()).collect();
    let spoilt = left_out(&reasons, series.seen.len());
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Measurement) -> Option<f64>, note: &str| {
        let values: Vec<f64> = good.iter().filter_map(|seen| value(seen)).collect();
        let row = Row::new(series.name(), metric, unit, &values)
            .param("loss_percent", 100.0 * series.share)
            .param("offered_per_s", effort.rate_per_s)
            .note(note)
            .note(&spoilt);
        results.rows.push(row);
    };
    for (metric, q) in [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p999_ms", 0.999)] {
        row(metric, "ms", &|seen| seen.cost.span.quantile_us(q).map(|us| us as f64 / 1000.0), "");
    }
    row(
        "delayed_share",
        "%",
        &|seen| Some(100.0 * seen.delayed() as f64 / seen.cost.requests.max(1) as f64),
        "> 5 ms",
    );
    // Lost packets are counted over the whole run, delayed requests without the settling time: scale to the measured
    // span.
    let span_share = effort.length.as_secs_f64() / (effort.length + effort.settle).as_secs_f64();
    row(
        "delayed_per_lost_packet",
        "requests",
        &|seen| {
            (seen.packets.lost > 0).then(|| seen.delayed() as f64 / (seen.packets.lost as f64 * span_share))
        },
        "requests > 5 ms for each lost packet: above 1 is head-of-line blocking",
    );
    row("machine_stalled_ms", "ms", &|seen| Some(1000.0 * seen.cost.used.stalled_s), "");
    row("lost_packets", "packets", &|seen| Some(seen.packets.lost as f64), "whole run, both directions");
    row("lost_share", "%", &|seen| Some(100.0 * seen.lost_share()), "");
    for (name, _) in COUNTERS {
        row(name, "of all hosts", &|seen| seen.counters.get(name).map(|count| *count as f64), "");
    }
    if series.helped {
        row("messages_per_batch", "messages", &|seen| seen.cost.used.messages_per_batch(), "");
    }
}

/// Checks that packets were lost in runs with loss, and in no other.
fn lossy(series: &[Series]) -> Check {
    let of = |lossy: bool| {
        let runs = series.iter().filter(move |s| (s.share > 0.0) == lossy).flat_map(|s| &s.seen);
        runs.map(|seen| seen.packets.lost).sum::<u64>()
    };
    let any_lossy = series.iter().any(|s| s.share > 0.0 && !s.seen.is_empty());
    let detail = format!("{} packets lost in runs with loss, {} in runs without", of(true), of(false));
    Check::new("loss_as_asked", of(false) == 0 && (of(true) > 0 || !any_lossy), detail)
}

fn print_round(out: &mut dyn Write, round: usize, series: &Series, seen: &Measurement) {
    let ms = |q: f64| {
        seen.cost
            .span
            .quantile_us(q)
            .map_or("unanswered".into(), |us| format!("{:.1} ms", us as f64 / 1000.0))
    };
    let spoilt = spoilt_suffix(seen.cost.spoilt.as_deref());
    print_line(
        out,
        format_args!(
            "round {}: {} at {} % loss: p50 {}, p99 {}, p99.9 {}; {} packets of {} lost{spoilt}",
            round + 1,
            series.name(),
            100.0 * series.share,
            ms(0.5),
            ms(0.99),
            ms(0.999),
            seen.packets.lost,
            seen.packets.seen
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::relief::Span;
    use spillway_load::histogram::Histogram;

    fn seen(delayed: u64, lost: u64) -> Measurement {
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

    fn series(helped: bool, share: f64, seen: Vec<Measurement>) -> Series {
        Series { helped, share, seen }
    }

    #[test]
    fn delayed_requests_are_counted_for_each_lost_packet() {
        let effort = Effort { settle: Duration::ZERO, ..Effort::full() };
        let mut results = Results::new("loss", Machine::default());
        rows(&series(true, 0.01, vec![seen(80, 4)]), &effort, &mut results);
        let value = |metric: &str| results.rows.iter().find(|r| r.metric == metric).unwrap().median;
        assert_eq!(value("delayed_per_lost_packet"), Some(20.0));
        assert!((209.0..212.0).contains(&value("p99_ms").unwrap()));
        assert_eq!(value("delayed_share"), Some(8.0));
        assert_eq!((value("lost_share"), value("timeouts")), (Some(0.1), Some(4.0)));
    }

    #[test]
    fn packets_are_lost_only_in_runs_with_loss() {
        let fine = [series(false, 0.0, vec![seen(0, 0)]), series(false, 0.01, vec![seen(3, 3)])];
        assert!(lossy(&fine).ok);
        assert!(!lossy(&[series(false, 0.0, vec![seen(0, 1)])]).ok);
        assert!(!lossy(&[series(true, 0.01, vec![seen(0, 0)])]).ok);
    }

    #[test]
    fn counters_are_differences() {
        let at =
            |lost, count| (PacketCounts { seen: 10 * lost, lost }, BTreeMap::from([("timeouts", count)]));
        let seen = since(Cost::default(), &at(9, 7), &at(4, 5));
        assert_eq!((seen.packets.lost, seen.packets.seen, seen.counters["timeouts"]), (5, 50, 2));
    }
}
