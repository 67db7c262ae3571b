//! The operator's override of where this server's sessions are: with helpers, or without (PostMan §5.3).

use core::time::Duration;

use spillway_policy::Override;

use crate::wakes::Wakes;
use crate::{links, log, relief_override, sessions, status};

/// Sets the operator's override for `lasts_s` seconds, or for ever if 0. Call with no lock held.
pub(crate) fn say(word: Override, lasts_s: u32) {
    let lasts = (lasts_s > 0).then(|| Duration::from_secs(lasts_s.into()));
    status::set_relief(word, relief_override::say(word, lasts));
    let mut wakes = Wakes::default();
    let sent = links::say_all(sessions::misplaced(relief_override::placement()), &mut wakes);
    links::settle(&mut wakes);
    log::line(format_args!("relief {word}: {sent} sessions are asked to go elsewhere"));
}
