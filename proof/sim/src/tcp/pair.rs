//! Two agents and the switch, without delays and losses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spillway_rules::FlowState;
use spillway_transport::Time;
use spillway_wire::packet::tcp;
use spillway_wire::switch::{Flow, ServerId};

use super::cabling::{Cable, Cabling};
use super::frames::{Ends, datagram, datagram_in, segment};
use super::switch::SimulatedSwitch;
use spillway_handoff::{Agent, Cause, Event, MoveTimes, Settings, Sorted, Transmit};

const OWNER_TIMEOUT: Duration = Duration::from_secs(1);
const STATE: &[u8] = b"state";

struct Pair {
    now: Time,
    cabling: Cabling,
    switch: SimulatedSwitch,
    agents: [Agent; 2],
    is_cut: [bool; 2],
}

fn client() -> SocketAddr {
    "10.0.0.2:40000".parse().unwrap()
}

impl Pair {
    /// The servers of host 0, which are owners.
    fn new() -> Pair {
        let cabling = Cabling::new(2, 2, false, true);
        let now = Time(1_000_000_000);
        let switch = SimulatedSwitch::new(now, cabling.config(4, OWNER_TIMEOUT));
        let agent = |server| {
            let cable = Cable { host: 0, server };
            let places = cabling.services(0).into_iter().zip(cabling.places(cable));
            let settings = Settings {
                id: cabling.server_id(cable),
                key: cabling.key(cable),
                mac: cabling.address(cable).1,
                original: cabling.server_id(Cable { host: 0, server: 0 }),
                heartbeat: Duration::from_millis(10),
                owner_timeout: OWNER_TIMEOUT,
                times: MoveTimes { retry: Duration::from_millis(20), lifetime: Duration::from_millis(500) },
                places: places.map(|(service, place)| (service.into(), place.into())).collect(),
                peers: cabling.peers(0),
                time_wait: Duration::from_secs(1),
            };
            let mut agent = Agent::new(now, settings);
            agent.set_load(0, 10);
            agent
        };
        let agents = [agent(0), agent(1)];
        let mut pair = Pair { now, cabling, switch, agents, is_cut: [false; 2] };
        pair.advance(100);
        pair
    }

    fn flow(&self) -> Flow {
        Flow::new(client().into(), self.cabling.services(0)[0].into()).unwrap()
    }

    fn id(&self, server: usize) -> ServerId {
        self.cabling.server_id(Cable { host: 0, server })
    }

    fn advance(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now = self.now + Duration::from_millis(1);
            for server in 0..2 {
                self.agents[server].handle_timeout(self.now);
            }
            while (0..2).any(|server| self.deliver(server)) {}
        }
    }

    /// Delivers the next output of a server. Returns false if there is none.
    fn deliver(&mut self, server: usize) -> bool {
        let cable = Cable { host: 0, server };
        match self.agents[server].poll_transmit() {
            None => return false,
            Some(_) if self.is_cut[server] => {}
            Some(Transmit::Transfer { to, bytes }) => {
                let to = self.cabling.cable_of(to).unwrap().server;
                self.agents[to].handle_transfer(self.now, self.id(server), &bytes);
            }
            Some(Transmit::Control(payload)) => {
                let frame = datagram(self.cabling.control_ends(cable), &payload[..]);
                for departure in self.switch.arrive(self.now, server, frame) {
                    let (_, payload) = datagram_in(&departure.frame).unwrap();
                    if !self.is_cut[departure.port] {
                        self.agents[departure.port].handle_datagram(self.now, payload);
                    }
                }
            }
        }
        true
    }

    /// A client's segment arrives at the switch. Returns the server's port to which it goes.
    fn client_sends(&mut self) -> usize {
        let ends = Ends::between(client(), self.cabling.services(0)[0]);
        let frame = segment(ends, tcp::Header { flags: tcp::Flags::ACK, ..tcp::Header::default() }, b"x");
        self.switch.arrive(self.now, 2, frame)[0].port
    }

    fn sort(&mut self, server: usize) -> Sorted {
        let place = self.cabling.places(Cable { host: 0, server })[0];
        self.agents[server].sort(self.now, (client(), place), false, (b"frame", false))
    }

    fn may_transmit(&self, server: usize) -> bool {
        let place = self.cabling.places(Cable { host: 0, server })[0];
        self.agents[server].may_transmit(self.now, (place, client()))
    }

    /// Server 0 exports the connection; the state is on its way to server 1.
    fn export(&mut self) -> u64 {
        let (flow, target) = (self.flow(), self.id(1));
        assert!(self.agents[0].request_move(self.now, flow, Some(target)));
        assert!(!self.agents[0].request_move(self.now, flow, Some(target)), "the flow moves already");
        self.advance(1);
        assert_eq!(self.agents[0].poll_event(), Some(Event::Export { flow }));
        assert_eq!((self.client_sends(), self.sort(1)), (1, Sorted::Held));
        self.agents[0].exported(self.now, flow, Arc::from(STATE));
        self.advance(1);
        match self.agents[1].poll_event() {
            Some(Event::Check { generation, state, .. }) if *state == *STATE => generation,
            other => panic!("{other:?}"),
        }
    }

    fn move_to_second(&mut self) {
        let (flow, generation) = (self.flow(), self.export());
        assert!(!self.may_transmit(1), "the target transmits only as an owner");
        self.agents[1].checked(self.now, flow, generation, Arc::from(STATE), true);
        self.advance(1);
        let frames = vec![(b"frame".to_vec(), false)];
        let import = Event::Import { flow, state: Arc::from(STATE), frames, is_return: false };
        assert_eq!(self.agents[1].poll_event(), Some(import));
        assert!(self.may_transmit(1) && !self.agents[0].may_continue(&flow));
        let entry = self.switch.flow(&flow).unwrap();
        assert_eq!((entry.state, entry.owner.server), (FlowState::Owned, self.id(1)));
        assert_eq!(self.sort(1), Sorted::Stack);
    }

    fn last_event(&mut self, server: usize) -> Option<Event> {
        std::iter::from_fn(|| self.agents[server].poll_event()).last()
    }
}

