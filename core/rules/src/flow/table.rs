//! The bounded table of flows.

use alloc::vec::Vec;

use hashbrown::{HashMap, hash_map};
use spillway_transport::Time;

use super::{Entry, FlowKey, FlowView, Generations};
use crate::load::Owners;
use crate::tables::Keyed;

/// The table has no room for another flow, or the flow's service has no room in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Number of different service numbers.
const SERVICES: usize = 256;

/// All flows that have an entry.
#[derive(Clone, Debug)]
pub(crate) struct Flows {
    entries: HashMap<FlowKey, Entry, Keyed>,
    flows_max: usize,
    /// Number of entries of each service, at the index of its number.
    counts: [usize; SERVICES],
}

impl Flows {
    pub(crate) fn new(flows_max: usize, hash: Keyed) -> Flows {
        Flows { entries: HashMap::with_hasher(hash), flows_max, counts: [0; SERVICES] }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry of a flow, after what time has changed was applied ([`Entry::settle`]); `None` if the entry has ended.
    /// Every use of an entry begins here.
    pub(crate) fn settled(
        &mut self,
        key: FlowKey,
        now: Time,
        owners: &mut Owners,
        generations: &mut Generations,
    ) -> Option<&mut Entry> {
        let hash_map::Entry::Occupied(slot) = self.entries.entry(key) else { return None };
        if slot.get().has_ended(now) {
            let entry = slot.remove();
            *count_of(&mut self.counts, &entry) -= 1;
            return None;
        }
        let entry = slot.into_mut();
        entry.settle(now, owners, generations);
        Some(entry)
    }

    /// The entry of a flow, not settled. For callers that have called [`settled`](Self::settled) at the same time.
    pub(crate) fn get(&self, key: &FlowKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Adds the entry of a flow that has none. `service_max`: the maximum of the flow's service.
    ///
    /// # Errors
    /// The table is full, or the service has as many entries as it may have.
    pub(crate) fn insert(&mut self, key: FlowKey, entry: Entry, service_max: usize) -> Result<(), Full> {
        let count = count_of(&mut self.counts, &entry);
        if self.entries.len() >= self.flows_max || *count >= service_max {
            return Err(Full);
        }
        *count += 1;
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
        if let Some(entry) = self.entries.remove(key) {
            *count_of(&mut self.counts, &entry) -= 1;
        }
    }

    /// The flow with this key, if it has an entry.
    pub(crate) fn view(&self, key: &FlowKey) -> Option<FlowView> {
        self.get(key).map(|entry| FlowView::new(key, entry))
    }

    /// All flows, in the order of their keys.
    pub(crate) fn views(&self) -> Vec<FlowView> {
        let mut views: Vec<_> = self.entries.iter().map(|(key, entry)| FlowView::new(key, entry)).collect();
        views.sort_unstable_by_key(|view| (view.client, view.service));
        views
    }
}

/// The number of entries of an entry's service.
fn count_of<'a>(counts: &'a mut [usize; SERVICES], entry: &Entry) -> &'a mut usize {
    &mut counts[usize::from(entry.service().0)]
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use spillway_wire::switch::{Endpoint, ServerId};

    use super::*;
    use crate::config::ServiceId;
    use crate::flow::{Move, Site};
    use crate::test_config::{OTHER_SERVICE, SERVICE, endpoint, place_of, server_mac, service};

    fn entry() -> Entry {
        entry_of(SERVICE)
    }

    fn entry_of(service_number: ServiceId) -> Entry {
        let site = |server: u8, at| Site { at, mac: server_mac(server), server: ServerId(server), term: 5 };
        let pending_move = Move { target: site(2, place_of(2)), deadline: Time(100) };
        Entry::asked(service_number, site(1, service()), pending_move, 9, Time(1))
    }

    const MANY: usize = usize::MAX;

    fn key(port: u16) -> FlowKey {
        FlowKey { client: Endpoint::new(endpoint("10.0.9.9:1").address(), port), service: service() }
    }

    #[test]
    fn a_full_table_takes_no_entry_and_keeps_the_others() {
        let mut flows = Flows::new(3, Keyed::with_seed(1));
        for port in 1..=3 {
            assert_eq!(flows.insert(key(port), entry(), MANY), Ok(()));
        }
        assert_eq!(flows.insert(key(4), entry(), MANY), Err(Full));
        assert!((1..=3).all(|port| flows.get(&key(port)).is_some()) && flows.get(&key(4)).is_none());
        flows.remove(&key(2));
        assert_eq!(flows.insert(key(4), entry(), MANY), Ok(()));
        assert_eq!(flows.len(), 3);
    }

    #[test]
    fn a_service_at_its_bound_leaves_room_for_others() {
        let mut flows = Flows::new(4, Keyed::with_seed(1));
        let insert = |flows: &mut Flows, port, service| flows.insert(key(port), entry_of(service), 2);
        assert_eq!(insert(&mut flows, 1, SERVICE), Ok(()));
        assert_eq!(insert(&mut flows, 2, SERVICE), Ok(()));
        assert_eq!(insert(&mut flows, 3, SERVICE), Err(Full));
        assert_eq!(insert(&mut flows, 3, OTHER_SERVICE), Ok(()));
        flows.remove(&key(2));
        flows.remove(&key(2));
        assert_eq!(insert(&mut flows, 2, SERVICE), Ok(()));
        assert_eq!(insert(&mut flows, 4, SERVICE), Err(Full), "an entry counts once");
        let after_10_minutes = Time(1) + Duration::from_secs(600);
        let (mut owners, mut generations) = (Owners::new(Duration::from_secs(1)), Generations::since(20));
        let mut settle = |flows: &mut Flows, port, now| {
            flows.settled(key(port), now, &mut owners, &mut generations).is_some()
        };
        assert!(settle(&mut flows, 1, Time(200)), "the move has ended");
        assert!(!settle(&mut flows, 1, after_10_minutes));
        assert_eq!(insert(&mut flows, 4, SERVICE), Ok(()), "an entry that has ended does not count");
    }

    #[test]
    fn views_do_not_depend_on_the_hash() {
        let ports = |seed| {
            let mut flows = Flows::new(100, Keyed::with_seed(seed));
            for port in (1..=50).rev() {
                flows.insert(key(port), entry(), MANY).unwrap();
            }
            flows.views().iter().map(|flow| flow.client.port()).collect::<Vec<_>>()
        };
        assert_eq!(ports(1), (1..=50).collect::<Vec<_>>());
        assert_eq!(ports(1), ports(2));
    }

    #[test]
    fn a_look_settles_an_entry() {
        let mut flows = Flows::new(1, Keyed::with_seed(1));
        let mut owners = Owners::new(Duration::from_secs(1));
        let mut generations = Generations::since(20);
        flows.insert(key(1), entry(), MANY).unwrap();
        let settled = flows.settled(key(1), Time(2), &mut owners, &mut generations).unwrap();
        assert_eq!((settled.generation(), settled.target()), (21, None), "the target has no term");
        assert_eq!(flows.settled(key(2), Time(2), &mut owners, &mut generations), None);
        let after_10_minutes = Time(1) + Duration::from_secs(600);
        assert_eq!(flows.settled(key(1), after_10_minutes, &mut owners, &mut generations), None);
        assert_eq!(flows.len(), 0);
    }
}
