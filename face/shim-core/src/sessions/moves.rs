//! Orders that sessions move, over all shards. Called with no lock held.

use core::sync::atomic::{AtomicUsize, Ordering};

use spillway_batch::{Control, Role};
use spillway_session::{Placement, SessionHandle};

use super::{SHARDS, Shard, TABLES, shard};
use crate::carrier_name::{CarrierName, Name};
use crate::lock;

/// A control message for a session, and the carrier to send it on.
pub(crate) type Order = (CarrierName, Name, Control);

/// The shard at which the last call of [`return_home`] stopped: the next one begins there.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

/// The number of sessions on links of this role.
pub(crate) fn carried_by(role: Role) -> usize {
    let of = |shard: &Shard| shard.port.carried_by(role);
    TABLES.iter().map(|table| lock(table).as_ref().map_or(0, of)).sum()
}

/// Orders for the sessions that are not where the operator wants them.
pub(crate) fn misplaced(placement: Placement) -> Vec<Order> {
    let mut orders = Vec::new();
    for index in 0..SHARDS {
        if let Some(shard) = &*shard(index as u8) {
            orders.extend(named(index, shard.port.misplaced(placement)));
        }
    }
    orders
}

/// Orders for this number of helped sessions to return to the server's port. Begins behind those that were asked last.
pub(crate) fn return_home(count: usize) -> Vec<Order> {
    let mut orders = Vec::new();
    let first = RETURNING.load(Ordering::Relaxed);
    for index in (first..SHARDS).chain(0..first) {
        if let Some(shard) = &mut *shard(index as u8) {
            orders.extend(named(index, shard.port.return_home(count - orders.len())));
        }
        if orders.len() == count {
            RETURNING.store(index, Ordering::Relaxed);
            break;
        }
    }
    orders
}

fn named(index: usize, orders: Vec<(SessionHandle, CarrierName, Control)>) -> impl Iterator<Item = Order> {
    orders.into_iter().map(move |(session, carrier, control)| {
        (carrier, Name { shard: index as u8, slot: session.slot() }, control)
    })
}
