//! Connections that go to helpers and back together.

use std::collections::HashMap;

use spillway_client::Relief;
use spillway_client::relief::Member;

/// One process's connections.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) relief: Relief,
    pub(super) members: HashMap<Member, u32>,
    /// Something was told that may have a decision follow.
    pub(super) is_touched: bool,
    /// Its timer in the worker's heap; others of it there are void.
    pub(super) timer_ns: u64,
}

impl Group {
    /// Without members.
    pub(super) fn new(relief: Relief) -> Group {
        Group { relief, members: HashMap::new(), is_touched: false, timer_ns: u64::MAX }
    }
}
