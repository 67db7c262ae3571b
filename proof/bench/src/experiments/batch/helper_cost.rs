//! CPU time of a round trip in a helper on kernel sockets, compared with nginx, haproxy and nutcracker in its
//! place, and of the server behind each of them. All have the same clients and rates and one worker. Also
//! measured are a helper on the user-level TCP stack (AF_XDP), on a host of its own; both helpers and nginx
//! with deferred interrupts (the kernel polls the interface under load); helpers with 2 and 299 unused
//! services; and helpers that measure requests.
//!
//! Rounds are interleaved: each measures every system once, in rotating order. Ratios compare within a round.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_lab::Place;
use spillway_lab::peers::{Peer, Proxy};
use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rates::{Path, RateMeasurement, Series, find};
use crate::generator::Traffic;
use crate::results::{Ratio, Results};
use crate::scene::Setting;
use crate::stage::{Cost, Helper, HelperKind, Stage};
use crate::stats::paired_ratios;

pub use crate::experiments::common::rates::Effort;

const CONNECTIONS: u32 = 200;
/// The helper's default batch delay.
const MAX_DELAY: Duration = Duration::from_micros(200);
/// Interval of the polls that replace interrupts.
const DEFERRED: Duration = Duration::from_micros(200);

fn full() -> Effort {
    Effort {
        rounds: 7,
        rates: vec![2_000.0, 5_000.0, 10_000.0, 15_000.0],
        main_rate_per_s: 10_000.0,
        settle: Duration::from_millis(400),
        length: Duration::from_millis(2_000),
        attempts_max: 3,
    }
}

