//! Sends orders to move to the clients of sessions, over all links; and counts the links' traffic, on which such orders
//! are based.

use std::collections::BTreeSet;

use spillway_batch::Role;

use super::{all, get, with_carrier};
use crate::sessions::Order;
use crate::wakes::Wakes;

/// Sends orders to the clients of sessions, and flushes the links at once. Returns the number of orders.
pub(crate) fn send_orders(orders: Vec<Order>, wakes: &mut Wakes) -> usize {
    let count = orders.len();
    let mut links = BTreeSet::new();
    for (carrier, name, control) in orders {
        links.insert(carrier.0);
        with_carrier(carrier, name, wakes, |inner, id, _| inner.send_control(id, control));
    }
    links.into_iter().filter_map(get).for_each(|link| link.lock().flush_or_lose(wakes));
    count
}

/// Messages received over all links that have not ended.
#[derive(Clone, Copy, Default)]
pub(crate) struct Traffic {
    /// Messages received through helpers.
    pub(crate) helped: u64,
    /// Messages received from clients with a link of their own.
    pub(crate) direct: u64,
}

pub(crate) fn traffic() -> Traffic {
    let mut traffic = Traffic::default();
    for link in all() {
        let inner = link.lock();
        let Some(endpoint) = &inner.endpoint else { continue };
        let messages = endpoint.counters().messages_received;
        if endpoint.role() == Some(Role::Helper) {
            traffic.helped += messages;
        } else {
            traffic.direct += messages;
        }
    }
    traffic
}
