//! Applies the operator's override of relief to this server's sessions (PostMan §5.3).

use core::time::Duration;

use spillway_policy::Override;

use crate::wakes::Wakes;
use crate::{links, log, relief_override, sessions, status};

/// Sets the operator's override for `lasts_s` seconds; 0 for no limit. Call with no lock held.
pub(crate) fn set_override(new: Override, lasts_s: u32) {
    let lasts = (lasts_s > 0).then(|| Duration::from_secs(lasts_s.into()));
    status::set_relief(new, relief_override::set(new, lasts));
    let mut wakes = Wakes::default();
    let sent = links::send_orders(sessions::misplaced_sessions(relief_override::placement()), &mut wakes);
    links::run_deferred(&mut wakes);
    log::line(format_args!("relief {new}: {sent} sessions are asked to move"));
}
