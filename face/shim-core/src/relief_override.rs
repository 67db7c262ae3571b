//! The operator's override of relief.

use core::time::Duration;
use std::sync::Mutex;

use spillway_policy::{CurrentOverride, Override};
use spillway_session::Placement;
use spillway_transport::Time;

use crate::{lock, sys};

/// Sessions move at random moments within this time, so that they do not all reach the server at once.
const MOVE_SPREAD: Duration = Duration::from_secs(1);

static CURRENT: Mutex<Option<CurrentOverride>> = Mutex::new(None);

/// The override in force at `now`.
pub(crate) fn at(now: Time) -> Override {
    lock(&CURRENT).map_or(Override::Auto, |current| current.at(now))
}

/// Where the override requires sessions to be now.
pub(crate) fn placement() -> Placement {
    Placement::new(at(sys::now()), MOVE_SPREAD)
}

/// Sets the override for `lasts`, or without a limit. Returns when it ends; `None` for never.
pub(crate) fn set(new: Override, lasts: Option<Duration>) -> Option<Time> {
    let mut current = CurrentOverride::default();
    current.set(sys::now(), new, lasts);
    *lock(&CURRENT) = Some(current);
    current.until()
}
