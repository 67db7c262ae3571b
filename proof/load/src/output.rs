//! Output for people: a line each second during the run, and a table at its end.

use std::fmt::Write as _;
use std::io::Write;

use crate::config::Config;
use crate::report::{Bin, Bins, Report, Summary};

/// Writes the run's progress: one line for each second of *intended* send time. A line is written 200 ms after its
/// second, to include most replies; later replies count only in the final table.
pub struct Progress {
    out: Box<dyn Write + Send>,
    connections: u32,
    seconds: Bins,
    next_s: u64,
    helped_now: u32,
}

const LINE_DELAY_MS: u64 = 200;

impl Progress {
    /// Writes the head of the table.
    pub fn new(out: Box<dyn Write + Send>, config: &Config) -> Progress {
        let mut progress = Progress {
            out,
            connections: config.connections,
            seconds: Bins::default(),
            next_s: 0,
            helped_now: 0,
        };
        progress.write_line(&format!(
            "{} · {} · {} connections · SLA {:?}",
            config.server, config.protocol, config.connections, config.sla
        ));
        progress.write_line(HEAD);
        progress
    }

    /// Adds the figures since the last call and writes the seconds that are due.
    pub fn update(&mut self, now_ns: u64, bins: &[Bin], helped_now: u32) {
        self.helped_now = helped_now;
        for bin in bins {
            let at_ms = bin.at_ms / 1000 * 1000;
            self.seconds.add(&Bin { at_ms, ..bin.clone() });
        }
        let now_ms = now_ns / 1_000_000;
        while now_ms >= (self.next_s + 1) * 1000 + LINE_DELAY_MS {
            self.write_second();
        }
    }

    /// Writes the remaining seconds.
    pub fn finish(&mut self) {
        while self.seconds.iter().any(|bin| bin.at_ms >= self.next_s * 1000) {
            self.write_second();
        }
    }

    /// Writes a line about an event.
    pub fn write_event(&mut self, at_ns: u64, text: &str) {
        self.write_line(&format!("{:>5.1}  {text}", at_ns as f64 / 1e9));
    }

    fn write_second(&mut self) {
        let second = self.seconds.at(self.next_s * 1000).clone();
        let mut line = row(&second.summary());
        let _ = write!(line, " {:>6}/{}", self.helped_now, self.connections);
        self.write_line(&line);
        self.next_s += 1;
    }

    fn write_line(&mut self, text: &str) {
        // A closed output does not end the run.
        let _ = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
    }
}

const HEAD: &str =
    "  t/s  offered/s answered  on time      p50      p99    p99.9    late   wrong    lost  resets  helped";

fn row(second: &Summary) -> String {
    format!(
        "{:>5}  {:>9} {:>8} {:>7.2}% {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7}",
        second.at_ms / 1000,
        second.offered,
        second.answered,
        second.on_time_share * 100.0,
        milliseconds(second.p50_us),
        milliseconds(second.p99_us),
        milliseconds(second.p999_us),
        second.late,
        second.wrong,
        second.lost,
        second.resets,
    )
}

/// `–` if the percentile falls among requests without a right reply.
fn milliseconds(us: Option<u64>) -> String {
    us.map_or("–".into(), |us| format!("{:.3}", us as f64 / 1000.0))
}

/// The final table.
pub fn table(report: &Report) -> String {
    let total = &report.total;
    let measured_s = (report.duration_ms.saturating_sub(report.warmup_ms) as f64 / 1000.0).max(1e-9);
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    line("offered", format!("{} ({:.0}/s)", total.offered, total.offered as f64 / measured_s));
    line("answered", format!("{} ({:.0}/s)", total.answered, total.answered as f64 / measured_s));
    let sla_ms = report.sla_us as f64 / 1000.0;
    let share = total.on_time_share * 100.0;
    line("on time", format!("{} ({share:.3} % within {sla_ms} ms)", total.on_time));
    line("late", total.late.to_string());
    line("never sent", format!("{} dropped, {} at the end", total.dropped, total.unsent));
    line("failures", format!("{} wrong, {} lost, {} resets", total.wrong, total.lost, total.resets));
    if report.sessions {
        line("carried on", format!("{} times by another carrier", total.carrier_changes));
    }
    let percentiles = [
        ("p50", total.p50_us),
        ("p90", total.p90_us),
        ("p99", total.p99_us),
        ("p99.9", total.p999_us),
        ("p99.99", total.p9999_us),
    ];
    let shown: Vec<_> =
        percentiles.iter().map(|(name, us)| format!("{name} {}", milliseconds(*us))).collect();
    let (mean_ms, max_ms) = (total.mean_us / 1000.0, total.max_us as f64 / 1000.0);
    line("latency/ms", format!("{}  (replies: mean {mean_ms:.3}, max {max_ms:.3})", shown.join("  ")));
    let lag = [total.lag_p50_us, total.lag_p99_us, total.lag_max_us].map(|us| us as f64 / 1000.0);
    line("own lag/ms", format!("p50 {:.3}  p99 {:.3}  max {:.3}", lag[0], lag[1], lag[2]));
    line("own CPU", format!("{:.0} ms, {:.1} µs a request", report.cpu_ms, cpu_us_per_request(report)));
    for one_move in &report.moves {
        let state = if one_move.complete { "" } else { ", not all" };
        line(
            "move",
            format!(
                "{} connections to {:?} at {:.1} s: {} moved in {:.1} ms{state}, {} failed",
                one_move.connections,
                one_move.target,
                one_move.given_us as f64 / 1e6,
                one_move.first_replies_us.len(),
                one_move.moved_ms(),
                one_move.failed
            ),
        );
    }
    for decision in &report.decisions {
        line("decided", decision.clone());
    }
    for trouble in &report.problems {
        line("trouble", trouble.clone());
    }
    text
}

/// The generator's own CPU time per request sent, in µs.
pub fn cpu_us_per_request(report: &Report) -> f64 {
    let sent: u64 = report.bins.iter().map(|bin| bin.direct.sent() + bin.helped.sent()).sum();
    report.cpu_ms * 1000.0 / (sent.max(1) as f64)
}
