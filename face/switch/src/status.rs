//! A switch's status.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;

/// Status of a switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Always `switch`: distinguishes this status from those of other programs.
    pub kind: String,
    /// Name of the switch.
    pub name: String,
    /// `gateway` or `host`.
    #[serde(default)]
    pub mode: String,
    /// Version of the program.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Time since the daemon's start. The switch itself has forwarded since [`epoch`](Self::epoch).
    pub uptime_ms: u64,
    /// Start time of the switch in nanoseconds since 1970: when its tables were made.
    pub epoch: u64,
    /// The interfaces.
    pub ports: Vec<PortStatus>,
    /// Servers that may own flows.
    pub servers: Vec<ServerStatus>,
    /// Services whose flows may move.
    pub services: Vec<ServiceStatus>,
    /// Number of configured stations.
    pub stations: usize,
    /// Number of routes.
    pub prefixes: usize,
    /// Flows with an entry.
    pub flows: FlowsStatus,
    /// Packets by verdict since the switch's start.
    pub packets: BTreeMap<String, u64>,
    /// Number of the XDP program of a user-level stack at the same interface, in host mode: it gets what passes to the host.
    #[serde(default)]
    pub next_program: Option<u32>,
    /// Control messages that the daemon has passed on for this host's own server since its start, in host mode.
    #[serde(default)]
    pub local_messages: u64,
    /// Datagrams at the control endpoints that the daemon has dropped, in host mode.
    #[serde(default)]
    pub local_messages_dropped: u64,
    /// Time since these figures were read from the switch's tables.
    pub age_ms: u64,
    /// The age from which on the switch is not healthy: 10 s, or two pauses of the daemon, which reads large tables less
    /// often.
    #[serde(default)]
    pub age_limit_ms: u64,
    /// Why a part of a refused reload is in force, if restoring the settings has failed.
    #[serde(default)]
    pub unrestored: Option<String>,
    /// Log lines dropped because writing failed or was too slow.
    pub log_lines_dropped: u64,
    /// A thread that has failed, and the reason.
    #[serde(default)]
    pub thread_failure: Option<String>,
}

/// An interface of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// Name of the interface.
    pub interface: String,
    /// Number of the port.
    pub number: u8,
    /// How the program runs there: `native` (in the driver) or `generic` (behind it, slow).
    pub mode: String,
    /// Why the program does not run there; `None` if it runs.
    pub problem: Option<String>,
    /// Why the interface carries no frames, although the program runs there: it is down, or has no carrier.
    #[serde(default)]
    pub down: Option<String>,
    /// The interface's present name, if it is not `interface`.
    #[serde(default)]
    pub renamed: Option<String>,
    /// Services whose flows the port's servers may own.
    pub may_own: Vec<String>,
}

impl PortStatus {
    /// Why the port carries no frames, if it does not.
    pub fn fault(&self) -> Option<&str> {
        self.problem.as_deref().or(self.down.as_deref())
    }
}

/// A server that may own flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Name of the server.
    pub name: String,
    /// The server's id in control messages.
    pub id: u8,
    /// Interface of the port.
    pub port: String,
    /// Id of the server's key.
    pub key: String,
    /// Whether the server has said *hello* and its heartbeats arrive.
    pub is_alive: bool,
    /// The service of its last heartbeat.
    pub service: Option<String>,
    /// The load in its last heartbeat.
    pub load: u32,
    /// Connections that the server can still import.
    pub free_places: u32,
    /// Its capacity relative to other servers of the service.
    pub weight: u16,
    /// Time since its last heartbeat; `None` without one.
    pub heartbeat_age_ms: Option<u64>,
    /// For a server of another rack: Ethernet address of the router, or of the server, to which its packets go in a tunnel.
    #[serde(default)]
    pub encapsulated_via: Option<String>,
}

/// A service whose flows may move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Name of the service.
    pub name: String,
    /// Its flows with an entry: those that were moved, or are being moved.
    pub flows: u64,
}

/// Numbers of flows with an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsStatus {
    /// A target was asked; packets go to the owner.
    pub asked: u64,
    /// Packets go to a target, which buffers them.
    pub held: u64,
    /// No move is under way.
    pub owned: u64,
    /// Maximum number of flows.
    pub max: u64,
    /// Number of entries of ended flows that the daemon has removed since its start.
    pub swept: u64,
}

