//! Settings of a scene: programs, cores, shares of a core, engine and batch policy.

use std::time::Duration;

use spillway_lab::{Forwarding, Quota};

use crate::error::Error;
use crate::generator::Engine;
use crate::programs::Programs;

/// Settings of the scene.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The programs under test and of the laboratory.
    pub programs: Programs,
    /// Connections over all client hosts.
    pub connections: u32,
    /// Number of client hosts.
    pub client_hosts: usize,
    /// Number of keys in the server, of 32 bytes each with values of 64 bytes.
    pub keys: u32,
    /// Quota of the server's host, for process and interface together.
    pub quota: Option<Quota>,
    /// The helper's batch delay.
    pub max_delay: Duration,
    /// Interval between the starts of two connections' moves.
    pub pace: Duration,
    /// Cores of the hosts.
    pub placement: Placement,
    /// Idle cores poll instead of halting.
    pub idle_cores_poll: bool,
    /// Factor by which every core is slowed while the scene is open.
    pub slowdown_factor: Option<u32>,
    /// The helper's batch policy.
    pub batch: BatchPolicy,
    /// What forwards packets between the hosts.
    pub forwarding: Forwarding,
    /// The transport of helpers and clients.
    pub engine: Engine,
    /// Interval of the polls that replace interrupts of helpers on the user-level stack under load; zero:
    /// interrupts only.
    pub defer_interrupts: Duration,
    /// The server's share of a core.
    pub server_share: ServerShare,
}

/// The server's share of a core, process and interface together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ServerShare {
    /// The quota that calibration computes: enough for the largest capacity for which the machine can carry a
    /// burst of three times that rate.
    #[default]
    Calibrated,
    /// A quota, in percent of a core; from 100 on there is no quota.
    Percent(f64),
}

/// Cores of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Core of the server, and of its interface's receive work.
    pub server: usize,
    /// Core of the helper.
    pub helper: usize,
    /// Core of all clients.
    pub clients: usize,
    /// Core of the bridge.
    pub bridge: usize,
}

impl Placement {
    /// The placement on a number of cores. On two, server and helper share the first core, the others the
    /// second; on four, each has its own. The bridge shares the server's core only on a machine with one
    /// core: from a bridge on the same core, packets reach the server without an interrupt to another core,
    /// more cheaply than from a network card.
    pub fn on(cores: usize) -> Placement {
        match cores {
            0 | 1 => Placement { server: 0, helper: 0, clients: 0, bridge: 0 },
            2 => Placement { server: 0, helper: 0, clients: 1, bridge: 1 },
            3 => Placement { server: 0, helper: 1, clients: 2, bridge: 2 },
            _ => Placement { server: 0, helper: 1, clients: 2, bridge: 3 },
        }
    }

    /// The core of helper `number`, counted from 0. Each helper after the first has a core of its own while
    /// unused cores remain, and shares the first helper's core otherwise.
    pub fn helper_core(&self, number: usize, cores: usize) -> usize {
        let unused = self.server.max(self.helper).max(self.clients).max(self.bridge) + number;
        if number > 0 && unused < cores { unused } else { self.helper }
    }

    /// The cores of `count` helpers and of the server, as text.
    pub(crate) fn helper_cores_text(&self, count: usize) -> String {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let helper_cores: Vec<String> = (0..count).map(|n| self.helper_core(n, cores).to_string()).collect();
        format!("on cores {}, the server on core {}", helper_cores.join(", "), self.server)
    }

    /// The cores of all hosts, as text.
    pub fn description(&self) -> String {
        let Placement { server, helper, clients, bridge } = self;
        format!("server on core {server}, helper on {helper}, clients on {clients}, bridge on {bridge}")
    }
}

impl ServerShare {
    /// From this percentage on, the server has a whole core and no quota.
    const WHOLE_CORE_PERCENT: f64 = 100.0;

    /// The quota of this share; `None` if the server has a whole core, or a share that is not known before calibration.
    pub fn quota(self) -> Option<Quota> {
        match self {
            ServerShare::Percent(percent) if !self.is_whole_core() => Some(Quota::percent(percent)),
            ServerShare::Percent(_) | ServerShare::Calibrated => None,
        }
    }

    /// Whether the server has a core without a quota.
    pub fn is_whole_core(self) -> bool {
        matches!(self, ServerShare::Percent(percent) if percent >= ServerShare::WHOLE_CORE_PERCENT)
    }
}

impl std::str::FromStr for ServerShare {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ServerShare, &'static str> {
        let problem = "give a percentage of one core from 5 to 100, such as 30%, or calibrated";
        if text == "calibrated" {
            return Ok(ServerShare::Calibrated);
        }
        let percent: f64 = text.strip_suffix('%').unwrap_or(text).parse().map_err(|_| problem)?;
        if (5.0..=100.0).contains(&percent) { Ok(ServerShare::Percent(percent)) } else { Err(problem) }
    }
}

