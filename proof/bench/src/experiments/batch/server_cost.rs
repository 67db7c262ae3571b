//! CPU time of the server's host for a request: over plain connections, with the preload library, in batches
//! of given sizes, through real helpers, pipelined, and as multiget. The servers are memcached and redis,
//! without quotas.
//!
//! Rounds are interleaved: each measures every path once. Ratios compare within a round.

mod findings;

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_batch::Encryption;
use spillway_load::config::ProtocolKind;
use spillway_load::keys::Keys;
use spillway_load::protocol::memcached::Text;
use spillway_load::protocol::redis::Resp;
use spillway_load::protocol::store::Store;

use crate::driver::{LinkDriver, Links, ManyKeys, PipeDriver};
use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{measurement_order, print_line, spoilt_suffix};
use crate::generator::Traffic;
use crate::goodput::Tally;
use crate::measure::measure_until_valid;
use crate::results::Results;
use crate::scene::Setting;
use crate::stage::{Cost, Helper, KEYS, Pair, Stage, process_cpu, space};

const CONNECTIONS: u32 = 200;
/// The helper's default batch delay.
const MAX_DELAY: Duration = Duration::from_micros(200);
/// Maximum number of links of a driver; with small batches it then has fewer clients than [`CONNECTIONS`].
const LINKS_MAX: u16 = 40;
/// First client port of a driver's first link, and the distance to that of the next link.
const PORTS: (u16, u16) = (20_000, 1_000);

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Pairs of a server without and with the preload library.
    pub pairs: usize,
    /// Rounds of batches.
    pub rounds: usize,
    /// Rounds of mixes, pipelines, and offered rates.
    pub side_rounds: usize,
    /// Rounds that compare encrypted with unencrypted links.
    pub link_rounds: usize,
    /// Sizes of batches, in messages.
    pub batches: Vec<u16>,
    /// Value sizes in bytes and shares of GETs, besides GET of 64 B.
    pub mixes: Vec<(usize, f64)>,
    /// Sizes of batches for mixes, for single batches, and for the comparison of links.
    pub mix_batches: Vec<u16>,
    /// Offered rates, direct and through a helper, in requests a second.
    pub rates: Vec<f64>,
    /// Numbers of pipelined requests, and of keys in a multiget.
    pub depths: Vec<usize>,
    /// Pause before each measurement.
    pub settle: Duration,
    /// Length of each measurement.
    pub length: Duration,
    /// Length of the measurement with idle clients.
    pub idle: Duration,
    /// Maximum number of attempts at a spoilt measurement, the first included.
    pub attempts_max: u32,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            pairs: 16,
            rounds: 5,
            side_rounds: 3,
            link_rounds: 15,
            batches: vec![1, 2, 5, 10, 20, 50, 100, 200],
            mixes: vec![(1024, 1.0), (4096, 1.0), (64, 0.0), (1024, 0.0), (4096, 0.0), (64, 0.9)],
            mix_batches: vec![20, 200],
            rates: vec![2_000.0, 5_000.0, 10_000.0, 20_000.0],
            depths: vec![20, 200],
            settle: Duration::from_millis(300),
            length: Duration::from_millis(1_200),
            idle: Duration::from_secs(20),
            attempts_max: 3,
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort {
            pairs: 5,
            rounds: 2,
            side_rounds: 1,
            link_rounds: 5,
            batches: vec![1, 20, 200],
            mixes: vec![(64, 0.0)],
            mix_batches: vec![200],
            rates: vec![5_000.0],
            depths: vec![200],
            settle: Duration::from_millis(200),
            length: Duration::from_millis(600),
            idle: Duration::from_secs(3),
            attempts_max: 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Plain connections to a server without the preload library.
    Plain,
    /// Plain connections to a server with the preload library.
    Shim,
    /// Batches of this size on [`links`] links at the same time.
    Batch(u16),
    /// [`Path::Batch`] over links of the last version without encryption.
    Unencrypted(u16),
    /// One batch of this size at a time on a single link: the server sleeps between batches.
    Alone(u16),
    /// One plain connection with this number of pipelined requests.
    Pipelined(usize),
    /// One plain connection with requests for this number of keys.
    Multiget(usize),
}

/// All measurements of one path; `None` for a spoilt one.
#[derive(Clone, Debug)]
struct Series {
    protocol: ProtocolKind,
    path: Path,
    value_size: usize,
    get_ratio: f64,
    /// The part of the experiment; ratios compare series of the same part.
    part: &'static str,
    costs: Vec<Option<Cost>>,
    spoilt: Vec<String>,
}

/// All measurements at an offered rate, direct and through a helper.
#[derive(Clone, Debug)]
struct Offered {
    protocol: ProtocolKind,
    rate_per_s: f64,
    direct: Vec<Option<Cost>>,
    helped: Vec<Option<Cost>>,
    spoilt: Vec<String>,
}

