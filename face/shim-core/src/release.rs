//! Release (PostMan §5.3): when the server's load has been low for a while, it sends helped sessions back to its own
//! port, a few at a time. [`ReleaseSchedule`] decides; this module takes samples for it and sends its orders.
//!
//! Samples are taken while there are sessions, by the first thread that waits for events when a sample is due. Requests
//! on the ordinary port use real descriptors and are not counted here.

use std::sync::Mutex;

use spillway_batch::Role;
use spillway_policy::release::{ReleaseSchedule, ReleaseSettings, Sample};
use spillway_transport::Time;

use crate::status::{self, Counter};
use crate::wakes::Wakes;
use crate::{links, lock, log, prepared, release_timer, relief_override, sessions};

static RELEASER: Mutex<Option<Releaser>> = Mutex::new(None);

struct Releaser {
    schedule: ReleaseSchedule,
    traffic_before: links::Traffic,
}

/// Takes a sample if one is due, and orders sessions to return. Call with no lock held.
pub(crate) fn run(now: Time, wakes: &mut Wakes) {
    let mut guard = lock(&RELEASER);
    let releaser = guard.get_or_insert_with(|| Releaser {
        // The seed only varies the intervals at which sessions return, so the time is good enough.
        schedule: ReleaseSchedule::new(now, settings(), now.as_nanos()).expect("`settings` keeps the bounds"),
        traffic_before: links::Traffic::default(),
    });
    if releaser.schedule.is_look_due(now) {
        // Before sessions are counted, so that a session that begins meanwhile schedules the next sample.
        release_timer::cancel();
        let helped_sessions = sessions::carried_by(Role::Helper);
        if helped_sessions + sessions::carried_by(Role::Client) == 0 {
            *guard = None;
            return;
        }
        releaser.sample(now, links::traffic(), helped_sessions);
    }
    let count = releaser.schedule.take(now);
    release_timer::schedule(releaser.schedule.next_at());
    drop(guard);
    if count > 0 {
        let sent = links::send_orders(sessions::ask_to_return(count), wakes);
        status::add(Counter::SessionsReleased, sent as u64);
    }
}

fn settings() -> ReleaseSettings {
    let default = ReleaseSettings::default();
    let low_for = prepared::release_after().unwrap_or(default.low_for);
    // An operator who sets a short `low_for` wants fast returns, too.
    ReleaseSettings {
        low_for,
        low_for_max: default.low_for_max.max(low_for),
        spread: default.spread.min(low_for),
        ..default
    }
}

impl Releaser {
    fn sample(&mut self, now: Time, traffic: links::Traffic, helped_sessions: usize) {
        // Saturating: the sums leave out links that have ended, so they may be lower than at the last sample.
        let helped = traffic.helped.saturating_sub(self.traffic_before.helped);
        let direct = traffic.direct.saturating_sub(self.traffic_before.direct);
        let sample = Sample {
            requests: helped + direct,
            helped,
            service: release_timer::take_mean_service_time(),
            busy_percent: None,
            helped_sessions: u32::try_from(helped_sessions).unwrap_or(u32::MAX),
        };
        self.traffic_before = traffic;
        self.schedule.sample(now, relief_override::at(now), sample);
        if let Some(notice) = self.schedule.poll_notice() {
            log::line(format_args!("{notice}"));
        }
    }
}
