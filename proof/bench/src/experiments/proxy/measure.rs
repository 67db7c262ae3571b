//! One measurement of a system under a load.

use std::fmt;
use std::time::Duration;

use spillway_lab::{Host, HostCpu};
use spillway_load::config::ProtocolKind;

use super::Bench;
use super::case::{Case, Load};
use super::site::{Cpu, Site};
use crate::error::Error;
use crate::generator::{Clients, Generators, Traffic};
use crate::measure::{Snapshot, Used, disturbed, stopped};

/// Length of the targets, without the part that names the size.
const TARGET_BYTES: usize = 24;
/// Above this share of its core the client may be the limit, in percent.
pub(super) const CLIENT_PERCENT_MAX: f64 = 90.0;
/// Lag of the client from which on an open loop does not show the latency of the system, in µs.
const LAG_P99_US_MAX: u64 = 1_000;
/// A frontend that used more than this share of its quota was not limited by it.
const QUOTA_SHARE_MAX: f64 = 1.10;
/// The largest latency: that of requests without a response.
pub(super) const LATENCY_US_MAX: f64 = 10e6;

/// Figures of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub seconds: f64,
    /// Right responses that arrived in this time.
    pub replies: u64,
    /// Size of a response's body.
    pub bytes: u32,
    /// CPU time, in s.
    pub frontend_process_s: f64,
    /// CPU time of the frontend's receive thread, in s.
    pub frontend_interface_s: f64,
    pub backends_s: f64,
    pub client_s: f64,
    pub switch_s: f64,
    /// Latencies, in µs.
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    /// Connections that moved from one server to another.
    pub moves: u64,
    /// Retransmission timeouts of the client's kernel.
    pub timeouts: u64,
    /// Requests that were due in the whole run of the client, the warm-up included.
    pub offered: u64,
    pub wrong: u64,
    pub lost: u64,
}

impl Figures {
    pub fn requests_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.replies as f64 / self.seconds } else { 0.0 }
    }

    /// Bytes of bodies, in 10^6 a second.
    pub fn mb_per_s(&self) -> f64 {
        self.requests_per_s() * f64::from(self.bytes) / 1e6
    }

    pub fn frontend_s(&self) -> f64 {
        self.frontend_process_s + self.frontend_interface_s
    }

    /// CPU time of a request, in µs.
    pub fn us_per_request(&self, seconds: f64) -> f64 {
        if self.replies > 0 { 1e6 * seconds / self.replies as f64 } else { f64::NAN }
    }

    /// CPU time for 10^9 bytes of bodies, in ms.
    pub fn ms_per_gb(&self, seconds: f64) -> f64 {
        self.us_per_request(seconds) * 1e6 / f64::from(self.bytes)
    }

    pub fn percent_of_core(&self, seconds: f64) -> f64 {
        if self.seconds > 0.0 { 100.0 * seconds / self.seconds } else { 0.0 }
    }

    pub fn moves_per_request(&self) -> f64 {
        if self.replies > 0 { self.moves as f64 / self.replies as f64 } else { f64::NAN }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} requests/s, {:.1} MB/s; frontend {:.1} % of a core ({:.1} µs a request), backends {:.0} %, client {:.0} %, \
             switch {:.0} %; p50 {:.0} µs, p90 {:.0} µs, p99 {:.0} µs; {:.2} moves a request, {} timeouts",
            self.requests_per_s(),
            self.mb_per_s(),
            self.percent_of_core(self.frontend_s()),
            self.us_per_request(self.frontend_s()),
            self.percent_of_core(self.backends_s),
            self.percent_of_core(self.client_s),
            self.percent_of_core(self.switch_s),
            self.p50_us,
            self.p90_us,
            self.p99_us,
            self.moves_per_request(),
            self.timeouts,
        )
    }
}

