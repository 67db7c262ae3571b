//! The operator's override of relief.

use core::time::Duration;
use std::sync::Mutex;

use spillway_policy::{CurrentOverride, Override};
use spillway_session::Placement;
use spillway_transport::Time;

use crate::{lock, sys};

/// Clients move at random times within this, so that they do not all reach the server at once.
const WITHIN: Duration = Duration::from_secs(1);

static STANDING: Mutex<Option<CurrentOverride>> = Mutex::new(None);

/// The override in force at `now`.
pub(crate) fn word(now: Time) -> Override {
    lock(&STANDING).map_or(Override::Auto, |standing| standing.at(now))
}

/// Where sessions should be now.
pub(crate) fn placement() -> Placement {
    Placement::new(word(sys::now()), WITHIN)
}

/// Sets the override, for this time or for ever. Returns when it ends; `None` for never.
pub(crate) fn say(word: Override, lasts: Option<Duration>) -> Option<Time> {
    let mut standing = CurrentOverride::default();
    standing.say(sys::now(), word, lasts);
    *lock(&STANDING) = Some(standing);
    standing.until()
}
