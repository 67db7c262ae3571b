//! A client and two servers on one Ethernet segment or in two racks, with a switch in host mode on each server's own interface.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::Output;

use serde_json::Value;
use spillway_auth::Key;
use spillway_lab::{Agent, Forwarding, Host, Lab, Launch, Process};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Flow, ServerId, Site, Status};

use crate::daemon::{self, Mounts};
use crate::lab::{hosts, lab};
use crate::racks;
use crate::rule;
use crate::support::{PATIENCE, SPILLWAY, Scratch};

const CONTROL_PORT: u16 = 9511;
/// The service's port at server `a`.
pub const SERVICE_PORT: u16 = 11211;
/// The port at which server `b` imports connections.
const PLACE_PORT: u16 = 21211;
/// Indexes of IPv4 and IPv6 in pairs of addresses.
pub const FAMILIES: [usize; 2] = [0, 1];

/// The hosts. The switch of server `a` decides about the flows of the service; that of server `b` gives the replies of
/// connections that moved there the service's address.
pub struct Scene {
    // Fields are dropped in this order.
    pub client: Host,
    pub a: Host,
    pub b: Host,
    mounts: Mounts,
    pub scratch: Scratch,
    /// The keys of the servers at the switch of `a`.
    keys: [Key; 2],
    /// The addresses of server `b`.
    b_addresses: [IpAddr; 2],
    /// With two racks: the router's Ethernet addresses in the rack of `a` and in that of `b`.
    pub routers: Option<[Mac; 2]>,
    name: String,
    lab: Lab,
}

/// The IPv4 and the IPv6 address of a host.
pub fn addresses(host: &Host) -> [IpAddr; 2] {
    [host.address(), host.ipv6_address().expect("hosts of a segment have both")]
}

impl Scene {
    /// Returns `None` and prints the reason if network namespaces cannot be created.
    pub fn start() -> Option<Scene> {
        Scene::with(false)
    }

    /// As [`start`](Scene::start), with server `b` in a rack of its own, behind a router.
    pub fn start_racks() -> Option<Scene> {
        Scene::with(true)
    }

    fn with(has_racks: bool) -> Option<Scene> {
        let lab = lab("cli-host", Forwarding::Segment)?;
        let [client, a, b] = hosts(&lab, true);
        let racks = has_racks.then(|| racks::divide(&lab, [&client, &a], &b));
        let mounts = Mounts::start(0, |launch| a.spawn(launch));
        let scratch = Scratch::new();
        let keys = ["a-at-a.key", "b-at-a.key"].map(|file| scratch.key(file).1);
        for file in ["a-at-b.key", "b-at-b.key"] {
            scratch.key(file);
        }
        let name = lab.run_name();
        let b_addresses = racks.as_ref().map_or_else(|| addresses(&b), |racks| racks.b_addresses);
        let routers = racks.map(|racks| racks.routers);
        let scene = Scene { client, a, b, mounts, scratch, keys, b_addresses, routers, name, lab };
        for host in [&scene.a, &scene.b] {
            scene.configure(host, host.interface(), Mac(host.mac()));
        }
        Some(scene)
    }

    /// The addresses of a server.
    pub fn addresses(&self, host: &Host) -> [IpAddr; 2] {
        if host.name() == self.b.name() { self.b_addresses } else { addresses(host) }
    }

