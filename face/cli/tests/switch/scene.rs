//! A switch's daemon between the hosts of a client and two servers.

use std::fs;
use std::net::SocketAddr;
use std::process::Output;

use serde_json::Value;
use spillway_auth::Key;
use spillway_lab::{Agent, Forwarding, Host, Lab, LabSwitch, Launch, Process, SwitchPort};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Endpoint, Flow, ServerId, Site};

use crate::daemon::{self, Mounts};
use crate::lab::{hosts, lab};
use crate::support::{SPILLWAY, Scratch};

const CONTROL_PORT: u16 = 9511;
/// The service's port at server `a`.
pub const SERVICE_PORT: u16 = 11211;
/// The port at which server `b` imports connections.
pub const PLACE_PORT: u16 = 21211;

/// The hosts, and a mount namespace with a BPF file system, in which daemons run one after the other.
pub struct Scene {
    // Fields are dropped in this order.
    pub client: Host,
    pub a: Host,
    pub b: Host,
    mounts: Mounts,
    pub switch: LabSwitch,
    pub scratch: Scratch,
    keys: [Key; 2],
    name: String,
    lab: Lab,
}

impl Scene {
    /// Returns `None` and prints the reason if network namespaces cannot be created. `owner`: the user that may pin programs.
    pub fn start(owner: u32) -> Option<Scene> {
        Scene::start_with(owner, true)
    }

    /// As [`start`](Self::start). `servers_pass`: whether the servers are on the kernel's TCP; otherwise they attach programs
    /// of their own.
    pub fn start_with(owner: u32, servers_pass: bool) -> Option<Scene> {
        let lab = lab("cli-switch", Forwarding::Switch)?;
        let [client, a, b] = hosts(&lab, servers_pass);
        let switch = lab.switches()[0].clone();
        let mounts = Mounts::start(owner, |launch| switch.spawn(launch));
        let scratch = Scratch::new();
        let keys = ["a.key", "b.key"].map(|file| scratch.key(file).1);
        let name = lab.run_name();
        let scene = Scene { client, a, b, mounts, switch, scratch, keys, name, lab };
        scene.configure("", "");
        Some(scene)
    }

    fn port(&self, host: &Host) -> SwitchPort {
        self.switch.port_of(host).expect("each host has a port")
    }

    /// Writes the configuration file. `settings` is appended to the section `[switch]`, `sections` to the file.
    pub fn configure(&self, settings: &str, sections: &str) {
        let [client, a, b] =
            [&self.client, &self.a, &self.b].map(|host| self.port(host).interface().to_owned());
        let [client_mac, a_mac, b_mac] = [&self.client, &self.a, &self.b].map(|host| Mac(host.mac()));
        let (a_address, b_address) = (self.a.address(), self.b.address());
        let text = format!(
            r#"[switch]
name = "{name}"
control = ["{control}"]
socket = "{socket}"
{settings}
[[port]]
interface = "{client}"
[[port]]
interface = "{a}"
may_own = ["cache"]
[[port]]
interface = "{b}"
may_own = ["cache"]
[[station]]
mac = "{client_mac}"
port = "{client}"
[[service]]
name = "cache"
endpoints = [{{ address = "{a_address}:{SERVICE_PORT}", server = "a" }}]
[[server]]
name = "a"
id = 1
address = "{a_address}"
mac = "{a_mac}"
port = "{a}"
key_file = "a.key"
[[server]]
name = "b"
id = 2
address = "{b_address}"
mac = "{b_mac}"
port = "{b}"
key_file = "b.key"
places = [{{ address = "{b_address}:{PLACE_PORT}", service = "cache" }}]
{sections}
"#,
            name = self.name,
            control = self.control(),
            socket = self.socket(),
        );
        fs::write(self.config(), text).unwrap();
    }

    pub fn config(&self) -> String {
        self.scratch.path("switch.toml")
    }

    pub fn socket(&self) -> String {
        self.scratch.path("switch.sock")
    }

    pub fn control(&self) -> SocketAddr {
        SocketAddr::new(self.switch.addresses()[0], CONTROL_PORT)
    }

    /// The program's arguments, run in the mount namespace with the BPF file system. `wrapper`: commands in front.
    pub fn launch(&self, program: &str, wrapper: &[String], arguments: &[&str]) -> Launch {
        self.mounts.launch(program, wrapper, arguments)
    }

    /// Starts a daemon, and waits until it answers.
    pub fn start_daemon(&self) -> Process {
        self.start_launch(&self.launch(SPILLWAY, &[], &["switch", "--config", &self.config()]))
    }

    pub fn start_launch(&self, launch: &Launch) -> Process {
        daemon::answering(self.switch.spawn(launch).unwrap(), &self.socket())
    }

    /// As [`start_daemon`](Self::start_daemon), for the first daemon: it makes the program, and the hosts then receive
    /// its packets.
    pub fn start_first_daemon(&self) -> Process {
        let daemon = self.start_daemon();
        self.switch.prepare_hosts().unwrap();
        daemon
    }

    /// Runs a command of `spillway` at the daemon's admin socket.
    pub fn command(&self, arguments: &[&str]) -> Output {
        daemon::command(&self.socket(), arguments)
    }

    /// The field `result` of a command that succeeds.
    #[track_caller]
    pub fn result(&self, arguments: &[&str]) -> Value {
        daemon::result(&self.socket(), arguments)
    }

    /// The service, to which clients connect.
    pub fn service(&self) -> SocketAddr {
        SocketAddr::new(self.a.address(), SERVICE_PORT)
    }

    /// The agents of both servers.
    pub fn agents(&self) -> [Agent; 2] {
        let agent = |host: &Host, id: u8| {
            let key = self.keys[usize::from(id) - 1].switch_key();
            Agent::new(host, self.control(), ServerId(id), key).unwrap()
        };
        [agent(&self.a, 1), agent(&self.b, 2)]
    }

    /// Where server `b` imports connections.
    pub fn place(&self) -> Site {
        let endpoint = Endpoint::from(SocketAddr::new(self.b.address(), PLACE_PORT));
        Site::new(endpoint, Mac(self.b.mac())).unwrap()
    }

    pub fn flow(&self, client: SocketAddr) -> Flow {
        Flow::new(client.into(), self.service().into()).unwrap()
    }

    /// Ends the laboratory. Without it a failed removal of the laboratory would not be noticed.
    pub fn close(self) {
        let Scene { lab, mounts, .. } = self;
        drop(mounts);
        lab.close().unwrap();
    }
}
