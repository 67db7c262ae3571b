//! Samples of this host's servers on the user-level stack.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};
use spillway_stack_server::{MoveCounts, ServerStatus};

pub(crate) struct StackServerSample {
    socket: PathBuf,
    status: ServerStatus,
    at: Instant,
    /// Rates since the previous snapshot.
    rates: Option<MoveRates>,
}

/// A server's moves per second between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MoveRates {
    away: f64,
    here: f64,
    /// Moves from this server that have failed, and moves to it that it has refused.
    failed: f64,
}

/// A sample of the server at this socket.
pub(super) fn sample(socket: &Path, status: ServerStatus, before: &[StackServerSample]) -> StackServerSample {
    let at = Instant::now();
    let earlier = before.iter().find(|sample| sample.socket == socket);
    let rates = earlier.and_then(|earlier| {
        let seconds = at.saturating_duration_since(earlier.at).as_secs_f64();
        MoveRates::between(&earlier.status.moves, &status.moves, seconds)
    });
    StackServerSample { socket: socket.to_owned(), status, at, rates }
}

impl MoveRates {
    /// The counters of a server that has restarted are lower: its rates are 0.
    fn between(before: &MoveCounts, after: &MoveCounts, seconds: f64) -> Option<MoveRates> {
        let rate = |of: fn(&MoveCounts) -> u64| of(after).saturating_sub(of(before)) as f64 / seconds;
        (seconds > 0.0).then(|| MoveRates {
            away: rate(|moves| moves.moved),
            here: rate(|moves| moves.imported),
            failed: rate(|moves| moves.kept + moves.returned + moves.let_go + moves.refused),
        })
    }
}

impl StackServerSample {
    pub(super) fn lines(&self) -> Vec<String> {
        let ServerStatus { service, server, connections, policy, moves, .. } = &self.status;
        let server = server.as_deref().unwrap_or("-");
        let load = format!("{}.{} %", policy.load_ppm / 10_000, policy.load_ppm / 1_000 % 10);
        let mut lines = vec![format!(
            "server {server}: service {service}, {connections} connections, load {load}, {} lost",
            moves.lost
        )];
        if !(policy.name.is_empty() || policy.name == "none") {
            lines.push(format!("policy {}, override {}", policy.name, policy.manual_override));
        }
        if let Some(MoveRates { away, here, failed }) = self.rates {
            lines.push(format!("moves/s: {away:.0} away, {here:.0} here, {failed:.0} failed or refused"));
        }
        lines
    }

    pub(super) fn as_json(&self) -> Value {
        let rates = self.rates.map(|rates| {
            json!({
                "moved_per_second": rates.away,
                "imported_per_second": rates.here,
                "failed_per_second": rates.failed,
            })
        });
        json!({ "socket": self.socket, "status": self.status, "rates": rates })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_the_time_between_two_snapshots() {
        let counts =
            |moved, returned, refused| MoveCounts { moved, returned, refused, ..MoveCounts::default() };
        let rates = MoveRates::between(&counts(10, 0, 1), &counts(30, 1, 2), 2.0);
        assert_eq!(rates, Some(MoveRates { away: 10.0, here: 0.0, failed: 1.0 }));
        let restarted = MoveRates::between(&counts(10, 0, 0), &counts(3, 0, 0), 2.0).unwrap();
        assert_eq!(restarted.away, 0.0);
        assert_eq!(MoveRates::between(&counts(0, 0, 0), &counts(0, 0, 0), 0.0), None);
    }
}
