//! Orders to move connections, from the operator, a policy or the application, until each move begins.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use spillway_handoff::{MoveError, MoveResult};
use spillway_transport::Time;
use spillway_wire::switch::{Flow, ServerId};

/// Maximum number of orders that wait or whose moves are under way.
pub(crate) const ORDERS_MAX: usize = 1024;
/// Moves of orders that are under way at a time. More would not be faster, and their states would queue in front of the
/// target's heartbeats.
pub(crate) const UNDER_WAY_MAX: usize = 32;
/// Maximum time that an order waits for the end of a request.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// An order to move a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The flow of the connection.
    pub flow: Flow,
    /// The server that gets the connection; `None`: the switch chooses the least loaded one.
    pub to: Option<ServerId>,
}

/// Why an order is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderError {
    /// The server has no agent.
    NoAgent,
    /// No connection of this flow is here.
    NotHere,
    /// The connection has an order already.
    Ordered,
    /// 1,024 orders wait or are under way, which is the limit.
    TooMany,
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OrderError::NoAgent => "this server moves no connections: it has no switch",
            OrderError::NotHere => "this server does not have the connection",
            OrderError::Ordered => "the connection is moving already",
            OrderError::TooMany => "1,024 moves wait or are under way: try again later",
        })
    }
}

impl core::error::Error for OrderError {}

/// How an order has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderResult {
    /// The move has ended.
    Ended(MoveResult),
    /// The move has not begun.
    Refused(MoveError),
    /// No request of the connection has ended within a second.
    Busy,
    /// The connection has ended before it could move.
    Closed,
}

impl fmt::Display for OrderResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrderResult::Ended(result) => result.fmt(f),
            OrderResult::Refused(error) => error.fmt(f),
            OrderResult::Busy => f.write_str("no request of the connection has ended within a second"),
            OrderResult::Closed => f.write_str("the connection has ended"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The application executes a request, or the order is new.
    Waiting,
    Moving,
    /// The move was stopped before the export, because a request had begun.
    Stopped,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    to: Option<ServerId>,
    /// When the order ends without a move. `None` until a turn finds its connection in a request.
    until: Option<Time>,
    stage: Stage,
}

/// All orders, one for each flow.
#[derive(Debug, Default)]
pub(crate) struct Orders(BTreeMap<Flow, Pending>);

impl Orders {
    pub(crate) fn add(&mut self, order: Order) -> Result<(), OrderError> {
        if self.0.contains_key(&order.flow) {
            return Err(OrderError::Ordered);
        }
        if self.0.len() >= ORDERS_MAX {
            return Err(OrderError::TooMany);
        }
        self.0.insert(order.flow, Pending { to: order.to, until: None, stage: Stage::Waiting });
        Ok(())
    }

    /// Orders whose moves have not begun.
    pub(crate) fn waiting(&self) -> Vec<Order> {
        let waiting = self.0.iter().filter(|(_, order)| order.stage == Stage::Waiting);
        waiting.map(|(flow, order)| Order { flow: *flow, to: order.to }).collect()
    }

    /// Flows whose moves have begun and have not ended.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = Flow> {
        self.0.iter().filter(|(_, order)| order.stage != Stage::Waiting).map(|(flow, _)| *flow)
    }

    /// Whether the move of this flow has begun by an order.
    pub(crate) fn is_under_way(&self, flow: &Flow) -> bool {
        self.0.get(flow).is_some_and(|order| order.stage != Stage::Waiting)
    }

    /// How many moves may begin now.
    pub(crate) fn free(&self) -> usize {
        UNDER_WAY_MAX.saturating_sub(self.under_way().count())
    }

    /// The move has begun.
    pub(crate) fn begin(&mut self, flow: &Flow) {
        self.set(flow, Stage::Moving);
    }

    /// The move is stopped before the export: the order waits again as soon as this server owns the flow again.
    pub(crate) fn stop(&mut self, flow: &Flow) {
        self.set(flow, Stage::Stopped);
    }

    fn set(&mut self, flow: &Flow, stage: Stage) {
        if let Some(order) = self.0.get_mut(flow) {
            order.stage = stage;
        }
    }

    /// The move has ended before the export. Returns whether the order waits again, because the move was stopped.
    pub(crate) fn wait_again(&mut self, flow: &Flow) -> bool {
        let Some(order) = self.0.get_mut(flow).filter(|order| order.stage == Stage::Stopped) else {
            return false;
        };
        order.stage = Stage::Waiting;
        true
    }

    /// Removes and returns the order of a flow.
    pub(crate) fn end(&mut self, flow: &Flow) -> Option<Order> {
        self.0.remove(flow).map(|order| Order { flow: *flow, to: order.to })
    }

    /// The connection of an order is in a request. Returns whether the order has waited for too long.
    pub(crate) fn wait(&mut self, now: Time, flow: &Flow) -> bool {
        let Some(order) = self.0.get_mut(flow) else { return false };
        *order.until.get_or_insert(now + WAIT_MAX) <= now
    }

    /// When the first order expires.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.0.values().filter(|order| order.stage == Stage::Waiting);
        waiting.filter_map(|order| order.until).min()
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    fn order(number: u16) -> Order {
        let client = SocketAddr::from(([10, 0, 0, 2], number + 1));
        let service = SocketAddr::from(([10, 0, 0, 1], 80));
        Order { flow: Flow::new(client.into(), service.into()).unwrap(), to: Some(ServerId(2)) }
    }

    #[test]
    fn orders_are_bounded_and_unique() {
        let mut orders = Orders::default();
        for number in 0..1024 {
            assert_eq!(orders.add(order(number)), Ok(()));
        }
        assert_eq!(orders.add(order(3)), Err(OrderError::Ordered));
        assert_eq!(orders.add(order(1024)), Err(OrderError::TooMany));
        assert_eq!((orders.end(&order(3).flow), orders.end(&order(3).flow)), (Some(order(3)), None));
        assert_eq!(orders.add(order(1024)), Ok(()));
        (0..31).for_each(|number| orders.begin(&order(number).flow));
        assert_eq!(orders.free(), 2, "order 3 has ended");
        orders.stop(&order(0).flow);
        assert_eq!(orders.free(), 2, "the move has not ended yet");
        (31..40).for_each(|number| orders.begin(&order(number).flow));
        assert_eq!(orders.free(), 0);
    }

    #[test]
    fn an_order_waits_for_a_second_also_if_its_move_was_stopped() {
        let mut orders = Orders::default();
        let flow = order(1).flow;
        orders.add(order(1)).unwrap();
        assert_eq!((orders.waiting(), orders.poll_timeout()), (alloc::vec![order(1)], None));
        assert!(!orders.wait(Time(5), &flow));
        assert_eq!(orders.poll_timeout(), Some(Time(1_000_000_005)));
        orders.begin(&flow);
        assert_eq!((orders.waiting(), orders.poll_timeout()), (Vec::new(), None));
        assert!(!orders.wait_again(&flow), "the move was not stopped");
        orders.stop(&flow);
        assert!(orders.wait_again(&flow) && !orders.wait(Time(1_000_000_004), &flow));
        assert!(orders.wait(Time(1_000_000_005), &flow));
    }
}
