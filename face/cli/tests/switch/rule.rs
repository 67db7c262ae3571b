//! Control messages of two servers that move the rule of a flow. The connection itself does not move.

use spillway_lab::Agent;
use spillway_wire::switch::{Endpoint, Flow, FlowState, Import, Relay, Request, Site, Status};

/// Makes both servers owners of the service.
pub fn say_hello(agents: &mut [Agent; 2], service: Endpoint) {
    for agent in &mut *agents {
        agent.hello().unwrap();
    }
    assert_eq!(send_heartbeats(agents, service), [Status::Ok; 2]);
}

/// Sends a heartbeat of each server. Returns the statuses of the answers: on a slow host a server may have been silent for
/// too long.
pub fn send_heartbeats(agents: &mut [Agent; 2], service: Endpoint) -> [Status; 2] {
    let heartbeat = Request::Heartbeat { service, load: 5, free_places: 9, weight: 1 };
    agents.each_mut().map(|agent| agent.ask(heartbeat).unwrap().status)
}

/// Moves the rule of a flow to the place of the second server, whether the client has connected or not. Returns the
/// generation of the flow's entry.
pub fn move_rule([a, b]: &mut [Agent; 2], flow: Flow, place: Site) -> u64 {
    // The entry begins with a *prepare*, which names the target.
    move_again([a, b], (flow, 0), place)
}

/// Moves the rule of a flow, which has this generation, from the first server to the place of the second one.
pub fn move_again([a, b]: [&mut Agent; 2], (flow, replaces): (Flow, u64), place: Site) -> u64 {
    a.send(Request::Prepare { flow, replaces, target: Some(place), lifetime_ms: 5_000 }).unwrap();
    let relayed = b.relayed().unwrap();
    let Relay::Prepare { generation, .. } = relayed else { panic!("{relayed:?}") };
    b.send(Request::Prepared { flow, asked: generation, import: Import::Ready(place) }).unwrap();
    let relayed = a.relayed().unwrap();
    assert!(matches!(relayed, Relay::Prepared { .. }), "{relayed:?}");
    let owned = b.ask(Request::Own { flow, replaces: generation }).unwrap();
    assert_eq!((owned.status, owned.state), (Status::Ok, FlowState::Owned));
    owned.generation
}
