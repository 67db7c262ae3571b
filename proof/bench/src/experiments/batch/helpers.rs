//! Messages a second by the number of helpers, when the server is not the limit (PostMan, Figure 10), and the
//! helpers' CPU time for each message. Each helper has its own quota, so that the machine's cores suffice.
//! [`spread`] measures how evenly clients spread over helpers.
//!
//! The server is an echo server on the server library, without a quota. The same number of closed loops keeps
//! each helper busy. Rounds are interleaved. With `--engine xdp` helpers and clients are on the user-level
//! stack, and one helper on kernel sockets is measured in addition, with the same clients.

mod findings;
mod spread;

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_lab::Quota;
use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line, spoilt_suffix};
use crate::experiments::common::saturation::{limit, spoilt};
use crate::generator::{Clients, Engine, Traffic};
use crate::goodput::Tally;
use crate::measure::measure_until_valid;
use crate::results::Results;
use crate::scene::{Setting, quota_text};
use crate::stage::{Echo, Helper, HelperKind, MeasuredStep, MiddleHosts, Session, Stage};

const HELPERS: HelperKind =
    HelperKind { library: true, batch: "adaptive", max_delay: Duration::from_micros(200) };
const LIMITING_HOSTS: &str = "the helpers";

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Numbers of helpers; the others are compared with the first.
    pub counts: Vec<usize>,
    /// Closed loops for each helper.
    pub connections_each: u32,
    /// Quota of each helper.
    pub quota: Quota,
    /// Pause before each measurement.
    pub settle: Duration,
    /// Length of each measurement.
    pub length: Duration,
    /// Maximum number of attempts at a spoilt measurement, the first included.
    pub attempts_max: u32,
    /// Number of arrivals: each time, all clients choose a helper at the same moment.
    pub arrivals: usize,
    /// Number of clients of each arrival.
    pub clients: u32,
    /// Number of helpers among which these clients choose.
    pub spread_over: usize,
    /// Numbers of helpers that a client asks for their load; each is a series.
    pub helpers_asked: Vec<usize>,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            rounds: 9,
            counts: vec![1, 2, 3, 4],
            connections_each: 100,
            quota: Quota { percent_of_core: 10.0, period: Duration::from_millis(20) },
            settle: Duration::from_millis(500),
            length: Duration::from_millis(1_500),
            attempts_max: 3,
            arrivals: 9,
            clients: 1_000,
            spread_over: 4,
            helpers_asked: vec![1, 2],
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            settle: Duration::from_millis(300),
            length: Duration::from_millis(800),
            attempts_max: 2,
            arrivals: 3,
            ..Effort::full()
        }
    }
}

