//! Clients of one server, helper or proxy, and the CPU costs of their requests on all hosts.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use spillway_load::report::Report;

use super::Stage;
use super::accounts::{Wire, process_cpu};
use super::key_space::{KEYS, seed};
use crate::error::Error;
use crate::generator::{BIN_MS, BIN_REPORT_DELAY, Clients, Generators, Order, Traffic};
use crate::goodput::Tally;
use crate::measure::{Step, Used, measure_until_valid, spoilt_by, stopped};
use crate::relief::Span;
use crate::served::Helper;

/// Running clients.
#[derive(Debug)]
pub struct Session<'a> {
    stage: &'a Stage,
    generators: Generators,
    closed: bool,
    /// Process id, see [`Session::watch`].
    watched: Option<u32>,
}

/// Results of one measurement.
#[derive(Clone, Debug, Default)]
pub struct MeasuredStep {
    /// Requests and CPU time.
    pub step: Step,
    /// Traffic on the server's cable.
    pub wire: Wire,
    /// CPU time of the watched process.
    pub watched: Duration,
}

/// Costs and latencies of requests.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    /// [`Wire::bytes`] on the cable of the server's host; 0 if not measured.
    pub wire_bytes: u64,
    /// CPU time of all hosts.
    pub used: Used,
    /// Requests with a correct reply.
    pub requests: u64,
    /// Latencies; empty if not measured.
    pub span: Span,
    /// Why the measurement is not valid.
    pub spoilt: Option<String>,
}

impl Cost {
    /// CPU time of the server's host, process and interface, for each request in µs. NaN without requests, like the
    /// other costs.
    pub fn server_us(&self) -> f64 {
        self.each(self.used.server_s())
    }

    /// CPU time of the helpers' hosts for each request, in µs.
    pub fn middle_us(&self) -> f64 {
        self.each(self.used.helper_s)
    }

    /// CPU time of the clients' host, process and interface, for each request in µs.
    pub fn clients_us(&self) -> f64 {
        self.each(self.used.clients_s)
    }

    /// CPU time of the bridge for each request, in µs.
    pub fn bridge_us(&self) -> f64 {
        self.each(self.used.bridge_s)
    }

    /// CPU time of all hosts and the bridge for each request, in µs.
    pub fn total_us(&self) -> f64 {
        let used = &self.used;
        self.each(used.server_s() + used.helper_s + used.clients_s + used.bridge_s)
    }

    /// Requests a second.
    pub fn rate_per_s(&self) -> f64 {
        if self.used.seconds > 0.0 { self.requests as f64 / self.used.seconds } else { 0.0 }
    }

    /// Bytes on the server's cable for each request and its reply.
    pub fn wire_bytes_each(&self) -> f64 {
        if self.requests > 0 { self.wire_bytes as f64 / self.requests as f64 } else { f64::NAN }
    }

    fn each(&self, seconds: f64) -> f64 {
        if self.requests > 0 { seconds * 1e6 / self.requests as f64 } else { f64::NAN }
    }
}

impl<'a> Session<'a> {
    fn start(stage: &'a Stage, clients: &Clients, traffic: &Traffic) -> Result<Session<'a>, Error> {
        let hosts = std::slice::from_ref(&stage.client);
        let mut generators = Generators::start_with(&stage.programs, hosts, clients, traffic)?;
        generators.begin()?;
        Ok(Session { stage, generators, closed: traffic.closed, watched: None })
    }

    /// Moves every connection to the helpers. A move ends with a reply, so an open loop gets `rate_per_s`; a closed
    /// loop ignores the rate.
    pub fn move_to_helper(&mut self, rate_per_s: f64) -> Result<(), Error> {
        if !self.closed {
            self.generators.order(&Order::Rate(rate_per_s))?;
        }
        self.generators.move_to_helper().map(drop)
    }

    /// Also measures the CPU time of process `pid` from now on.
    pub fn watch(&mut self, pid: u32) {
        self.watched = Some(pid);
    }

    /// The load generators of this session.
    pub fn generators(&mut self) -> &mut Generators {
        &mut self.generators
    }

    /// Offers a rate, which a closed loop ignores, waits for `settle`, and measures for `length`. Does not check
    /// whether the measurement is valid.
    pub fn step<'h, H>(
        &mut self,
        rate_per_s: f64,
        settle: Duration,
        length: Duration,
        helpers: H,
    ) -> Result<MeasuredStep, Error>
    where
        H: IntoIterator<Item = &'h Helper> + Copy,
    {
        if !self.closed {
            self.generators.order(&Order::Rate(rate_per_s))?;
        }
        self.generators.sleep_until_ms(0);
        std::thread::sleep(settle);
        let from_ms = (self.generators.now_ms() + 1).div_ceil(BIN_MS) * BIN_MS;
        let to_ms = from_ms + u64::try_from(length.as_millis()).unwrap_or(u64::MAX).div_ceil(BIN_MS) * BIN_MS;
        self.generators.sleep_until_ms(from_ms);
        let watched = || self.watched.map(process_cpu).unwrap_or_default();
        let (wire_before, watched_before) = (self.stage.wire()?, watched());
        let (before, answered) = (self.stage.snapshot(helpers)?, self.generators.answered());
        self.generators.sleep_until_ms(to_ms);
        let (after, replies) = (self.stage.last_snapshot(helpers)?, self.generators.answered() - answered);
        let wire = self.stage.wire()?.since(&wire_before);
        let watched = watched().saturating_sub(watched_before);
        std::thread::sleep(BIN_REPORT_DELAY);
        self.generators.check()?;
        let bins = self.generators.bins(from_ms, to_ms);
        let step = Step::new(rate_per_s, &bins, after.since(&before), replies);
        Ok(MeasuredStep { step, wire, watched })
    }

