//! The server's side of going back (PostMan §5.3): when the load has been low for a while, helped sessions are sent back to
//! the server's port, over some time. [`ReleaseSchedule`] decides; this module takes its samples and carries out its orders.
//!
//! ReleaseSchedule happen while there are sessions, in the first thread that comes by when one is due. Requests on the server's
//! own port use real descriptors and are not seen here.

use std::sync::Mutex;

use spillway_batch::Role;
use spillway_policy::release::{ReleaseSchedule, ReleaseSettings, Sample};
use spillway_transport::Time;

use crate::status::{self, Counter};
use crate::wakes::Wakes;
use crate::{links, lock, log, prepared, release_timer, relief_override, sessions};

static LOOKER: Mutex<Option<Looker>> = Mutex::new(None);

struct Looker {
    looks: ReleaseSchedule,
    before: links::Traffic,
}

/// Takes a look if one is due, and asks sessions to return. Call with no lock held.
pub(crate) fn look(now: Time, wakes: &mut Wakes) {
    let mut guard = lock(&LOOKER);
    let looker = guard.get_or_insert_with(|| Looker {
        // Any seed will do: it only varies the intervals at which this server's sessions return.
        looks: ReleaseSchedule::new(now, settings(), now.as_nanos()),
        before: links::Traffic::default(),
    });
    if looker.looks.is_look_due(now) {
        // Before sessions are counted, so that a session that begins meanwhile schedules the next look.
        release_timer::none_is_due();
        let helped_sessions = sessions::carried_by(Role::Helper);
        if helped_sessions + sessions::carried_by(Role::Client) == 0 {
            *guard = None;
            return;
        }
        looker.look(now, links::traffic(), helped_sessions);
    }
    let home = looker.looks.take(now);
    release_timer::are_due(looker.looks.next_at());
    drop(guard);
    if home > 0 {
        let sent = links::say_all(sessions::return_home(home), wakes);
        status::add(Counter::SessionsReleased, sent as u64);
    }
}

fn settings() -> ReleaseSettings {
    let default = ReleaseSettings::default();
    let low_for = prepared::release_after().unwrap_or(default.low_for);
    // A short `low_for` asks for a fast decision, so the return must be fast, too.
    ReleaseSettings {
        low_for,
        low_for_max: default.low_for_max.max(low_for),
        spread: default.spread.min(low_for),
        ..default
    }
}

impl Looker {
    fn look(&mut self, now: Time, traffic: links::Traffic, helped_sessions: usize) {
        // Links that have ended are left out, so the figures may have fallen.
        let helped = traffic.helped.saturating_sub(self.before.helped);
        let direct = traffic.direct.saturating_sub(self.before.direct);
        let sample = Sample {
            requests: helped + direct,
            helped,
            service: release_timer::take_service(),
            busy_percent: None,
            helped_sessions: u32::try_from(helped_sessions).unwrap_or(u32::MAX),
        };
        self.before = traffic;
        self.looks.look(now, relief_override::word(now), sample);
        if let Some(notice) = self.looks.poll_notice() {
            log::line(format_args!("{notice}"));
        }
    }
}
