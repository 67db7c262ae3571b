//! The program without interfaces: its configuration, control messages, and moved flows. The kernel runs it on single
//! frames (`BPF_PROG_TEST_RUN`) and measures each run.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use spillway_auth::SwitchKey;
use spillway_bpf::switch::{Switch, TestRun};
use spillway_rules::config::{Config, OWNER_TIMEOUT_MAX, Place, Port, Server, Services, Station};
use spillway_rules::{Action, PortId, ServiceId};
use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{
    Answer, Body, Endpoint, Flow, FlowState, Import, Message, Relay, Request, ServerId, Site, Status,
};

use super::frames::{self, End};
use crate::error::Error;

/// The service endpoint, whose flows belong to server 1 at first.
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 1), 80);
/// The server that owns flows before they move, and requests moves.
pub const SOURCE: u8 = 1;
/// The server to which flows move.
pub const TARGET: u8 = 2;
const CONTROL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 1), 7_710);
const SERVICE_NUMBER: ServiceId = ServiceId(3);
/// Time between two runs, on the clock that the program is given.
const STEP: Duration = Duration::from_micros(1);
/// Connections that each server can still import, by its heartbeats: no server is ever full, so that the switch chooses
/// targets by their load alone.
const FREE_PLACES: u32 = u32::MAX;
const EPOCH: u64 = 1_700_000_000_000_000_000;
const LIFETIME_MS: u32 = 60_000;

/// The program with its servers, all of which are owners of the service.
pub struct Bed {
    program: Switch,
    servers: u8,
    now: Time,
    /// The last sequence number of each server.
    sequences: Vec<u64>,
}

/// A run of the program on a control message, and what it did with it.
pub struct Exchange {
    pub message: Message,
    pub action: Action,
    pub duration: Duration,
}

impl Bed {
    /// Loads the program with this number of servers, 2 to 255, and of places for flows.
    pub fn new(servers: u8, flows_max: usize) -> Result<Bed, Error> {
        let config = configuration(servers, flows_max);
        let program = Switch::load_for_tests(&config, EPOCH)
            .map_err(|error| Error::process("the switch's program", error.to_string()))?;
        let sequences = vec![0; usize::from(servers) + 1];
        let mut bed = Bed { program, servers, now: Time::ZERO + OWNER_TIMEOUT_MAX, sequences };
        for server in 1..=servers {
            let hello = bed.ask(server, Request::Hello)?.0;
            expect(hello.status == Status::Ok && hello.generation > EPOCH, &hello)?;
            bed.heartbeat(server)?;
        }
        Ok(bed)
    }

    /// Runs the program on a frame. The frame afterwards is in the result.
    pub fn run(&mut self, port: PortId, frame: &[u8]) -> Result<(TestRun, Duration), Error> {
        self.now = self.now + STEP;
        self.program
            .measure(port, self.now, frame)
            .map_err(|error| Error::process("the switch's program", error.to_string()))
    }

    /// The frame with a request of a server.
    pub fn request(&mut self, server: u8, request: Request, key: &SwitchKey) -> Vec<u8> {
        let sequence = &mut self.sequences[usize::from(server)];
        *sequence += 1;
        let message = Message {
            sender: ServerId(server),
            sequence: *sequence,
            epoch: EPOCH,
            body: Body::Request(request),
        };
        frames::datagram(control_end(server), switch_end(server), &key.emit(&message))
    }

    /// Sends a request of a server, and parses what leaves the switch with the key of `receiver`.
    pub fn exchange(&mut self, server: u8, receiver: u8, request: Request) -> Result<Exchange, Error> {
        let frame = self.request(server, request, &key(server));
        let (run, duration) = self.run(port_of(server), &frame)?;
        let wrong = |why: String| {
            Error::process(format!("the switch's program: {:?} to {request:?}", run.verdict), why)
        };
        let (source, target, payload) =
            frames::parse_datagram(&run.frame).map_err(|why| wrong(why.to_string()))?;
        let message = key(receiver).parse(payload).map_err(|why| wrong(why.to_string()))?;
        let is_expected = (source, target) == (switch_end(receiver), control_end(receiver))
            && message.sender == ServerId(server)
            && message.sequence == self.sequences[usize::from(server)]
            && message.epoch == EPOCH;
        expect(is_expected, &message)?;
        Ok(Exchange { message, action: run.action, duration })
    }

