//! What the daemon needs of the program: its tables, its clock, and a way to give it control messages.

use spillway_bpf::switch::{FlowEntry, OwnerEntry};
use spillway_rules::VerdictCounters;
use spillway_rules::times::Activity;
use spillway_transport::Time;
use spillway_wire::switch::FlowState;

/// The tables of a switch. [`Program`](crate::program::Program) has those in the kernel; tests have tables in memory.
pub(crate) trait Tables: Send + Sync + 'static {
    /// Passes a frame through the program as from the daemon's port. Returns the frame with the answer, if there is
    /// one.
    fn handle(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String>;

    /// Calls `visit` for each entry of the table of flows. Entries that appear or end meanwhile may be missing. `visit`
    /// must not use the tables.
    fn visit_flows(&self, visit: &mut dyn FnMut(&FlowEntry)) -> Result<(), String>;

    /// The servers that have said *hello*.
    fn owners(&self) -> Result<Vec<OwnerEntry>, String>;

    /// Number of packets by verdict.
    fn counters(&self) -> Result<VerdictCounters, String>;

    /// The present time of the program's clock.
    fn now(&self) -> Time;
}

/// Whether the connection of an entry has ended, so that the program removes the entry at its next use.
pub(crate) fn has_ended(entry: &FlowEntry, now: Time) -> bool {
    let has_returned = entry.state == FlowState::Owned
        && entry.owner.server == entry.original.server
        && entry.owner.at == entry.service;
    let activity = Activity {
        last_packet: entry.last_packet,
        owner_rst: entry.owner_rst,
        has_both_fins: entry.has_client_fin && entry.has_owner_fin,
        has_returned,
    };
    activity.has_ended(now)
}

/// Tables in memory, for tests.
#[cfg(test)]
pub(crate) mod memory {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::sync::Mutex;
    use std::time::Duration;

    use spillway_auth::SwitchKey;
    use spillway_bpf::switch::Site;
    use spillway_wire::packet::ethernet::Mac;
    use spillway_wire::switch::{
        Answer, Body, Endpoint, Flow, MESSAGE_BYTES, Message, Request, ServerId, Status, Subject,
    };

    use super::*;

    /// The present time of tables in memory.
    pub(crate) const NOW: Time = Time(1_000_000_000_000);

    /// A time before [`NOW`].
    pub(crate) fn before_now(time: Duration) -> Time {
        Time(NOW.0 - u64::try_from(time.as_nanos()).unwrap())
    }

    /// A table of flows that answers *release* as the program does.
    pub(crate) struct Memory {
        pub(crate) flows: Mutex<BTreeMap<Endpoint, FlowEntry>>,
        key: SwitchKey,
    }

    impl Memory {
        pub(crate) fn new(key: &SwitchKey) -> Memory {
            Memory { flows: Mutex::default(), key: key.clone() }
        }

        /// Adds the flow of a client, owned by a server, with the last packet a second ago.
        pub(crate) fn add(&self, client: &str, server: u8, change: impl FnOnce(&mut FlowEntry)) {
            let endpoint = |text: &str| Endpoint::from(text.parse::<SocketAddr>().unwrap());
            let site = |server| Site {
                at: endpoint(&format!("10.0.0.{}:11211", 4 + server)),
                mac: Mac([2, 0, 0, 0, 0, 4 + server]),
                server: ServerId(server),
                term: 1,
            };
            let mut entry = FlowEntry {
                client: endpoint(client),
                service: endpoint("10.0.0.5:11211"),
                state: FlowState::Owned,
                generation: 7,
                replaced: u64::MAX,
                owner: site(server),
                target: None,
                original: site(1),
                deadline: None,
                last_packet: before_now(Duration::from_secs(1)),
                has_client_fin: false,
                has_owner_fin: false,
                owner_fin_claim: None,
                owner_rst: None,
                client_fin_claim: None,
            };
            change(&mut entry);
            self.flows.lock().unwrap().insert(entry.client, entry);
        }

        pub(crate) fn only(&self) -> FlowEntry {
            let flows = self.flows.lock().unwrap();
            assert_eq!(flows.len(), 1);
            *flows.values().next().unwrap()
        }

        pub(crate) fn clients(&self) -> Vec<String> {
            self.flows.lock().unwrap().keys().map(ToString::to_string).collect()
        }

        fn release(&self, flow: Flow, generation: u64) -> Status {
            let mut flows = self.flows.lock().unwrap();
            match flows.get(&flow.client()) {
                None => Status::NoEntry,
                Some(entry) if entry.generation != generation => Status::Stale,
                Some(_) => {
                    flows.remove(&flow.client());
                    Status::Ok
                }
            }
        }
    }

    impl Tables for Memory {
        fn handle(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String> {
            let (head, payload) = frame.split_last_chunk::<MESSAGE_BYTES>().unwrap();
            // The program drops messages with a wrong tag.
            let Ok(message) = self.key.parse(payload) else { return Ok(None) };
            let Body::Request(Request::Release { flow, generation }) = message.body else {
                return Err(format!("only `release` is expected: {message:?}"));
            };
            let answer = Answer {
                kind: message.kind(),
                status: self.release(flow, generation),
                state: FlowState::None,
                generation: 0,
                subject: Subject::Flow(flow),
                owner: None,
                load: 0,
                lifetime_ms: 0,
                free_places: 0,
                weight: 0,
            };
            let answer = Message { body: Body::Answer(answer), ..message };
            Ok(Some([head, &self.key.emit(&answer)].concat()))
        }

        fn visit_flows(&self, visit: &mut dyn FnMut(&FlowEntry)) -> Result<(), String> {
            self.flows.lock().unwrap().values().for_each(visit);
            Ok(())
        }

        fn owners(&self) -> Result<Vec<OwnerEntry>, String> {
            Ok(Vec::new())
        }

        fn counters(&self) -> Result<VerdictCounters, String> {
            Ok(VerdictCounters::default())
        }

        fn now(&self) -> Time {
            NOW
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_rules::times::{AFTER_FINS, AFTER_RETURN, AFTER_RST};

    use super::memory::{Memory, NOW, before_now};
    use super::*;

    #[test]
    fn entries_end_after_both_fins_a_reset_or_a_return() {
        let tables = Memory::new(&spillway_auth::SwitchKey::from_bytes([1; 16]));
        let ended = |change: fn(&mut FlowEntry)| {
            tables.add("10.0.0.7:1", 2, change);
            has_ended(&tables.only(), NOW)
        };
        assert!(!ended(|_| ()));
        assert!(!ended(|entry| (entry.has_client_fin, entry.last_packet) = (true, Time(0))));
        assert!(!ended(|entry| (entry.has_client_fin, entry.has_owner_fin) = (true, true)));
        assert!(ended(|entry| {
            (entry.has_client_fin, entry.has_owner_fin) = (true, true);
            entry.last_packet = before_now(AFTER_FINS);
        }));
        assert!(!ended(|entry| entry.owner_rst = Some(before_now(AFTER_RST / 2))));
        assert!(ended(|entry| entry.owner_rst = Some(before_now(AFTER_RST))));
        // An idle entry ends only if the original server owns the flow: only then it is redundant.
        assert!(!ended(|entry| entry.last_packet = Time(0)));
        assert!(ended(|entry| (entry.owner, entry.last_packet) = (entry.original, before_now(AFTER_RETURN))));
        assert!(!ended(|entry| {
            (entry.owner, entry.last_packet) = (entry.original, before_now(AFTER_RETURN / 2));
        }));
    }
}
