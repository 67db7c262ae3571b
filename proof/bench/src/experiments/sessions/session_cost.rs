//! Cost of sessions for a request, in CPU time of the server's host and in bytes on the wire: helped, compared with
//! library connections without sessions through the same helper; and direct on the server's link port, compared with
//! plain TCP.
//!
//! No host has a quota. Rounds are interleaved: each measures every path once, in rotating order. Ratios compare within
//! a round.

use std::io::Write;
use std::time::Duration;

use spillway_lab::Place;
use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rates::{Path, RateMeasurement, Series, find};
use crate::generator::{Clients, Routes, Traffic};
use crate::results::{Ratio, Results};
use crate::scene::Setting;
use crate::stage::{Cost, Helper, HelperKind, Pair, Session, Stage};

pub use crate::experiments::common::rates::Effort;

const CONNECTIONS: u32 = 200;
/// A long, fixed batch delay, for many messages in a batch: where a message costs little, a session's cost is
/// easiest to see. With the default delay, a batch of these clients contains one or two messages.
const HELPER: HelperKind =
    HelperKind { library: true, batch: "fixed", max_delay: Duration::from_micros(1_000) };

fn full() -> Effort {
    Effort {
        rounds: 9,
        rates: vec![2_000.0, 5_000.0, 10_000.0],
        main_rate_per_s: 10_000.0,
        settle: Duration::from_millis(400),
        length: Duration::from_millis(2_000),
        attempts_max: 3,
    }
}

