//! The server's side of going back (PostMan §5.3): when requests have been few and fast for a while, sessions that are helped
//! are sent home, over some time. Decides by [`Looks`]; here is what it is told, and what it orders.
//!
//! It looks as long as there are sessions: the first thread that comes along does. Requests on the server's own
//! port are real descriptors' and not seen here.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Mutex;

use spillway_batch::Role;
use spillway_policy::release::{Looks, ReleaseSettings, Sample};
use spillway_transport::Time;

use crate::ready::Wakes;
use crate::status::{self, Counter};
use crate::{links, lock, log, port, relief, sessions, sys};

/// When the next look is due, in nanoseconds; `u64::MAX` while there are no sessions.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
/// From a batch's arrival to its replies, since the last look: nanoseconds, and how many batches.
static SERVED_NS: AtomicU64 = AtomicU64::new(0);
static SERVED: AtomicU64 = AtomicU64::new(0);
static LOOKER: Mutex<Option<Looker>> = Mutex::new(None);

struct Looker {
    looks: Looks,
    before: links::Traffic,
}

/// There is a session: looks begin, if they have not begun.
pub(crate) fn begin() {
    if NEXT.load(Ordering::Relaxed) == u64::MAX && port::release_after().is_some() {
        NEXT.store((sys::now() + Looks::interval()).as_nanos(), Ordering::Relaxed);
    }
}

/// The replies to a batch went, so long after it had come.
pub(crate) fn served(took: Duration) {
    let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    SERVED_NS.fetch_add(took_ns, Ordering::Relaxed);
    SERVED.fetch_add(1, Ordering::Relaxed);
}

/// Whether [`look`] has something to do.
#[inline]
pub(crate) fn is_due(now: Time) -> bool {
    NEXT.load(Ordering::Relaxed) <= now.as_nanos()
}

/// No wait is to be longer than this.
pub(crate) fn due_within() -> Option<Duration> {
    let at = NEXT.load(Ordering::Relaxed);
    (at != u64::MAX).then(|| Time(at).since(sys::now()))
}

/// Looks, if it is time, and sends home who is to go. Call with no lock held.
pub(crate) fn look(now: Time, wakes: &mut Wakes) {
    let mut guard = lock(&LOOKER);
    let looker = guard.get_or_insert_with(|| Looker {
        // Any seed will do: it keeps sessions apart, not servers.
        looks: Looks::new(now, settings(), now.as_nanos()),
        before: links::Traffic::default(),
    });
    if looker.looks.is_look_due(now) {
        // Before anybody is counted: a session that comes meanwhile begins looks anew.
        NEXT.store(u64::MAX, Ordering::Relaxed);
        let helped_sessions = sessions::carried_by(Role::Helper);
        if helped_sessions + sessions::carried_by(Role::Client) == 0 {
            *guard = None;
            return;
        }
        looker.look(now, links::traffic(), helped_sessions);
    }
    let home = looker.looks.take(now);
    NEXT.store(looker.looks.next_at().as_nanos(), Ordering::Relaxed);
    drop(guard);
    if home > 0 {
        let sent = links::say_all(sessions::return_home(home), wakes);
        status::add(Counter::SessionsReleased, sent as u64);
    }
}

fn settings() -> ReleaseSettings {
    let default = ReleaseSettings::default();
    let low_for = port::release_after().unwrap_or(default.low_for);
    // Those who wish for a fast answer wish for a fast return, too.
    ReleaseSettings {
        low_for,
        low_for_max: default.low_for_max.max(low_for),
        spread: default.spread.min(low_for),
        ..default
    }
}

impl Looker {
    fn look(&mut self, now: Time, traffic: links::Traffic, helped_sessions: usize) {
        // Links that ended have taken their figures along.
        let helped = traffic.helped.saturating_sub(self.before.helped);
        let direct = traffic.direct.saturating_sub(self.before.direct);
        let (took_ns, served) = (SERVED_NS.swap(0, Ordering::Relaxed), SERVED.swap(0, Ordering::Relaxed));
        let sample = Sample {
            requests: helped + direct,
            helped,
            service: took_ns.checked_div(served).map(Duration::from_nanos),
            busy_percent: None,
            helped_sessions: u32::try_from(helped_sessions).unwrap_or(u32::MAX),
        };
        self.before = traffic;
        self.looks.look(now, relief::word(now), sample);
        if let Some(notice) = self.looks.poll_notice() {
            log::line(format_args!("{notice}"));
        }
    }
}
