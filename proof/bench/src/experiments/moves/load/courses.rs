//! Courses of load under each policy.

use std::fmt;
use std::time::Duration;

use spillway_load::config::ProtocolKind;

use super::generators::{Figures, Load, Rates, command};
use super::{Bench, CAPACITY_PER_S, Policy, WORK};
use crate::error::Error;
use crate::experiments::moves::site::{ServerTcp, Site, SiteOptions};
use crate::machine::Machine;

/// Time until the connections of another server are hot.
const STEP: Duration = Duration::from_millis(400);
/// Load of the hot server's connections, and of the others, in parts of one server's capacity.
const HOT: f64 = 1.2;
const COLD: [(usize, f64); 2] = [(2, 0.3), (3, 0.45)];

/// Exponent of Zipf's law, by which the connections of a server differ in their rates.
const SKEW: f64 = 0.8;

/// Which connections are hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Those of the first server.
    Skew,
    /// Those of one server after the other.
    Steps,
}

impl Pattern {
    pub(super) const ALL: [Pattern; 2] = [Pattern::Skew, Pattern::Steps];

    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::Skew => "skew",
            Pattern::Steps => "steps",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Course {
    pub protocol: ProtocolKind,
    pub servers: usize,
    pub pattern: Pattern,
    pub policy: Policy,
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Course { protocol, servers, pattern, policy } = self;
        write!(f, "{protocol}, {servers} servers, {}, {}", pattern.name(), policy.name())
    }
}

impl Course {
    /// All courses with these protocols and numbers of servers.
    pub(super) fn all(scenes: &[(ProtocolKind, usize)]) -> impl Iterator<Item = Course> {
        scenes.iter().flat_map(|&(protocol, servers)| {
            Pattern::ALL.into_iter().flat_map(move |pattern| {
                Policy::ALL.into_iter().map(move |policy| Course { protocol, servers, pattern, policy })
            })
        })
    }

    /// The rates of each server's connections over a course of this length.
    fn rates(&self, length: Duration) -> Vec<Rates> {
        let cold = COLD.iter().find(|(servers, _)| *servers == self.servers).map_or(0.0, |(_, load)| *load);
        let rate = |is_hot: bool| CAPACITY_PER_S * if is_hot { HOT } else { cold };
        let steps = match self.pattern {
            Pattern::Skew => 1,
            Pattern::Steps => (length.as_millis() / STEP.as_millis()).max(1) as usize,
        };
        let of_server = |server: usize| {
            let at = |step: usize| rate(step % self.servers == server);
            let later = (1..steps).map(|step| (STEP * step as u32, at(step))).collect();
            Rates { first: at(0), later }
        };
        (0..self.servers).map(of_server).collect()
    }
}

/// Measures a course with servers of its own. Returns the reason if the figures are spoilt.
pub(super) fn measure(
    bench: &Bench<'_>,
    course: Course,
    seed: u64,
    machine: &mut Machine,
) -> Result<(Figures, Option<String>), Error> {
    let placement = bench.setting.placement;
    let options = SiteOptions {
        servers: course.servers,
        server_cores: [placement.server; 3],
        clients: course.servers,
        client_core: placement.clients,
        tcp: ServerTcp::Xdp,
        is_partitioned: false,
        receive_inline: true,
        command: command(course.protocol),
        policy: course.policy.name(),
        arguments: vec!["--work".into(), format!("{}us", WORK.as_micros())],
    };
    let mut site = Site::create("migration-load", &bench.setting.programs, &options)?;
    site.describe(machine, &options)?;
    let has_policy = course.policy != Policy::None;
    if has_policy {
        for server in site.servers() {
            server.set_override(spillway_stack_server::Override::Off)?;
        }
    }
    let length = bench.effort.course;
    let load = Load::start(bench, &mut site, course.protocol, &course.rates(length), (Some(SKEW), seed))?;
    let measured = load.run(bench, &mut site, has_policy, length, |_| Ok(()))?;
    site.close()?;
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_is_overloaded_and_all_together_are_not() {
        for course in Course::all(&[(ProtocolKind::Memcached, 2), (ProtocolKind::Http, 3)]) {
            let rates = course.rates(Duration::from_secs(2));
            let first: Vec<f64> = rates.iter().map(|rates| rates.first).collect();
            assert!(first[0] > CAPACITY_PER_S && first[1] < CAPACITY_PER_S / 2.0, "{course}");
            assert!(first.iter().sum::<f64>() < CAPACITY_PER_S * 0.76 * course.servers as f64, "{course}");
            let expected = if course.pattern == Pattern::Skew { 0 } else { 4 };
            assert!(rates.iter().all(|rates| rates.later.len() == expected), "{course}");
        }
    }

    #[test]
    fn steps_make_one_server_after_the_other_hot() {
        let course = Course {
            protocol: ProtocolKind::Http,
            servers: 2,
            pattern: Pattern::Steps,
            policy: Policy::None,
        };
        let rates = course.rates(Duration::from_millis(1_200));
        let all =
            |rates: &Rates| rates.later.iter().map(|(at, rate)| (at.as_millis(), *rate)).collect::<Vec<_>>();
        assert_eq!((rates[0].first, all(&rates[0])), (6_000.0, vec![(400, 1_500.0), (800, 6_000.0)]));
        assert_eq!((rates[1].first, all(&rates[1])), (1_500.0, vec![(400, 6_000.0), (800, 1_500.0)]));
    }
}