/// CPU use with idle clients, in percent of a core.
#[derive(Clone, Copy, Debug)]
struct Idle {
    protocol: ProtocolKind,
    helper_percent: f64,
    shim_percent: f64,
    plain_percent: f64,
}

#[derive(Debug, Default)]
struct Measured {
    series: Vec<Series>,
    offered: Vec<Offered>,
    idle: Vec<Idle>,
    tally: Tally,
    /// Requests of drivers; a driver checks all replies.
    driver_requests: u64,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, &[ProtocolKind::Memcached, ProtocolKind::Redis], out)
}

/// Runs the experiment on the given server programs, with a given effort.
pub fn run_with(
    setting: &Setting,
    effort: &Effort,
    servers: &[ProtocolKind],
    out: &mut dyn Write,
) -> Result<Results, Error> {
    let stage = Stage::create("cost", setting)?;
    let _ = writeln!(out, "{}; no quota", setting.placement.description());
    let mut course = Course { effort, stage: &stage, out, measured: Measured::default() };
    let machine = stage.machine(&[("memcached", "-V"), ("redis-server", "-v")])?;
    let outcome = servers.iter().try_for_each(|&protocol| course.measure_server(protocol));
    let mut measured = course.measured;
    let outcome = outcome.and_then(|()| stage.close());
    let mut results = Results::new("server-cost", machine);
    findings::add_results(&mut measured, effort, &mut results);
    Ok(results.with_outcome(outcome))
}

struct Course<'a> {
    effort: &'a Effort,
    stage: &'a Stage,
    out: &'a mut dyn Write,
    measured: Measured,
}

