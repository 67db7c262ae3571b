//! The agent of a server, and this server among the others.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_handoff::{Agent, Limits, MoveTimes, Peer, Service, Settings as AgentSettings};
use spillway_moves::{Server, Tcp};
use spillway_transport::Time;
use spillway_wire::handoff::Run;
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::Interface;

use crate::error::EngineError;
use crate::settings::{EngineSettings, MoveSettings, PeerServer};

/// Heartbeats in each `owner_timeout`. The agent becomes mute after half of that time without an answer.
const HEARTBEATS_PER_TIMEOUT: u32 = 10;
/// Maximum interval of heartbeats with a policy: the others decide by the load that they state.
const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_millis(10);
/// Time from the end of a connection until its flow is released at the switch. The last segments may be retransmitted in
/// this time.
const RELEASE_AFTER: Duration = Duration::from_secs(5);
/// This server among its peers, by its Ethernet address.
pub(crate) fn own_peer(
    moves: &MoveSettings,
    interface: &Interface,
    service: SocketAddr,
) -> Result<PeerServer, EngineError> {
    let no_own_peer = || EngineError::NoOwnPeer { interface: interface.name.clone(), mac: interface.mac };
    let own = moves.peers.iter().find(|peer| peer.mac == interface.mac).ok_or_else(no_own_peer)?;
    if own.place.is_ipv4() != service.is_ipv4() {
        return Err(EngineError::Settings(format!(
            "the place {} of server {:?} has another address family than the service {service}",
            own.place, own.name
        )));
    }
    Ok(own.clone())
}

/// The agent of a server.
pub(crate) fn agent_of(
    settings: &EngineSettings,
    moves: &MoveSettings,
    own: &PeerServer,
    now: Time,
) -> Result<Agent, EngineError> {
    let original = moves.peers.iter().find(|peer| peer.place == settings.service);
    let original = original.ok_or(EngineError::NoOriginal(settings.service))?.id;
    let service = Service { endpoint: settings.service.into(), place: own.place.into(), original };
    Ok(Agent::new(
        now,
        AgentSettings {
            id: own.id,
            key: moves.key.clone(),
            peers_key: moves.peers_key.clone(),
            run: fresh_run()?,
            mac: own.mac,
            services: vec![service],
            peers: moves.peers.iter().map(|peer| Peer { id: peer.id, mac: peer.mac }).collect(),
            heartbeat: heartbeat(moves),
            owner_timeout: moves.owner_timeout,
            times: MoveTimes::default(),
            time_wait: RELEASE_AFTER,
            limits: Limits::default(),
        },
    ))
}

fn heartbeat(moves: &MoveSettings) -> Duration {
    let longest = moves.owner_timeout / HEARTBEATS_PER_TIMEOUT;
    if moves.policy.is_some() { longest.min(HEARTBEAT_INTERVAL_MAX) } else { longest }
}

/// Sets the policy of the settings, if there is one.
pub(crate) fn set_policy<S: Tcp>(
    server: &mut Server<S>,
    settings: &EngineSettings,
) -> Result<(), EngineError> {
    let Some(policy) = settings.moves.as_ref().and_then(|moves| moves.policy) else { return Ok(()) };
    let mut seed = [0; 8];
    random(&mut seed)?;
    server
        .set_policy(policy, u64::from_ne_bytes(seed))
        .map_err(|error| EngineError::Settings(error.to_string()))
}

fn fresh_run() -> Result<Run, EngineError> {
    loop {
        let mut bytes = [0; 8];
        random(&mut bytes)?;
        if let Some(run) = Run::new(u64::from_ne_bytes(bytes)) {
            return Ok(run);
        }
    }
}

/// Random bytes of the system.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), EngineError> {
    getrandom::fill(bytes).map_err(|error| EngineError::Host(io::Error::other(error)))
}

/// Checks that no two servers have the same name, id or Ethernet address, and that all have an Ethernet address.
pub(crate) fn check_peers(peers: &[PeerServer]) -> Result<(), EngineError> {
    let twice = |what: &str| Err(EngineError::Settings(format!("two [[moves.peer]] have the {what}")));
    for (index, peer) in peers.iter().enumerate() {
        let others = &peers[..index];
        let has = |same: fn(&PeerServer, &PeerServer) -> bool| others.iter().any(|other| same(other, peer));
        if has(|one, other| one.name == other.name) {
            return twice(&format!("name {:?}", peer.name));
        }
        if has(|one, other| one.id == other.id) {
            return twice(&format!("id {}", peer.id));
        }
        if peer.mac == Mac::ZERO {
            return Err(EngineError::Settings(format!("server {:?}: `mac` is zero", peer.name)));
        }
        if has(|one, other| one.mac == other.mac) {
            return twice(&format!("Ethernet address {}", peer.mac));
        }
    }
    Ok(())
}
