//! Sessions that are to go elsewhere, over all shards. Called with no lock held.

use core::sync::atomic::{AtomicUsize, Ordering};

use spillway_batch::{Control, Role};
use spillway_session::{Placement, SessionHandle};

use super::{SHARDS, Shard, TABLES, shard};
use crate::carrier_name::{CarrierName, Name};
use crate::lock;

/// What to say to a session, on what carries it.
pub(crate) type Order = (CarrierName, Name, Control);

/// The shard in which fewer sessions were asked to return than it has: the next are taken from there.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

/// How many sessions are on links of this role now.
pub(crate) fn carried_by(role: Role) -> usize {
    let of = |shard: &Shard| shard.port.carried_by(role);
    TABLES.iter().map(|table| lock(table).as_ref().map_or(0, of)).sum()
}

/// Sessions that are not where the operator wants them.
pub(crate) fn misplaced(placement: Placement) -> Vec<Order> {
    let mut orders = Vec::new();
    for index in 0..SHARDS {
        if let Some(shard) = &*shard(index as u8) {
            orders.extend(named(index, shard.port.misplaced(placement)));
        }
    }
    orders
}

/// This number of helped sessions is to return to the server's own port: others than those that were asked last.
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
