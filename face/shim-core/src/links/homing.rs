//! Sessions that are to go elsewhere, over all links; and what links carry, by which that is decided.

use spillway_batch::Role;

use super::all;
use crate::ready::Wakes;

/// Asks the clients of sessions that are not carried as the operator wants it to go elsewhere: how many they are.
pub(crate) fn send_elsewhere(wakes: &mut Wakes) -> usize {
    let mut count = 0;
    for link in all() {
        let mut inner = link.lock();
        let sent = inner.send_elsewhere();
        if sent > 0 {
            inner.flush_or_lose(wakes);
        }
        count += sent;
    }
    count
}

/// What links have carried so far, those that are gone left out, and the sessions that there are.
#[derive(Clone, Copy, Default)]
pub(crate) struct Traffic {
    /// Messages that came through helpers.
    pub(crate) helped: u64,
    /// Messages of clients with a link of their own.
    pub(crate) direct: u64,
    pub(crate) sessions: u32,
    /// Of those, carried by helpers.
    pub(crate) helped_sessions: u32,
}

pub(crate) fn traffic() -> Traffic {
    let mut traffic = Traffic::default();
    for link in all() {
        let inner = link.lock();
        let Some(end) = &inner.end else { continue };
        let (messages, sessions) = (end.counters().messages_received, inner.sessions() as u32);
        traffic.sessions += sessions;
        if end.role() == Some(Role::Helper) {
            traffic.helped += messages;
            traffic.helped_sessions += sessions;
        } else {
            traffic.direct += messages;
        }
    }
    traffic
}

/// Asks the clients of so many sessions that are helped to come back: how many were asked.
pub(crate) fn send_home(count: usize, wakes: &mut Wakes) -> usize {
    let mut left = count;
    for link in all() {
        let mut inner = link.lock();
        if left > 0 && inner.end.as_ref().is_some_and(|end| end.role() == Some(Role::Helper)) {
            left -= inner.send_home(left);
            inner.flush_or_lose(wakes);
        }
    }
    count - left
}
