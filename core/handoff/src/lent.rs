//! The original owner's record of connections that have moved to other servers.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::switch::Flow;

use crate::budget::Budget;
use crate::buffer::HeldFrames;
use crate::recent::Recent;
use crate::reclaim::time_for_all;

/// For this time after the switch has lost an entry, its absence does not show that a lent connection has ended: the connection's
/// owner still requests the flow from the original owner. If all entries are lost, the time in which owners request all flows
/// comes on top.
const GRACE: Duration = Duration::from_secs(5);
const LENT_MAX: usize = 65_536;

/// A connection that another server has, or had.
#[derive(Debug, Default)]
struct Loan {
    /// If the switch has lost the entry: time until which a missing entry does not show that the connection has ended.
    unclear_until: Option<Time>,
    /// When this server last asked the switch for the entry.
    asked_at: Option<Time>,
    /// A packet that waits for the answer.
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    frames: HeldFrames,
    /// The packet opens a connection.
    is_opening: bool,
}

/// Connections that other servers have. Packets of such a connection that arrive here are stray: answering them would
/// reset the connection. Only the flow's entry shows that the connection has ended. A packet does not, even one that opens
/// a connection: it may be forged, or a copy that the network delivers late.
#[derive(Debug)]
pub(crate) struct Lent {
    flows: Recent<Loan>,
}

impl Lent {
    pub(crate) fn new() -> Lent {
        Lent { flows: Recent::new(LENT_MAX) }
    }

    /// The connection has moved away, or its owner was confirmed again.
    pub(crate) fn add(&mut self, flow: Flow) {
        self.flows.insert(flow, Loan::default());
    }

    /// The connection has come back, or has ended.
    pub(crate) fn remove(&mut self, flow: &Flow) {
        self.flows.remove(flow);
    }

    pub(crate) fn contains(&self, flow: &Flow) -> bool {
        self.flows.get(flow).is_some()
    }

    /// The switch has lost all entries.
    pub(crate) fn handle_lost_entries(&mut self, now: Time) {
        let until = now + GRACE + time_for_all(self.flows.len());
        self.flows.values_mut().for_each(|loan| loan.unclear_until = Some(until));
    }

    /// The switch has lost the entry of this flow.
    pub(crate) fn handle_lost_entry(&mut self, now: Time, flow: &Flow) {
        if let Some(loan) = self.flows.get_mut(flow) {
            loan.unclear_until = Some(now + GRACE);
        }
    }

    /// Whether the switch must be asked for the entry now, because a stray packet has arrived: at most once in `interval`.
    pub(crate) fn is_question_due(&mut self, now: Time, flow: &Flow, interval: Duration) -> bool {
        let Some(loan) = self.flows.get_mut(flow) else { return false };
        let is_due = loan.asked_at.is_none_or(|asked_at| now.since(asked_at) >= interval);
        if is_due {
            loan.asked_at = Some(now);
        }
        is_due
    }

    /// Keeps a packet until the switch has answered. One packet of a flow is enough; a packet that opens a connection
    /// replaces another one. Returns false if the packet is not kept.
    pub(crate) fn hold(&mut self, flow: &Flow, frame: &[u8], is_opening: bool, budget: &Budget) -> bool {
        let Some(loan) = self.flows.get_mut(flow) else { return false };
        if loan.waiting.as_ref().is_some_and(|waiting| waiting.is_opening || !is_opening) {
            return false;
        }
        let mut frames = HeldFrames::new(budget);
        let has_room = frames.push(frame);
        if has_room {
            loan.waiting = Some(Waiting { frames, is_opening });
        }
        has_room
    }