impl FlowsStatus {
    /// All flows with an entry.
    pub fn total(&self) -> u64 {
        self.asked + self.held + self.owned
    }
}

impl SwitchStatus {
    /// The JSON form as text, with a line end.
    pub fn to_json(&self) -> String {
        format!("{:#}\n", json!(self))
    }

    /// One short line for a service manager.
    pub fn summary(&self) -> String {
        let attached = self.ports.iter().filter(|port| port.problem.is_none()).count();
        let alive = self.servers.iter().filter(|server| server.is_alive).count();
        format!(
            "{attached} of {} ports, {alive} of {} servers alive, {} flows",
            self.ports.len(),
            self.servers.len(),
            self.flows.total()
        )
    }

    /// Packets that were forwarded, and packets that were dropped.
    pub fn forwarded_and_dropped(&self) -> (u64, u64) {
        let sum = |is_drop: bool| {
            let counted =
                self.packets.iter().filter(|(verdict, _)| drop_reason(verdict).is_some() == is_drop);
            counted.map(|(_, packets)| packets).sum()
        };
        (sum(false), sum(true))
    }

    /// Whether the switch is healthy.
    ///
    /// # Errors
    /// The reasons for which the switch is not healthy, one on each line.
    pub fn health(&self) -> Result<(), String> {
        let mut reasons: Vec<String> = Vec::new();
        let failed = self.ports.iter().filter_map(|port| Some((port, port.fault()?)));
        reasons.extend(failed.map(|(port, fault)| format!("port {}: {fault}", port.interface)));
        if self.flows.total() >= self.flows.max {
            reasons.push(format!("the table of flows is full: {} flows; raise flows_max", self.flows.max));
        }
        if self.age_ms > self.age_limit_ms {
            reasons.push(format!("the tables were not read for {} s", self.age_ms / 1000));
        }
        let unrestored = self.unrestored.iter();
        reasons.extend(unrestored.map(|why| format!("a part of a refused reload is in force: {why}")));
        reasons.extend(self.thread_failure.clone());
        if reasons.is_empty() { Ok(()) } else { Err(reasons.join("\n")) }
    }
}

/// Why packets with a verdict do not reach their destination; `None` if they do. Of a packet that is too long for a tunnel only the
/// error about it is sent.
fn drop_reason(verdict: &str) -> Option<&str> {
    if verdict == "too_long_answered" { Some(verdict) } else { verdict.strip_prefix("drop_") }
}

/// One line for the switch, and one for each port with a problem and each server.
impl fmt::Display for SwitchStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (forwarded, dropped) = self.forwarded_and_dropped();
        write!(f, "switch {} (pid {}) running for {} s", self.name, self.pid, self.uptime_ms / 1000)?;
        if self.mode == "host" {
            f.write_str(", in host mode")?;
        }
        if let Some(number) = self.next_program {
            write!(f, ", before the program number {number} of a user-level stack")?;
        }
        write!(f, ", {} ports, {} services", self.ports.len(), self.services.len())?;
        let FlowsStatus { asked, held, owned, max, .. } = self.flows;
        write!(f, ", {} flows of {max} ({owned} owned, {held} held, {asked} asked)", self.flows.total())?;
        write!(f, ", {forwarded} packets forwarded, {dropped} dropped")?;
        let drops: Vec<String> = self
            .packets
            .iter()
            .filter(|(_, packets)| **packets > 0)
            .filter_map(|(verdict, packets)| Some(format!("{} {packets}", drop_reason(verdict)?)))
            .collect();
        if !drops.is_empty() {
            write!(f, " ({})", drops.join(", "))?;
        }
        if self.log_lines_dropped > 0 {
            write!(f, ", {} log lines dropped", self.log_lines_dropped)?;
        }
        self.ports.iter().try_for_each(|port| write!(f, "\n{port}"))?;
        self.servers.iter().try_for_each(|server| write!(f, "\n{server}"))
    }
}

