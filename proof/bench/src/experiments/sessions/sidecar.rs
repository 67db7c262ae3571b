//! Latency that a sidecar adds to a request on an idle service, and its own CPU time, for memcached, redis, and an
//! unknown protocol.
//!
//! Each pair measures direct clients and clients of the sidecar; the first of a pair alternates. No helper
//! runs: the experiment shows the cost of a sidecar while no relief is active.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use spillway_lab::{Launch, Place, Process};
use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{print_line, spoilt_suffix};
use crate::generator::Traffic;
use crate::goodput::Tally;
use crate::measure::{measure_until_valid, spoilt_by, stopped};
use crate::results::{Ratio, Results, Row, few, left_out};
use crate::scene::Setting;
use crate::served::check_runs;
use crate::stage::{Echo, MeasuredStep, Pair, Stage};

/// Offered rate: far below the capacity of server and sidecar.
const RATE_PER_S: f64 = 1_000.0;
const CONNECTIONS: u32 = 20;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum number of pairs for a difference of a few µs.
const PAIRS_MIN: usize = 15;

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Pairs of each protocol.
    pub pairs: usize,
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
            pairs: 17,
            settle: Duration::from_millis(300),
            length: Duration::from_millis(1_500),
            attempts_max: 3,
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort { pairs: 5, length: Duration::from_millis(800), attempts_max: 2, ..Effort::full() }
    }
}

/// The sidecar's option `--protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Memcached,
    Redis,
    Tcp,
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Memcached, Protocol::Redis, Protocol::Tcp];

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Protocol::Memcached => "memcached",
            Protocol::Redis => "redis",
            Protocol::Tcp => "tcp",
        }
    }

    /// The clients' protocol: echoes for `tcp`, which the sidecar cannot parse.
    fn kind(self) -> ProtocolKind {
        match self {
            Protocol::Memcached => ProtocolKind::Memcached,
            Protocol::Redis => ProtocolKind::Redis,
            Protocol::Tcp => ProtocolKind::Echo,
        }
    }
}

/// All pairs of one protocol; `None` for a spoilt measurement.
#[derive(Clone, Debug)]
struct Series {
    protocol: Protocol,
    direct: Vec<Option<Measurement>>,
    sidecar: Vec<Option<Measurement>>,
    spoilt: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measurement {
    p50_us: f64,
    p99_us: f64,
    /// CPU time of the sidecar for each request, in µs.
    cpu_us: f64,
    /// CPU time of the server's host for each request, in µs.
    server_us: f64,
}

/// Servers of one protocol: one with the preload library and one without, or an echo server with both ports.
enum Servers {
    Pair(Box<Pair>),
    Echo(Echo),
}

impl Servers {
    fn start(stage: &Stage, protocol: Protocol) -> Result<Servers, Error> {
        Ok(match protocol.kind() {
            ProtocolKind::Echo => Servers::Echo(stage.echo()?),
            kind => Servers::Pair(Box::new(stage.pair(kind, &[64])?)),
        })
    }

    fn plain(&self) -> SocketAddr {
        match self {
            Servers::Pair(pair) => pair.plain.address(),
            Servers::Echo(echo) => echo.plain,
        }
    }

    fn link(&self) -> SocketAddr {
        match self {
            Servers::Pair(pair) => pair.link,
            Servers::Echo(echo) => echo.link,
        }
    }

