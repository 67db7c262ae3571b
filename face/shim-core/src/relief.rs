//! Where the operator wants this server's sessions: with helpers, or without (PostMan §5.3).

use core::time::Duration;
use std::sync::Mutex;

use spillway_policy::{Standing, Word};
use spillway_session::Placement;
use spillway_transport::Time;

use crate::ready::Wakes;
use crate::{links, lock, log, sessions, status, sys};

/// Clients go at random times within this, so that the server is not met by all of them at once.
const WITHIN: Duration = Duration::from_secs(1);

static STANDING: Mutex<Option<Standing>> = Mutex::new(None);

/// The word that holds now.
pub(crate) fn word(now: Time) -> Word {
    lock(&STANDING).map_or(Word::Auto, |standing| standing.at(now))
}

/// Where sessions are to be now.
pub(crate) fn placement() -> Placement {
    Placement::new(word(sys::now()), WITHIN)
}

/// The operator's word, for so many seconds, or for ever where there are none. Call with no lock held.
pub(crate) fn say(word: Word, lasts_s: u32) {
    let lasts = (lasts_s > 0).then(|| Duration::from_secs(lasts_s.into()));
    let mut standing = Standing::default();
    standing.say(sys::now(), word, lasts);
    *lock(&STANDING) = Some(standing);
    status::set_relief(word, standing.until());
    let mut wakes = Wakes::default();
    let sent = links::say_all(sessions::misplaced(placement()), &mut wakes);
    wakes.send();
    log::line(format_args!("relief {word}: {sent} sessions are asked to go elsewhere"));
}
