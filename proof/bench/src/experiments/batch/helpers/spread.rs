//! How evenly clients spread over helpers when all arrive at the same moment and each one chooses a helper.
//!
//! Clients choose independently, as if each were a process of its own. All start at the server; one order moves them to
//! helpers. No host has a quota.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::common::rounds::{measurement_order, print_line};
use crate::experiments::common::saturation::few;
use crate::generator::{Clients, Order, Routes, Traffic};
use crate::goodput::Tally;
use crate::measure::{disturbed, stopped};
use crate::results::{Results, Row, left_out};
use crate::scene::Setting;
use crate::stage::{Echo, Helper, MiddleHosts, Stage};

use super::{Effort, HELPERS};

const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Requests a second of each client: enough to use its connection, and too few to load a host.
const RATE_EACH_PER_S: f64 = 1.0;

/// Arrivals of clients that ask `helpers_asked` helpers for their load.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    helpers_asked: usize,
    arrivals: Vec<Arrival>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Arrival {
    connections: Vec<u64>,
    /// Clients that stayed at the server.
    direct: u64,
    /// Time from relief on to the arrival of the last client.
    duration_ms: f64,
    /// Why `duration_ms` is not valid. The clients' choices do not depend on disturbances.
    spoilt: Option<String>,
}

impl Arrival {
    /// Clients of the fullest helper, divided by the mean over all helpers.
    fn max_over_mean(&self) -> Option<f64> {
        let total: u64 = self.connections.iter().sum();
        let largest = *self.connections.iter().max()?;
        (total > 0).then(|| largest as f64 * self.connections.len() as f64 / total as f64)
    }
}

pub(super) fn run(
    setting: &Setting,
    effort: &Effort,
    out: &mut dyn Write,
) -> Result<(Vec<Spread>, Tally), Error> {
    let stage =
        Stage::create_with("spread", setting, MiddleHosts { count: effort.spread_over, quota: None })?;
    let echo = stage.echo()?;
    let helpers = stage.helpers(echo.link, &HELPERS)?;
    let mut setup = Setup { stage: &stage, effort, echo, helpers, tally: Tally::default() };
    let new_spread = |&helpers_asked: &usize| Spread { helpers_asked, ..Spread::default() };
    let mut spreads: Vec<Spread> = effort.helpers_asked.iter().map(new_spread).collect();
    for (round, index) in measurement_order(effort.arrivals, spreads.len()) {
        let spread = &mut spreads[index];
        let arrival = setup.measure_arrival(spread.helpers_asked)?;
        print_arrival(out, round, spread.helpers_asked, &arrival);
        spread.arrivals.push(arrival);
    }
    let Setup { tally, echo, helpers, .. } = setup;
    drop((echo, helpers));
    stage.close()?;
    Ok((spreads, tally))
}

struct Setup<'a> {
    stage: &'a Stage,
    effort: &'a Effort,
    echo: Echo,
    helpers: Vec<Helper>,
    tally: Tally,
}

impl Setup<'_> {
    fn measure_arrival(&mut self, helpers_asked: usize) -> Result<Arrival, Error> {
        let count = self.effort.clients;
        let traffic = Traffic { protocol: ProtocolKind::Echo, ..Traffic::default() };
        let helpers: Vec<SocketAddr> = self.helpers.iter().map(|helper| helper.address).collect();
        let routes = Routes {
            helpers,
            standby: false,
            link: Some(self.echo.link),
            sessions_per_process: Some(1),
            key: self.stage.client_key().to_owned(),
        };
        let plain = self.stage.clients(self.echo.plain, &traffic, count);
        // A long SLA: clients move by the order only, never because replies are late.
        let sla = Duration::from_secs(1);
        let clients = Clients { sessions: Some(routes), helpers_asked: Some(helpers_asked), sla, ..plain };
        let mut session = self.stage.session_of(&clients, &traffic)?;
        let generators = session.generators();
        generators.order(&Order::Rate(RATE_EACH_PER_S * f64::from(count)))?;
        generators.sleep_until_ms(0);
        std::thread::sleep(self.effort.settle);
        let (before, started_at) = (self.stage.snapshot(&self.helpers)?, Instant::now());
        generators.order(&Order::Help)?;
        while generators.helped_now() < count && started_at.elapsed() < ARRIVAL_TIMEOUT {
            generators.check()?;
            std::thread::sleep(POLL_INTERVAL);
        }
        let duration_ms = started_at.elapsed().as_secs_f64() * 1e3;
        let used = self.stage.snapshot(&self.helpers)?.since(&before);
        let status = |helper: &Helper| {
            let failed = |why| Error::process(format!("cannot read a helper's status: {why}"), "");
            helper.connections().map_err(failed)
        };
        let connections = self.helpers.iter().map(status).collect::<Result<Vec<u64>, Error>>()?;
        let direct = u64::from(count).saturating_sub(connections.iter().sum());
        self.tally.add(&session.finish()?);
        self.echo.check()?;
        self.helpers.iter_mut().try_for_each(Helper::check)?;
        // Busy clients and helpers do not spoil an arrival: their load is part of what is measured.
        let spoilt = stopped(&used).or_else(|| disturbed(&used));
        Ok(Arrival { connections, direct, duration_ms, spoilt })
    }
}

