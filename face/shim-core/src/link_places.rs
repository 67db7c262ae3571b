//! Places of links: which are free.

use std::sync::Mutex;

use crate::lock;

static PLACES: Mutex<Places> = Mutex::new(Places { free: Vec::new(), made: 0 });

struct Places {
    free: Vec<u32>,
    made: u32,
}

/// A place for a link.
pub(crate) enum Place {
    /// It was another link's before.
    Used(u32),
    New(u32),
}

/// Takes a free place; there are so many at most.
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

/// A link's place is free.
pub(crate) fn give_back(index: u32) {
    lock(&PLACES).free.push(index);
}

/// How many places were ever taken.
pub(crate) fn made() -> u32 {
    lock(&PLACES).made
}
