//! Ends the entries of ended flows, and takes a snapshot of the tables for status and metrics.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use spillway_bpf::switch::OwnerEntry;
use spillway_rules::VerdictCounters;
use spillway_transport::Time;
use spillway_wire::switch::{Endpoint, FlowState};

use crate::flows::release;
use crate::messages::Messages;
use crate::tables::{Tables, has_ended};

/// Maximum number of entries that one turn ends. Later turns, or the program at the next packet, end the others.
const ENDED_MAX: usize = 16_384;

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
    /// When the tables were read, by the program's clock.
    pub(crate) taken: Time,
}

/// One turn: ends the entries of ended flows. `control`: the endpoint to which the daemon's messages go. `ended`:
/// entries that earlier turns have ended.
///
/// # Errors
/// The tables cannot be read, or the program does not answer.
pub(crate) fn sweep(
    tables: &impl Tables,
    messages: &Messages,
    control: SocketAddr,
    ended: u64,
) -> Result<Snapshot, String> {
    let now = tables.now();
    let mut flows = FlowCounts::default();
    let mut by_endpoint = BTreeMap::new();
    let mut over = Vec::new();
    tables.visit_flows(&mut |entry| {
        if has_ended(entry, now) && over.len() < ENDED_MAX {
            over.push(*entry);
        } else {
            flows.add(entry.state);
            *by_endpoint.entry(entry.service).or_default() += 1;
        }
    })?;
    let mut snapshot = Snapshot { flows, by_endpoint, ended, taken: now, ..Snapshot::default() };
    for entry in &over {
        match release(tables, messages, control, entry)? {
            true => snapshot.ended += 1,
            // A packet or a message has changed the entry meanwhile.
            false => snapshot.flows.add(entry.state),
        }
    }
    snapshot.counters = tables.counters()?;
    snapshot.owners = tables.owners()?;
    Ok(snapshot)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::messages::fresh_key;
    use crate::tables::memory::{Memory, before_now};

    fn control() -> SocketAddr {
        "10.0.0.1:9511".parse().unwrap()
    }

    #[test]
    fn ended_flows_go_and_others_are_counted() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = Memory::new(messages.key());
        tables.add("10.0.0.7:1", 2, |_| ());
        tables.add("10.0.0.7:2", 2, |entry| entry.owner_rst = Some(before_now(Duration::from_secs(2))));
        tables.add("10.0.0.7:3", 2, |entry| entry.state = FlowState::Held);
        let snapshot = sweep(&tables, &messages, control(), 5).unwrap();
        assert_eq!(tables.clients(), ["10.0.0.7:1", "10.0.0.7:3"]);
        assert_eq!(snapshot.flows, FlowCounts { asked: 0, held: 1, owned: 1 });
        assert_eq!(snapshot.by_endpoint.values().copied().collect::<Vec<_>>(), [2]);
        assert_eq!(snapshot.ended, 6);
        assert_eq!(sweep(&tables, &messages, control(), 6).unwrap().ended, 6);
    }

    #[test]
    fn a_turn_ends_a_bounded_number_of_flows() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = Memory::new(messages.key());
        for number in 0..ENDED_MAX + 100 {
            let client = format!("10.0.{}.{}:1", number >> 8, number & 255);
            tables.add(&client, 2, |entry| entry.owner_rst = Some(Time(0)));
        }
        let first = sweep(&tables, &messages, control(), 0).unwrap();
        assert_eq!((first.ended, first.flows.owned), (ENDED_MAX as u64, 100));
        let second = sweep(&tables, &messages, control(), first.ended).unwrap();
        assert_eq!((second.ended, second.flows.owned), (ENDED_MAX as u64 + 100, 0));
    }

    /// An entry whose client and service have different families, from tables of another version.
    #[test]
    fn an_entry_that_no_message_can_name_stops_no_turn() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = Memory::new(messages.key());
        for client in ["10.0.0.7:1", "[2001:db8::7]:1", "10.0.0.7:2"] {
            tables.add(client, 2, |entry| entry.owner_rst = Some(Time(0)));
        }
        let snapshot = sweep(&tables, &messages, control(), 0).unwrap();
        assert_eq!((snapshot.ended, snapshot.flows.owned), (2, 1));
        assert_eq!(tables.clients(), ["[2001:db8::7]:1"]);
    }

    #[test]
    fn messages_under_a_wrong_key_are_an_error() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = Memory::new(&fresh_key().unwrap());
        assert!(sweep(&tables, &messages, control(), 0).is_ok(), "nothing has ended");
        tables.add("10.0.0.7:1", 2, |entry| entry.owner_rst = Some(Time(0)));
        assert!(sweep(&tables, &messages, control(), 0).is_err());
    }
}
