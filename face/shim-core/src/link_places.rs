//! The free places of links.

use std::sync::Mutex;

use crate::lock;

static PLACES: Mutex<Places> = Mutex::new(Places { free: Vec::new(), made: 0 });

struct Places {
    free: Vec<u32>,
    made: u32,
}

pub(crate) enum Place {
    /// Another link had it before.
    Used(u32),
    New(u32),
}

/// Takes a free place; `None` if `max` places were made and none is free.
pub(crate) fn take(max: usize) -> Option<Place> {
    let mut places = lock(&PLACES);
    if let Some(index) = places.free.pop() {
        return Some(Place::Used(index));
    }
    if places.made as usize >= max {
        return None;
    }
    let index = places.made;
    places.made += 1;
    Some(Place::New(index))
}

/// Frees a link's place.
pub(crate) fn give_back(index: u32) {
    lock(&PLACES).free.push(index);
}

/// Number of places ever made.
pub(crate) fn made() -> u32 {
    lock(&PLACES).made
}
