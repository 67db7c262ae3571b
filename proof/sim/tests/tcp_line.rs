//! Throughput and latency of the user-level stack over a line, in virtual time, compared with a reviewed table.
//! `UPDATE_SNAPSHOTS=1` rewrites the table.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use spillway_sim::tcp::bench::{Figures, Line, measure, measure_bulk};
use spillway_tcp::recovery::Algorithm;

const HEAD: &str = "\
# One stream over a line of 100 Mbit/s with a queue of one bandwidth-delay product (at least 64 KB), frames of 1,500
# bytes and random loss in each direction, measured for 60 s after 5 s. Goodput counts payload. `of limit` is goodput
# divided by the line's payload rate (94.2 Mbit/s) or, if that is less, by Mathis' bound MSS/RTT * sqrt(3/(2p)), which
# CUBIC may exceed (RFC 9438). Pings are 2,000 round trips of 64 bytes, one at a time; p99 shows the cost of a loss.
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
                    turn: Duration::ZERO,
                    is_ipv6: false,
                });
            }
        }
    }
    lines
}

const HEAD_IN_TURNS: &str = "\
# One bulk stream over 10 Gbit/s to a receiver with turns at fixed intervals, each for all frames that have arrived;
# measured for 2 s after 0.5 s, mean of 4 seeds; settings as above.
# algorithm  one way/us  turn/us  loss/%  goodput/MB/s  sent again/1000  timeouts
";

/// Lost frames of a million, one-way delay in µs, interval of the receiver's turns in µs, and minimum goodput in MB/s.
const IN_TURNS: [(u64, u64, u64, f64); 5] = [
    (10_000, 50, 50, 92.0),
    (1_000, 50, 50, 0.0),
    (1_000, 2_000, 200, 0.0),
    (200, 2_000, 1_000, 0.0),
    (200, 5_000, 1_000, 0.0),
];
const SEEDS_IN_TURNS: u64 = 4;

fn lines_in_turns() -> Vec<Line> {
    let lines = IN_TURNS.map(|(loss_ppm, one_way_us, turn_us, _)| Line {
        rtt: Duration::from_micros(2 * one_way_us),
        loss_ppm,
        bits_per_s: 10_000_000_000,
        queue_bytes: 4 << 20,
        algorithm: Algorithm::Cubic,
        turn: Duration::from_micros(turn_us),
        is_ipv6: false,
    });
    lines.into()
}

/// Returns the mean goodput in MB/s, and the row of the table.
fn row_in_turns(line: Line) -> (f64, String) {
    let (warm_up, end) = (Duration::from_millis(500), Duration::from_millis(2_500));
    let runs: Vec<Figures> = (0..SEEDS_IN_TURNS).map(|seed| measure_bulk(line, seed, warm_up, end)).collect();
    let mean = |of: fn(&Figures) -> u64| runs.iter().map(of).sum::<u64>() as f64 / SEEDS_IN_TURNS as f64;
    let goodput = mean(|figures| figures.goodput) / 1e6;
    let row = format!(
        "{:<10} {:12} {:8} {:7} {:13.1} {:16.0} {:9.1}",
        format!("{:?}", line.algorithm).to_lowercase(),
        line.rtt.as_micros() / 2,
        line.turn.as_micros(),
        line.loss_ppm as f64 / 1e4,
        goodput,
        mean(|figures| figures.retransmitted_per_mille),
        mean(|figures| figures.timeouts)
    );
    (goodput, row)
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
fn throughput_and_latency_equal_the_snapshot() {
    let lines = lines();
    let rows = Mutex::new(vec![String::new(); lines.len()]);
    let run_one = |index: u64| (index as usize, measure(lines[index as usize], 7));
    spillway_sim::run_seeds(0..lines.len() as u64, run_one, |(index, figures)| {
        rows.lock().unwrap()[index] = row(lines[index], figures);
    });
    let in_turns = Mutex::new(vec![String::new(); IN_TURNS.len()]);
    let run_one = |index: u64| (index as usize, row_in_turns(lines_in_turns()[index as usize]));
    spillway_sim::run_seeds(0..IN_TURNS.len() as u64, run_one, |(index, (goodput, row))| {
        let goodput_min = IN_TURNS[index].3;
        assert!(goodput >= goodput_min, "goodput below {goodput_min} MB/s: {row}");
        in_turns.lock().unwrap()[index] = row;
    });
    let [rows, in_turns] = [rows, in_turns].map(|rows| rows.into_inner().unwrap().join("\n"));
    let table = format!("{HEAD}{rows}\n{HEAD_IN_TURNS}{in_turns}\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/tcp_line.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let snapshot = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = snapshot.lines().zip(table.lines()).find(|(old, new)| old != new);
    assert_eq!(
        snapshot, table,
        "the table should equal the snapshot (UPDATE_SNAPSHOTS=1 rewrites it); first difference: {differs:#?}"
    );
}

/// A packet of 1,500 bytes carries 1,428 bytes of payload over IPv6, and 1,448 over IPv4. Means of several
/// seeds are compared, because the two runs lose different segments.
#[test]
fn ipv6_goodput_is_lower_only_by_the_longer_headers() {
    const SEEDS: u64 = 4;
    let (warm_up, end) = (Duration::from_secs(5), Duration::from_secs(35));
    for loss_ppm in [0, 1_000, 10_000] {
        let goodput = |is_ipv6| {
            let line = Line {
                rtt: Duration::from_millis(10),
                loss_ppm,
                bits_per_s: BITS_PER_S,
                queue_bytes: 128 * 1024,
                algorithm: Algorithm::Cubic,
                turn: Duration::ZERO,
                is_ipv6,
            };
            let of_seed = |seed| measure_bulk(line, seed, warm_up, end).goodput as f64;
            (0..SEEDS).map(of_seed).sum::<f64>() / SEEDS as f64
        };
        let (ipv4, ipv6) = (goodput(false), goodput(true));
        let share = ipv6 / ipv4 * 1448.0 / 1428.0;
        let tolerance = if loss_ppm == 0 { 0.001 } else { 0.05 };
        assert!(
            (share - 1.0).abs() < tolerance,
            "with {loss_ppm} of a million frames lost: IPv6 {ipv6} B/s, IPv4 {ipv4} B/s; the ratio without headers \
             should be 1 ± {tolerance}, but is {share:.4}"
        );
    }
}
