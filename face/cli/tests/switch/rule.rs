//! Control messages of two servers that move the rule of a flow. The connection itself does not move.

use spillway_lab::Agent;
use spillway_wire::switch::{Endpoint, Flow, FlowState, Import, Relay, Request, Site, Status};

/// Makes both servers owners of the service.
pub fn say_hello(agents: &mut [Agent; 2], service: Endpoint) {
    for agent in &mut *agents {
        agent.hello().unwrap();
    }
    send_heartbeats(agents, service);
}

pub fn send_heartbeats(agents: &mut [Agent; 2], service: Endpoint) {
    for agent in agents {
        let heartbeat = Request::Heartbeat { service, load: 5, free_places: 9, weight: 1 };
        assert_eq!(agent.ask(heartbeat).unwrap().status, Status::Ok);
    }
}

/// Moves the rule of a flow to the place of the second server, whether the client has connected or not. Returns the
/// generation of the flow's entry.
pub fn move_rule([a, b]: &mut [Agent; 2], flow: Flow, place: Site) -> u64 {
    // The entry begins with a *prepare*, which names the target.
    a.send(Request::Prepare { flow, replaces: 0, target: Some(place), lifetime_ms: 5_000 }).unwrap();
    let relayed = b.relayed().unwrap();
    let Relay::Prepare { generation, .. } = relayed else { panic!("{relayed:?}") };
    b.send(Request::Prepared { flow, asked: generation, import: Import::Ready(place) }).unwrap();
    let relayed = a.relayed().unwrap();
    assert!(matches!(relayed, Relay::Prepared { .. }), "{relayed:?}");
    let owned = b.ask(Request::Own { flow, replaces: generation }).unwrap();
    assert_eq!((owned.status, owned.state), (Status::Ok, FlowState::Owned));
    owned.generation
}
