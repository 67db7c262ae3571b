//! What a session adds to the cost of a request at the server's host: helped, beside library connections without a session
//! through the same helper; and direct, on the server's own link port, beside plain TCP. And what it adds on the wire.
//!
//! Nobody has a quota. Rounds are interleaved: each asks every way once, in turning order. Ratios compare within a round.

use std::io::Write;
use std::time::Duration;

use spillway_lab::Place;
use spillway_load::config::Speech;

use crate::error::Error;
use crate::experiments::Options;
use crate::generator::{Clients, Traffic, Ways};
use crate::goodput::Tally;
use crate::results::{Ratio, Results, Row, left_out};
use crate::scene::Setting;
use crate::stage::{Cost, Helper, HelperKind, Pair, Session, Stage};
use crate::stats::paired_ratios;

/// Clients.
const CONNECTIONS: u32 = 200;
/// Batches of a known size: what a session adds to a message shows where a message costs little, and with the default a
/// batch of so few clients holds one or two.
const HELPER: HelperKind =
    HelperKind { library: true, batch: "fixed", max_delay: Duration::from_micros(1_000) };
/// Rounds that a ratio needs.
const ROUNDS_MIN: usize = 5;

/// How much is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Rounds.
    pub rounds: usize,
    /// Offered rates, in requests a second; ratios carry the name of the issue at [`Effort::main_per_s`].
    pub rates: Vec<f64>,
    /// The rate of the ratios that are looked at first; one of `rates`.
    pub main_per_s: f64,
    /// After each change of rate.
    pub settle: Duration,
    /// Of each measurement.
    pub length: Duration,
    /// A spoilt measurement is done so many times in all.
    pub tries: u32,
}

impl Effort {
    /// What figures need.
    pub fn full() -> Effort {
        Effort {
            rounds: 9,
            rates: vec![2_000.0, 5_000.0, 10_000.0],
            main_per_s: 10_000.0,
            settle: Duration::from_millis(400),
            length: Duration::from_millis(2_000),
            tries: 3,
        }
    }

    /// What two minutes allow.
    pub fn quick() -> Effort {
        Effort {
            rounds: 5,
            rates: vec![10_000.0],
            length: Duration::from_millis(1_500),
            tries: 2,
            ..Effort::full()
        }
    }
}

/// How requests reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Plain TCP to a server without the shim.
    Plain,
    /// Sessions on the server's own link port, a link each.
    SessionDirect,
    /// Library connections without a session, through the helper.
    Batched,
    /// Sessions through the same helper.
    SessionBatched,
}

/// In the order of the first round.
const WAYS: [Way; 4] = [Way::Plain, Way::SessionDirect, Way::Batched, Way::SessionBatched];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Plain => "direct, plain TCP",
            Way::SessionDirect => "direct, sessions",
            Way::Batched => "helped, no sessions",
            Way::SessionBatched => "helped, sessions",
        }
    }

    fn is_helped(self) -> bool {
        matches!(self, Way::Batched | Way::SessionBatched)
    }
}

