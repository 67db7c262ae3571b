//! Ends the entries of ended flows, settles those that are due, and takes a snapshot of the tables for status and metrics.

use std::collections::BTreeMap;

use spillway_bpf::switch::OwnerEntry;
use spillway_rules::VerdictCounters;
use spillway_transport::Time;
use spillway_wire::switch::{Endpoint, FlowState};

use crate::basis::Basis;
use crate::entries::Requests;
use crate::tables::{Tables, has_ended, is_alive, is_due};

/// Maximum number of entries that one turn ends or settles. Later turns, or the program at the next packet, end or settle the
/// others.
pub(crate) const REQUESTS_MAX: usize = 16_384;

/// Numbers of flows by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowCounts {
    pub(crate) asked: u64,
    pub(crate) held: u64,
    pub(crate) owned: u64,
}

impl FlowCounts {
    fn add(&mut self, state: FlowState) {
        match state {
            // An entry that the program is creating or deleting just now.
            FlowState::None => {}
            FlowState::Asked => self.asked += 1,
            FlowState::Held => self.held += 1,
            FlowState::Owned => self.owned += 1,
        }
    }
}

/// What the tables held at the last turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) counters: VerdictCounters,
    pub(crate) owners: Vec<OwnerEntry>,
    pub(crate) flows: FlowCounts,
    /// Flows by the endpoints of services.
    pub(crate) by_endpoint: BTreeMap<Endpoint, u64>,
    /// Entries that the daemon has ended since its start.
    pub(crate) ended: u64,
    /// Of those, how many this turn has ended because the configuration does not permit them.
    pub(crate) not_permitted: u64,
    /// Entries that the configuration does not permit, and that stay for a later turn.
    pub(crate) not_permitted_left: u64,
    /// When the tables were read, by the program's clock.
    pub(crate) taken: Time,
}

/// One turn. `ended`: entries that earlier turns have ended.
///
/// # Errors
/// The tables cannot be read, or the program does not answer.
pub(crate) fn sweep<T: Tables>(
    requests: &Requests<'_, T>,
    basis: &Basis,
    ended: u64,
) -> Result<Snapshot, String> {
    let tables = requests.tables();
    let now = tables.now();
    let owners = tables.owners()?;
    let mut snapshot = Snapshot { ended, taken: now, ..Snapshot::default() };
    let (mut over, mut not_permitted, mut due) = (Vec::new(), Vec::new(), Vec::new());
    tables.visit_flows(&mut |entry| {
        let has_room = over.len() + not_permitted.len() + due.len() < REQUESTS_MAX;
        let is_permitted = basis.permits(entry);
        if has_room && has_ended(entry, now) {
            over.push(*entry);
            return;
        }
        *snapshot.by_endpoint.entry(entry.service).or_default() += 1;
        if has_room && !is_permitted {
            not_permitted.push(*entry);
        } else if has_room && is_due(entry, now, |site| is_alive(&owners, site)) {
            due.push(*entry);
        } else {
            snapshot.flows.add(entry.state);
            snapshot.not_permitted_left += u64::from(!is_permitted);
        }
    })?;
    for entry in &over {
        match requests.release(entry)? {
            true => snapshot.ended += 1,
            // A packet or a message has changed the entry meanwhile.
            false => {
                *snapshot.by_endpoint.entry(entry.service).or_default() += 1;
                snapshot.flows.add(entry.state);
            }
        }
    }
    for entry in &not_permitted {
        match requests.release(entry)? {
            true => {
                snapshot.ended += 1;
                snapshot.not_permitted += 1;
                snapshot.forget(entry.service);
            }
            false => {
                snapshot.flows.add(entry.state);
                snapshot.not_permitted_left += 1;
            }
        }
    }
    for entry in &due {
        match requests.settle(entry)? {
            FlowState::None => snapshot.forget(entry.service),
            state => snapshot.flows.add(state),
        }
    }
    snapshot.counters = tables.counters()?;
    snapshot.owners = tables.owners()?;
    Ok(snapshot)
}

