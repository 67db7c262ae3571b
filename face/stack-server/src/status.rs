//! A server's status.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use spillway_bpf::Mode;
use spillway_handoff::Agent;
use spillway_moves::Server;
use spillway_transport::Time;

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
    fn of(about: &About, server: &Server, now: Time) -> PolicyStatus {
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
}

impl ServerStatus {
    pub(crate) fn of(about: &About, server: &Server, now: Time) -> ServerStatus {
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
            connections: server.connections().stack().connections(),
            moves: MoveCounts {
                moved: counters.moved,
                imported: counters.imported,
                kept: counters.kept,
                returned: counters.returned,
                let_go: counters.let_go,
                refused: agent.refused,
                stopped: counters.stopped,
                lost: counters.lost,
                forwarded: agent.forwarded,
                forwards_received: agent.forwards_received,
                muted: counters.muted,
            },
            policy: PolicyStatus::of(about, server, now),
        }
    }
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