/// Measures a case. `rate`: that of an open loop. Returns the reason if the figures are spoilt.
pub(super) fn measure(
    bench: &Bench<'_>,
    site: &mut Site,
    case: Case,
    rate: Option<f64>,
    round: u64,
) -> Result<(Figures, Option<String>), Error> {
    let effort = bench.effort;
    site.set_quotas((case.load == Load::Closed).then(|| effort.quota()))?;
    let connections = effort.connections_per_backend * u32::try_from(case.backends).unwrap_or(u32::MAX);
    let clients = Clients {
        server: site.service(case.system)?,
        helpers: None,
        sessions: None,
        helpers_asked: None,
        threads: 1,
        connections,
        keys: 1,
        fill: false,
        seed: 1 + round,
        rate_per_s: rate.unwrap_or(0.0),
        duration: None,
        schedule: Vec::new(),
        sla: Duration::from_secs(1),
        pace: Duration::ZERO,
    };
    let traffic = Traffic {
        protocol: ProtocolKind::Http,
        value_size: TARGET_BYTES,
        object_size: Some(case.bytes),
        closed: case.load == Load::Closed,
        ..Traffic::default()
    };
    let (moves_before, timeouts_before) = (site.moves(case.system)?, site.client_timeouts()?);
    let hosts: [Host; 1] = [site.client.clone()];
    let mut generators = Generators::start_with(&bench.setting.programs, &hosts, &clients, &traffic)?;
    generators.begin()?;
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (warm_up, length) = effort.times(case.bytes);
    let (from_ms, to_ms) = (ms(warm_up), ms(warm_up + length));
    generators.sleep_until_ms(from_ms);
    let (before, moves_from) = (Moment::now(bench, site, case)?, site.moves(case.system)?);
    generators.sleep_until_ms(to_ms);
    let (after, moves_to) = (Moment::now(bench, site, case)?, site.moves(case.system)?);
    site.check()?;
    let report = generators.finish()?;
    let moves_after = site.moves(case.system)?;
    let (span, whole) = (report.span(from_ms, to_ms), report.span(0, u64::MAX).summary());
    let total = span.summary();
    let us = |quantile: Option<u64>| quantile.map_or(LATENCY_US_MAX, |us| us as f64);
    let (used, cpu) = (after.snapshot.since(&before.snapshot), Spent::between(&before.cpu, &after.cpu));
    let figures = Figures {
        seconds: (to_ms - from_ms) as f64 / 1e3,
        replies: total.replied,
        bytes: case.bytes,
        frontend_process_s: cpu.frontend.process.as_secs_f64(),
        frontend_interface_s: cpu.frontend.interface.as_secs_f64(),
        backends_s: cpu.backends_s,
        client_s: cpu.client_s,
        switch_s: cpu.switch_s,
        p50_us: us(total.p50_us),
        p90_us: us(total.p90_us),
        p99_us: us(total.p99_us),
        moves: moves_to.moved - moves_from.moved,
        timeouts: site.client_timeouts()? - timeouts_before,
        offered: whole.offered,
        wrong: whole.wrong + whole.unasked,
        lost: moves_after.lost - moves_before.lost + whole.lost + whole.resets + whole.dropped,
    };
    let spoilt = spoilt(bench, case, &figures, &used, total.lag_p99_us);
    Ok((figures, spoilt))
}

fn spoilt(bench: &Bench<'_>, case: Case, figures: &Figures, used: &Used, lag_p99_us: u64) -> Option<String> {
    let client = figures.percent_of_core(figures.client_s);
    let frontend = figures.percent_of_core(figures.frontend_s()) / bench.effort.quota_percent;
    let own = if figures.replies == 0 {
        Some("no response arrived".into())
    } else if client > CLIENT_PERCENT_MAX {
        Some(format!("the client used {client:.0} % of its core"))
    } else if case.load == Load::Closed && frontend > QUOTA_SHARE_MAX {
        Some(format!("the frontend used {:.0} % of its quota", 100.0 * frontend))
    } else if case.load == Load::Open && bench.effort.is_of_latency && lag_p99_us >= LAG_P99_US_MAX {
        Some(format!("the client lagged: p99 {lag_p99_us} µs"))
    } else {
        None
    };
    own.or_else(|| disturbed(used)).or_else(|| stopped(used))
}

/// Accounts at one moment.
struct Moment {
    cpu: Cpu,
    snapshot: Snapshot,
}

impl Moment {
    fn now(bench: &Bench<'_>, site: &Site, case: Case) -> Result<Moment, Error> {
        let cpu = site.cpu(case.system)?;
        let rest = HostCpu {
            process: cpu.switch.process + cpu.idle.process,
            interface: cpu.switch.interface + cpu.idle.interface,
            ..HostCpu::default()
        };
        let snapshot = Snapshot::now(cpu.frontend, cpu.backends, cpu.client, rest, bench.steady.stalled());
        Ok(Moment { cpu, snapshot })
    }
}

/// CPU time between two moments.
struct Spent {
    frontend: HostCpu,
    backends_s: f64,
    client_s: f64,
    switch_s: f64,
}

impl Spent {
    fn between(before: &Cpu, after: &Cpu) -> Spent {
        let seconds = |later: &HostCpu, earlier: &HostCpu| later.since(earlier).total().as_secs_f64();
        Spent {
            frontend: after.frontend.since(&before.frontend),
            backends_s: seconds(&after.backends, &before.backends),
            client_s: seconds(&after.client, &before.client),
            switch_s: seconds(&after.switch, &before.switch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_for_each_request_and_for_a_gigabyte() {
        let figures = Figures {
            seconds: 2.0,
            replies: 1_000,
            bytes: 100_000,
            frontend_process_s: 0.02,
            frontend_interface_s: 0.01,
            moves: 800,
            ..Figures::default()
        };
        assert_eq!((figures.requests_per_s(), figures.mb_per_s()), (500.0, 50.0));
        assert!((figures.us_per_request(figures.frontend_s()) - 30.0).abs() < 1e-9);
        // 30 ms of CPU for 100 MB.
        assert!((figures.ms_per_gb(figures.frontend_s()) - 300.0).abs() < 1e-9);
        assert_eq!((figures.percent_of_core(0.03), figures.moves_per_request()), (1.5, 0.8));
        assert!(Figures::default().us_per_request(1.0).is_nan(), "no request has a cost");
    }
}