#[test]
fn a_connection_moves_and_its_early_packets_follow_it() {
    let mut pair = Pair::new();
    pair.move_to_second();
    assert_eq!(pair.client_sends(), 1);
}

#[test]
fn a_refused_state_comes_back() {
    let mut pair = Pair::new();
    let (flow, generation) = (pair.flow(), pair.export());
    pair.agents[1].checked(pair.now, flow, generation, Arc::from(STATE), false);
    pair.advance(5);
    let import = Event::Import { flow, state: Arc::from(STATE), frames: Vec::new(), is_return: true };
    assert_eq!(pair.agents[0].poll_event(), Some(import));
    assert_eq!(pair.client_sends(), 0);
}

#[test]
fn a_source_takes_the_connection_back_from_a_target_that_stops() {
    let mut pair = Pair::new();
    pair.export();
    pair.is_cut[1] = true;
    pair.advance(600);
    assert!(matches!(pair.agents[0].poll_event(), Some(Event::Import { is_return: true, .. })));
    assert_eq!(pair.client_sends(), 0);
}

#[test]
fn an_owner_that_is_cut_off_is_mute_before_it_loses_its_flows() {
    let mut pair = Pair::new();
    pair.move_to_second();
    pair.is_cut[1] = true;
    pair.advance(450);
    assert!(pair.may_transmit(1));
    pair.advance(100);
    assert!(!pair.may_transmit(1), "half of the timeout has passed");
    assert_eq!(pair.client_sends(), 1, "the switch still waits for the owner");
    pair.advance(600);
    assert_eq!(pair.client_sends(), 0);
    pair.is_cut[1] = false;
    pair.advance(100);
    let drop = Event::Drop { flow: pair.flow(), cause: Cause::Silence };
    assert_eq!(pair.last_event(1), Some(drop));
}

#[test]
fn an_owner_takes_its_flow_back_after_the_switch_has_lost_all_entries() {
    let mut pair = Pair::new();
    pair.move_to_second();
    pair.switch.restart_empty(pair.now, Duration::ZERO);
    assert_eq!((pair.client_sends(), pair.sort(0)), (0, Sorted::Dropped), "the packet is stray");
    pair.advance(200);
    assert_eq!((pair.client_sends(), pair.agents[1].reclaimed), (1, 1));
    assert!(pair.may_transmit(1));
}

#[test]
fn a_move_that_the_restart_interrupts_is_given_up_by_both_ends() {
    let mut pair = Pair::new();
    let (flow, generation) = (pair.flow(), pair.export());
    pair.switch.restart_empty(pair.now, Duration::ZERO);
    pair.agents[1].checked(pair.now, flow, generation, Arc::from(STATE), true);
    pair.advance(200);
    assert_eq!(pair.last_event(0), Some(Event::Gone { flow, cause: Cause::Restart }));
    assert!(matches!(pair.last_event(1), Some(Event::Gone { .. })));
    assert!(!pair.agents.iter().any(|agent| agent.may_continue(&flow)));
}

#[test]
fn the_entry_ends_after_the_connection() {
    let mut pair = Pair::new();
    pair.move_to_second();
    let flow = pair.flow();
    pair.agents[1].connection_ended(pair.now, flow);
    pair.advance(900);
    assert!(pair.switch.flow(&flow).is_some(), "last segments may have to be repeated");
    pair.advance(200);
    assert_eq!(pair.switch.flow(&flow), None);
}