/// What forwards packets between the hosts, as text.
pub(crate) fn forwarding_text(forwarding: Forwarding) -> &'static str {
    match forwarding {
        Forwarding::Bridge => "the kernel's bridge",
        Forwarding::Xdp => "an XDP program; hosts compute checksums themselves",
        Forwarding::Switch => "Spillway's switch; hosts compute checksums themselves",
        Forwarding::Segment => "the kernel's bridge; hosts compute checksums themselves",
    }
}

pub(crate) fn quota_text(quota: Option<Quota>) -> String {
    let text = |quota: Quota| {
        let Quota { percent_of_core, period } = quota;
        format!("{percent_of_core} % of a core in periods of {period:?}, process and interface together")
    };
    quota.map_or("none".into(), text)
}

/// Batch policies that can be compared in this scene.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchPolicy {
    /// One batch each `max_delay`.
    Fixed,
    /// A batch after at most `max_delay`; while the server is behind, not before its next reply.
    #[default]
    Following,
}

impl BatchPolicy {
    /// The policy's name on the helper's command line.
    pub fn name(self) -> &'static str {
        match self {
            BatchPolicy::Fixed => "fixed",
            BatchPolicy::Following => "following",
        }
    }
}

impl std::str::FromStr for BatchPolicy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<BatchPolicy, &'static str> {
        let all = [BatchPolicy::Fixed, BatchPolicy::Following];
        all.into_iter().find(|policy| policy.name() == text).ok_or("give fixed or following")
    }
}

impl Setting {
    /// The default settings: 660 connections, 100,000 keys, a tenth of a core in periods of 10 ms.
    pub fn new(programs: Programs) -> Setting {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Setting {
            programs,
            connections: 660,
            client_hosts: 2,
            keys: 100_000,
            quota: Some(Quota { percent_of_core: 10.0, period: Duration::from_millis(10) }),
            max_delay: Duration::from_micros(350),
            pace: Duration::from_micros(60),
            placement: Placement::on(cores),
            idle_cores_poll: true,
            slowdown_factor: None,
            batch: BatchPolicy::default(),
            forwarding: Forwarding::Bridge,
            engine: Engine::Sockets,
            defer_interrupts: Duration::ZERO,
            server_share: ServerShare::Calibrated,
        }
    }

    /// These settings with helpers and clients on an engine. With the user-level stack an XDP program
    /// forwards packets, because the bridge would cost more CPU time than the clients.
    pub fn with_engine(self, engine: Engine) -> Setting {
        let forwarding = if engine == Engine::Xdp { Forwarding::Xdp } else { self.forwarding };
        Setting { engine, forwarding, ..self }
    }

    /// These settings with a share of a core for the server. If this is a whole core that the helper shares,
    /// the helper moves to the clients' core.
    pub fn with_server_share(self, share: ServerShare) -> Setting {
        let mut placement = self.placement;
        if share.is_whole_core() && placement.helper == placement.server {
            placement.helper = placement.clients;
        }
        let quota = if share == ServerShare::Calibrated { self.quota } else { share.quota() };
        Setting { server_share: share, placement, quota, ..self }
    }

    /// Whether hosts leave checksums to their interfaces. The user-level stack and XDP programs need complete packets.
    pub(crate) fn tx_checksums(&self) -> bool {
        self.forwarding == Forwarding::Bridge && self.engine == Engine::Sockets
    }

    /// The default settings with [the programs of this run](Programs::of_this_run).
    pub fn of_this_run() -> Result<Setting, Error> {
        Ok(Setting::new(Programs::of_this_run()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_another_core_than_the_server_if_there_are_two() {
        for cores in 1..=8 {
            let Placement { server, helper, clients, bridge } = Placement::on(cores);
            assert!([server, helper, clients, bridge].into_iter().all(|core| core < cores));
            assert!(cores == 1 || clients != server);
            assert!(cores < 3 || helper != server);
            let placement = Placement::on(cores);
            let others: Vec<_> = (1..4).map(|number| placement.helper_core(number, cores)).collect();
            assert!(others.iter().all(|&core| core < cores) && placement.helper_core(0, cores) == helper);
            assert!(cores < 7 || others == [4, 5, 6]);
            assert!(cores > 4 || others == [helper; 3]);
        }
    }

    #[test]
    fn shares_of_a_core_are_quotas_and_a_whole_core_is_the_servers_alone() {
        let share = |text: &str| text.parse::<ServerShare>();
        assert_eq!(share("calibrated"), Ok(ServerShare::Calibrated));
        assert_eq!(share("30%").unwrap().quota(), Some(Quota::percent(30.0)));
        assert_eq!(share("100").unwrap().quota(), None);
        assert!(share("2%").is_err() && share("101%").is_err() && share("much").is_err());
        let two_cores = Setting {
            placement: Placement::on(2),
            ..Setting::new(Programs::in_directory(std::path::Path::new("")))
        };
        let whole = two_cores.clone().with_server_share(ServerShare::Percent(100.0));
        assert_ne!(whole.placement.helper, whole.placement.server);
        let third = two_cores.clone().with_server_share(ServerShare::Percent(30.0));
        assert_eq!((third.placement, third.quota), (two_cores.placement, Some(Quota::percent(30.0))));
    }
}
