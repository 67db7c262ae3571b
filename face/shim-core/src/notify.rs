//! Informs the epoll sets and the blocked threads that wait for a connection's readiness.

use core::sync::atomic::{Ordering, fence};
use std::sync::MutexGuard;

use crate::connections::Connection;
use crate::epoll_set::{self, Members, Set};
use crate::memberships::with_aliases;
use crate::waiters;
use crate::wakes::Wakes;

/// Informs a connection's sets, and the threads that are blocked on it, that readiness bits were set.
pub(crate) fn notify(connection: &'static Connection, wakes: &mut Wakes) {
    notify_all(core::iter::once(connection), wakes);
}

/// Like [`notify`], for all connections with data in one batch: consecutive connections of one set share its lock.
pub(crate) fn notify_all(raised: impl Iterator<Item = &'static Connection>, wakes: &mut Wakes) {
    // Makes the bits visible before the set is read. A thread that adds the connection to a set at this time sees the
    // bits, or this thread sees the set.
    fence(Ordering::SeqCst);
    let mut held: Option<(&Set, MutexGuard<'_, Members>)> = None;
    for connection in raised {
        queue_in_set(connection, &mut held, wakes);
        if connection.readiness.next_alias().is_some() {
            for alias in with_aliases(connection).skip(1) {
                queue_in_set(alias, &mut held, wakes);
            }
        }
        waiters::wake(connection, wakes);
    }
}

/// Queues one membership in its set; `held` is the set used last, with its lock.
#[inline]
fn queue_in_set(
    alias_or_self: &'static Connection,
    held: &mut Option<(&'static Set, MutexGuard<'static, Members>)>,
    wakes: &mut Wakes,
) {
    let index = alias_or_self.readiness.set();
    if held.as_ref().is_none_or(|(set, _)| set.index != index) {
        drop(held.take()); // before the next lock: two sets are never locked at once
        *held = epoll_set::get(index).map(|set| (set, set.members()));
    }
    if let Some((set, members)) = held
        && alias_or_self.readiness.set() == set.index
    {
        set.queue(members, alias_or_self, wakes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{connections, memberships, sys, table};

    #[test]
    fn every_set_of_a_connection_is_informed() {
        let connection = connections::take().unwrap();
        let sets = [(); 3].map(|()| epoll_set::create_library_set().unwrap());
        let mut wakes = Wakes::default();
        for (data, set) in (0..).zip(sets) {
            memberships::add(set, connection, libc::EPOLLIN as u32, data, &mut wakes).unwrap();
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        assert!(sets.iter().all(|set| set.collect(&mut events, 2, &mut wakes) == 0));
        assert!(connection.deliver(b"x"));
        notify(connection, &mut wakes);
        for (data, set) in (0..).zip(sets) {
            assert_eq!(set.collect(&mut events, 2, &mut wakes), 1);
            let event = events[0];
            assert_eq!((event.events, event.u64), (libc::EPOLLIN as u32, data));
        }
        memberships::leave_all_sets(connection);
        connections::give_back(connection);
        for set in sets {
            let fd = set.fd.load(Ordering::Relaxed);
            epoll_set::free_set(set);
            table::record(fd, table::Entry::Real);
            sys::close(fd);
        }
    }
}
