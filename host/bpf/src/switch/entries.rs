//! Flows and owners as the program's maps have them.

use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use spillway_rules::config::SENDERS_MAX;
use spillway_rules::times::GAP_MAX;
use spillway_rules::{Endpoint, FlowState, ServerId, ServiceId};
use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;

use super::layout::{ONLY, Reader};
use crate::BpfError;
use crate::map::Map;

/// `SERVICE_NONE` in `c/switch/settings.h`.
const SERVICE_NONE: u16 = 0xffff;
/// Entries that one system call reads.
const BATCH: u32 = 1024;

/// Where a server has the connection of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Address and port at which the server has the connection.
    pub at: Endpoint,
    /// Ethernet address of the server.
    pub mac: Mac,
    /// The server.
    pub server: ServerId,
    /// The server's term when it was named; 0 for the original owner, whose term does not matter.
    pub term: u64,
}

/// An entry of the table of flows as the last packet or message has left it. The entry is not settled: its lifetime, or
/// that of its move, may have ended since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// The client's address and port.
    pub client: Endpoint,
    /// The service endpoint to which the client has connected.
    pub service: Endpoint,
    /// Asked, held or owned.
    pub state: FlowState,
    /// The number of the last change.
    pub generation: u64,
    /// Asked, or held after that: the generation that *prepare* named, 0 without an entry. Owned: the generation that
    /// the entry had during the last move. After *hold*, or a return to the original owner: `u64::MAX`.
    pub repeat_generation: u64,
    /// The owner.
    pub owner: Site,
    /// The target of a move.
    pub target: Option<Site>,
    /// The owner of the flow before the first move.
    pub original: Site,
    /// Deadline of a move: after it the flow returns to its owner.
    pub deadline: Option<Time>,
    /// Time of the last packet.
    pub last_packet: Time,
    /// Whether the client has sent a FIN that the owner has acknowledged.
    pub has_client_fin: bool,
    /// Whether the owner has sent a FIN.
    pub has_owner_fin: bool,
    /// The acknowledgment number of the owner's FIN, if the client has not acknowledged it yet.
    pub owner_fin_claim: Option<u32>,
    /// Time of the owner's first RST.
    pub owner_rst: Option<Time>,
    /// The acknowledgment number of a client's FIN that the owner has not acknowledged yet.
    pub client_fin_claim: Option<u32>,
}

/// A server as an owner of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerEntry {
    /// The server.
    pub server: ServerId,
    /// The generation with which its last *hello* was answered; 0 if it must send *hello* (again).
    pub term: u64,
    /// The service of its last heartbeat.
    pub service: Option<ServiceId>,
    /// Its load, in a unit on which the servers of a service agree.
    pub load: u32,
    /// Connections that it can still import.
    pub free_places: u32,
    /// The capacity by which its load is divided.
    pub weight: u16,
    /// The UDP port to which control messages are sent.
    pub control_port: u16,
    /// Time of its last heartbeat or hello.
    pub last_heartbeat: Time,
    /// The switch's clock of silence, in ns, at the owner's last heartbeat or hello. See
    /// `advance_silence_clock` in `c/switch/load.h`.
    pub clock: u64,
    /// The highest sequence number of its messages.
    pub highest: u64,
    /// The replay window: bit n is set if sequence number `highest` − n has arrived.
    pub window: u64,
    /// Whether it has sent no heartbeat for longer than the owner timeout, by the clock of silence at the time of
    /// reading.
    pub is_silent: bool,
}

/// Reads flows and owners.
#[derive(Debug)]
pub(super) struct Entries {
    flows: Map,
    owners: Map,
    shared: Map,
}

impl Entries {
    pub(super) fn of(object: &Object) -> Result<Entries, BpfError> {
        Ok(Entries {
            flows: Map::of(object, "flows")?,
            owners: Map::of(object, "owners")?,
            shared: Map::of(object, "shared")?,
        })
    }

    pub(super) fn flows_max(&self) -> usize {
        self.flows.handle().max_entries() as usize
    }

    pub(super) fn flows(&self) -> Result<impl Iterator<Item = FlowEntry> + '_, BpfError> {
        flows_of(self.flows.handle())
    }

    pub(super) fn owners(&self, now: Time, timeout: Duration) -> Result<Vec<OwnerEntry>, BpfError> {
        let shared = self.shared.value(&ONLY, MapFlags::LOCK)?.unwrap_or_default();
        let clock = clock_at(&shared, now);
        let mut owners = Vec::new();
        for id in 0..SENDERS_MAX {
            let Some(value) = self.owners.value(&(id as u32).to_ne_bytes(), MapFlags::LOCK)? else {
                continue;
            };
            owners.extend(owner(ServerId(id as u8), &value, clock, timeout));
        }
        Ok(owners)
    }
}

