//! Load generators, one for the connections of each server, and the figures of a measurement.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use spillway_lab::{Host, HostCpu};
use spillway_load::config::{Config, ProtocolKind};
use spillway_load::fill::fill_over;
use spillway_load::protocol::memcached::Text;
use spillway_load::report::Report;
use spillway_stack_server::Override;

use super::{Bench, P99_US_MAX};
use crate::error::Error;
use crate::experiments::moves::site::{NAMES, Site};
use crate::generator::{Clients, Generators, Order, Traffic};
use crate::measure::{Snapshot, disturbed, stopped};

/// How often the orders of the first placement are repeated.
const ATTEMPTS_MAX: usize = 20;
/// Longest time until the backlog of an overloaded server is served.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Keys of each generator, which are at all servers: a connection that moves reads those of its server.
const KEYS: u32 = 1_000;
const FILL_TIMEOUT: Duration = Duration::from_secs(10);
/// A policy moves no connection back to a server from which it came within this time, the placement included: before, a server
/// could not move its own connections to the first one (`MoveLimits::return_min`).
const RETURN_MIN: Duration = Duration::from_secs(1);
/// Clients' lag from which on a measurement does not show the servers, in µs.
const LAG_P99_US_MAX: u64 = 1_000;

/// Rates of one server's connections, in requests a second.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    /// The rate at the beginning.
    pub first: f64,
    /// Later rates, with their times.
    pub later: Vec<(Duration, f64)>,
}

/// Figures of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// p99 of all requests by their intended times, in µs.
    pub p99_us: f64,
    /// p50, in µs.
    pub p50_us: f64,
    /// Moves without those of the first placement.
    pub moves: u64,
    /// Requests that were due.
    pub offered: u64,
    pub wrong: u64,
    pub lost: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { p99_us, p50_us, moves, offered, .. } = self;
        write!(f, "p50 {p50_us:.0} µs, p99 {p99_us:.0} µs, {moves} moves, {offered} requests")
    }
}

/// The running generators of all servers' connections.
pub(super) struct Load {
    /// One for each server, in their order.
    generators: Vec<Generators>,
    placed: u64,
    /// When the last connections were placed.
    placed_at: Instant,
}

impl Load {
    /// Connects the clients, and moves each server's connections to it. `skew`: exponent of Zipf's law, by which the
    /// connections of a server differ in their rates. No policy moves connections before [`run`](Self::run).
    pub(super) fn start(
        bench: &Bench<'_>,
        site: &mut Site,
        protocol: ProtocolKind,
        rates: &[Rates],
        (skew, seed): (Option<f64>, u64),
    ) -> Result<Load, Error> {
        let traffic = Traffic { protocol, skew, ..Traffic::default() };
        let each = bench.effort.connections / rates.len() as u32;
        let mut generators = Vec::new();
        // All clients connect to the first server, so its own connections come last.
        for (index, rates) in rates.iter().enumerate().rev() {
            let schedule = rates.later.iter().map(|(at, rate)| (*at, Order::Rate(*rate))).collect();
            let clients = Clients {
                server: site.service(),
                helpers: None,
                sessions: None,
                helpers_asked: None,
                threads: 1,
                connections: each,
                keys: KEYS,
                fill: false,
                seed: 1 + seed * NAMES.len() as u64 + index as u64,
                rate_per_s: rates.first,
                duration: None,
                schedule,
                sla: Duration::from_millis(1),
                pace: Duration::ZERO,
            };
            if protocol.has_keys() {
                fill(site, (index, clients.seed))?;
            }
            let hosts: [Host; 1] = [site.clients[index].clone()];
            generators.push(Generators::start_with(&bench.setting.programs, &hosts, &clients, &traffic)?);
            if index > 0 {
                place(site, (0, None), NAMES[index], each as usize)?;
            }
        }
        generators.reverse();
        let placed = site.sum(|status| status.moves.moved)?;
        Ok(Load { generators, placed, placed_at: Instant::now() })
    }