    /// Sends a request of a server, and returns the answer.
    pub fn ask(&mut self, server: u8, request: Request) -> Result<(Answer, Duration), Error> {
        let exchange = self.exchange(server, server, request)?;
        match exchange.message.body {
            Body::Answer(answer) if exchange.action == Action::Answer => Ok((answer, exchange.duration)),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a request of a server that the switch relays, and returns the relayed message.
    pub fn relay(&mut self, server: u8, receiver: u8, request: Request) -> Result<(Relay, Duration), Error> {
        let exchange = self.exchange(server, receiver, request)?;
        match exchange.message.body {
            Body::Relay(relay) if exchange.action == Action::To(port_of(receiver)) => {
                Ok((relay, exchange.duration))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// A heartbeat. The load falls with the server's number, so that the last server is the least loaded.
    pub fn heartbeat(&mut self, server: u8) -> Result<Duration, Error> {
        let heartbeat = Request::Heartbeat {
            service: service(),
            load: 1_000 - u32::from(server),
            free_places: FREE_PLACES,
            weight: 1,
        };
        let (answer, duration) = self.ask(server, heartbeat)?;
        expect(answer.status == Status::Ok, &answer)?;
        Ok(duration)
    }

    /// Moves a client's flow from [`SOURCE`] to [`TARGET`]. Returns the generation of its entry.
    pub fn move_flow(&mut self, client: SocketAddrV4) -> Result<u64, Error> {
        let flow = flow(client);
        let site = site(TARGET);
        let prepare = Request::Prepare { flow, replaces: 0, target: Some(site), lifetime_ms: LIFETIME_MS };
        let asked = match self.relay(SOURCE, TARGET, prepare)?.0 {
            Relay::Prepare { generation, is_held: false, .. } => generation,
            other => return Err(unexpected(&other)),
        };
        let prepared = Request::Prepared { flow, asked, import: Import::Ready(site) };
        self.relay(TARGET, SOURCE, prepared)?;
        let (owned, _) = self.ask(TARGET, Request::Own { flow, replaces: asked })?;
        expect(owned.status == Status::Ok && owned.owner == Some(site), &owned)?;
        Ok(owned.generation)
    }

    /// Moves an owned flow between two servers with *hold* and *own*. Returns the new generation and both durations.
    pub fn hold_and_own(
        &mut self,
        client: SocketAddrV4,
        (from, to): (u8, u8),
        generation: u64,
    ) -> Result<(u64, [Duration; 2]), Error> {
        let flow = flow(client);
        let hold = Request::Hold { flow, replaces: generation, target: site(to), lifetime_ms: LIFETIME_MS };
        let (held, hold_time) = self.ask(from, hold)?;
        expect(held.status == Status::Ok && held.state == FlowState::Held, &held)?;
        let (owned, own_time) = self.ask(to, Request::Own { flow, replaces: held.generation })?;
        expect(owned.status == Status::Ok && owned.owner == Some(site(to)), &owned)?;
        Ok((owned.generation, [hold_time, own_time]))
    }

    /// Lets the switch choose the target of a move, which then refuses. `generation`: that of the flow's entry, 0
    /// without one. Returns the new generation, and the duration of *prepare*.
    pub fn prepare_and_refuse(
        &mut self,
        client: SocketAddrV4,
        generation: u64,
    ) -> Result<(u64, Duration), Error> {
        let flow = flow(client);
        let least_loaded = self.servers;
        let prepare = Request::Prepare { flow, replaces: generation, target: None, lifetime_ms: LIFETIME_MS };
        let (relayed, duration) = self.relay(SOURCE, least_loaded, prepare)?;
        let Relay::Prepare { generation: asked, .. } = relayed else { return Err(unexpected(&relayed)) };
        let refused = Request::Prepared { flow, asked, import: Import::Refused };
        match self.relay(least_loaded, SOURCE, refused)?.0 {
            Relay::Prepared { generation, import: Import::Refused, .. } => Ok((generation, duration)),
            other => Err(unexpected(&other)),
        }
    }
}

/// A client's end of a connection, behind port 0.
pub fn client_end(client: SocketAddrV4) -> End {
    End { mac: CLIENT_MAC, address: client }
}

/// Where a server has connections of the service: the service endpoint itself, or where it imports them.
pub fn server_end(server: u8) -> End {
    let address =
        if server == SOURCE { SERVICE } else { SocketAddrV4::new(Ipv4Addr::new(10, 1, 1, server), 8_000) };
    End { mac: server_mac(server), address }
}

/// The port of a server.
pub fn port_of(server: u8) -> PortId {
    port(if server == SOURCE { 1 } else { 2 })
}

/// The port of all clients.
pub fn client_port() -> PortId {
    port(0)
}

pub fn flow(client: SocketAddrV4) -> Flow {
    let client = Endpoint::from(SocketAddr::from(client));
    Flow::new(client, service()).expect("both addresses are IPv4 and not zero")
}

/// The key of a server, which is no secret.
pub fn key(server: u8) -> SwitchKey {
    SwitchKey::from_bytes([server; 16])
}

/// An error if what the switch sent is not what the experiment expects.
pub fn expect(holds: bool, sent: &impl std::fmt::Debug) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(unexpected(sent)) }
}

fn unexpected(sent: &impl std::fmt::Debug) -> Error {
    Error::process("the switch sent an unexpected message", format!("{sent:?}"))
}

const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 0]);

fn service() -> Endpoint {
    SocketAddr::from(SERVICE).into()
}

fn site(server: u8) -> Site {
    let End { mac, address } = server_end(server);
    Site::new(SocketAddr::from(address).into(), mac).expect("the address is not zero")
}

fn server_mac(server: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, server])
}