/// The entries in a table of flows, read in batches.
pub(super) fn flows_of(flows: &MapHandle) -> Result<impl Iterator<Item = FlowEntry> + '_, BpfError> {
    let batches = flows
        .lookup_batch(BATCH, MapFlags::LOCK, MapFlags::ANY)
        .map_err(BpfError::of("cannot read the map `flows`"))?;
    Ok(batches.filter_map(|(_, value)| flow(&value)))
}

/// The service of an owner's last heartbeat, from `struct owner`.
pub(super) fn service(value: &[u8]) -> Option<ServiceId> {
    owner(ServerId::DAEMON, value, Duration::ZERO, Duration::ZERO)?.service
}

/// The clock of silence at a time, from `struct shared`: as `liveness_at` in `c/switch/load.h`.
fn clock_at(shared: &[u8], now: Time) -> Duration {
    let mut reader = Reader::new(shared);
    reader.skip::<16>(); // lock, is_running, generation
    let (clock, last_heartbeat) = (reader.u64(), reader.u64());
    Duration::from_nanos(clock) + (now - Time(last_heartbeat)).min(GAP_MAX)
}

/// Decodes `struct owner`; `None` if it has sent no message.
fn owner(server: ServerId, value: &[u8], clock: Duration, timeout: Duration) -> Option<OwnerEntry> {
    let mut reader = Reader::new(value);
    reader.skip::<4>(); // lock
    let load = reader.u32();
    let term = reader.u64();
    let last_heartbeat = Time(reader.u64());
    let own_clock = reader.u64();
    let (highest, window) = (reader.u64(), reader.u64());
    let free_places = reader.u32();
    let control_port = reader.port();
    let service = Some(reader.u16()).filter(|service| *service != SERVICE_NONE);
    let weight = reader.u16();
    (term != 0 || highest != 0 || window != 0).then(|| OwnerEntry {
        server,
        term,
        service: service.and_then(|service| u8::try_from(service).ok()).map(ServiceId),
        load,
        free_places,
        weight,
        control_port,
        last_heartbeat,
        clock: own_clock,
        highest,
        window,
        is_silent: clock.saturating_sub(Duration::from_nanos(own_clock)) > timeout,
    })
}

/// Decodes `struct flow`; `None` if the program is creating or deleting it.
fn flow(value: &[u8]) -> Option<FlowEntry> {
    const FIN_CLIENT: u8 = 1;
    const FIN_OWNER: u8 = 2;
    const RESET_OWNER: u8 = 4;
    const FIN_CLAIMED: u8 = 8;
    const FIN_CONFIRMED: u8 = 16;
    let mut reader = Reader::new(value);
    reader.skip::<4>(); // lock
    let state = FlowState::try_from(reader.u8()).ok().filter(|state| *state != FlowState::None)?;
    let flags = reader.u8();
    let (owner, original) = (ServerId(reader.u8()), ServerId(reader.u8()));
    let last_packet = Time(reader.u64());
    let generation = reader.u64();
    let owner_term = reader.u64();
    let (owner_port, owner_mac) = (reader.port(), Mac(reader.array()));
    let (client, service) = (reader.array(), reader.array());
    let (client, service) = (Endpoint::new(client, reader.port()), Endpoint::new(service, reader.port()));
    let original_mac = Mac(reader.array());
    let target = ServerId(reader.u8());
    reader.skip::<1>(); // service
    let owner_at = Endpoint::new(reader.array(), owner_port);
    let owner_claim = reader.u32();
    let target_address = reader.array();
    let target_at = Endpoint::new(target_address, reader.port());
    let (target_mac, target_term) = (Mac(reader.array()), reader.u64());
    let deadline = Time(reader.u64());
    let reset = Time(reader.u64());
    let repeat_generation = reader.u64();
    let claim = reader.u32();
    let has_target = state != FlowState::Owned;
    let target = Site { at: target_at, mac: target_mac, server: target, term: target_term };
    Some(FlowEntry {
        client,
        service,
        state,
        generation,
        repeat_generation,
        owner: Site { at: owner_at, mac: owner_mac, server: owner, term: owner_term },
        target: has_target.then_some(target),
        original: Site { at: service, mac: original_mac, server: original, term: 0 },
        deadline: has_target.then_some(deadline),
        last_packet,
        has_client_fin: flags & FIN_CLIENT != 0,
        has_owner_fin: flags & FIN_OWNER != 0,
        owner_fin_claim: (flags & (FIN_OWNER | FIN_CONFIRMED) == FIN_OWNER).then_some(owner_claim),
        owner_rst: (flags & RESET_OWNER != 0).then_some(reset),
        client_fin_claim: (flags & (FIN_CLAIMED | FIN_CLIENT) == FIN_CLAIMED).then_some(claim),
    })
}
