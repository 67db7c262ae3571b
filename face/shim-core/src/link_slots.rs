//! The slots of the link table: which are free.

use std::sync::Mutex;

use crate::lock;

static SLOTS: Mutex<Slots> = Mutex::new(Slots { free: Vec::new(), used: 0 });

struct Slots {
    free: Vec<u32>,
    /// Number of slots ever used.
    used: u32,
}

/// The index of a slot.
pub(crate) enum Slot {
    /// An earlier link has used the slot.
    Reused(u32),
    New(u32),
}

/// Takes a free slot; `None` if `max` slots are in use.
pub(crate) fn take(max: usize) -> Option<Slot> {
    let mut slots = lock(&SLOTS);
    if let Some(index) = slots.free.pop() {
        return Some(Slot::Reused(index));
    }
    if slots.used as usize >= max {
        return None;
    }
    let index = slots.used;
    slots.used += 1;
    Some(Slot::New(index))
}

/// Frees a link's slot.
pub(crate) fn give_back(index: u32) {
    lock(&SLOTS).free.push(index);
}

/// Number of slots ever used.
pub(crate) fn used_count() -> u32 {
    lock(&SLOTS).used
}
