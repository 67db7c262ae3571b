//! The original owner's record of connections that have moved to other servers.

use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::switch::Flow;

use crate::recent::Recent;

/// For this time after the first stray packet of a flow, the original owner answers no packet of the flow: a switch that
/// has lost its entries sends the original owner the packets of all flows, until their owners have taken them back.
const GRACE: Duration = Duration::from_secs(5);
const LENT_MAX: usize = 4096;

/// Connections that other servers have. Packets of such a connection that arrive at the original owner are stray: an
/// answer would reset the connection.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    /// Time of the first stray packet since the connection was lent or its owner was confirmed.
    flows: Recent<Option<Time>>,
}

impl Lent {
    pub(crate) fn new() -> Lent {
        Lent { flows: Recent::new(LENT_MAX) }
    }

    /// The connection has moved away, or its owner was confirmed again.
    pub(crate) fn add(&mut self, flow: Flow) {
        self.flows.insert(flow, None);
    }

    /// The connection has come back, or has ended.
    pub(crate) fn remove(&mut self, flow: &Flow) {
        self.flows.remove(flow);
    }

    pub(crate) fn contains(&self, flow: &Flow) -> bool {
        self.flows.get(flow).is_some()
    }

    /// Whether a client's packet must be dropped silently. `is_opening`: the packet begins a new connection.
    pub(crate) fn hides(&mut self, now: Time, flow: &Flow, is_opening: bool) -> bool {
        let Some(first) = self.flows.get_mut(flow) else { return false };
        let is_over = now.since(*first.get_or_insert(now)) > GRACE;
        if is_opening || is_over {
            self.flows.remove(flow);
        }
        !(is_opening || is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_flow::flow;

    #[test]
    fn stray_packets_are_hidden_for_a_while_unless_they_open_a_connection() {
        let mut lent = Lent::new();
        assert!(!lent.hides(Time(0), &flow(1), false));
        lent.add(flow(1));
        lent.add(flow(2));
        let begin = Time(90_000_000_000);
        assert!(lent.hides(begin, &flow(1), false) && lent.hides(begin + GRACE, &flow(1), false));
        lent.add(flow(1));
        assert!(lent.hides(begin + 2 * GRACE, &flow(1), false), "a confirmed owner begins a new grace");
        assert!(!lent.hides(begin + 4 * GRACE, &flow(1), false) && !lent.contains(&flow(1)));
        assert!(!lent.hides(begin, &flow(2), true) && !lent.contains(&flow(2)));
    }

    #[test]
    fn lent_flows_are_bounded() {
        let mut lent = Lent::new();
        (0..=LENT_MAX as u16).for_each(|port| lent.add(flow(port)));
        assert_eq!(lent.flows.len(), LENT_MAX);
    }
}