#[derive(Clone, Debug)]
struct Series {
    engine: Engine,
    count: usize,
    rounds: Rounds<Measurement>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Measurement {
    messages_per_s: f64,
    /// CPU time of all helpers' hosts for each message, in µs.
    helper_us: f64,
    /// CPU time of the server's host for each message, in µs.
    server_us: f64,
    /// CPU use of the server's host, in percent of a core.
    server_percent: f64,
    messages_per_batch: Option<f64>,
    limit: Option<String>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let count = effort.counts.iter().copied().max().unwrap_or(1).max(1);
    let quota = Some(effort.quota);
    let mut engines = vec![setting.engine; count];
    let mut series: Vec<Series> =
        effort.counts.iter().map(|&count| Series::new(setting.engine, count)).collect();
    if setting.engine != Engine::Sockets {
        engines.push(Engine::Sockets);
        series.push(Series::new(Engine::Sockets, 1));
    }
    let count = engines.len();
    let stage = Stage::create_with("helpers", setting, MiddleHosts { count, quota })?;
    let cores = setting.placement.helper_cores_text(count);
    let _ = writeln!(out, "helpers {cores}; each: {}", quota_text(quota));
    let echo = stage.echo()?;
    let helpers = stage.helpers_on(echo.link, &HELPERS, &engines)?;
    let mut course = Course {
        effort,
        stage: &stage,
        clients: setting.engine,
        echo,
        helpers,
        tally: Tally::default(),
        out: &mut *out,
    };
    let mut machine = stage.machine(&[])?;
    let outcome = measurement_order(effort.rounds, series.len())
        .try_for_each(|(round, index)| course.measure_round(round, &mut series[index]).map(drop));
    let Course { mut tally, echo, helpers, .. } = course;
    drop((echo, helpers));
    let mut outcome = outcome.and_then(|()| stage.close());
    let mut spreads = Vec::new();
    // The clients' choice depends only on the helpers' answers: one engine suffices.
    if outcome.is_ok() && setting.engine == Engine::Sockets {
        match spread::run(setting, effort, out) {
            Ok((measured, arrivals_tally)) => {
                tally.add(&arrivals_tally);
                spreads = measured;
            }
            Err(error) => outcome = Err(error),
        }
    }
    machine.server = "echo server of the server library".into();
    machine.lab.insert("quota of each helper's host".into(), quota_text(quota));
    machine.lab.insert("helpers".into(), format!("1 thread each; {cores}"));
    let loops = format!("{} closed loops for each helper, 64 B", effort.connections_each);
    machine.lab.insert("connections".into(), loops);
    machine.lab.insert("engine of helpers and clients".into(), setting.engine.name().into());
    let mut results = Results::new("helpers", machine);
    findings::add_results(&series, &mut results);
    spread::add_results(&spreads, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

struct Course<'a> {
    effort: &'a Effort,
    stage: &'a Stage,
    clients: Engine,
    echo: Echo,
    helpers: Vec<Helper>,
    tally: Tally,
    out: &'a mut dyn Write,
}

impl<'a> Course<'a> {
    fn measure_round(&mut self, round: usize, series: &mut Series) -> Result<(), Error> {
        // No quota while clients connect and move: only the measurement is limited.
        self.set_quota(None)?;
        let mut session = self.start_clients(series)?;
        self.set_quota(Some(self.effort.quota))?;
        let Effort { settle, length, attempts_max, .. } = *self.effort;
        series.rounds.push(measure_until_valid(
            attempts_max,
            || {
                let measured = session.step(0.0, settle, length, self.helpers_of(series))?;
                let share = self.quota_share(&measured, series.count);
                let measurement = Measurement::of(&measured, share);
                let spoilt = spoilt(&measured.step.used, LIMITING_HOSTS, share);
                print_round(self.out, round, series, &measurement, spoilt.as_deref());
                Ok((measurement, spoilt))
            },
            |(_, spoilt)| spoilt.is_none(),
        )?);
        self.set_quota(None)?;
        self.tally.add(&session.finish()?);
        self.echo.check()?;
        self.helpers.iter_mut().try_for_each(Helper::check)
    }

    /// The helpers of a series. The additional helper on kernel sockets is the last one.
    fn helpers_of(&self, series: &Series) -> &[Helper] {
        let first = if series.engine == self.clients { 0 } else { self.helpers.len() - series.count };
        &self.helpers[first..first + series.count]
    }

    fn start_clients(&self, series: &Series) -> Result<Session<'a>, Error> {
        let traffic = Traffic {
            protocol: ProtocolKind::Echo,
            closed: true,
            engine: self.clients,
            ..Traffic::default()
        };
        let connections = self.effort.connections_each * series.count as u32;
        let addresses: Vec<SocketAddr> =
            self.helpers_of(series).iter().map(|helper| helper.address).collect();
        let helpers = Some((addresses, self.stage.client_key().to_owned()));
        let clients = Clients { helpers, ..self.stage.clients(self.echo.plain, &traffic, connections) };
        let mut session = self.stage.session_of(&clients, &traffic)?;
        session.move_to_helper(0.0)?;
        Ok(session)
    }

    fn set_quota(&self, quota: Option<Quota>) -> Result<(), Error> {
        self.stage.middle_hosts().try_for_each(|host| Ok(host.set_quota(quota)?))
    }

    fn quota_share(&self, measured: &MeasuredStep, count: usize) -> f64 {
        let used = &measured.step.used;
        used.percent(used.helper_s) / (self.effort.quota.percent_of_core * count.max(1) as f64)
    }
}

impl Measurement {
    fn of(measured: &MeasuredStep, share: f64) -> Measurement {
        let used = &measured.step.used;
        let served = measured.step.span.served as f64;
        Measurement {
            messages_per_s: served / used.seconds,
            helper_us: used.helper_s * 1e6 / served,
            server_us: used.server_s() * 1e6 / served,
            server_percent: used.server_percent(),
            messages_per_batch: used.messages_per_batch(),
            limit: limit(used, LIMITING_HOSTS, share),
        }
    }
}

fn print_round(
    out: &mut dyn Write,
    round: usize,
    series: &Series,
    measurement: &Measurement,
    spoilt: Option<&str>,
) {
    let limit = measurement.limit.as_ref().map_or(String::new(), |limit| format!(" ({limit})"));
    let spoilt = spoilt_suffix(spoilt);
    print_line(
        out,
        format_args!(
            "round {}: {} helpers on {}: {:.0} messages/s, {:.1} µs of their CPU and {:.2} of the server's for \
             each{limit}{spoilt}",
            round + 1,
            series.count,
            series.engine.name(),
            measurement.messages_per_s,
            measurement.helper_us,
            measurement.server_us,
        ),
    );
}
