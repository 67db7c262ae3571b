//! A server's status.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_bpf::Mode;
use spillway_handoff::{Agent, Counters};
use spillway_moves::{BlackoutCounts, Server, Tcp};
use spillway_transport::Time;
use spillway_wire::handoff::Reason;

use crate::about::About;

/// A server's status, as `spillway status --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The kind of program: always `server`.
    pub kind: String,
    /// The service's name.
    pub service: String,
    /// The address and port to which clients connect.
    pub address: SocketAddr,
    /// The address and port at which this server has connections of the service.
    pub place: SocketAddr,
    /// This server's name among its peers; `None` if no connection moves.
    pub server: Option<String>,
    /// The interface.
    pub interface: String,
    /// `native` or `generic`: where the steering program runs.
    pub mode: String,
    /// Connections of this server.
    pub connections: usize,
    /// Moves, by result.
    pub moves: MoveCounts,
    /// Moves to this server that it has refused or given back, by reason; reasons that never occurred are left out.
    #[serde(default)]
    pub refusals: BTreeMap<String, u64>,
    /// How long connections that have left this server were without a server.
    #[serde(default)]
    pub blackout: BlackoutStatus,
    /// The server's policy for moves, and its decisions.
    #[serde(default)]
    pub policy: PolicyStatus,
}

/// A server's policy for moves. The counters begin at the start of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// `none`, `reactive` or `proactive`.
    pub name: String,
    /// The operator's override: `auto`, `on` or `off`.
    #[serde(rename = "override")]
    pub manual_override: String,
    /// The server's load, in millionths of its capacity.
    pub load_ppm: u32,
    /// Moves that were ordered because of the server's own load.
    pub load: u64,
    /// Moves that were ordered because of a demand above the mean of all servers.
    pub above_mean: u64,
    /// Moves that were ordered because the override was *on*.
    pub override_on: u64,
    /// Ordered moves that have failed.
    pub failed: u64,
    /// Planned moves that a limit has forbidden.
    pub forbidden: u64,
}

impl PolicyStatus {
    fn of<S: Tcp>(about: &About, server: &Server<S>, now: Time) -> PolicyStatus {
        let counts = server.decision_counts();
        PolicyStatus {
            name: about.policy.to_owned(),
            manual_override: server.manual_override(now).name().to_owned(),
            load_ppm: server.load(),
            load: counts.load,
            above_mean: counts.above_mean,
            override_on: counts.manual_override,
            failed: counts.failed,
            forbidden: counts.forbidden,
        }
    }
}

/// Numbers of moves since the start of the server, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveCounts {
    /// Connections that have moved away.
    pub moved: u64,
    /// Connections imported from other servers.
    pub imported: u64,
    /// Connections whose move has ended before their export: they have stayed.
    pub kept: u64,
    /// Connections that were exported and have come back.
    pub returned: u64,
    /// Exported connections whose outcome is not known here.
    pub let_go: u64,
    /// Moves to this server that it has refused.
    pub refused: u64,
    /// Moves that a request has stopped before the export.
    pub stopped: u64,
    /// Connections that were lost.
    pub lost: u64,
    /// Late packets that were forwarded to other servers.
    pub forwarded: u64,
    /// Forwarded packets that have come from other servers.
    pub forwards_received: u64,
    /// Frames that were not sent, because another server may own their connection.
    pub muted: u64,
    /// Packets that have waited here for their connection.
    #[serde(default)]
    pub held: u64,
    /// Bytes of such packets at present.
    #[serde(default)]
    pub held_bytes: usize,
}

/// Blackouts of the connections that have left this server: from the export until the target's *accepted* has arrived, or
/// until the connection has come back. So a blackout includes the way of *accepted*.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlackoutStatus {
    /// Number of blackouts.
    pub count: u64,
    /// Half of the blackouts were not longer, to the next of the histogram's bounds.
    pub p50_us: u64,
    /// 99 % of the blackouts were not longer, to the next of the histogram's bounds.
    pub p99_us: u64,
    /// The longest blackout.
    pub max_us: u64,
    /// Sum of all blackouts.
    pub sum_us: u64,
    /// Numbers by length: up to each bound of the histogram in `/metrics`, and longer ones.
    pub buckets: Vec<u64>,
}

impl BlackoutStatus {
    fn of(counts: &BlackoutCounts) -> BlackoutStatus {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        BlackoutStatus {
            count: counts.count(),
            p50_us: counts.quantile(500).map_or(0, us),
            p99_us: counts.quantile(990).map_or(0, us),
            max_us: us(counts.max),
            sum_us: us(counts.sum),
            buckets: counts.buckets.to_vec(),
        }
    }
}

impl ServerStatus {
    pub(crate) fn of<S: Tcp>(about: &About, server: &Server<S>, now: Time) -> ServerStatus {
        let counters = server.counters();
        let agent = server.agent().map(Agent::counters).unwrap_or_default();
        ServerStatus {
            kind: "server".to_owned(),
            service: about.name.clone(),
            address: about.service,
            place: about.place,
            server: about.own.clone(),
            interface: about.interface.clone(),
            mode: if about.mode == Mode::Generic { "generic" } else { "native" }.to_owned(),
            connections: server.connections().established(),
            moves: MoveCounts {
                moved: counters.moved,
                imported: counters.imported,
                kept: counters.kept,
                returned: counters.returned,
                let_go: counters.let_go,
                refused: agent.refused(),
                stopped: counters.stopped,
                lost: counters.lost,
                forwarded: agent.forwarded,
                forwards_received: agent.forwards_received,
                muted: counters.muted,
                held: agent.held,
                held_bytes: agent.held_bytes,
            },
            refusals: refusals(&agent),
            blackout: BlackoutStatus::of(server.blackouts()),
            policy: PolicyStatus::of(about, server, now),
        }
    }
}

fn refusals(agent: &Counters) -> BTreeMap<String, u64> {
    let all = Reason::ALL.iter().zip(agent.refusals).filter(|(_, count)| *count > 0);
    all.map(|(reason, count)| (reason.name().to_owned(), count)).collect()
}

impl fmt::Display for ServerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MoveCounts { moved, imported, kept, returned, let_go, refused, lost, .. } = self.moves;
        let server = self.server.as_deref().unwrap_or("-");
        writeln!(
            f,
            "server {server}: service {} at {}, here at {} on {} ({})",
            self.service, self.address, self.place, self.interface, self.mode
        )?;
        write!(
            f,
            "  {} connections; moves: {moved} away, {imported} here, {kept} kept, {returned} returned, {refused} refused, \
             {let_go} let go, {lost} lost",
            self.connections
        )?;
        let BlackoutStatus { count, p50_us, p99_us, max_us, .. } = self.blackout;
        if count > 0 {
            write!(f, "; blackout: p50 {p50_us} us, p99 {p99_us} us, max {max_us} us")?;
        }
        if !self.refusals.is_empty() {
            let refusals: Vec<String> =
                self.refusals.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            write!(f, "\n  refused by reason: {}", refusals.join(", "))?;
        }
        let PolicyStatus {
            name,
            manual_override,
            load_ppm,
            load,
            above_mean,
            override_on,
            failed,
            forbidden,
        } = &self.policy;
        if name == "none" || name.is_empty() {
            return Ok(());
        }
        write!(
            f,
            "\n  load {}.{} %; policy {name}, override {manual_override}: ordered {load} by load, {above_mean} above the mean, \
             {override_on} by the override; {failed} failed, {forbidden} forbidden by limits",
            load_ppm / 10_000,
            load_ppm / 1_000 % 10
        )
    }
}
