//! Messages a second at saturation against the payload, direct and helped, for servers with a small and a larger quota;
//! and the payload up to which helping raises throughput (PostMan, Figure 8; with the server on the user-level stack,
//! Figure 9, where the paper has IX).
//!
//! The server echoes, like the paper's ping-pong, so that it only processes packets. Closed loops saturate it. Rounds
//! are interleaved: each measures both paths once at every payload, in rotating order.

mod findings;

use std::io::Write;
use std::time::Duration;

use spillway_lab::Quota;
use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, print_line, spoilt_suffix};
use crate::experiments::common::saturation::{limit, spoilt};
use crate::generator::Traffic;
use crate::goodput::Tally;
use crate::measure::measure_until_valid;
use crate::results::Results;
use crate::scene::Setting;
use crate::stage::{Echo, Helper, HelperKind, MeasuredStep, MiddleHosts, QUOTA_ENTRY, Stage};

/// Period of the quotas. Long enough for a small quota; latencies, which it would raise, are not measured here.
const PERIOD: Duration = Duration::from_millis(20);
/// A helper for plain clients, with a long batch delay: the experiment measures throughput, not latency.
const HELPER: HelperKind =
    HelperKind { library: false, batch: "fixed", max_delay: Duration::from_micros(1_000) };

const LIMITING_HOST: &str = "the server";

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Payloads, rising, in bytes.
    pub payloads: Vec<usize>,
    /// Quotas of the server, in percent of a core. The first stands for the paper's server with one core.
    pub quotas_percent: Vec<f64>,
    /// Number of closed loops.
    pub connections: u32,
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
            rounds: 5,
            payloads: vec![64, 128, 256, 512, 1_024, 1_460, 2_048, 4_096, 8_192, 16_384, 32_768],
            quotas_percent: vec![5.0, 40.0],
            connections: 400,
            settle: Duration::from_millis(300),
            length: Duration::from_millis(1_000),
            attempts_max: 3,
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort {
            rounds: 3,
            payloads: vec![64, 1_024, 8_192],
            settle: Duration::from_millis(200),
            length: Duration::from_millis(600),
            attempts_max: 2,
            ..Effort::full()
        }
    }
}

/// The TCP under the echo server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerTcp {
    /// The kernel's: the experiment `payload`.
    Kernel,
    /// The user-level stack on AF_XDP: the experiment `payload-stack`.
    Stack,
}

impl ServerTcp {
    fn experiment(self) -> &'static str {
        match self {
            ServerTcp::Kernel => "payload",
            ServerTcp::Stack => "payload-stack",
        }
    }

    fn server(self) -> &'static str {
        match self {
            ServerTcp::Kernel => "echo server of the server library",
            ServerTcp::Stack => "echo server on the user-level stack (AF_XDP)",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Direct,
    Helped,
}

impl Path {
    fn name(self) -> &'static str {
        match self {
            Path::Direct => "direct",
            Path::Helped => "helped",
        }
    }
}

#[derive(Clone, Debug)]
struct Series {
    path: Path,
    payload: usize,
    quota_percent: f64,
    rounds: Rounds<Measurement>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Measurement {
    messages_per_s: f64,
    /// CPU time of the server's host for each message, in µs.
    server_us: f64,
    /// Used share of the server's quota, 0 to 1.
    quota_share: f64,
    messages_per_batch: Option<f64>,
    /// CPU use of all hosts, if the server did not use up its quota.
    limit: Option<String>,
}

/// Runs the experiment `payload`.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, ServerTcp::Kernel, out)
}

