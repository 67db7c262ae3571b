//! What the daemon needs of the program: its tables, its clock, and a way to give it control messages.

use spillway_bpf::switch::{FlowEntry, OwnerEntry, Site};
use spillway_rules::VerdictCounters;
use spillway_rules::times::Activity;
use spillway_transport::Time;
use spillway_wire::switch::{FlowState, ServerId};

/// The tables of a switch. [`Program`](crate::program::Program) has those in the kernel; tests have tables in memory.
pub(crate) trait Tables: Send + Sync + 'static {
    /// Runs the program on a frame that arrives at the daemon's port. Returns the frame with the answer, or `None` if the
    /// program drops the frame.
    fn handle(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String>;

    /// Passes a frame with a message of this host's own server through the program, in host mode. Returns the frame with the
    /// answer, or with a message for another server, or with one for this host's own server, whose destination is still the
    /// control endpoint.
    fn handle_local(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String>;

    /// Calls `visit` for each entry of the table of flows. Entries that begin or end during the call may be missing. `visit`
    /// must not use the tables.
    fn visit_flows(&self, visit: &mut dyn FnMut(&FlowEntry)) -> Result<(), String>;

    /// The servers that have said *hello*.
    fn owners(&self) -> Result<Vec<OwnerEntry>, String>;

    /// The UDP port at which a server receives control messages: that of its last *hello*.
    fn control_port(&self, server: ServerId) -> Result<Option<u16>, String> {
        let owners = self.owners()?;
        Ok(owners.iter().find(|owner| owner.server == server).map(|owner| owner.control_port))
    }

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

/// Whether an entry waits for a packet or a message to be settled: its move has ended by its deadline or with its target,
/// or its owner is not alive, so that the flow returns. `is_alive`: whether a server is alive in the term of a site.
pub(crate) fn is_due(entry: &FlowEntry, now: Time, is_alive: impl Fn(&Site) -> bool) -> bool {
    let is_late = entry.deadline.is_some_and(|deadline| now >= deadline);
    let lacks_target = entry.target.as_ref().is_some_and(|target| !is_alive(target));
    let is_orphan = entry.owner.server != entry.original.server
        && entry.state != FlowState::Held
        && !is_alive(&entry.owner);
    is_late || lacks_target || is_orphan
}

/// Whether a server is alive in the term of a site.
pub(crate) fn is_alive(owners: &[OwnerEntry], site: &Site) -> bool {
    let owner = owners.iter().find(|owner| owner.server == site.server);
    owner.is_some_and(|owner| owner.term != 0 && owner.term == site.term && !owner.is_silent)
}

/// Tables in memory, for tests.
#[cfg(test)]
pub(crate) mod memory {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use spillway_auth::SwitchKey;
    use spillway_bpf::switch::Site;
    use spillway_wire::packet::ethernet::Mac;
    use spillway_wire::switch::{
        Answer, Body, Endpoint, Flow, MESSAGE_BYTES, Message, Request, Status, Subject,
    };

    use super::*;
    use crate::datagram;

    /// The present time of tables in memory.
    pub(crate) const NOW: Time = Time(1_000_000_000_000);

    /// Where a frame of the daemon has the source address of IPv4; the source port follows 8 bytes later.
    const SOURCE_IPV4: usize = 26;

    /// A time before [`NOW`].
    pub(crate) fn before_now(time: Duration) -> Time {
        Time(NOW.0 - u64::try_from(time.as_nanos()).unwrap())
    }

    /// A table of flows that answers *release* and *get* as the program does.
    pub(crate) struct Memory {
        pub(crate) flows: Mutex<BTreeMap<Endpoint, FlowEntry>>,
        /// Servers 1 and 2 in term 1.
        pub(crate) owners: Mutex<Vec<OwnerEntry>>,
        pub(crate) gets: AtomicUsize,
        key: SwitchKey,
    }

    fn owner(server: u8) -> OwnerEntry {
        OwnerEntry {
            server: ServerId(server),
            term: 1,
            service: None,
            load: 0,
            free_places: 0,
            weight: 0,
            control_port: 9,
            last_heartbeat: NOW,
            clock: 0,
            highest: 1,
            window: 1,
            is_silent: false,
        }
    }

    impl Memory {
        pub(crate) fn new(key: &SwitchKey) -> Memory {
            let owners = Mutex::new(vec![owner(1), owner(2)]);
            Memory { flows: Mutex::default(), owners, gets: AtomicUsize::new(0), key: key.clone() }
        }

        /// Makes a server silent.
        pub(crate) fn silence(&self, server: u8) {
            let mut owners = self.owners.lock().unwrap();
            owners.iter_mut().filter(|one| one.server.0 == server).for_each(|one| one.is_silent = true);
        }

        /// Changes the port at which a server receives control messages.
        pub(crate) fn set_control_port(&self, server: u8, port: u16) {
            let mut owners = self.owners.lock().unwrap();
            owners.iter_mut().filter(|one| one.server.0 == server).for_each(|one| one.control_port = port);
        }

        /// Adds the flow of a client, owned by a server, with the last packet a second ago.
        pub(crate) fn add(&self, client: &str, server: u8, change: impl FnOnce(&mut FlowEntry)) {
            let endpoint = |text: &str| Endpoint::from(text.parse::<SocketAddr>().unwrap());
            let site = |server| Site {
                at: endpoint(if server == 1 { "10.0.0.5:11211" } else { "10.0.0.6:21211" }),
                mac: Mac([2, 0, 0, 0, 0, 4 + server]),
                server: ServerId(server),
                term: 1,
            };
            let mut entry = FlowEntry {
                client: endpoint(client),
                service: endpoint("10.0.0.5:11211"),
                state: FlowState::Owned,
                generation: 7,
                repeat_generation: u64::MAX,
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

        fn get(&self, flow: Flow) -> (Status, FlowState) {
            self.gets.fetch_add(1, Ordering::Relaxed);
            let owners = self.owners.lock().unwrap();
            let mut flows = self.flows.lock().unwrap();
            let Some(entry) = flows.get_mut(&flow.client()) else {
                return (Status::NoEntry, FlowState::None);
            };
            settle(entry, &owners);
            (Status::Ok, entry.state)
        }

        /// Returns the status and the entry's generation after the request.
        fn release(&self, flow: Flow, generation: u64) -> (Status, u64) {
            let owners = self.owners.lock().unwrap();
            let mut flows = self.flows.lock().unwrap();
            let Some(entry) = flows.get_mut(&flow.client()) else { return (Status::NoEntry, 0) };
            settle(entry, &owners);
            if entry.generation != generation {
                return (Status::Stale, entry.generation);
            }
            flows.remove(&flow.client());
            (Status::Ok, 0)
        }
    }

    /// Settles an entry that is due, as the program does before each request.
    fn settle(entry: &mut FlowEntry, owners: &[OwnerEntry]) {
        if !is_due(entry, NOW, |site| is_alive(owners, site)) {
            return;
        }
        if entry.deadline.is_none() {
            entry.owner = entry.original;
        }
        (entry.state, entry.target, entry.deadline) = (FlowState::Owned, None, None);
        entry.generation += 1;
    }

    impl Tables for Memory {
        fn handle(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String> {
            let (head, payload) = frame.split_last_chunk::<MESSAGE_BYTES>().unwrap();
            // The program drops messages with a wrong tag.
            let Ok(message) = self.key.parse(payload) else { return Ok(None) };
            let (flow, status, state, generation) = match message.body {
                Body::Request(Request::Release { flow, generation }) => {
                    let (status, generation) = self.release(flow, generation);
                    (flow, status, FlowState::None, generation)
                }
                Body::Request(Request::Get { flow }) => {
                    let (status, state) = self.get(flow);
                    (flow, status, state, 0)
                }
                _ => return Err(format!("only `release` and `get` are expected: {message:?}")),
            };
            let answer = Answer {
                kind: message.kind(),
                status,
                state,
                generation,
                subject: Subject::Flow(flow),
                owner: None,
                load: 0,
                lifetime_ms: 0,
                free_places: 0,
                weight: 0,
            };
            let answer = Message { body: Body::Answer(answer), ..message };
            let (control, _) = datagram::read(frame).expect("the daemon's frames have datagrams");
            let [a, b, c, d, .., high, low] = head[SOURCE_IPV4..SOURCE_IPV4 + 10] else { unreachable!() };
            let source = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])));
            Ok(Some(datagram::frame(control.ip(), control.port(), source, &self.key.emit(&answer))))
        }

        fn handle_local(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String> {
            self.handle(frame)
        }

        fn visit_flows(&self, visit: &mut dyn FnMut(&FlowEntry)) -> Result<(), String> {
            self.flows.lock().unwrap().values().for_each(visit);
            Ok(())
        }

        fn owners(&self) -> Result<Vec<OwnerEntry>, String> {
            Ok(self.owners.lock().unwrap().clone())
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

    #[test]
    fn entries_are_due_after_their_deadline_or_without_their_server() {
        let tables = Memory::new(&spillway_auth::SwitchKey::from_bytes([1; 16]));
        let due = |change: fn(&mut FlowEntry)| {
            tables.add("10.0.0.7:1", 2, change);
            let owners = tables.owners().unwrap();
            is_due(&tables.only(), NOW, |site| is_alive(&owners, site))
        };
        let moving: fn(&mut FlowEntry) = |entry| {
            (entry.state, entry.target) = (FlowState::Held, Some(entry.original));
            entry.deadline = Some(Time(NOW.0 + 1));
        };
        assert!(!due(|_| ()) && !due(moving));
        assert!(due(|entry| {
            (entry.state, entry.target, entry.deadline) = (FlowState::Asked, Some(entry.original), Some(NOW));
        }));
        assert!(due(|entry| entry.owner.term = 2), "the server has another term");
        assert!(!due(|entry| (entry.owner, entry.owner.term) = (entry.original, 2)), "returns to itself");
        tables.silence(2);
        assert!(due(|_| ()), "its owner is silent");
        assert!(!due(moving), "a held flow waits for its target");
        tables.silence(1);
        assert!(due(moving), "the target is silent");
    }
}