impl Course<'_> {
    fn measure_server(&mut self, protocol: ProtocolKind) -> Result<(), Error> {
        let mut sizes = vec![64];
        sizes.extend(self.effort.mixes.iter().filter(|(_, gets)| *gets == 1.0).map(|(size, _)| *size));
        sizes.dedup();
        let mut pair = self.stage.pair(protocol, &sizes)?;
        let helper = self.stage.helper(pair.link, MAX_DELAY)?;
        self.measure_idle(&pair, &helper)?;
        self.measure_rounds(
            &mut pair,
            "pairs",
            &[(Path::Plain, 64, 1.0), (Path::Shim, 64, 1.0)],
            self.effort.pairs,
        )?;
        let mut plan = vec![(Path::Plain, 64, 1.0)];
        plan.extend(self.effort.batches.iter().map(|&batch| (Path::Batch(batch), 64, 1.0)));
        plan.extend(self.effort.mix_batches.iter().map(|&batch| (Path::Alone(batch), 64, 1.0)));
        self.measure_rounds(&mut pair, "batches", &plan, self.effort.rounds)?;
        let with_and_without_encryption =
            |&batch: &u16| [(Path::Batch(batch), 64, 1.0), (Path::Unencrypted(batch), 64, 1.0)];
        let plan: Vec<_> = self.effort.mix_batches.iter().flat_map(with_and_without_encryption).collect();
        self.measure_rounds(&mut pair, "links", &plan, self.effort.link_rounds)?;
        let mut plan = Vec::new();
        for &(size, gets) in &self.effort.mixes {
            plan.push((Path::Plain, size, gets));
            plan.extend(self.effort.mix_batches.iter().map(|&batch| (Path::Batch(batch), size, gets)));
        }
        for &depth in &self.effort.depths {
            plan.extend([(Path::Pipelined(depth), 64, 1.0), (Path::Multiget(depth), 64, 1.0)]);
        }
        self.measure_rounds(&mut pair, "mixes", &plan, self.effort.side_rounds)?;
        self.measure_offered(&mut pair, &helper)
    }

    fn measure_rounds(
        &mut self,
        pair: &mut Pair,
        part: &'static str,
        plan: &[(Path, usize, f64)],
        rounds: usize,
    ) -> Result<(), Error> {
        let first = self.measured.series.len();
        self.measured.series.extend(plan.iter().map(|&(path, value_size, get_ratio)| Series {
            protocol: pair.protocol,
            path,
            value_size,
            get_ratio,
            part,
            costs: Vec::new(),
            spoilt: Vec::new(),
        }));
        for (round, index) in measurement_order(rounds, plan.len()) {
            let (path, size, gets) = plan[index];
            let cost = self.measure_cost(pair, path, size, gets)?;
            let series = &mut self.measured.series[first + index];
            print_round(self.out, &format!("{} {part} {}: {series}", pair.protocol, round + 1), &cost);
            series.push(cost);
            pair.check()?;
        }
        Ok(())
    }

    fn measure_cost(&mut self, pair: &Pair, path: Path, size: usize, gets: f64) -> Result<Cost, Error> {
        measure_until_valid(
            self.effort.attempts_max,
            || match path {
                Path::Plain => self.measure_closed_loops(pair.plain.address(), pair.protocol, size, gets),
                Path::Shim => self.measure_closed_loops(pair.shimmed.address(), pair.protocol, size, gets),
                _ => match pair.protocol {
                    ProtocolKind::Redis => self.measure_driver::<Resp>(pair, path, size, gets),
                    _ => self.measure_driver::<Text>(pair, path, size, gets),
                },
            },
            |cost| cost.spoilt.is_none(),
        )
    }

    fn measure_closed_loops(
        &mut self,
        target: SocketAddr,
        protocol: ProtocolKind,
        value_size: usize,
        get_ratio: f64,
    ) -> Result<Cost, Error> {
        let traffic = Traffic { protocol, value_size, get_ratio, closed: true, ..Traffic::default() };
        let mut session = self.stage.session(target, &traffic, CONNECTIONS)?;
        let cost = session.measure(0.0, self.effort.settle, self.effort.length, None)?;
        self.measured.tally.add(&session.finish()?);
        Ok(cost)
    }

    /// Measures requests of a driver ([`crate::driver`]) on the clients' host.
    fn measure_driver<D: ManyKeys + Send>(
        &mut self,
        pair: &Pair,
        path: Path,
        size: usize,
        gets: f64,
    ) -> Result<Cost, Error> {
        let (stage, settle, length) = (self.stage, self.effort.settle, self.effort.length);
        let space = space(size, gets < 1.0);
        if gets < 1.0 {
            stage.fill(pair.protocol, pair.shimmed.address(), &space)?;
        }
        let store = |share| -> Store<D> { Store::new(space.clone(), Keys::uniform(KEYS), gets, share) };
        let key = spillway_keys::read_key_file(stage.key()).map_err(|e| Error::Usage(e.to_string()))?;
        let failed = |e: String| Error::process(format!("a driver failed: {e}"), "");
        let plain = pair.plain.address();
        let client_address = |link: u16| SocketAddr::new(stage.client.address(), PORTS.0 + link * PORTS.1);
        let cost = stage.client.run_inside(|| match path {
            Path::Pipelined(depth) => {
                let (mut driver, mut store) = (PipeDriver::open(plain).map_err(failed)?, store((0, 1)));
                stage.cost_of(settle, length, || driver.pipelined(&mut store, depth))
            }
            Path::Multiget(depth) => {
                let mut driver = PipeDriver::open(plain).map_err(failed)?;
                let mut next = 0;
                stage.cost_of(settle, length, || {
                    let keys: Vec<u32> = (0..depth as u32).map(|n| (next + n) % KEYS).collect();
                    next = (next + depth as u32) % KEYS;
                    driver.multiget::<D>(&space, &keys)
                })
            }
            Path::Plain | Path::Shim | Path::Batch(_) | Path::Unencrypted(_) | Path::Alone(_) => {
                let (batch, links) = match path {
                    Path::Batch(batch) | Path::Unencrypted(batch) => (batch, links(batch)),
                    Path::Alone(batch) => (batch, 1),
                    _ => (1, 1),
                };
                let encryption = match path {
                    Path::Unencrypted(_) => Encryption::Off,
                    _ => Encryption::Required,
                };
                let open = |link| {
                    let driver =
                        LinkDriver::open(pair.link, key.clone(), encryption, client_address(link), batch)?;
                    Ok((driver, store((u32::from(link), u32::from(links)))))
                };
                let drivers = (0..links).map(open).collect::<Result<_, String>>().map_err(failed)?;
                let mut links = Links::start(drivers).map_err(failed)?;
                let cost = stage.cost_of(settle, length, || links.collect_and_send())?;
                links.finish().map_err(failed)?;
                Ok(cost)
            }
        })??;
        self.measured.driver_requests += cost.requests;
        Ok(cost)
    }

    fn measure_offered(&mut self, pair: &mut Pair, helper: &Helper) -> Result<(), Error> {
        let first = self.measured.offered.len();
        self.measured.offered.extend(self.effort.rates.iter().map(|&rate_per_s| Offered {
            protocol: pair.protocol,
            rate_per_s,
            direct: Vec::new(),
            helped: Vec::new(),
            spoilt: Vec::new(),
        }));
        let traffic = Traffic { protocol: pair.protocol, ..Traffic::default() };
        let (settle, length, attempts_max) =
            (self.effort.settle, self.effort.length, self.effort.attempts_max);
        for round in 0..self.effort.side_rounds {
            for helped in [round % 2 == 0, round % 2 != 0] {
                let (target, counted_helper) =
                    if helped { (helper.address, Some(helper)) } else { (pair.plain.address(), None) };
                let mut session = self.stage.session(target, &traffic, CONNECTIONS)?;
                for (n, &rate) in self.effort.rates.iter().enumerate() {
                    let cost =
                        session.measure_until_valid(rate, settle, length, counted_helper, attempts_max)?;
                    let path = if helped { "helped" } else { "direct" };
                    print_round(
                        self.out,
                        &format!("{} at {rate}/s {}: {path}", pair.protocol, round + 1),
                        &cost,
                    );
                    let offered = &mut self.measured.offered[first + n];
                    offered.spoilt.extend(cost.spoilt.clone());
                    let cost = cost.spoilt.is_none().then_some(cost);
                    if helped { &mut offered.helped } else { &mut offered.direct }.push(cost);
                }
                self.measured.tally.add(&session.finish()?);
                pair.check()?;
            }
        }
        Ok(())
    }

    /// Measures a helper with idle clients, and the servers behind it.
    fn measure_idle(&mut self, pair: &Pair, helper: &Helper) -> Result<(), Error> {
        let traffic = Traffic { protocol: pair.protocol, ..Traffic::default() };
        let session = self.stage.session(helper.address, &traffic, CONNECTIONS)?;
        std::thread::sleep(self.effort.settle);
        let cpu_times = || -> Result<[Duration; 3], Error> {
            let (shimmed, plain) = (process_cpu(pair.shimmed.pid()), process_cpu(pair.plain.pid()));
            Ok([self.stage.middle_cpu()?.total(), shimmed, plain])
        };
        let (before, started_at) = (cpu_times()?, std::time::Instant::now());
        std::thread::sleep(self.effort.idle);
        let (after, elapsed) = (cpu_times()?, started_at.elapsed());
        let percent =
            |n: usize| 100.0 * after[n].saturating_sub(before[n]).as_secs_f64() / elapsed.as_secs_f64();
        let idle = Idle {
            protocol: pair.protocol,
            helper_percent: percent(0),
            shim_percent: percent(1),
            plain_percent: percent(2),
        };
        let _ = writeln!(
            self.out,
            "{}: idle helper {:.3} %, server with shim {:.3} %, without {:.3} % of a core",
            pair.protocol, idle.helper_percent, idle.shim_percent, idle.plain_percent
        );
        self.measured.idle.push(idle);
        self.measured.tally.add(&session.finish()?);
        Ok(())
    }
}

