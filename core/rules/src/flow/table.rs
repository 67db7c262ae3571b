//! The bounded table of flows.

use alloc::vec::Vec;

use hashbrown::HashMap;
use spillway_transport::Time;

use super::{Entry, FlowKey, FlowView, Generations};
use crate::load::Owners;
use crate::tables::Keyed;

/// The table has no room for another flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// All flows that have an entry.
#[derive(Clone, Debug)]
pub(crate) struct Flows {
    entries: HashMap<FlowKey, Entry, Keyed>,
    flows_max: usize,
}

impl Flows {
    pub(crate) fn new(flows_max: usize, hash: Keyed) -> Flows {
        Flows { entries: HashMap::with_hasher(hash), flows_max }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry of a flow, settled: every use of an entry begins here.
    pub(crate) fn settled(
        &mut self,
        key: FlowKey,
        now: Time,
        owners: &mut Owners,
        generations: &mut Generations,
    ) -> Option<&mut Entry> {
        if self.entries.get(&key)?.has_ended(now) {
            self.entries.remove(&key);
            return None;
        }
        let entry = self.entries.get_mut(&key)?;
        entry.settle(now, owners, generations);
        Some(entry)
    }

    /// The entry of a flow as it was left by the last use.
    pub(crate) fn get(&self, key: &FlowKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Adds the entry of a flow that has none.
    ///
    /// # Errors
    /// The table is full.
    pub(crate) fn insert(&mut self, key: FlowKey, entry: Entry) -> Result<(), Full> {
        if self.entries.len() >= self.flows_max {
            return Err(Full);
        }
        let before = self.entries.insert(key, entry);
        debug_assert!(before.is_none(), "a flow with an entry gets no second one");
        Ok(())
    }

    /// Changes the entry of a flow that has one.
    pub(crate) fn replace(&mut self, key: FlowKey, entry: Entry) {
        let before = self.entries.insert(key, entry);
        debug_assert!(before.is_some(), "only the entry of a flow that has one is replaced");
    }

    /// Ends the entry of a flow.
    pub(crate) fn remove(&mut self, key: &FlowKey) {
        self.entries.remove(key);
    }

    /// All flows, in the order of their keys.
    pub(crate) fn views(&self) -> Vec<FlowView> {
        let mut views: Vec<_> = self.entries.iter().map(|(key, entry)| FlowView::new(key, entry)).collect();
        views.sort_unstable_by_key(|view| (view.client, view.service));
        views
    }
}