fn quick() -> Effort {
    Effort {
        rounds: 5,
        rates: vec![10_000.0],
        length: Duration::from_millis(1_500),
        attempts_max: 2,
        ..full()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientKind {
    /// Plain TCP to a server without the preload library.
    Plain,
    /// Sessions on the server's own link port, each with its own link.
    SessionDirect,
    /// Library connections without a session, through the helper.
    Batched,
    /// Sessions through the same helper.
    SessionBatched,
}

const CLIENT_KINDS: [ClientKind; 4] =
    [ClientKind::Plain, ClientKind::SessionDirect, ClientKind::Batched, ClientKind::SessionBatched];

impl Path for ClientKind {
    fn name(self) -> &'static str {
        match self {
            ClientKind::Plain => "direct, plain TCP",
            ClientKind::SessionDirect => "direct, sessions",
            ClientKind::Batched => "helped, no sessions",
            ClientKind::SessionBatched => "helped, sessions",
        }
    }
}

impl ClientKind {
    fn is_helped(self) -> bool {
        matches!(self, ClientKind::Batched | ClientKind::SessionBatched)
    }
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { quick() } else { full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::create("session", setting)?;
    let _ = writeln!(out, "{}; no quota; {CONNECTIONS} clients", setting.placement.description());
    let mut pair = stage.pair(ProtocolKind::Memcached, &[64])?;
    let port = Place::from(&stage.middle_host).free_port()?;
    let helper = stage.helper_on((&stage.middle_host, port), pair.link, &HELPER)?;
    let machine = stage.machine(&[("memcached", "-V")])?;
    let mut measurement = RateMeasurement { effort, pair: &mut pair, out };
    let (series, tally, outcome) = measurement.run(
        &CLIENT_KINDS,
        |pair, kind| {
            let session = start(&stage, pair, &helper, kind, effort.rates[0])?;
            Ok((session, kind.is_helped().then_some(&helper)))
        },
        |cost| {
            format!(
                "{:.2} µs of server CPU and {:.0} B for a request",
                cost.server_us(),
                cost.wire_bytes_each()
            )
        },
    );
    drop(helper);
    let outcome = outcome.and_then(|()| stage.close());
    let mut results = Results::new("session-cost", machine);
    series.iter().for_each(|series| add_rows(series, &mut results));
    add_ratios(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

/// Starts the clients; helped connections without sessions have moved to the helper when this returns.
fn start<'a>(
    stage: &'a Stage,
    pair: &Pair,
    helper: &Helper,
    kind: ClientKind,
    rate_per_s: f64,
) -> Result<Session<'a>, Error> {
    let traffic = Traffic::default();
    let key = stage.client_key().to_owned();
    let server = if kind == ClientKind::Plain { &pair.plain } else { &pair.shimmed };
    let plain = stage.clients(server.address(), &traffic, CONNECTIONS);
    let routes = |helpers, link| Routes {
        helpers,
        standby: false,
        link,
        sessions_per_process: None,
        key: key.clone(),
    };
    let clients = match kind {
        ClientKind::Plain => plain,
        ClientKind::SessionDirect => Clients { sessions: Some(routes(Vec::new(), Some(pair.link))), ..plain },
        ClientKind::Batched => Clients { helpers: Some((vec![helper.address], key)), ..plain },
        ClientKind::SessionBatched => Clients { sessions: Some(routes(vec![helper.address], None)), ..plain },
    };
    let mut session = stage.session_of(&clients, &traffic)?;
    if kind == ClientKind::Batched {
        session.move_to_helper(rate_per_s)?;
    }
    Ok(session)
}

fn add_rows(series: &Series<ClientKind>, results: &mut Results) {
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Cost) -> Option<f64>, note: &str| {
        results.rows.push(series.row(metric, unit, value, note));
    };
    row("server_cpu_us_per_request", "µs", &|cost| Some(cost.server_us()), "");
    row(
        "wire_bytes_per_request",
        "B",
        &|cost| Some(cost.wire_bytes_each()),
        "both ways, at the server's interface; acknowledgements of TCP included, headers of split segments once",
    );
    row("total_cpu_us_per_request", "µs", &|cost| Some(cost.total_us()), "");
    if series.path.is_helped() {
        row("helper_cpu_us_per_request", "µs", &|cost| Some(cost.middle_us()), "");
        row("messages_per_batch", "messages", &|cost| cost.used.messages_per_batch(), "");
    }
    row("p50_us", "µs", &|cost| cost.span.quantile_us(0.5).map(|us| us as f64), "");
    row("p99_us", "µs", &|cost| cost.span.quantile_us(0.99).map(|us| us as f64), "");
}

fn add_ratios(series: &[Series<ClientKind>], effort: &Effort, results: &mut Results) {
    let comparisons = [
        (
            ["session_over_plain_batched_cpu", "session_over_plain_batched_wire"],
            (ClientKind::SessionBatched, ClientKind::Batched),
            "helped; expected CPU ≤ 1.1",
        ),
        (
            ["session_direct_over_plain", "session_direct_over_plain_wire"],
            (ClientKind::SessionDirect, ClientKind::Plain),
            "a link each, against plain TCP",
        ),
    ];
    for &rate in &effort.rates {
        for ([cpu, wire], (session_kind, plain_kind), note) in comparisons {
            let (Some(session), Some(plain)) =
                (find(series, session_kind, rate), find(series, plain_kind, rate))
            else {
                continue;
            };
            let figures = [
                (cpu, "server CPU for each request", Cost::server_us as fn(&Cost) -> f64),
                (wire, "bytes on the server's cable for each request", Cost::wire_bytes_each),
            ];
            for (name, quantity, value) in figures {
                let name = format!("{name}{}", effort.suffix(rate));
                let ratio = Ratio::paired(&name, &session.each(value), &plain.each(value));
                results.ratios.push(ratio.note(format!("{quantity}, at {rate}/s; {note}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::measure::Used;

    fn series(kind: ClientKind, rate_per_s: f64, us: &[f64]) -> Series<ClientKind> {
        let cost = |&us: &f64| {
            let used = Used { seconds: 1.0, server_process_s: us * 0.01, ..Used::default() };
            (us > 0.0).then(|| Cost { used, requests: 10_000, wire_bytes: 4_000_000, ..Cost::default() })
        };
        Series { path: kind, rate_per_s, costs: us.iter().map(cost).collect() }
    }

    #[test]
    fn sessions_are_compared_with_the_same_path_without_sessions() {
        let all = [
            series(ClientKind::Batched, 10_000.0, &[8.0, 8.0, 8.0, 8.0, 8.0, 0.0]),
            series(ClientKind::SessionBatched, 10_000.0, &[8.4; 6]),
            series(ClientKind::Plain, 10_000.0, &[20.0; 6]),
            series(ClientKind::SessionDirect, 10_000.0, &[25.0; 6]),
            series(ClientKind::Plain, 2_000.0, &[20.0; 6]),
            series(ClientKind::SessionDirect, 2_000.0, &[25.0; 2]),
        ];
        let mut results = Results::new("session-cost", Machine::default());
        all.iter().for_each(|series| add_rows(series, &mut results));
        add_ratios(&all, &full(), &mut results);
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