    /// Writes the configuration of a server's switch, on an interface with this Ethernet address.
    pub fn configure(&self, host: &Host, interface: &str, mac: Mac) {
        let at = host.name();
        let [control_v4, control_v6] =
            self.addresses(host).map(|address| SocketAddr::new(address, CONTROL_PORT));
        let mut text = format!(
            "[switch]\nname = \"{}-{at}\"\nmode = \"host\"\ncontrol = [\"{control_v4}\", \"{control_v6}\"]\nsocket = \
             \"{}\"\n[[port]]\ninterface = \"{interface}\"\nmay_own = [\"cache\"]\n",
            self.name,
            self.socket(host),
        );
        if self.routers.is_some() {
            // The path MTU is learned during a transfer, which can take longer than the default of a second.
            text = text.replace("[[port]]", "owner_timeout = \"20s\"\n[[port]]");
        }
        let [v4, v6] = FAMILIES.map(|family| self.service(family));
        text += &format!(
            "[[service]]\nname = \"cache\"\nendpoints = [{{ address = \"{v4}\", server = \"a\" }}, {{ address = \
             \"{v6}\", server = \"a\" }}]\n"
        );
        for (server, id) in [(&self.a, 1), (&self.b, 2)] {
            let mac = if server.name() == at { mac } else { Mac(server.mac()) };
            text += &format!(
                "[[server]]\nname = \"{0}\"\nid = {id}\naddress = \"{1}\"\nmac = \"{mac}\"\nport = \
                 \"{interface}\"\nkey_file = \"{0}-at-{at}.key\"\n",
                server.name(),
                self.addresses(server)[0],
            );
            if let Some(routers) = self.routers.filter(|_| server.name() != at) {
                let next_hop = routers[usize::from(at == self.b.name())];
                text += &format!("encapsulate = true\nnext_hop = \"{next_hop}\"\n");
            }
        }
        let place = |family: usize| {
            let (at, endpoint) = (self.place(family), self.service(family));
            format!("{{ address = \"{at}\", service = \"cache\", endpoint = \"{endpoint}\" }}")
        };
        text += &format!("places = [{}, {}]\n", place(0), place(1));
        fs::write(self.config(host), text).unwrap();
    }

    pub fn config(&self, host: &Host) -> String {
        self.scratch.path(&format!("{}.toml", host.name()))
    }

    pub fn socket(&self, host: &Host) -> String {
        self.scratch.path(&format!("{}.sock", host.name()))
    }

    /// The endpoint of the service to which clients connect.
    pub fn service(&self, family: usize) -> SocketAddr {
        SocketAddr::new(addresses(&self.a)[family], SERVICE_PORT)
    }

    /// Where server `b` imports connections.
    pub fn place(&self, family: usize) -> SocketAddr {
        SocketAddr::new(self.b_addresses[family], PLACE_PORT)
    }

    /// The arguments of `spillway switch` with the configuration of a host. `wrapper`: commands in front.
    pub fn launch(&self, host: &Host, wrapper: &[String], arguments: &[&str]) -> Launch {
        let config = self.config(host);
        self.mounts.launch(SPILLWAY, wrapper, &[&["switch", "--config", &config], arguments].concat())
    }

    /// The check of a host's configuration.
    pub fn check(&self, host: &Host) -> Launch {
        Launch::new(SPILLWAY).args(["check", &self.config(host)]).name("check")
    }

    /// A program with access to the switches' pins.
    pub fn launch_program(&self, program: &str, arguments: &[&str]) -> Launch {
        self.mounts.launch(program, &[], arguments)
    }

    /// Starts the daemon of a server, and waits until it answers.
    pub fn start_daemon(&self, host: &Host) -> Process {
        daemon::answering(host.spawn(&self.launch(host, &[], &[])).unwrap(), &self.socket(host))
    }

    /// Takes a switch off its interface.
    pub fn detach(&self, host: &Host) {
        let mut detach = host.spawn(&self.launch(host, &[], &["--detach"])).unwrap();
        assert!(detach.wait(PATIENCE).is_some_and(|status| status.success()), "{}", detach.last_output());
        let messages = detach.stderr().unwrap();
        assert!(!messages.contains("libbpf"), "{messages}");
    }

    /// Runs a command of `spillway` at the admin socket of a server's switch.
    pub fn command(&self, host: &Host, arguments: &[&str]) -> Output {
        daemon::command(&self.socket(host), arguments)
    }

    /// The field `result` of a command that succeeds.
    #[track_caller]
    pub fn result(&self, host: &Host, arguments: &[&str]) -> Value {
        daemon::result(&self.socket(host), arguments)
    }

