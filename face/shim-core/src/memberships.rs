//! The epoll sets that a connection is in.
//!
//! The first membership is in the connection itself, each further one in an alias: see [`crate::readiness`].

use std::sync::Mutex;

use crate::connections::{self, Connection};
use crate::epoll_set::{self, EXCLUSIVE, ONCE, Set};
use crate::lock;
use crate::sys::Errno;
use crate::wakes::Wakes;

/// Maximum number of epoll sets that one connection may be in.
const MEMBERSHIPS_MAX: usize = 64;

/// Held while memberships begin and end, so that two threads that add one connection to two sets use different aliases.
static MEMBERSHIPS: Mutex<()> = Mutex::new(());

/// Adds a connection or a listener's stand-in to a set, like EPOLL_CTL_ADD. EEXIST if the set already holds it, ENOSPC
/// if too many sets do.
pub(crate) fn add(
    set: &Set,
    connection: &'static Connection,
    events: u32,
    data: u64,
    wakes: &mut Wakes,
) -> Result<(), Errno> {
    if events & EXCLUSIVE != 0 && events & (ONCE | libc::EPOLLRDHUP as u32 | libc::EPOLLPRI as u32) != 0 {
        return Err(libc::EINVAL);
    }
    set.activate()?;
    let _memberships = lock(&MEMBERSHIPS);
    if membership(connection, set.index).is_some() {
        return Err(libc::EEXIST);
    }
    let alias_or_self = match membership(connection, 0) {
        Some(alias_or_self) => alias_or_self,
        None => {
            if with_aliases(connection).count() == MEMBERSHIPS_MAX {
                return Err(libc::ENOSPC);
            }
            let alias = connections::take().ok_or(libc::ENOSPC)?;
            connection.readiness.add_alias(connection.index, (&alias.readiness, alias.index));
            alias
        }
    };
    set.begin_membership(alias_or_self, events, data, wakes);
    Ok(())
}

/// Changes a membership, like EPOLL_CTL_MOD.
pub(crate) fn modify(
    set: &Set,
    connection: &'static Connection,
    events: u32,
    data: u64,
    wakes: &mut Wakes,
) -> Result<(), Errno> {
    let alias_or_self = membership(connection, set.index).ok_or(libc::ENOENT)?;
    set.modify_membership(alias_or_self, events, data, wakes)
}

/// Ends a membership, like EPOLL_CTL_DEL.
pub(crate) fn remove(set: &Set, connection: &'static Connection) -> Result<(), Errno> {
    set.end_membership(membership(connection, set.index).ok_or(libc::ENOENT)?)
}

/// Removes a closed connection from all sets.
pub(crate) fn leave_all_sets(connection: &'static Connection) {
    let _memberships = lock(&MEMBERSHIPS);
    let all: Vec<&'static Connection> = with_aliases(connection).collect();
    connection.readiness.forget_aliases();
    for alias_or_self in all {
        if let Some(set) = epoll_set::get(alias_or_self.readiness.set()) {
            let _ = set.end_membership(alias_or_self);
        }
        if alias_or_self.index != connection.index {
            connections::give_back(alias_or_self);
        }
    }
}

/// A connection and its aliases.
pub(crate) fn with_aliases(connection: &'static Connection) -> impl Iterator<Item = &'static Connection> {
    let mut next = Some(connection);
    // Bounded, because another thread may have freed an alias, and its slot may be in use for another connection.
    core::iter::from_fn(move || {
        let alias_or_self = next?;
        next = alias_or_self.readiness.next_alias().and_then(connections::get);
        Some(alias_or_self)
    })
    .take(MEMBERSHIPS_MAX)
}

/// The connection or alias whose membership is in this set.
fn membership(connection: &'static Connection, set: u32) -> Option<&'static Connection> {
    with_aliases(connection).find(|alias_or_self| alias_or_self.readiness.set() == set)
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn memberships_are_bounded_and_end_with_the_connection() {
        let connection = connections::take().unwrap();
        assert!(connection.deliver(b"x"));
        let sets: Vec<&Set> = (0..MEMBERSHIPS_MAX + 1)
            .map(|_| {
                let fd = crate::sys::epoll_create().unwrap();
                epoll_set::record_set(fd);
                let crate::table::Entry::Set(index) = crate::table::entry(fd) else {
                    panic!("the descriptor should be an epoll set")
                };
                epoll_set::get(index).unwrap()
            })
            .collect();
        let mut wakes = Wakes::default();
        let (last, first) = sets.split_last().unwrap();
        for (data, set) in first.iter().enumerate() {
            assert_eq!(add(set, connection, libc::EPOLLIN as u32, data as u64, &mut wakes), Ok(()));
            assert_eq!(add(set, connection, 0, 0, &mut wakes), Err(libc::EEXIST));
        }
        assert_eq!(add(last, connection, 0, 0, &mut wakes), Err(libc::ENOSPC));
        for (data, set) in first.iter().enumerate() {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
            assert_eq!(set.collect(&mut events, 4, &mut wakes), 1);
            let event = events[0];
            assert_eq!((event.events, event.u64), (libc::EPOLLIN as u32, data as u64));
        }
        leave_all_sets(connection);
        assert!(first.iter().all(|set| membership(connection, set.index).is_none()));
        connections::give_back(connection);
        for set in sets {
            let fd = set.fd.load(Ordering::Relaxed);
            epoll_set::free_set(set);
            crate::table::record(fd, crate::table::Entry::Real);
            crate::sys::close(fd);
        }
    }
}