    /// The switch has answered. `is_elsewhere`: the entry names another owner; otherwise this server, or there is no
    /// entry. If the loan has ended, the flow is forgotten: returns the packet that has waited, for the stack.
    pub(crate) fn handle_entry(
        &mut self,
        now: Time,
        flow: &Flow,
        is_elsewhere: bool,
    ) -> Option<Vec<Vec<u8>>> {
        let loan = self.flows.get_mut(flow)?;
        let waiting = loan.waiting.take();
        if is_elsewhere || loan.unclear_until.is_some_and(|until| now <= until) {
            return None;
        }
        self.flows.remove(flow);
        Some(waiting.map_or_else(Vec::new, |mut waiting| waiting.frames.take()))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::test_flow::flow;

    fn budget() -> Budget {
        Budget::new(1 << 20)
    }

    #[test]
    fn only_the_entry_ends_a_loan_and_releases_the_packet_that_waits() {
        let (mut lent, now) = (Lent::new(), Time(90_000_000_000));
        lent.add(flow(1));
        assert!(lent.hold(&flow(1), b"data", false, &budget()));
        assert_eq!(lent.handle_entry(now, &flow(1), true), None);
        assert!(lent.contains(&flow(1)), "another server owns the flow");
        assert!(lent.hold(&flow(1), b"more", false, &budget()));
        assert_eq!(lent.handle_entry(now, &flow(1), false), Some(vec![b"more".to_vec()]));
        assert!(!lent.contains(&flow(1)));
        assert_eq!(lent.handle_entry(now, &flow(1), false), None, "the loan ends once");
    }

    #[test]
    fn one_packet_waits_and_one_that_opens_a_connection_has_precedence() {
        let (mut lent, now, budget) = (Lent::new(), Time(90_000_000_000), Budget::new(6));
        lent.add(flow(1));
        assert!(lent.hold(&flow(1), b"dat", false, &budget));
        assert!(!lent.hold(&flow(1), b"dat", false, &budget));
        assert!(!lent.hold(&flow(1), b"a SYN", true, &budget), "beyond the budget");
        assert!(lent.hold(&flow(1), b"SYN", true, &budget));
        assert!(!lent.hold(&flow(1), b"SYN", true, &budget) && !lent.hold(&flow(1), b"dat", false, &budget));
        assert_eq!(budget.used(), 3);
        assert_eq!(lent.handle_entry(now, &flow(1), false), Some(vec![b"SYN".to_vec()]));
    }

    #[test]
    fn a_missing_entry_says_nothing_while_owners_may_take_their_flows_back() {
        let (mut lent, begin) = (Lent::new(), Time(90_000_000_000));
        (1..=2).for_each(|port| lent.add(flow(port)));
        lent.handle_lost_entries(begin);
        assert!(lent.hold(&flow(1), b"SYN", true, &budget()));
        assert_eq!(lent.handle_entry(begin + GRACE, &flow(1), false), None);
        assert!(lent.contains(&flow(1)));
        assert_eq!(lent.handle_entry(begin + 2 * GRACE, &flow(1), false), Some(Vec::new()));
        assert!(!lent.contains(&flow(1)));
        lent.add(flow(2));
        lent.handle_entry(begin, &flow(2), false);
        assert!(!lent.contains(&flow(2)), "a flow that its owner has taken back has an entry");
    }

    #[test]
    fn the_switch_is_asked_once_in_an_interval() {
        let (mut lent, interval) = (Lent::new(), Duration::from_millis(16));
        assert!(!lent.is_question_due(Time(5), &flow(1), interval), "not lent");
        lent.add(flow(1));
        assert!(lent.is_question_due(Time(5), &flow(1), interval));
        assert!(!lent.is_question_due(Time(5) + interval / 2, &flow(1), interval));
        assert!(lent.is_question_due(Time(5) + interval, &flow(1), interval));
    }

    #[test]
    fn lent_flows_are_bounded() {
        let mut lent = Lent { flows: Recent::new(10) };
        (1..=11).for_each(|port| lent.add(flow(port)));
        assert_eq!(lent.flows.len(), 10);
        assert!(!lent.contains(&flow(1)) && lent.contains(&flow(2)), "the oldest is forgotten");
    }
}