    /// Packets of a server's switch with a verdict.
    pub fn packets(&self, host: &Host, verdict: &str) -> u64 {
        self.result(host, &["status"])["packets"][verdict].as_u64().unwrap()
    }

    /// Runs `ip` or `tc` in the namespace of a host, and returns its output.
    pub fn run(&self, host: &Host, command: &str) -> String {
        let mut words = command.split(' ');
        let program = words.next().unwrap();
        let mut process =
            host.spawn(&Launch::new(program).args(words.map(str::to_owned)).name(program)).unwrap();
        let ended = process.wait(PATIENCE).expect("the command should end");
        assert!(ended.success(), "{command}: {}", process.last_output());
        process.stdout().unwrap()
    }

    /// The names of the pins of a server's switch, in order. The number of the egress program is left out.
    pub fn pins(&self, host: &Host) -> Vec<String> {
        let directory = format!("/sys/fs/bpf/spillway/{}-{}", self.name, host.name());
        let mut list = host.spawn(&self.launch_program("ls", &[&directory])).unwrap();
        assert!(list.wait(PATIENCE).is_some_and(|ended| ended.success()), "{}", list.last_output());
        let names = list.stdout().unwrap();
        names
            .lines()
            .map(|name| name.trim_end_matches(|digit: char| digit.is_ascii_digit()).to_owned())
            .collect()
    }

    /// Whether a host has the switch's filter at the egress of an interface.
    pub fn has_filter(&self, host: &Host, interface: &str) -> bool {
        self.run(host, &format!("tc filter show dev {interface} egress")).contains("spillway_egress")
    }

    /// The agents of both servers at a control endpoint of the switch of `a`, which is the host of the first one.
    pub fn agents_at(&self, control: usize) -> [Agent; 2] {
        let control = SocketAddr::new(addresses(&self.a)[control], CONTROL_PORT);
        let agent = |host: &Host, id: u8| {
            let key = self.keys[usize::from(id) - 1].switch_key();
            // From its own address: a server may have the addresses of services, too.
            let own = self.addresses(host).into_iter().find(|own| own.is_ipv4() == control.is_ipv4());
            host.run_inside(|| Agent::open(own, control, ServerId(id), key, PATIENCE).unwrap()).unwrap()
        };
        [agent(&self.a, 1), agent(&self.b, 2)]
    }

    /// The agents of both servers, as owners of the service. The control messages are those of IPv4 for flows of both families,
    /// because the servers' addresses are.
    pub fn agents(&self, family: usize) -> [Agent; 2] {
        let mut agents = self.agents_at(0);
        rule::say_hello(&mut agents, self.service(family).into());
        agents
    }

    pub fn heartbeats(&self, agents: &mut [Agent; 2], family: usize) {
        assert_eq!(rule::send_heartbeats(agents, self.service(family).into()), [Status::Ok; 2]);
    }

    /// Moves the rule of a client's flow to server `b`, whether the client has connected or not. Returns the generation.
    pub fn move_rule(&self, agents: &mut [Agent; 2], client: SocketAddr, family: usize) -> u64 {
        let flow = Flow::new(client.into(), self.service(family).into()).unwrap();
        let place = Site::new(self.place(family).into(), Mac(self.b.mac())).unwrap();
        rule::move_rule(agents, flow, place)
    }

    /// Moves the rule of a client's flow, which has this generation, back to server `a`.
    pub fn move_back(&self, [a, b]: &mut [Agent; 2], (client, generation): (SocketAddr, u64), family: usize) {
        let flow = Flow::new(client.into(), self.service(family).into()).unwrap();
        let home = Site::new(self.service(family).into(), Mac(self.a.mac())).unwrap();
        rule::move_again([b, a], (flow, generation), home);
    }

    /// Ends the laboratory. Without it a failed removal of the laboratory would not be noticed.
    pub fn close(self) {
        let Scene { lab, mounts, .. } = self;
        drop(mounts);
        lab.close().unwrap();
    }
}