fn quick() -> Effort {
    Effort {
        rounds: 3,
        rates: vec![10_000.0],
        length: Duration::from_millis(1_000),
        attempts_max: 2,
        ..full()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Middle {
    /// Clients connect to the server itself.
    Direct,
    Helper,
    /// A helper on the user-level TCP stack.
    Xdp,
    /// [`Xdp`](Self::Xdp) with interrupts deferred under load.
    XdpDeferred,
    /// [`Helper`](Self::Helper) on a host that defers interrupts.
    HelperDeferred,
    /// [`Nginx`](Self::Nginx) on a host that defers interrupts.
    NginxDeferred,
    Helper3,
    /// A helper with 300 services, of which clients use one.
    Helper300,
    /// A helper with 3 services that measures the requests of one of 16 clients.
    HelperSampling,
    /// A helper with 3 services that measures the requests of every client.
    HelperMeasuring,
    Nginx,
    Haproxy,
    Nutcracker,
}

const MIDDLES: [Middle; 13] = [
    Middle::Helper,
    Middle::Xdp,
    Middle::XdpDeferred,
    Middle::HelperDeferred,
    Middle::NginxDeferred,
    Middle::Helper3,
    Middle::Helper300,
    Middle::HelperSampling,
    Middle::HelperMeasuring,
    Middle::Nginx,
    Middle::Haproxy,
    Middle::Nutcracker,
    Middle::Direct,
];

impl Middle {
    fn is_helper(self) -> bool {
        let proxies = [Middle::Nginx, Middle::NginxDeferred, Middle::Haproxy, Middle::Nutcracker];
        self != Middle::Direct && !proxies.contains(&self)
    }

    /// Interval of the polls that replace interrupts on the middle host; zero: interrupts only.
    fn host_defers(self) -> Duration {
        match self {
            Middle::HelperDeferred | Middle::NginxDeferred => DEFERRED,
            _ => Duration::ZERO,
        }
    }
}

impl Path for Middle {
    fn name(self) -> &'static str {
        match self {
            Middle::Direct => "direct",
            Middle::Helper => "helper",
            Middle::Xdp => "xdp",
            Middle::XdpDeferred => "xdp, interrupts deferred",
            Middle::HelperDeferred => "helper, interrupts deferred",
            Middle::NginxDeferred => "nginx, interrupts deferred",
            Middle::Helper3 => "helper of 3 services",
            Middle::Helper300 => "helper of 300 services",
            Middle::HelperSampling => "helper that measures 1 of 16 clients",
            Middle::HelperMeasuring => "helper that measures every client",
            Middle::Nginx => "nginx",
            Middle::Haproxy => "haproxy",
            Middle::Nutcracker => "nutcracker",
        }
    }
}

struct MiddlePrograms {
    /// Helpers with 1, 3 and 300 services, and two with 3 services that measure requests.
    helpers: [Helper; 5],
    xdp: Helper,
    xdp_deferred: Helper,
    proxies: [Peer; 3],
    server: SocketAddr,
}

impl MiddlePrograms {
    fn helper(&self, middle: Middle) -> Option<&Helper> {
        match middle {
            Middle::Helper | Middle::HelperDeferred => Some(&self.helpers[0]),
            Middle::Xdp => Some(&self.xdp),
            Middle::XdpDeferred => Some(&self.xdp_deferred),
            Middle::Helper3 => Some(&self.helpers[1]),
            Middle::Helper300 => Some(&self.helpers[2]),
            Middle::HelperSampling => Some(&self.helpers[3]),
            Middle::HelperMeasuring => Some(&self.helpers[4]),
            _ => None,
        }
    }

    fn address(&self, middle: Middle) -> SocketAddr {
        match middle {
            Middle::Direct => self.server,
            Middle::Helper | Middle::HelperDeferred => self.helpers[0].address,
            Middle::Xdp => self.xdp.address,
            Middle::XdpDeferred => self.xdp_deferred.address,
            Middle::Helper3 => self.helpers[1].address,
            Middle::Helper300 => self.helpers[2].address,
            Middle::HelperSampling => self.helpers[3].address,
            Middle::HelperMeasuring => self.helpers[4].address,
            Middle::Nginx | Middle::NginxDeferred => self.proxies[0].address(),
            Middle::Haproxy => self.proxies[1].address(),
            Middle::Nutcracker => self.proxies[2].address(),
        }
    }
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { quick() } else { full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    // All systems have the same network: no host leaves checksums to its interface.
    let stage = Stage::create_with_checksums("middle", setting, 3)?;
    let _ = writeln!(out, "{} (or proxy); no quota", setting.placement.description());
    let mut pair = stage.pair(ProtocolKind::Memcached, &[64])?;
    let plain = pair.plain.address();
    let programs = MiddlePrograms {
        helpers: [
            helper(&stage, pair.link, (0, None))?,
            helper(&stage, pair.link, (2, None))?,
            helper(&stage, pair.link, (299, None))?,
            helper(&stage, pair.link, (2, Some(16)))?,
            helper(&stage, pair.link, (2, Some(1)))?,
        ],
        xdp: stage.helper_on_xdp(1, pair.link, (MAX_DELAY, Duration::ZERO))?,
        xdp_deferred: stage.helper_on_xdp(2, pair.link, (MAX_DELAY, DEFERRED))?,
        proxies: [
            stage.proxy(&Proxy::nginx(plain))?,
            stage.proxy(&Proxy::haproxy(plain))?,
            stage.proxy(&Proxy::nutcracker(plain))?,
        ],
        server: plain,
    };
    let machine =
        stage.machine(&[("memcached", "-V"), ("haproxy", "-v"), ("nutcracker", "-V"), ("nginx", "-v")])?;
    let mut measurement = RateMeasurement { effort, pair: &mut pair, out };
    let (series, tally, outcome) = measurement.run(
        &MIDDLES,
        |_, middle| {
            stage.middle_host.defer_interrupts(middle.host_defers())?;
            let session = stage.session(programs.address(middle), &Traffic::default(), CONNECTIONS)?;
            Ok((session, programs.helper(middle)))
        },
        |cost| format!("{:.1} µs in the middle, {:.1} µs at the server", cost.middle_us(), cost.server_us()),
    );
    drop(programs);
    let outcome = outcome.and_then(|()| stage.close());
    let mut results = Results::new("helper-cost", machine);
    series.iter().for_each(|series| add_rows(series, &mut results));
    add_ratios(&series, effort, &mut results);
    results.checks = tally.checks();
    Ok(results.with_outcome(outcome))
}

/// Starts a helper. `extra` is the number of further services, and N if the helper measures one of N clients.
fn helper(stage: &Stage, link: SocketAddr, extra: (u16, Option<u32>)) -> Result<Helper, Error> {
    let kind = HelperKind { library: false, batch: "adaptive", max_delay: MAX_DELAY };
    let port = Place::from(&stage.middle_host).free_port()?;
    stage.helper_with((&stage.middle_host, port), link, &kind, extra)
}

fn add_rows(series: &Series<Middle>, results: &mut Results) {
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Cost) -> Option<f64>| {
        results.rows.push(series.row(metric, unit, value, ""));
    };
    if series.path != Middle::Direct {
        row("middle_cpu_us_per_round_trip", "µs", &|cost| Some(cost.middle_us()));
        row("middle_cpu", "% of a core", &|cost| Some(cost.used.percent(cost.used.helper_s)));
    }
    row("server_cpu_us_per_request", "µs", &|cost| Some(cost.server_us()));
    row("total_cpu_us_per_request", "µs", &|cost| Some(cost.total_us()));
    row("p50_us", "µs", &|cost| cost.span.quantile_us(0.5).map(|us| us as f64));
    row("p99_us", "µs", &|cost| cost.span.quantile_us(0.99).map(|us| us as f64));
    if series.path.is_helper() {
        row("messages_per_batch", "messages", &|cost| cost.used.messages_per_batch());
    }
}

/// Pairs of systems whose CPU time in the middle is compared, the ratio's name, and its expected value.
const COMPARED: [(Middle, Middle, &str, &str); 7] = [
    (Middle::Xdp, Middle::Nginx, "xdp_over_nginx", "≤ 0.5"),
    (Middle::Xdp, Middle::Helper, "xdp_over_kernel", "≤ 0.6"),
    (Middle::XdpDeferred, Middle::Nginx, "xdp_deferred_over_nginx", "≤ 0.5"),
    (Middle::XdpDeferred, Middle::Helper, "xdp_deferred_over_kernel", "≤ 0.6"),
    (Middle::XdpDeferred, Middle::NginxDeferred, "xdp_deferred_over_nginx_deferred", ""),
    (Middle::XdpDeferred, Middle::HelperDeferred, "xdp_deferred_over_kernel_deferred", ""),
    (Middle::XdpDeferred, Middle::Xdp, "xdp_deferred_over_xdp", ""),
];

fn add_ratios(series: &[Series<Middle>], effort: &Effort, results: &mut Results) {
    for &rate in &effort.rates {
        if let (Some(services_300), Some(services_3)) =
            (find(series, Middle::Helper300, rate), find(series, Middle::Helper3, rate))
        {
            let name = format!("kernel_300_services_over_3{}", effort.suffix(rate));
            let ratio =
                Ratio::paired(&name, &services_300.each(Cost::middle_us), &services_3.each(Cost::middle_us));
            let note = format!("CPU in the middle at {rate}/s, one service used; expected ≤ 1.05");
            results.ratios.push(ratio.note(note));
        }
        let measuring = [(Middle::HelperSampling, "one_in_16"), (Middle::HelperMeasuring, "all")];
        for (middle, clients) in measuring {
            if let (Some(with), Some(without)) =
                (find(series, middle, rate), find(series, Middle::Helper3, rate))
            {
                let name = format!("kernel_measuring_{clients}_over_none{}", effort.suffix(rate));
                let ratio = Ratio::paired(&name, &with.each(Cost::middle_us), &without.each(Cost::middle_us));
                results.ratios.push(ratio.note(format!("CPU in the middle at {rate}/s; expected ≤ 1.02")));
            }
        }
        let Some(helper) = find(series, Middle::Helper, rate) else { continue };
        for (one, other, name, expected) in COMPARED {
            let (Some(one), Some(other)) = (find(series, one, rate), find(series, other, rate)) else {
                continue;
            };
            let name = format!("{name}{}", effort.suffix(rate));
            let ratio = Ratio::paired(&name, &one.each(Cost::middle_us), &other.each(Cost::middle_us));
            let is_expected = rate == effort.main_rate_per_s && !expected.is_empty();
            let expected = if is_expected { format!("; expected {expected}") } else { String::new() };
            results.ratios.push(ratio.note(format!("CPU in the middle at {rate}/s{expected}")));
        }
        for other in [Middle::Nginx, Middle::Haproxy, Middle::Nutcracker] {
            let Some(proxy) = find(series, other, rate) else { continue };
            let is_main_rate = rate == effort.main_rate_per_s;
            let name = format!("kernel_over_{}{}", other.name(), effort.suffix(rate));
            let ratio = Ratio::paired(&name, &helper.each(Cost::middle_us), &proxy.each(Cost::middle_us));
            let expected = if is_main_rate { "; expected ≤ 1.0" } else { "" };
            results.ratios.push(ratio.note(format!("CPU in the middle at {rate}/s{expected}")));
            if is_main_rate {
                let rounds = paired_ratios(&helper.each(Cost::server_us), &proxy.each(Cost::server_us));
                let ratio = Ratio::new(&format!("server_behind_helper_over_{}", other.name()), &rounds);
                results.ratios.push(ratio.note(format!("CPU of the server behind, at {rate}/s")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::measure::Used;

    fn series(middle: Middle, rate_per_s: f64, us: &[f64]) -> Series<Middle> {
        let cost = |&us: &f64| {
            let used = Used { seconds: 1.0, helper_s: us * 0.01, server_process_s: 0.05, ..Used::default() };
            (us > 0.0).then(|| Cost { used, requests: 10_000, ..Cost::default() })
        };
        Series { path: middle, rate_per_s, costs: us.iter().map(cost).collect() }
    }

    #[test]
    fn helper_and_proxies_are_compared_at_the_same_rate_and_round() {
        let all = [
            series(Middle::Helper, 10_000.0, &[8.0, 8.0, 0.0, 8.0, 8.0, 8.0]),
            series(Middle::Nginx, 10_000.0, &[10.0; 6]),
            series(Middle::Helper, 2_000.0, &[9.0; 6]),
            series(Middle::Nginx, 2_000.0, &[9.0; 2]),
            series(Middle::Helper3, 10_000.0, &[8.0; 6]),
            series(Middle::Helper300, 10_000.0, &[10.0; 6]),
        ];
        let mut results = Results::new("helper-cost", Machine::default());
        all.iter().for_each(|series| add_rows(series, &mut results));
        add_ratios(&all, &full(), &mut results);
        let ratio = |name: &str| results.ratios.iter().find(|r| r.name == name).unwrap();
        let main = ratio("kernel_over_nginx");
        assert!(main.valid && main.runs == 5 && (main.median.unwrap() - 0.8).abs() < 1e-9, "{main:?}");
        assert!(!ratio("kernel_over_nginx_at_2000").valid);
        assert_eq!(ratio("kernel_300_services_over_3").median, Some(1.25));
        assert_eq!(ratio("server_behind_helper_over_nginx").median, Some(1.0));
        assert!(results.ratios.iter().all(|r| !r.name.contains("haproxy")));
        assert_eq!(results.rows.iter().filter(|r| r.metric == "middle_cpu_us_per_round_trip").count(), 6);
    }
}