impl fmt::Display for PortStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} {}: ", self.number, self.interface)?;
        match &self.problem {
            Some(problem) => f.write_str(problem)?,
            None => f.write_str(&self.mode)?,
        }
        if let Some(down) = &self.down {
            write!(f, ", {down}")?;
        }
        if let Some(name) = &self.renamed {
            write!(f, ", renamed to {name}")?;
        }
        if !self.may_own.is_empty() {
            write!(f, ", servers may own {}", self.may_own.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for ServerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {} (id {}) on {}", self.name, self.id, self.port)?;
        if let Some(next_hop) = &self.encapsulated_via {
            write!(f, ", encapsulated via {next_hop}")?;
        }
        f.write_str(": ")?;
        match (self.is_alive, self.heartbeat_age_ms) {
            (true, _) => {
                let service = self.service.as_deref().unwrap_or("no service yet");
                write!(f, "alive, {service}, load {}, {} free places", self.load, self.free_places)
            }
            (false, Some(age)) => write!(f, "silent, last heartbeat {age} ms ago"),
            (false, None) => f.write_str("no hello yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> SwitchStatus {
        let port = |interface: &str, number| PortStatus {
            interface: interface.into(),
            number,
            mode: "native".into(),
            ..PortStatus::default()
        };
        let server = |name: &str, id, is_alive, heartbeat_age_ms| ServerStatus {
            name: name.into(),
            id,
            port: "eth1".into(),
            is_alive,
            service: is_alive.then(|| "cache".to_owned()),
            load: 5,
            free_places: 9,
            heartbeat_age_ms,
            ..ServerStatus::default()
        };
        SwitchStatus {
            kind: "switch".into(),
            name: "rack-1".into(),
            pid: 7,
            uptime_ms: 61_000,
            ports: vec![port("eth0", 0), PortStatus { may_own: vec!["cache".into()], ..port("eth1", 1) }],
            servers: vec![
                server("a", 1, true, Some(3)),
                server("b", 2, false, Some(1500)),
                server("c", 3, false, None),
            ],
            services: vec![ServiceStatus { name: "cache".into(), flows: 6 }],
            flows: FlowsStatus { asked: 1, held: 2, owned: 3, max: 100, swept: 0 },
            packets: BTreeMap::from([
                ("switched".to_owned(), 10),
                ("to_owner".to_owned(), 5),
                ("drop_not_owner".to_owned(), 2),
                ("drop_short".to_owned(), 0),
            ]),
            age_limit_ms: 10_000,
            ..SwitchStatus::default()
        }
    }

    #[test]
    fn status_is_a_line_for_the_switch_and_each_port_and_server() {
        let expected = "switch rack-1 (pid 7) running for 61 s, 2 ports, 1 services, 6 flows of 100 (3 owned, 2 held, 1 \
                        asked), 15 packets forwarded, 2 dropped (not_owner 2)\n\
                        port 0 eth0: native\n\
                        port 1 eth1: native, servers may own cache\n\
                        server a (id 1) on eth1: alive, cache, load 5, 9 free places\n\
                        server b (id 2) on eth1: silent, last heartbeat 1500 ms ago\n\
                        server c (id 3) on eth1: no hello yet";
        assert_eq!(status().to_string(), expected);
        assert_eq!(status().summary(), "2 of 2 ports, 1 of 3 servers alive, 6 flows");
        let json: SwitchStatus = serde_json::from_str(&status().to_json()).unwrap();
        assert_eq!(json, status());
    }

    #[test]
    fn a_port_says_that_its_interface_is_down_and_has_another_name() {
        let mut port = status().ports[1].clone();
        port.down = Some("the interface is down".into());
        port.renamed = Some("lan0".into());
        assert_eq!(
            port.to_string(),
            "port 1 eth1: native, the interface is down, renamed to lan0, servers may own cache"
        );
    }

    #[test]
    fn each_reason_against_health_is_a_line() {
        assert_eq!(status().health(), Ok(()));
        let mut status = status();
        status.ports[0].down = Some("the interface is down".into());
        status.ports[1].problem = Some("detached".into());
        status.flows.owned = 97;
        status.age_ms = 11_000;
        status.unrestored = Some("injected".into());
        status.thread_failure = Some("thread sweep panicked".into());
        let reasons = status.health().unwrap_err();
        let lines: Vec<&str> = reasons.lines().collect();
        assert_eq!(lines.len(), 6, "{reasons}");
        assert_eq!(lines[..2], ["port eth0: the interface is down", "port eth1: detached"]);
        assert!(lines[2].contains("raise flows_max"), "{reasons}");
        assert!(lines[3].contains("11 s") && lines[4].contains("refused reload"), "{reasons}");
        assert!(lines[5].contains("sweep"), "{reasons}");
        // A large table is read less often.
        status.age_limit_ms = 200_000;
        assert_eq!(status.health().unwrap_err().lines().count(), 5);
    }
}