    /// Measures like [`Session::step`], and checks whether the measurement is valid and all requests were served.
    pub fn measure(
        &mut self,
        rate_per_s: f64,
        settle: Duration,
        length: Duration,
        helper: Option<&Helper>,
    ) -> Result<Cost, Error> {
        let MeasuredStep { step, wire, .. } = self.step(rate_per_s, settle, length, helper)?;
        let Step { span, used, lag_p99_us, .. } = step;
        // In a closed loop, busy clients are normal, and requests have no due time that they could lag behind.
        let checked = if self.closed { Used { clients_s: 0.0, ..used } } else { used };
        let lag_us = if self.closed { 0 } else { lag_p99_us };
        let unserved = (span.served as f64) < 0.99 * span.offered as f64;
        let spoilt = spoilt_by(&checked, lag_us).or_else(|| stopped(&used)).or_else(|| {
            (unserved && !self.closed)
                .then(|| format!("{} of {} requests were served", span.served, span.offered))
        });
        Ok(Cost { wire_bytes: wire.bytes, used, requests: span.served, span, spoilt })
    }

    /// Measures like [`Session::measure`], and repeats a spoilt measurement; at most `attempts_max` attempts.
    pub fn measure_until_valid(
        &mut self,
        rate_per_s: f64,
        settle: Duration,
        length: Duration,
        helper: Option<&Helper>,
        attempts_max: u32,
    ) -> Result<Cost, Error> {
        measure_until_valid(
            attempts_max,
            || self.measure(rate_per_s, settle, length, helper),
            |cost| cost.spoilt.is_none(),
        )
    }

    /// Stops the clients and returns their counts.
    pub fn finish(self) -> Result<Tally, Error> {
        let mut tally = Tally::default();
        tally.add_report(&self.report()?);
        Ok(tally)
    }

    /// Stops the clients and returns their whole report.
    pub fn report(self) -> Result<Report, Error> {
        self.generators.finish()
    }
}

impl Stage {
    /// Starts plain clients of a server, helper or proxy at `target`.
    pub fn session(
        &self,
        target: SocketAddr,
        traffic: &Traffic,
        connections: u32,
    ) -> Result<Session<'_>, Error> {
        self.session_of(&self.clients(target, traffic, connections), traffic)
    }

    /// Starts clients as `clients` describes them, with the requests of `traffic`.
    pub fn session_of(&self, clients: &Clients, traffic: &Traffic) -> Result<Session<'_>, Error> {
        Session::start(self, clients, traffic)
    }

    /// The configuration of plain clients of a server, helper or proxy at `target`, with rate 0.
    pub fn clients(&self, target: SocketAddr, traffic: &Traffic, connections: u32) -> Clients {
        let written = traffic.get_ratio < 1.0;
        Clients {
            server: target,
            helpers: None,
            sessions: None,
            helpers_asked: None,
            threads: 1,
            connections,
            keys: KEYS,
            // Clients that set values check gets against the values that they set before, so they set all
            // keys first.
            fill: written,
            seed: seed(traffic.value_size, written),
            rate_per_s: 0.0,
            duration: None,
            schedule: Vec::new(),
            sla: Duration::from_millis(1),
            pace: Duration::ZERO,
        }
    }

    /// Measures the cost of repeated calls of `work` over `length`, after `settle`. `work` returns its number of
    /// requests. No other clients may run.
    pub(crate) fn cost_of<E: std::fmt::Display>(
        &self,
        settle: Duration,
        length: Duration,
        mut work: impl FnMut() -> Result<u64, E>,
    ) -> Result<Cost, Error> {
        let failed = |e: E| Error::process(format!("a driver failed: {e}"), "");
        let started_at = Instant::now();
        while started_at.elapsed() < settle {
            work().map_err(failed)?;
        }
        let (before, started_at) = (self.snapshot(None)?, Instant::now());
        let mut requests = 0;
        while started_at.elapsed() < length {
            requests += work().map_err(failed)?;
        }
        let used = self.snapshot(None)?.since(&before);
        let spoilt = spoilt_by(&used, 0).or_else(|| stopped(&used));
        Ok(Cost { wire_bytes: 0, used, requests, span: Span::default(), spoilt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_divided_by_requests() {
        let used = Used {
            seconds: 2.0,
            server_process_s: 0.3,
            server_interface_s: 0.1,
            helper_s: 0.8,
            clients_s: 0.2,
            bridge_s: 0.2,
            ..Used::default()
        };
        let cost = Cost { used, requests: 100_000, ..Cost::default() };
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(cost.server_us(), 4.0) && close(cost.middle_us(), 8.0) && close(cost.total_us(), 16.0));
        assert!(close(cost.rate_per_s(), 50_000.0));
        assert!(Cost::default().server_us().is_nan(), "without requests a cost should be NaN");
    }
}