    /// Runs the load for this time, and `work` beside it. Returns the figures, and the reason if they are spoilt.
    pub(super) fn run(
        mut self,
        bench: &Bench<'_>,
        site: &mut Site,
        has_policy: bool,
        length: Duration,
        work: impl FnOnce(&mut Site) -> Result<(), Error>,
    ) -> Result<(Figures, Option<String>), Error> {
        let snapshot = |site: &Site| -> Result<Snapshot, Error> {
            let none = HostCpu::default();
            let (mut servers, mut clients) = (Vec::new(), Vec::new());
            for server in site.servers() {
                servers.push(server.host.cpu()?);
            }
            for client in &site.clients {
                clients.push(client.cpu()?);
            }
            Ok(Snapshot::now(sum(&servers), none, sum(&clients), none, bench.steady.stalled()))
        };
        if has_policy {
            std::thread::sleep(RETURN_MIN.saturating_sub(self.placed_at.elapsed()));
            for server in site.servers() {
                server.set_override(Override::Auto)?;
            }
        }
        for generators in &mut self.generators {
            generators.begin()?;
        }
        let before = snapshot(site)?;
        work(site)?;
        let end_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        for generators in &self.generators {
            generators.sleep_until_ms(end_ms);
        }
        let used = snapshot(site)?.since(&before);
        site.check()?;
        // Requests that wait at the clients are sent, too, and count with their waits.
        for generators in &mut self.generators {
            generators.quiesce(DRAIN_MAX)?;
        }
        let mut merged: Option<Report> = None;
        for generators in self.generators {
            let report = generators.finish()?;
            match &mut merged {
                Some(merged) => merged.merge(&report),
                None => merged = Some(report),
            }
        }
        let total = merged.unwrap_or_default().span(0, end_ms).summary();
        let us = |quantile: Option<u64>| quantile.map_or(P99_US_MAX, |us| us as f64);
        let lost = site.sum(|status| status.moves.lost + status.moves.let_go)?;
        let figures = Figures {
            p99_us: us(total.p99_us),
            p50_us: us(total.p50_us),
            moves: site.sum(|status| status.moves.moved)? - self.placed,
            offered: total.offered,
            wrong: total.wrong + total.unasked,
            lost: lost + total.lost + total.resets + total.dropped,
        };
        let lag = (total.lag_p99_us >= LAG_P99_US_MAX)
            .then(|| format!("the clients lagged: p99 {} µs", total.lag_p99_us));
        Ok((figures, lag.or_else(|| disturbed(&used)).or_else(|| stopped(&used))))
    }
}

/// Sets the keys of the clients with this index and seed at all servers, over a connection that moves from one to the next.
fn fill(site: &mut Site, (index, seed): (usize, u64)) -> Result<(), Error> {
    let config = Config { seed, ..Config::new(site.service()) };
    let open = || -> std::io::Result<(SocketAddr, TcpStream)> {
        let stream = TcpStream::connect_timeout(&config.server, FILL_TIMEOUT)?;
        Ok((stream.local_addr()?, stream))
    };
    let opened = site.clients[index].run_inside(open)?;
    let (address, stream) =
        opened.map_err(|cause| Error::System { what: "cannot connect to a server".into(), cause })?;
    let servers = site.servers().len();
    for (number, name) in NAMES.into_iter().enumerate().take(servers) {
        if number > 0 {
            place(site, (number - 1, Some(address)), name, 1)?;
        }
        fill_over::<Text>(&stream, (config.server, FILL_TIMEOUT), &config.space(), KEYS, true)
            .map_err(|error| Error::process(error.to_string(), ""))?;
    }
    Ok(())
}

/// The command that runs a server of this protocol.
pub(super) fn command(protocol: ProtocolKind) -> &'static str {
    match protocol {
        ProtocolKind::Http => "http",
        ProtocolKind::Echo => "echo",
        ProtocolKind::Memcached | ProtocolKind::Redis => "kv",
    }
}

/// Moves connections of a server to another one: that of a client, or all.
fn place(
    site: &mut Site,
    (from, client): (usize, Option<SocketAddr>),
    to: &str,
    connections: usize,
) -> Result<(), Error> {
    let mut moved = 0;
    for _ in 0..ATTEMPTS_MAX {
        moved += site.servers()[from].migrate(client, to)?.moved;
        if moved >= connections {
            return Ok(());
        }
        site.check()?;
    }
    Err(Error::process(format!("{moved} of {connections} connections have moved to {to}"), ""))
}

fn sum(all: &[HostCpu]) -> HostCpu {
    let mut sum = HostCpu::default();
    for cpu in all {
        sum.process += cpu.process;
        sum.interface += cpu.interface;
    }
    sum
}