fn port(number: u8) -> PortId {
    PortId::new(number).expect("ports have numbers up to 63")
}

fn port_mac(port: PortId) -> Mac {
    Mac([2, 0, 0, 0, 2, port.number()])
}

fn control_end(server: u8) -> End {
    End { mac: server_mac(server), address: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, server), 7_711) }
}

/// The switch's end of a server's control messages.
fn switch_end(server: u8) -> End {
    End { mac: port_mac(port_of(server)), address: CONTROL }
}

fn configuration(servers: u8, flows_max: usize) -> Config {
    let ip = |address: &SocketAddrV4| IpAddr::V4(*address.ip());
    let endpoint = |address: SocketAddrV4| Endpoint::from(SocketAddr::from(address));
    let all = 1..=servers;
    let ports = (0..=2).map(port).map(|id| Port {
        id,
        mac: port_mac(id),
        is_server: id != client_port(),
        may_own: if id == client_port() { Services::NONE } else { Services::ALL },
        mtu: 1500,
    });
    let stations = all.clone().map(|server| Station { mac: server_mac(server), port: port_of(server) });
    let servers = all.clone().map(|server| Server {
        id: ServerId(server),
        key: key(server),
        address: ip(&control_end(server).address).into(),
        mac: server_mac(server),
        port: port_of(server),
        encapsulation: None,
    });
    let places = all.map(|server| Place {
        at: endpoint(server_end(server).address),
        service: endpoint(SERVICE),
        number: SERVICE_NUMBER,
        server: ServerId(server),
    });
    Config {
        mode: spillway_rules::Mode::Gateway,
        ports: ports.collect(),
        stations: stations.chain([Station { mac: CLIENT_MAC, port: client_port() }]).collect(),
        prefixes: Vec::new(),
        own_addresses: vec![ip(&CONTROL).into()],
        control: vec![endpoint(CONTROL)],
        daemon_key: SwitchKey::from_bytes(*b"the daemon's key"),
        servers: servers.collect(),
        places: places.collect(),
        owner_timeout: OWNER_TIMEOUT_MAX,
        flows_max,
        service_flows_max: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_valid_with_all_numbers_of_servers() {
        for servers in [2, 8, u8::MAX] {
            assert_eq!(configuration(servers, 10).check(), Ok(()), "{servers} servers");
        }
    }
}