pub(super) fn add_results(spreads: &[Spread], effort: &Effort, results: &mut Results) {
    for spread in spreads {
        let reasons: Vec<String> =
            spread.arrivals.iter().filter_map(|arrival| arrival.spoilt.clone()).collect();
        let spoilt = left_out(&reasons, spread.arrivals.len());
        let mut row = |metric: &str, unit: &str, note: &str, value: &dyn Fn(&Arrival) -> Option<f64>| {
            let values: Vec<f64> = spread.arrivals.iter().filter_map(value).collect();
            let row = Row::new("clients that choose", metric, unit, &values)
                .param("asked", spread.helpers_asked)
                .param("clients", effort.clients)
                .param("helpers", effort.spread_over);
            let too_few = few(values.len());
            results.rows.push(row.note(note).void_if(too_few));
        };
        let expected =
            if spread.helpers_asked == 1 { "a helper chosen at random" } else { "expected ≤ 1.15" };
        row("max_over_mean_load", "ratio", expected, &Arrival::max_over_mean);
        row("not_helped", "clients", "", &|arrival| Some(arrival.direct as f64));
        let timed = |arrival: &Arrival| arrival.spoilt.is_none().then_some(arrival.duration_ms);
        row("all_arrived_ms", "ms", &format!("measured each 100 ms; {spoilt}"), &timed);
    }
}

fn print_arrival(out: &mut dyn Write, round: usize, helpers_asked: usize, arrival: &Arrival) {
    let spoilt = arrival.spoilt.as_ref().map_or(String::new(), |why| format!(" (the time is spoilt: {why})"));
    let ratio = arrival.max_over_mean().map_or("none helped".into(), |ratio| format!("{ratio:.3}"));
    print_line(
        out,
        format_args!(
            "arrival {}: asked {helpers_asked}: {:?} clients, {} at the server, after {:.0} ms: max/mean \
             {ratio}{spoilt}",
            round + 1,
            arrival.connections,
            arrival.direct,
            arrival.duration_ms,
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn max_over_mean_compares_the_fullest_helper_with_an_even_spread() {
        let arrival = |connections: &[u64]| Arrival {
            connections: connections.to_vec(),
            direct: 1_000 - connections.iter().sum::<u64>(),
            duration_ms: 80.0,
            spoilt: None,
        };
        assert_eq!(arrival(&[250, 250, 250, 250]).max_over_mean(), Some(1.0));
        assert_eq!(arrival(&[0, 0, 0, 0]).max_over_mean(), None);
        let mut arrivals =
            vec![arrival(&[300, 200, 250, 250]), arrival(&[250; 4]), arrival(&[270, 260, 230, 200])];
        arrivals[0].spoilt = Some("a stall".into());
        let spread = Spread { helpers_asked: 2, arrivals };
        let mut results = Results::new("helpers", Machine::default());
        add_results(&[spread], &Effort::full(), &mut results);
        let row = |metric: &str| results.rows.iter().find(|row| row.metric == metric).unwrap();
        let load = row("max_over_mean_load");
        assert_eq!((load.median, load.max, load.valid), (Some(1.125), Some(1.2), true));
        let time = row("all_arrived_ms");
        assert!((time.runs, time.valid) == (2, false) && time.why.contains("1 of 3"), "{time:?}");
        assert_eq!(row("not_helped").max, Some(40.0));
    }
}