/// One way at one rate, a round each; `None` where nothing could be had.
#[derive(Clone, Debug)]
struct Series {
    way: Way,
    rate_per_s: f64,
    costs: Vec<Option<Cost>>,
    spoilt: Vec<String>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs it with so much effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::set("session", setting)?;
    let _ = writeln!(out, "{}; no quota; {CONNECTIONS} clients", setting.placement.words());
    let mut pair = stage.pair(Speech::Memcached, &[64])?;
    let port = Place::from(&stage.middle).free_port()?;
    let helper = stage.helper_on((&stage.middle, port), pair.link, &HELPER)?;
    let mut series: Vec<Series> = Vec::new();
    for way in WAYS {
        let one = |&rate_per_s: &f64| Series { way, rate_per_s, costs: Vec::new(), spoilt: Vec::new() };
        series.extend(effort.rates.iter().map(one));
    }
    let mut tally = Tally::default();
    for round in 0..effort.rounds {
        for turn in 0..WAYS.len() {
            let at = (turn + round) % WAYS.len();
            let way = WAYS[at];
            let through = way.is_helped().then_some(&helper);
            let mut session = start(&stage, &pair, &helper, way, effort.rates[0])?;
            for (n, &rate) in effort.rates.iter().enumerate() {
                let cost =
                    session.measure_again(rate, effort.settle, effort.length, through, effort.tries)?;
                tell(out, round, way, rate, &cost);
                let series = &mut series[at * effort.rates.len() + n];
                series.spoilt.extend(cost.spoilt.clone());
                series.costs.push(cost.spoilt.is_none().then_some(cost));
            }
            tally.add(&session.finish()?);
            pair.check()?;
        }
    }
    let machine = stage.machine(&[("memcached", "-V")])?;
    drop(helper);
    stage.close()?;
    let mut results = Results::new("session-cost", machine);
    series.iter().for_each(|series| rows(series, &mut results));
    ratios(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results)
}

/// Starts clients; those of the helper are there when this returns.
fn start<'a>(
    stage: &'a Stage,
    pair: &Pair,
    helper: &Helper,
    way: Way,
    rate_per_s: f64,
) -> Result<Session<'a>, Error> {
    let traffic = Traffic::default();
    let key = stage.client_key().to_owned();
    let server = if way == Way::Plain { &pair.plain } else { &pair.shimmed };
    let plain = stage.clients(server.address(), &traffic, CONNECTIONS);
    let ways = |helpers, link| Ways { helpers, standby: false, link, key: key.clone() };
    let clients = match way {
        Way::Plain => plain,
        Way::SessionDirect => Clients { sessions: Some(ways(Vec::new(), Some(pair.link))), ..plain },
        Way::Batched => Clients { helper: Some((helper.address, key)), ..plain },
        Way::SessionBatched => Clients { sessions: Some(ways(vec![helper.address], None)), ..plain },
    };
    let mut session = stage.session_of(&clients, &traffic)?;
    if way == Way::Batched {
        session.move_to_helper(rate_per_s)?;
    }
    Ok(session)
}

fn rows(series: &Series, results: &mut Results) {
    let spoilt = left_out(&series.spoilt, series.costs.len());
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Cost) -> Option<f64>, note: &str| {
        let values: Vec<f64> = series.costs.iter().flatten().filter_map(value).collect();
        let row = Row::new(series.way.name(), metric, unit, &values);
        results.rows.push(row.param("offered_per_s", series.rate_per_s).note(note).note(&spoilt));
    };
    row("server_cpu_us_per_request", "µs", &|cost| Some(cost.server_us()), "");
    row(
        "wire_bytes_per_request",
        "B",
        &|cost| Some(cost.wire_bytes_each()),
        "both ways, at the server's interface; acknowledgements of TCP included, headers of split segments once",
    );
    row("total_cpu_us_per_request", "µs", &|cost| Some(cost.total_us()), "");
    if series.way.is_helped() {
        row("helper_cpu_us_per_request", "µs", &|cost| Some(cost.middle_us()), "");
        row("messages_per_batch", "messages", &|cost| cost.used.messages_per_batch(), "");
    }
    row("p50_us", "µs", &|cost| cost.span.quantile_us(0.5).map(|us| us as f64), "");
    row("p99_us", "µs", &|cost| cost.span.quantile_us(0.99).map(|us| us as f64), "");
}

