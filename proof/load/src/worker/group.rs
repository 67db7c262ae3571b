//! A group: the sessions of one simulated client process. One policy moves them to helpers and back.

use std::collections::HashMap;

use spillway_client::Relief;
use spillway_client::relief::Member;

#[derive(Debug)]
pub(super) struct Group {
    pub(super) relief: Relief,
    pub(super) members: HashMap<Member, u32>,
    /// The relief has received an event, so that its decisions must be polled.
    pub(super) is_poll_scheduled: bool,
    /// Time of the group's valid timer in the worker's heap; other timers of the group there are stale.
    pub(super) timer_ns: u64,
}

impl Group {
    pub(super) fn new(relief: Relief) -> Group {
        Group { relief, members: HashMap::new(), is_poll_scheduled: false, timer_ns: u64::MAX }
    }
}
