//! The operator's word on relief that holds now.

use core::time::Duration;
use std::sync::Mutex;

use spillway_policy::{Standing, Word};
use spillway_session::Placement;
use spillway_transport::Time;

use crate::{lock, sys};

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

/// Another word from now on, for so long. Returns until when it holds; `None` for ever.
pub(crate) fn say(word: Word, lasts: Option<Duration>) -> Option<Time> {
    let mut standing = Standing::default();
    standing.say(sys::now(), word, lasts);
    *lock(&STANDING) = Some(standing);
    standing.until()
}
