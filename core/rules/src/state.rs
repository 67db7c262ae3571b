//! What the switch remembers between packets.

use spillway_transport::Time;

use crate::flow::{Entry, FlowKey, Flows, Generations};
use crate::load::Owners;

/// The tables that packets and messages change.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) flows: Flows,
    pub(crate) owners: Owners,
    pub(crate) generations: Generations,
}

impl State {
    /// The entry of a flow, after what time has changed was applied ([`Entry::settle`]); `None` if the entry has ended.
    /// Every use of an entry begins here.
    pub(crate) fn settled(&mut self, key: FlowKey, now: Time) -> Option<&mut Entry> {
        self.flows.settled(key, now, &mut self.owners, &mut self.generations)
    }
}
