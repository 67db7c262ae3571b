//! Where the operator wants this server's sessions: with helpers, or without (PostMan §5.3).

use core::time::Duration;
use std::sync::Mutex;

use spillway_batch::Role;
use spillway_policy::{Standing, Word};
use spillway_transport::Time;

use crate::ready::Wakes;
use crate::{links, lock, log, status, sys};

/// Clients go at random times within this, so that the server is not met by all of them at once.
const WITHIN_MS: u32 = 1_000;

static STANDING: Mutex<Option<Standing>> = Mutex::new(None);

/// The word that holds now.
pub(crate) fn word(now: Time) -> Word {
    lock(&STANDING).map_or(Word::Auto, |standing| standing.at(now))
}

/// Within which time a session that comes over a link of this role is to go elsewhere, if it is.
pub(crate) fn elsewhere(role: Role) -> Option<u32> {
    let wrong = match word(sys::now()) {
        Word::Auto => return None,
        Word::On => Role::Client,
        Word::Off => Role::Helper,
    };
    (role == wrong).then_some(WITHIN_MS)
}

/// The operator's word, for so many seconds, or for ever where there are none. Call with no lock held.
pub(crate) fn say(word: Word, lasts_s: u32) {
    let lasts = (lasts_s > 0).then(|| Duration::from_secs(lasts_s.into()));
    let mut standing = Standing::default();
    standing.say(sys::now(), word, lasts);
    *lock(&STANDING) = Some(standing);
    status::set_relief(word, standing.until());
    let mut wakes = Wakes::default();
    let sent = links::send_elsewhere(&mut wakes);
    wakes.send();
    log::line(format_args!("relief {word}: {sent} sessions are asked to go elsewhere"));
}
