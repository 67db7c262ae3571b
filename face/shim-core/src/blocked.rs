//! Threads that wait for virtual connections outside epoll: blocked in `read`, `write` or `accept`, or in `poll`
//! and `select`.
//!
//! Each sleeps in the kernel on its own real descriptors and an event counter that is written when one of its virtual
//! connections changes. One thread, the leader, also receives for all of them from the links that are in no epoll set
//! of the application. A leader that returns wakes another thread, which takes its place.

use core::sync::atomic::Ordering;
use core::time::Duration;

use libc::{c_int, pollfd, sigset_t};

use crate::connections::Connection;
use crate::ready::Set;
use crate::sys::{self, Errno};
use crate::waiters::{self, MANY, Slot};
use crate::wakes::Wakes;
use crate::{epoll, links, port, upkeep};

/// The application's event loops receive from the links in its epoll sets. In case none does, a blocked thread
/// receives, first after this time, then after twice as long each time.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// A blocked call, from its first check to its return.
pub(crate) struct Blocked {
    waits_for: Vec<&'static Connection>,
    slot: Option<&'static Slot>,
    leads: Option<&'static Set>,
    look: Duration,
}

impl Blocked {
    /// Registers the calling thread: from now on a change of these connections wakes it. Check them once more after this.
    pub(crate) fn new(waits_for: Vec<&'static Connection>) -> Blocked {
        let slot = waiters::take();
        if let Some(slot) = slot {
            slot.begin(&waits_for);
        }
        Blocked { waits_for, slot, leads: None, look: FIRST_LOOK }
    }

    /// For a call that does not wait, but receives if no other thread does.
    pub(crate) fn passing() -> Blocked {
        Blocked { waits_for: Vec::new(), slot: None, leads: None, look: FIRST_LOOK }
    }

    /// Sleeps until one of `descriptors`, whose answers are filled in, or one of the connections may have changed, or
    /// the time is over. May also return early without a change.
    pub(crate) fn sleep(
        &mut self,
        descriptors: &mut Vec<pollfd>,
        limit: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<(), Errno> {
        let mut wakes = Wakes::default();
        links::flush_deferred(&mut wakes);
        links::settle(&mut wakes);
        let count = descriptors.len();
        self.leads = self.leads.or_else(|| lead(self.slot));
        let mut limit = limit;
        let mut shorten = |to: Duration| limit = Some(limit.map_or(to, |limit| limit.min(to)));
        if let Some(set) = self.leads {
            descriptors.push(watched(set.fd.load(Ordering::Relaxed), libc::POLLIN));
            if let Some(within) = upkeep::due_within() {
                shorten(within);
            }
        }
        let lead_end = descriptors.len();
        let orphans = links::outside(&self.waits_for, port::own_set());
        if orphans.any || self.slot.is_none() {
            shorten(self.look);
            self.look = (self.look * 2).min(LAST_LOOK);
        }
        for &(_, fd, interest) in &orphans.unattended {
            let of = |wanted: bool, event| if wanted { event } else { 0 };
            descriptors
                .push(watched(fd, of(interest.input, libc::POLLIN) | of(interest.room, libc::POLLOUT)));
        }
        if let Some(slot) = self.slot {
            descriptors.push(watched(slot.descriptor(), libc::POLLIN));
        }
        let outcome = sys::poll(descriptors, limit, mask);
        if let Some(slot) = self.slot {
            slot.awake(descriptors.last().is_some_and(|last| last.revents != 0));
        }
        if let Some(set) = self.leads
            && (descriptors[lead_end - 1].revents != 0 || upkeep::is_due(sys::now()))
        {
            epoll::receive(set, &mut wakes);
        }
        for (&(link, ..), seen) in orphans.unattended.iter().zip(&descriptors[lead_end..]) {
            if seen.revents != 0 {
                links::attend(link, &mut wakes);
            }
        }
        if orphans.any && outcome == Ok(0) {
            links::attend_all(&self.waits_for, &mut wakes);
        }
        links::settle(&mut wakes);
        descriptors.truncate(count);
        outcome.map(drop)
    }
}

fn watched(fd: c_int, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0 }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(set) = self.leads {
            set.leader.store(0, Ordering::SeqCst);
        }
        if let Some(slot) = self.slot {
            slot.end(&self.waits_for);
        }
        // A thread has to lead, also if one that was woken for that returns without having led.
        if (self.leads.is_some() || self.slot.is_some())
            && port::own_set().is_some_and(|set| set.leader.load(Ordering::SeqCst) == 0)
        {
            let mut wakes = Wakes::default();
            waiters::wake_any(&mut wakes);
            links::settle(&mut wakes);
        }
    }
}

/// Makes the calling thread the leader, which receives from the links in the library's own set, if that has none.
fn lead(slot: Option<&Slot>) -> Option<&'static Set> {
    let set = port::own_set()?;
    let me = slot.map_or(MANY, Slot::number);
    set.leader.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).ok().map(|_| set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::{self, IN};
    use crate::source;

    #[test]
    fn a_change_wakes_those_who_wait_for_it_and_nobody_else() {
        let (one, other) = (connections::take().unwrap(), connections::take().unwrap());
        let mut sleepers: Vec<Blocked> = (0..4).map(|_| Blocked::new(vec![one])).collect();
        let stranger = Blocked::new(vec![other]);
        assert_eq!(one.waiters.load(Ordering::SeqCst), MANY);
        assert!(one.deliver(b"x"));
        let mut wakes = Wakes::default();
        source::notify(one, &mut wakes);
        links::settle(&mut wakes);
        for sleeper in &mut sleepers {
            // Without a wake-up this would last an hour.
            sleeper.sleep(&mut Vec::new(), Some(Duration::from_secs(3600)), core::ptr::null()).unwrap();
        }
        assert_eq!(one.source.own_state() & IN, IN);
        assert!(!stranger.slot.unwrap().is_woken());
        drop((sleepers, stranger));
        assert_eq!(other.waiters.load(Ordering::SeqCst), 0);
        connections::give_back(one);
        connections::give_back(other);
    }
}
