//! Throughput and latency of the user-level stack over a line, in virtual time: compared with a table that was looked at.
//! `UPDATE_SNAPSHOTS=1` writes it anew.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use spillway_sim::tcp::bench::{Figures, Line, measure};
use spillway_tcp::recovery::Algorithm;

const HEAD: &str = "\
# One stream over a line of 100 Mbit/s with a queue of one bandwidth-delay product (64 KB at least), frames of 1,500 bytes,
# loss each way at random; 60 s after 5 s. Goodput is of payload; `of limit` is its share of what the line carries (94.2 %
# of it are payload) or, if that is less, of Mathis' bound MSS/RTT * sqrt(3/(2p)) (CUBIC may exceed that: RFC 9438).
# Pings: 64 bytes there and back, one at a time, 2,000 of them: p99 shows what a lost message costs.
# algorithm  rtt/ms  loss/%  goodput/Mbit/s  of limit  sent again/1000  timeouts  ping p50/us  ping p99/us
";
const BITS_PER_S: u64 = 100_000_000;

fn lines() -> Vec<Line> {
    let mut lines = Vec::new();
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        for rtt_ms in [1, 10, 50, 100] {
            for loss_ppm in [0, 100, 1_000, 10_000, 30_000, 100_000] {
                let product = BITS_PER_S / 8 * rtt_ms / 1000;
                lines.push(Line {
                    rtt: Duration::from_millis(rtt_ms),
                    loss_ppm,
                    bits_per_s: BITS_PER_S,
                    queue_bytes: product.max(64 * 1024),
                    algorithm,
                });
            }
        }
    }
    lines
}

fn row(line: Line, figures: Figures) -> String {
    let carried = BITS_PER_S as f64 * 1448.0 / 1538.0;
    let loss = line.loss_ppm as f64 / 1e6;
    let mathis = 1448.0 * 8.0 / line.rtt.as_secs_f64() * (1.5 / loss).sqrt();
    let goodput = figures.goodput as f64 * 8.0;
    let mut row = String::new();
    let _ = write!(
        row,
        "{:<10} {:7} {:7} {:15.2} {:8.2} {:16} {:9} {:12} {:12}",
        format!("{:?}", line.algorithm).to_lowercase(),
        line.rtt.as_millis(),
        loss * 100.0,
        goodput / 1e6,
        goodput / carried.min(mathis),
        figures.retransmitted_per_mille,
        figures.timeouts,
        figures.ping_p50_us,
        figures.ping_p99_us
    );
    row
}

#[test]
fn throughput_and_latency_are_what_they_were() {
    let lines = lines();
    let rows = Mutex::new(vec![String::new(); lines.len()]);
    let one = |index: u64| (index as usize, measure(lines[index as usize], 7));
    spillway_sim::swarm(0..lines.len() as u64, one, |(index, figures)| {
        rows.lock().unwrap()[index] = row(lines[index], figures);
    });
    let table = format!("{HEAD}{}\n", rows.into_inner().unwrap().join("\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/tcp_line.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = known.lines().zip(table.lines()).find(|(known, new)| known != new);
    assert_eq!(known, table, "UPDATE_SNAPSHOTS=1 writes it anew; the first line that differs: {differs:#?}");
}
