//! Samples of this host's switches.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use spillway_switch::SwitchStatus;

pub(crate) struct SwitchSample {
    socket: PathBuf,
    status: SwitchStatus,
    /// Rates since the previous snapshot.
    rates: Option<SwitchRates>,
}

/// A switch's packets per second between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SwitchRates {
    forwarded: f64,
    dropped: f64,
}

/// A sample of the switch at this socket.
pub(super) fn sample(socket: &Path, status: SwitchStatus, before: &[SwitchSample]) -> SwitchSample {
    let earlier = before.iter().find(|sample| sample.socket == socket && sample.status.pid == status.pid);
    let rates = earlier.and_then(|earlier| SwitchRates::between(&earlier.status, &status));
    SwitchSample { socket: socket.to_owned(), status, rates }
}

impl SwitchRates {
    /// The daemon reads the counters once a second: two snapshots may have the same ones.
    fn between(before: &SwitchStatus, after: &SwitchStatus) -> Option<SwitchRates> {
        let read_at = |status: &SwitchStatus| status.uptime_ms.saturating_sub(status.age_ms);
        let ms = read_at(after).checked_sub(read_at(before)).filter(|ms| *ms > 0)?;
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 * 1000.0 / ms as f64;
        let ((forwarded_before, dropped_before), (forwarded, dropped)) =
            (before.forwarded_and_dropped(), after.forwarded_and_dropped());
        Some(SwitchRates {
            forwarded: rate(forwarded_before, forwarded),
            dropped: rate(dropped_before, dropped),
        })
    }
}

impl SwitchSample {
    pub(super) fn lines(&self) -> Vec<String> {
        let flows = self.status.flows;
        let mut lines =
            vec![format!("switch {} ({}) {}", self.status.name, self.status.pid, self.status.summary())];
        if flows.asked + flows.held > 0 {
            lines.push(format!("moves under way: {} asked, {} held", flows.asked, flows.held));
        }
        if let Some(SwitchRates { forwarded, dropped }) = self.rates {
            lines.push(format!("{forwarded:.0} packets/s forwarded, {dropped:.0} dropped/s"));
        }
        let failed = self.status.ports.iter().filter_map(|port| Some((port, port.fault()?)));
        lines.extend(failed.map(|(port, fault)| format!("port {}: {fault}", port.interface)));
        lines
    }

    pub(super) fn as_json(&self) -> Value {
        let rates = self.rates.map(
            |rates| json!({ "forwarded_per_second": rates.forwarded, "dropped_per_second": rates.dropped }),
        );
        json!({ "socket": self.socket, "status": self.status, "rates": rates })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uptime_ms: u64, age_ms: u64, switched: u64, dropped: u64) -> SwitchStatus {
        let packets = [("switched", switched), ("drop_short", dropped)].map(|(name, n)| (name.to_owned(), n));
        SwitchStatus { uptime_ms, age_ms, packets: packets.into(), ..SwitchStatus::default() }
    }

    #[test]
    fn rates_cover_the_time_between_two_readings() {
        let rates = SwitchRates::between(&status(1500, 500, 100, 0), &status(3100, 100, 500, 20));
        assert_eq!(rates, Some(SwitchRates { forwarded: 200.0, dropped: 10.0 }));
        assert_eq!(SwitchRates::between(&status(1500, 500, 100, 0), &status(1900, 900, 100, 0)), None);
    }

    #[test]
    fn a_sample_is_a_few_lines() {
        let mut status = status(5000, 0, 10, 0);
        status.name = "rack".into();
        status.flows.held = 2;
        let rates = Some(SwitchRates { forwarded: 1234.4, dropped: 0.0 });
        let lines = SwitchSample { socket: "/run/a".into(), status, rates }.lines();
        assert_eq!(
            lines,
            [
                "switch rack (0) 0 of 0 ports, 0 of 0 servers alive, 2 flows",
                "moves under way: 0 asked, 2 held",
                "1234 packets/s forwarded, 0 dropped/s",
            ]
        );
    }
}