impl Series {
    fn push(&mut self, cost: Cost) {
        self.spoilt.extend(cost.spoilt.clone());
        self.costs.push(cost.spoilt.is_none().then_some(cost));
    }

    fn server_us(&self) -> Vec<Option<f64>> {
        self.costs.iter().map(|cost| cost.as_ref().map(Cost::server_us)).collect()
    }
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} of {} B", self.path.name(), request_name(self.get_ratio), self.value_size)
    }
}

impl Path {
    fn name(self) -> String {
        match self {
            Path::Plain => "direct, without shim".into(),
            Path::Shim => "direct, with shim".into(),
            Path::Batch(batch) => format!("batches of {batch}, links: {}", links(batch)),
            Path::Unencrypted(batch) => {
                format!("batches of {batch}, links: {}, not encrypted", links(batch))
            }
            Path::Alone(batch) => format!("batches of {batch}, one at a time"),
            Path::Pipelined(depth) => format!("one connection, {depth} pipelined"),
            Path::Multiget(depth) => format!("one connection, multiget of {depth}"),
        }
    }

    /// The row parameter that states encryption; `None` for a path without links.
    fn links(self) -> Option<&'static str> {
        match self {
            Path::Batch(_) | Path::Alone(_) => Some("encrypted"),
            Path::Unencrypted(_) => Some("not encrypted"),
            Path::Plain | Path::Shim | Path::Pipelined(_) | Path::Multiget(_) => None,
        }
    }
}

/// Number of links that gives [`CONNECTIONS`] clients with batches of this size, at most [`LINKS_MAX`].
fn links(batch: u16) -> u16 {
    (CONNECTIONS as u16 / batch.max(1)).clamp(1, LINKS_MAX)
}

fn request_name(get_ratio: f64) -> &'static str {
    match get_ratio {
        1.0 => "GET",
        0.0 => "SET",
        _ => "90 % GET, 10 % SET",
    }
}

fn print_round(out: &mut dyn Write, label: &str, cost: &Cost) {
    let spoilt = spoilt_suffix(cost.spoilt.as_deref());
    let (us, rate) = (cost.server_us(), cost.rate_per_s());
    print_line(out, format_args!("{label}: {us:.2} µs of server CPU a request, {rate:.0}/s{spoilt}"));
}