    fn check(&mut self) -> Result<(), Error> {
        match self {
            Servers::Pair(pair) => pair.check(),
            Servers::Echo(echo) => echo.check(),
        }
    }
}

struct Sidecar {
    process: Process,
    address: SocketAddr,
}

impl Sidecar {
    fn start(
        stage: &Stage,
        program: &std::path::Path,
        link: SocketAddr,
        protocol: Protocol,
    ) -> Result<Sidecar, Error> {
        let port = Place::from(&stage.client).free_port()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let launch = Launch::new(program)
            .name("sidecar")
            .args(["sidecar", "--link", &link.to_string(), "--listen", &address.to_string()])
            .args(["--protocol", protocol.name()])
            .args(["--require-encryption", "--client-key"])
            .arg(stage.client_key());
        let mut sidecar = Sidecar { process: stage.client.spawn(&launch)?, address };
        let deadline = Instant::now() + READY_TIMEOUT;
        while stage.client.run_inside(|| std::net::TcpStream::connect(address).is_err())? {
            sidecar.check()?;
            if Instant::now() >= deadline {
                return Err(Error::process("the sidecar is not ready", sidecar.process.last_output()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(sidecar)
    }

    fn check(&mut self) -> Result<(), Error> {
        check_runs(&mut self.process, "the sidecar")
    }
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::create("sidecar", setting)?;
    let _ =
        writeln!(out, "{}; the sidecar with the clients; {RATE_PER_S}/s", setting.placement.description());
    let mut series = Vec::new();
    let mut tally = Tally::default();
    let mut machine = stage.machine(&[("memcached", "-V"), ("redis-server", "-v")])?;
    let outcome = PROTOCOLS.into_iter().try_for_each(|protocol| {
        let mut servers = Servers::start(&stage, protocol)?;
        let mut sidecar = Sidecar::start(&stage, &setting.programs.spillway, servers.link(), protocol)?;
        series.push(Series { protocol, direct: Vec::new(), sidecar: Vec::new(), spoilt: Vec::new() });
        let Some(current) = series.last_mut() else { return Ok(()) };
        for pair in 0..effort.pairs {
            for uses_sidecar in [pair % 2 == 0, pair % 2 != 0] {
                let measured_sidecar = uses_sidecar.then_some(&sidecar);
                let measurement = measure(
                    &stage,
                    effort,
                    &servers,
                    current,
                    measured_sidecar,
                    &mut tally,
                    &mut |measurement, why| {
                        print_round(out, pair, protocol, uses_sidecar, measurement, why);
                    },
                )?;
                if uses_sidecar { &mut current.sidecar } else { &mut current.direct }.push(measurement);
                servers.check()?;
                sidecar.check()?;
            }
        }
        Ok(())
    });
    let outcome = outcome.and_then(|()| stage.close());
    machine.lab.insert("sidecar".into(), "1 thread, on the clients' host and core; no helper".into());
    machine.lab.insert("connections".into(), format!("{CONNECTIONS}, {RATE_PER_S}/s, GET or echo of 64 B"));
    let mut results = Results::new("sidecar", machine);
    series.iter().for_each(|series| add_results(series, &mut results));
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

/// Measures one half of a pair; `None` if every attempt was spoilt. Calls `print` after each attempt.
fn measure(
    stage: &Stage,
    effort: &Effort,
    servers: &Servers,
    series: &mut Series,
    sidecar: Option<&Sidecar>,
    tally: &mut Tally,
    print: &mut dyn FnMut(Option<Measurement>, Option<&str>),
) -> Result<Option<Measurement>, Error> {
    let traffic = Traffic { protocol: series.protocol.kind(), ..Traffic::default() };
    let target = sidecar.map_or(servers.plain(), |sidecar| sidecar.address);
    let mut session = stage.session(target, &traffic, CONNECTIONS)?;
    if let Some(sidecar) = sidecar {
        session.watch(sidecar.process.pid());
    }
    let (measurement, spoilt) = measure_until_valid(
        effort.attempts_max,
        || {
            let measured = session.step(RATE_PER_S, effort.settle, effort.length, None)?;
            let used = &measured.step.used;
            let spoilt = spoilt_by(used, measured.step.lag_p99_us).or_else(|| stopped(used));
            let measurement = Measurement::of(&measured);
            print(measurement, spoilt.as_deref());
            series.spoilt.extend(spoilt.clone());
            Ok((measurement, spoilt))
        },
        |(_, spoilt)| spoilt.is_none(),
    )?;
    tally.add(&session.finish()?);
    Ok(measurement.filter(|_| spoilt.is_none()))
}

impl Measurement {
    fn of(measured: &MeasuredStep) -> Option<Measurement> {
        let (span, used) = (&measured.step.span, &measured.step.used);
        let each = |seconds: f64| seconds * 1e6 / span.served as f64;
        Some(Measurement {
            p50_us: span.quantile_us(0.5)? as f64,
            p99_us: span.quantile_us(0.99)? as f64,
            cpu_us: each(measured.watched.as_secs_f64()),
            server_us: each(used.server_s()),
        })
    }
}

fn add_results(series: &Series, results: &mut Results) {
    let pairs: Vec<(Measurement, Measurement)> = series
        .direct
        .iter()
        .zip(&series.sidecar)
        .filter_map(|(direct, sidecar)| (*direct).zip(*sidecar))
        .collect();
    let too_few = few(pairs.len(), "pairs", PAIRS_MIN);
    let valid = series.direct.iter().chain(&series.sidecar).flatten().count();
    let spoilt = left_out(&series.spoilt, valid + series.spoilt.len());
    let mut row =
        |system: &str, metric: &str, note: &str, value: &dyn Fn(&Measurement, &Measurement) -> f64| {
            let values: Vec<f64> = pairs.iter().map(|(direct, sidecar)| value(direct, sidecar)).collect();
            let row = Row::new(system, metric, "µs", &values).param("protocol", series.protocol.name());
            results.rows.push(
                row.param("offered_per_s", RATE_PER_S).note(note).note(&spoilt).void_if(too_few.clone()),
            );
        };
    row("direct", "p50_us", "", &|direct, _| direct.p50_us);
    row("sidecar", "p50_us", "", &|_, sidecar| sidecar.p50_us);
    let added = "sidecar minus direct, pair by pair; expected ≤ 60";
    row("sidecar", "added_p50_us", added, &|direct, sidecar| sidecar.p50_us - direct.p50_us);
    row("sidecar", "added_p99_us", "sidecar minus direct, pair by pair", &|direct, sidecar| {
        sidecar.p99_us - direct.p99_us
    });
    row("sidecar", "cpu_us_per_request", "of the sidecar's process", &|_, sidecar| sidecar.cpu_us);
    row("direct", "server_cpu_us_per_request", "", &|direct, _| direct.server_us);
    row("sidecar", "server_cpu_us_per_request", "", &|_, sidecar| sidecar.server_us);
    let rounds: Vec<f64> = pairs.iter().map(|(direct, sidecar)| sidecar.p50_us / direct.p50_us).collect();
    let name = format!("p50_sidecar_over_direct_{}", series.protocol.name());
    results.ratios.push(Ratio::new(&name, &rounds).void_if(too_few));
}

fn print_round(
    out: &mut dyn Write,
    pair: usize,
    protocol: Protocol,
    uses_sidecar: bool,
    measurement: Option<Measurement>,
    spoilt: Option<&str>,
) {
    let path = if uses_sidecar { "sidecar" } else { "direct" };
    let spoilt = spoilt_suffix(spoilt);
    let figures = measurement.map_or("no replies".into(), |measurement| {
        let sidecar =
            if uses_sidecar { format!(", {:.1} µs of CPU", measurement.cpu_us) } else { String::new() };
        format!("p50 {:.0} µs, p99 {:.0} µs{sidecar}", measurement.p50_us, measurement.p99_us)
    });
    print_line(out, format_args!("pair {}: {}, {path}: {figures}{spoilt}", pair + 1, protocol.name()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn added_latency_is_computed_pair_by_pair() {
        let measurement =
            |p50_us: f64| Some(Measurement { p50_us, p99_us: 3.0 * p50_us, cpu_us: 20.0, server_us: 9.0 });
        let mut series = Series {
            protocol: Protocol::Redis,
            direct: vec![measurement(100.0); 16],
            sidecar: vec![measurement(150.0); 16],
            spoilt: vec!["a stall".into()],
        };
        // One pair with higher latencies on both sides, and one pair without a direct measurement.
        (series.direct[3], series.sidecar[3]) = (measurement(300.0), measurement(350.0));
        series.direct[5] = None;
        let mut results = Results::new("sidecar", Machine::default());
        add_results(&series, &mut results);
        let row = |metric: &str| results.rows.iter().find(|row| row.metric == metric).unwrap();
        let added = row("added_p50_us");
        assert_eq!(
            (added.median, added.min, added.max, added.runs),
            (Some(50.0), Some(50.0), Some(50.0), 15)
        );
        assert!(
            added.valid && added.why.contains("spoilt") && added.params["protocol"] == "redis",
            "{added:?}"
        );
        assert_eq!(row("cpu_us_per_request").median, Some(20.0));
        assert_eq!(results.ratios[0].median, Some(1.5));
        series.sidecar[7] = None;
        let mut results = Results::new("sidecar", Machine::default());
        add_results(&series, &mut results);
        assert!(results.rows.iter().all(|row| !row.valid && row.why.contains("14 pairs")));
    }
}
