//! The rules in Rust as a [`Switch`].

use std::time::Duration;

use spillway_auth::SwitchKey;
use spillway_rules::config::{Config, Encapsulation, Place, Port, Prefix, Server, Station};
use spillway_rules::{Action, Address, Decision, Endpoint, Mode, PortId, ServerId, ServiceId, SiteView};
use spillway_transport::Time;

use crate::mac::Mac;
use crate::setup::{DAEMON, EGRESS, LOCAL_PORT, Setup};
use crate::switch::{FlowRow, Outcome, OwnerRow, Site, State, Switch, Verdict};

/// The rules of `core/rules`.
#[derive(Debug)]
pub struct Rules {
    switch: spillway_rules::Switch,
    setup: Setup,
}

impl Rules {
    /// A new switch.
    ///
    /// # Panics
    /// The rules refuse the configuration.
    pub fn new(setup: &Setup) -> Rules {
        let switch = spillway_rules::Switch::new(config(setup), setup.epoch)
            .unwrap_or_else(|error| panic!("the rules refuse the setup: {error}"));
        Rules { switch, setup: setup.clone() }
    }
}

impl Switch for Rules {
    fn name(&self) -> &'static str {
        "core/rules"
    }

    fn handle(&mut self, ingress: u8, now_ns: u64, frame: &[u8]) -> Outcome {
        let mut frame = frame.to_vec();
        let decision = match ingress {
            EGRESS => self.switch.handle_egress(Time(now_ns), &mut frame),
            ingress => self.switch.handle_frame(Time(now_ns), port(ingress), &mut frame),
        };
        outcome(&self.setup, ingress, decision, frame)
    }

    fn reload(&mut self, setup: &Setup) {
        self.switch
            .reload(config(setup))
            .unwrap_or_else(|error| panic!("the rules refuse the new setup: {error}"));
        self.setup = setup.clone();
    }

    fn state(&self, now_ns: u64) -> State {
        let flows = self.switch.flows().into_iter().map(|flow| FlowRow {
            client: flow.client.into(),
            service: flow.service.into(),
            state: flow.state as u8,
            generation: flow.generation,
            repeat_generation: flow.repeat_generation.unwrap_or(u64::MAX),
            owner: site(&flow.owner),
            target: flow.target.as_ref().map(site),
            original: site(&flow.original),
            deadline_ns: flow.deadline.map_or(0, Time::as_nanos),
            last_packet_ns: flow.last_packet.as_nanos(),
            claim: flow.client_fin_claim.filter(|_| !flow.has_client_fin),
            client_fin: flow.has_client_fin,
            owner_fin: flow.has_owner_fin,
            owner_claim: flow.owner_fin_claim,
            reset_ns: flow.owner_rst.map(Time::as_nanos),
        });
        let owners = self.switch.owners(Time(now_ns)).into_iter().map(|owner| OwnerRow {
            server: owner.server.0,
            term: owner.term,
            control_port: owner.control_port,
            service: owner.service.map_or(u16::MAX, |service| service.0.into()),
            load: owner.load,
            free: owner.free_places,
            weight: owner.weight,
            last_heartbeat_ns: now_ns - nanoseconds(owner.age),
            is_silent: owner.is_silent,
        });
        let mut state = State { flows: flows.collect(), owners: owners.collect() };
        state.flows.sort();
        state
    }
}

fn nanoseconds(age: Duration) -> u64 {
    u64::try_from(age.as_nanos()).expect("times of tests are short")
}

fn site(site: &SiteView) -> Site {
    Site { at: site.at.into(), mac: Mac(site.mac.0), server: site.server.0, term: site.term }
}

/// A port's number in the rules' type.
///
/// # Panics
/// The number is above 63.
pub(crate) fn port(number: u8) -> PortId {
    PortId::new(number).expect("ports of cases have numbers up to 63")
}

/// A decision in the form of cases.
pub(crate) fn outcome(setup: &Setup, ingress: u8, decision: Decision, frame: Vec<u8>) -> Outcome {
    let verdict = Verdict(decision.verdict as usize);
    let ports = match decision.action {
        Action::Drop => Vec::new(),
        Action::Pass if decision.verdict == spillway_rules::Verdict::Passed => Vec::new(),
        Action::Pass if ingress == EGRESS => vec![PortId::HOST.number()],
        Action::Pass => vec![LOCAL_PORT],
        Action::To(port) => vec![port.number()],
        Action::Flood => setup.flooded(ingress),
        Action::Answer => vec![ingress],
    };
    let frame = if decision.action == Action::Drop { Vec::new() } else { frame };
    Outcome { verdict, ports, frame }
}

fn flows_max(number: u32) -> usize {
    usize::try_from(number).expect("a number of flows")
}

/// The configuration that both implementations get.
pub(crate) fn config(setup: &Setup) -> Config {
    let mac = |mac: Mac| spillway_wire::packet::ethernet::Mac(mac.0);
    let is_configured = |port: u8| !(setup.is_host && port == LOCAL_PORT);
    let ports = setup.ports.values().filter(|port| is_configured(port.number)).map(|item| Port {
        id: port(item.number),
        mac: mac(item.mac),
        is_server: item.is_server,
        may_own: item.may_own.iter().map(|number| ServiceId(*number)).collect(),
        mtu: item.mtu,
    });
    let stations =
        setup.hosts.values().filter_map(|host| Some(Station { mac: mac(host.mac), port: port(host.port?) }));
    let stations = stations.filter(|_| !setup.is_host);
    let prefixes = setup.prefixes.iter().map(|prefix| Prefix {
        address: Address::from(prefix.address),
        length: prefix.bits,
        next_hop: mac(prefix.mac),
        port: port(prefix.port),
    });
    let servers = setup.servers.values().filter(|server| server.id != DAEMON).map(|server| Server {
        id: ServerId(server.id),
        key: SwitchKey::from_bytes(server.key),
        address: Address::from(server.address),
        mac: mac(server.mac),
        port: if is_configured(server.port) { port(server.port) } else { PortId::HOST },
        encapsulation: server.next_hop.map(|next_hop| Encapsulation { next_hop: mac(next_hop) }),
    });
    let places = setup.places.values().map(|place| Place {
        at: Endpoint::from(place.at),
        service: Endpoint::from(place.service),
        number: ServiceId(place.number),
        server: ServerId(place.server),
    });
    let control = setup
        .control_addresses
        .iter()
        .map(|address| Endpoint::from(std::net::SocketAddr::new(*address, setup.control_port)));
    Config {
        mode: if setup.is_host { Mode::Host } else { Mode::Gateway },
        ports: ports.collect(),
        stations: stations.collect(),
        prefixes: prefixes.collect(),
        own_addresses: setup.own_addresses.iter().map(|address| Address::from(*address)).collect(),
        control: control.collect(),
        daemon_key: SwitchKey::from_bytes(setup.server(DAEMON).map_or([0xda; 16], |daemon| daemon.key)),
        servers: servers.collect(),
        places: places.collect(),
        owner_timeout: Duration::from_nanos(setup.owner_timeout_ns),
        flows_max: flows_max(setup.flows_max),
        service_flows_max: setup
            .service_flows_max
            .iter()
            .map(|(service, bound)| (ServiceId(*service), flows_max(*bound)))
            .collect(),
    }
}