fn ratios(series: &[Series], effort: &Effort, results: &mut Results) {
    let find = |way: Way, rate: f64| series.iter().find(|s| s.way == way && s.rate_per_s == rate);
    let each = |s: &Series, value: fn(&Cost) -> f64| -> Vec<Option<f64>> {
        s.costs.iter().map(|cost| cost.as_ref().map(value)).collect()
    };
    for &rate in &effort.rates {
        let main = rate == effort.main_per_s;
        let at = if main { String::new() } else { format!("_at_{rate}") };
        let comparisons = [
            ("session_over_plain_batched", Way::SessionBatched, Way::Batched, "helped; expected CPU ≤ 1.1"),
            ("session_direct_over_plain", Way::SessionDirect, Way::Plain, "a link each, against plain TCP"),
        ];
        for (name, ours, theirs, words) in comparisons {
            let (Some(ours), Some(theirs)) = (find(ours, rate), find(theirs, rate)) else { continue };
            let cpu = if name == "session_over_plain_batched" { "_cpu" } else { "" };
            let figures = [
                (cpu, "server CPU for each request", Cost::server_us as fn(&Cost) -> f64),
                ("_wire", "bytes on the server's cable for each request", Cost::wire_bytes_each),
            ];
            for (suffix, what, value) in figures {
                let rounds = paired_ratios(&each(ours, value), &each(theirs, value));
                let few =
                    (rounds.len() < ROUNDS_MIN).then(|| format!("{} rounds, not {ROUNDS_MIN}", rounds.len()));
                let ratio = Ratio::new(&format!("{name}{suffix}{at}"), &rounds).void_if(few);
                results.ratios.push(ratio.note(format!("{what}, at {rate}/s; {words}")));
            }
        }
    }
}

fn tell(out: &mut dyn Write, round: usize, way: Way, rate: f64, cost: &Cost) {
    let spoilt = cost.spoilt.as_ref().map_or(String::new(), |why| format!(" (spoilt: {why})"));
    // Nobody reading is no reason to stop.
    let _ = writeln!(
        out,
        "round {}: {} at {rate}/s: {:.2} µs of server CPU and {:.0} B for a request{spoilt}",
        round + 1,
        way.name(),
        cost.server_us(),
        cost.wire_bytes_each()
    )
    .and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::measure::Used;

    fn series(way: Way, rate_per_s: f64, us: &[f64]) -> Series {
        let cost = |&us: &f64| {
            let used = Used { seconds: 1.0, server_process_s: us * 0.01, ..Used::default() };
            (us > 0.0).then(|| Cost { used, requests: 10_000, wire_bytes: 4_000_000, ..Cost::default() })
        };
        Series { way, rate_per_s, costs: us.iter().map(cost).collect(), spoilt: Vec::new() }
    }

    #[test]
    fn sessions_are_compared_with_the_same_way_without() {
        let all = [
            series(Way::Batched, 10_000.0, &[8.0, 8.0, 8.0, 8.0, 8.0, 0.0]),
            series(Way::SessionBatched, 10_000.0, &[8.4; 6]),
            series(Way::Plain, 10_000.0, &[20.0; 6]),
            series(Way::SessionDirect, 10_000.0, &[25.0; 6]),
            series(Way::Plain, 2_000.0, &[20.0; 6]),
            series(Way::SessionDirect, 2_000.0, &[25.0; 2]),
        ];
        let mut results = Results::new("session-cost", Machine::default());
        all.iter().for_each(|series| rows(series, &mut results));
        ratios(&all, &Effort::full(), &mut results);
        let ratio = |name: &str| results.ratios.iter().find(|r| r.name == name).unwrap();
        let helped = ratio("session_over_plain_batched_cpu");
        assert!(
            helped.valid && helped.runs == 5 && (helped.median.unwrap() - 1.05).abs() < 1e-9,
            "{helped:?}"
        );
        assert_eq!(ratio("session_over_plain_batched_wire").median, Some(1.0));
        assert!((ratio("session_direct_over_plain").median.unwrap() - 1.25).abs() < 1e-9);
        assert!(!ratio("session_direct_over_plain_at_2000").valid);
        let wire: Vec<_> = results.rows.iter().filter(|r| r.metric == "wire_bytes_per_request").collect();
        assert!(wire.len() == 6 && wire.iter().all(|row| row.median == Some(400.0)));
    }
}
