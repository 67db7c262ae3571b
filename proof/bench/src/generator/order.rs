//! Orders to running clients, and the commands that divide an order among the generators.

use std::time::Duration;

/// An order to all clients.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// The new rate in requests a second, over all hosts.
    Rate(f64),
    /// Move every connection to the helper.
    ToHelper,
    /// Move every connection back to the server.
    ToServer,
    /// Sets the override of all sessions' relief policies to `on` (see
    /// [`Routes::sessions_per_process`](super::Routes::sessions_per_process)).
    Help,
    /// Mark this moment in the report.
    Mark(&'static str),
}

impl Order {
    /// The command for each of `count` generators, split into its arguments.
    pub(super) fn arguments(&self, count: usize, pace: Duration) -> Vec<String> {
        let owned = |arguments: &[&str]| arguments.iter().map(|&argument| argument.to_owned()).collect();
        // All generators move their connections at the same time, so each generator takes `count` times as
        // long between two of its connections.
        let pace = format!("pace={}ns", pace.as_nanos().saturating_mul(count as u128));
        match self {
            Order::Rate(rate) => owned(&["rate", &format!("{:.3}", rate / count as f64)]),
            Order::ToHelper => owned(&["move", "helper", &pace]),
            Order::ToServer => owned(&["move", "direct", &pace]),
            Order::Help => owned(&["relief", "on"]),
            Order::Mark(name) => owned(&["mark", name]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_divided_among_generators() {
        let pace = Duration::from_micros(100);
        assert_eq!(Order::Rate(9_000.0).arguments(2, pace), ["rate", "4500.000"]);
        assert_eq!(Order::ToHelper.arguments(2, pace), ["move", "helper", "pace=200000ns"]);
        assert_eq!(Order::ToServer.arguments(1, pace), ["move", "direct", "pace=100000ns"]);
        assert_eq!(Order::Mark("burst").arguments(3, pace), ["mark", "burst"]);
    }
}
