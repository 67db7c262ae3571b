//! Orders to sessions to move, over all shards. Called with no lock held.

use core::sync::atomic::{AtomicUsize, Ordering};

use spillway_batch::{Control, Role};
use spillway_session::{Placement, SessionHandle};

use super::{SHARDS, Shard, TABLES, shard};
use crate::carrier_name::{CarrierName, SessionName};
use crate::lock;

/// A control message for a session, and the carrier to send it on.
pub(crate) type Order = (CarrierName, SessionName, Control);

/// The shard at which the last call of [`ask_to_return`] stopped; the next call begins there.
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

/// The number of sessions that links of this role carry.
pub(crate) fn carried_by(role: Role) -> usize {
    let count = |shard: &Shard| shard.port.carried_by(role);
    TABLES.iter().map(|table| lock(table).as_ref().map_or(0, count)).sum()
}

/// Orders for the sessions whose carrier is not one that the operator's override requires.
pub(crate) fn misplaced_sessions(placement: Placement) -> Vec<Order> {
    let mut orders = Vec::new();
    for index in 0..SHARDS {
        if let Some(shard) = &*shard(index as u8) {
            orders.extend(with_names(index, shard.port.misplaced_sessions(placement)));
        }
    }
    orders
}

/// Orders for at most `count` helped sessions to return to the server's own port; continues where the last call ended.
pub(crate) fn ask_to_return(count: usize) -> Vec<Order> {
    let mut orders = Vec::new();
    let first = NEXT_SHARD.load(Ordering::Relaxed);
    for index in (first..SHARDS).chain(0..first) {
        if let Some(shard) = &mut *shard(index as u8) {
            orders.extend(with_names(index, shard.port.ask_to_return(count - orders.len())));
        }
        if orders.len() == count {
            NEXT_SHARD.store(index, Ordering::Relaxed);
            break;
        }
    }
    orders
}

fn with_names(
    index: usize,
    orders: Vec<(SessionHandle, CarrierName, Control)>,
) -> impl Iterator<Item = Order> {
    orders.into_iter().map(move |(session, carrier, control)| {
        (carrier, SessionName { shard: index as u8, slot: session.slot() }, control)
    })
}