impl Snapshot {
    /// Takes a flow that has ended out of the numbers.
    fn forget(&mut self, service: Endpoint) {
        if let Some(flows) = self.by_endpoint.get_mut(&service) {
            *flows = flows.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::*;
    use crate::config::tests::config;
    use crate::messages::{Messages, fresh_key};
    use crate::tables::memory::{Memory, NOW, before_now};

    /// A turn with the settings of the tests.
    fn turn(tables: &Memory, messages: &Messages, ended: u64) -> Result<Snapshot, String> {
        let config = config();
        sweep(&Requests::new(tables, messages, config.control[0]), &Basis::of(&config), ended)
    }

    fn empty() -> (Messages, Memory) {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = Memory::new(messages.key());
        (messages, tables)
    }

    #[test]
    fn ended_flows_go_and_others_are_counted() {
        let (messages, tables) = empty();
        tables.add("10.0.0.7:1", 2, |_| ());
        tables.add("10.0.0.7:2", 2, |entry| entry.owner_rst = Some(before_now(Duration::from_secs(2))));
        tables.add("10.0.0.7:3", 2, |entry| entry.state = FlowState::Held);
        let snapshot = turn(&tables, &messages, 5).unwrap();
        assert_eq!(tables.clients(), ["10.0.0.7:1", "10.0.0.7:3"]);
        assert_eq!(snapshot.flows, FlowCounts { asked: 0, held: 1, owned: 1 });
        assert_eq!(snapshot.by_endpoint.values().copied().collect::<Vec<_>>(), [2]);
        assert_eq!(snapshot.ended, 6);
        assert_eq!(turn(&tables, &messages, 6).unwrap().ended, 6);
    }

    #[test]
    fn a_turn_ends_a_bounded_number_of_flows() {
        let (messages, tables) = empty();
        for number in 0..REQUESTS_MAX + 100 {
            let client = format!("10.0.{}.{}:1", number >> 8, number & 255);
            tables.add(&client, 2, |entry| entry.owner_rst = Some(Time(0)));
        }
        let first = turn(&tables, &messages, 0).unwrap();
        assert_eq!((first.ended, first.flows.owned), (REQUESTS_MAX as u64, 100));
        let second = turn(&tables, &messages, first.ended).unwrap();
        assert_eq!((second.ended, second.flows.owned), (REQUESTS_MAX as u64 + 100, 0));
    }

    /// The clients have vanished, so that no packet and no message arrives any more.
    #[test]
    fn flows_of_dead_servers_and_late_moves_are_settled() {
        let (messages, tables) = empty();
        for number in 0..REQUESTS_MAX + 100 {
            tables.add(&format!("10.0.{}.{}:1", number >> 8, number & 255), 2, |_| ());
        }
        tables.add("10.9.0.1:1", 1, |entry| {
            (entry.state, entry.target, entry.deadline) = (FlowState::Held, Some(entry.original), Some(NOW));
        });
        let first = turn(&tables, &messages, 0).unwrap();
        assert_eq!((tables.gets.load(Ordering::Relaxed), first.flows.held), (1, 0), "{:?}", first.flows);
        tables.silence(2);
        turn(&tables, &messages, 0).unwrap();
        assert_eq!(tables.gets.load(Ordering::Relaxed), 1 + REQUESTS_MAX, "bounded for each turn");
        turn(&tables, &messages, 0).unwrap();
        let last = turn(&tables, &messages, 0).unwrap();
        assert_eq!(tables.gets.load(Ordering::Relaxed), 1 + REQUESTS_MAX + 100, "each entry once");
        assert_eq!(last.flows.owned, REQUESTS_MAX as u64 + 101);
        assert!(tables.flows.lock().unwrap().values().all(|entry| entry.owner == entry.original));
    }

    #[test]
    fn flows_without_a_basis_in_the_configuration_end() {
        let (messages, tables) = empty();
        tables.add("10.0.0.7:1", 2, |_| ());
        // A server that is alive, so that the program does not settle its flow first.
        let removed = spillway_wire::switch::ServerId(9);
        let mut owner = tables.owners().unwrap().remove(0);
        owner.server = removed;
        tables.owners.lock().unwrap().push(owner);
        tables.add("10.0.0.7:2", 2, |entry| entry.owner.server = removed);
        let snapshot = turn(&tables, &messages, 0).unwrap();
        assert_eq!(tables.clients(), ["10.0.0.7:1"]);
        assert_eq!((snapshot.ended, snapshot.not_permitted, snapshot.not_permitted_left), (1, 1, 0));
        assert_eq!(snapshot.by_endpoint.values().copied().collect::<Vec<_>>(), [1]);
    }

    /// An entry whose client and service have different families, from tables of another version.
    #[test]
    fn an_entry_that_no_message_can_name_stops_no_turn() {
        let (messages, tables) = empty();
        for client in ["10.0.0.7:1", "[2001:db8::7]:1", "10.0.0.7:2"] {
            tables.add(client, 2, |entry| entry.owner_rst = Some(Time(0)));
        }
        let snapshot = turn(&tables, &messages, 0).unwrap();
        assert_eq!((snapshot.ended, snapshot.flows.owned), (2, 1));
        assert_eq!(tables.clients(), ["[2001:db8::7]:1"]);
    }

    #[test]
    fn messages_under_a_wrong_key_are_an_error() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = Memory::new(&fresh_key().unwrap());
        assert!(turn(&tables, &messages, 0).is_ok(), "nothing has ended");
        tables.add("10.0.0.7:1", 2, |entry| entry.owner_rst = Some(Time(0)));
        assert!(turn(&tables, &messages, 0).is_err());
    }
}