/// Runs the experiment `payload-stack`.
pub fn run_on_stack(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, ServerTcp::Stack, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(
    setting: &Setting,
    effort: &Effort,
    tcp: ServerTcp,
    out: &mut dyn Write,
) -> Result<Results, Error> {
    let name = tcp.experiment();
    let stage = match tcp {
        ServerTcp::Kernel => Stage::create_with(name, setting, MiddleHosts { count: 1, quota: None })?,
        ServerTcp::Stack => Stage::create_with_checksums(name, setting, 1)?,
    };
    let _ = writeln!(out, "{}; {} closed loops", setting.placement.description(), effort.connections);
    let echo = match tcp {
        ServerTcp::Kernel => stage.echo()?,
        ServerTcp::Stack => stage.echo_on_stack()?,
    };
    let helper = stage.helpers(echo.link, &HELPER)?.remove(0);
    let mut course = Course { effort, stage: &stage, echo, helper, tally: Tally::default(), out };
    let mut series: Vec<Series> = Vec::new();
    for &payload in &effort.payloads {
        for path in [Path::Direct, Path::Helped] {
            series.extend(effort.quotas_percent.iter().map(|&quota_percent| Series {
                path,
                payload,
                quota_percent,
                rounds: Rounds::default(),
            }));
        }
    }
    // The quotas of one payload and path are measured one after the other, with the same clients.
    let quotas = effort.quotas_percent.len().max(1);
    let mut machine = stage.machine(&[])?;
    let outcome = (0..effort.rounds).try_for_each(|round| {
        let mut order: Vec<&mut [Series]> = series.chunks_mut(quotas).collect();
        let first = round % order.len().max(1);
        order.rotate_left(first);
        order.into_iter().try_for_each(|quotas| course.measure_round(round, quotas).map(drop))
    });
    let Course { tally, echo, helper, .. } = course;
    drop((echo, helper));
    let outcome = outcome.and_then(|()| stage.close());
    machine.server = tcp.server().into();
    machine.lab.insert(
        QUOTA_ENTRY.into(),
        format!("by row, in periods of {PERIOD:?}, process and interface together"),
    );
    machine.lab.insert("helper".into(), format!("1 thread, a batch each {:?}", HELPER.max_delay));
    machine.lab.insert("connections".into(), format!("{} closed loops", effort.connections));
    let mut results = Results::new(name, machine);
    findings::add_results(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

struct Course<'a> {
    effort: &'a Effort,
    stage: &'a Stage,
    echo: Echo,
    helper: Helper,
    tally: Tally,
    out: &'a mut dyn Write,
}

impl Course<'_> {
    fn measure_round(&mut self, round: usize, quotas: &mut [Series]) -> Result<(), Error> {
        let Some(&Series { path, payload, .. }) = quotas.first() else { return Ok(()) };
        let traffic =
            Traffic { protocol: ProtocolKind::Echo, value_size: payload, closed: true, ..Traffic::default() };
        let (target, helper) = match path {
            Path::Direct => (self.echo.plain, None),
            Path::Helped => (self.helper.address, Some(&self.helper)),
        };
        let Effort { settle, length, attempts_max, .. } = *self.effort;
        // No quota while clients connect: only the measurement is limited.
        self.stage.server.set_quota(None)?;
        let mut session = self.stage.session(target, &traffic, self.effort.connections)?;
        for series in quotas {
            let quota = Quota { percent_of_core: series.quota_percent, period: PERIOD };
            self.stage.server.set_quota(Some(quota))?;
            let result = measure_until_valid(
                attempts_max,
                || {
                    let measured = session.step(0.0, settle, length, helper)?;
                    let measurement = Measurement::of(&measured, quota);
                    let spoilt = spoilt(&measured.step.used, LIMITING_HOST, measurement.quota_share);
                    print_round(self.out, round, series, &measurement, spoilt.as_deref());
                    Ok((measurement, spoilt))
                },
                |(_, spoilt)| spoilt.is_none(),
            )?;
            series.rounds.push(result);
        }
        self.stage.server.set_quota(None)?;
        self.tally.add(&session.finish()?);
        self.echo.check()?;
        self.helper.check()
    }
}

impl Measurement {
    fn of(measured: &MeasuredStep, quota: Quota) -> Measurement {
        let used = &measured.step.used;
        let served = measured.step.span.served as f64;
        let server_s = used.server_s();
        let quota_share = used.quota_share(Some(quota)).unwrap_or(0.0);
        Measurement {
            messages_per_s: if used.seconds > 0.0 { served / used.seconds } else { 0.0 },
            server_us: if served > 0.0 { server_s * 1e6 / served } else { f64::NAN },
            quota_share,
            messages_per_batch: used.messages_per_batch(),
            limit: limit(used, LIMITING_HOST, quota_share),
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
            "round {}: {} B {}, {} % of a core: {:.0} messages/s, {:.2} µs of server CPU each{limit}{spoilt}",
            round + 1,
            series.payload,
            series.path.name(),
            series.quota_percent,
            measurement.messages_per_s,
            measurement.server_us,
        ),
    );
}
