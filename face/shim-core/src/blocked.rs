//! Threads that wait for virtual connections outside epoll: blocked in `read`, `write` or `accept`, or in `poll`
//! and `select`.
//!
//! Each thread sleeps in the kernel on its own real descriptors and on an event counter, which is written when one of
//! its virtual connections changes. One thread, the leader, also receives for all of them from the links that are in no
//! epoll set of the application. A leader that returns wakes another thread, which becomes the leader.

use core::sync::atomic::Ordering;
use core::time::Duration;

use libc::{c_int, pollfd, sigset_t};

use crate::connections::Connection;
use crate::epoll_set::Set;
use crate::sys::{self, Errno};
use crate::waiters::{self, MANY, Slot};
use crate::wakes::Wakes;
use crate::{epoll, links, port, upkeep};

/// The application's event loops receive from the links in its epoll sets. In case they do not, a blocked thread checks
/// these links: first after this time, then after intervals that double up to `CHECK_INTERVAL_MAX`.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(5);
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// A blocked call, from its first check to its return.
pub(crate) struct Blocked {
    waits_for: Vec<&'static Connection>,
    slot: Option<&'static Slot>,
    led_set: Option<&'static Set>,
    check_interval: Duration,
}

impl Blocked {
    /// Registers the calling thread: from now on a change of these connections wakes it. Check them again afterwards.
    pub(crate) fn new(waits_for: Vec<&'static Connection>) -> Blocked {
        let slot = waiters::take();
        if let Some(slot) = slot {
            slot.begin(&waits_for);
        }
        Blocked { waits_for, slot, led_set: None, check_interval: CHECK_INTERVAL_MIN }
    }

    /// For a call that does not wait, but receives if there is no leader.
    pub(crate) fn without_waiting() -> Blocked {
        Blocked { waits_for: Vec::new(), slot: None, led_set: None, check_interval: CHECK_INTERVAL_MIN }
    }

    /// Sleeps until one of `descriptors` or one of the connections may have changed, or until `limit` has passed. May
    /// also return early. Fills in `revents` of `descriptors`.
    pub(crate) fn sleep(
        &mut self,
        descriptors: &mut Vec<pollfd>,
        limit: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<(), Errno> {
        let mut wakes = Wakes::default();
        links::flush_deferred(&mut wakes);
        links::run_deferred(&mut wakes);
        let count = descriptors.len();
        self.led_set = self.led_set.or_else(|| become_leader(self.slot));
        let mut limit = limit;
        let mut shorten = |to: Duration| limit = Some(limit.map_or(to, |limit| limit.min(to)));
        if let Some(set) = self.led_set {
            descriptors.push(to_poll(set.fd.load(Ordering::Relaxed), libc::POLLIN));
            if let Some(within) = upkeep::due_within() {
                shorten(within);
            }
        }
        let led_set_end = descriptors.len();
        let outside = links::links_outside(&self.waits_for, port::library_set());
        if outside.any || self.slot.is_none() {
            shorten(self.check_interval);
            self.check_interval = (self.check_interval * 2).min(CHECK_INTERVAL_MAX);
        }
        for &(_, fd, interest) in &outside.unattended {
            let bit_if = |wanted: bool, event| if wanted { event } else { 0 };
            descriptors.push(to_poll(
                fd,
                bit_if(interest.input, libc::POLLIN) | bit_if(interest.room, libc::POLLOUT),
            ));
        }
        if let Some(slot) = self.slot {
            descriptors.push(to_poll(slot.descriptor(), libc::POLLIN));
        }
        let outcome = sys::poll(descriptors, limit, mask);
        if let Some(slot) = self.slot {
            slot.after_sleep(descriptors.last().is_some_and(|last| last.revents != 0));
        }
        if let Some(set) = self.led_set
            && (descriptors[led_set_end - 1].revents != 0 || upkeep::is_due(sys::now()))
        {
            epoll::receive(set, &mut wakes);
        }
        for (&(link, ..), seen) in outside.unattended.iter().zip(&descriptors[led_set_end..]) {
            if seen.revents != 0 {
                links::attend(link, &mut wakes);
            }
        }
        if outside.any && outcome == Ok(0) {
            links::attend_all(&self.waits_for, &mut wakes);
        }
        links::run_deferred(&mut wakes);
        descriptors.truncate(count);
        outcome.map(drop)
    }
}

fn to_poll(fd: c_int, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0 }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(set) = self.led_set {
            set.leader.store(0, Ordering::SeqCst);
        }
        if let Some(slot) = self.slot {
            slot.end(&self.waits_for);
        }
        // Wakes another blocked thread to become the leader, also if this thread was woken for that and has not led.
        if (self.led_set.is_some() || self.slot.is_some())
            && port::library_set().is_some_and(|set| set.leader.load(Ordering::SeqCst) == 0)
        {
            let mut wakes = Wakes::default();
            waiters::wake_any(&mut wakes);
            links::run_deferred(&mut wakes);
        }
    }
}

/// Makes the calling thread the leader, which receives from the links in the library's own set, if there is no leader.
fn become_leader(slot: Option<&Slot>) -> Option<&'static Set> {
    let set = port::library_set()?;
    let number = slot.map_or(MANY, Slot::number);
    set.leader.compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed).ok().map(|_| set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::IN;
    use crate::{connections, notify};

    #[test]
    fn change_wakes_only_the_threads_that_wait_for_the_connection() {
        let (changed, other) = (connections::take().unwrap(), connections::take().unwrap());
        let mut sleepers: Vec<Blocked> = (0..4).map(|_| Blocked::new(vec![changed])).collect();
        let unaffected = Blocked::new(vec![other]);
        assert_eq!(changed.waiters.load(Ordering::SeqCst), MANY);
        assert!(changed.deliver(b"x"));
        let mut wakes = Wakes::default();
        notify::notify(changed, &mut wakes);
        links::run_deferred(&mut wakes);
        for sleeper in &mut sleepers {
            // Returns at once because of the wake-up; otherwise after an hour.
            sleeper.sleep(&mut Vec::new(), Some(Duration::from_secs(3600)), core::ptr::null()).unwrap();
        }
        assert_eq!(changed.readiness.own_state() & IN, IN);
        assert!(!unaffected.slot.unwrap().is_woken());
        drop((sleepers, unaffected));
        assert_eq!(other.waiters.load(Ordering::SeqCst), 0);
        connections::give_back(changed);
        connections::give_back(other);
    }
}
