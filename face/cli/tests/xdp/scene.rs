//! A memcached and its clients on one host, and the host of a helper process, joined by a veth pair.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use spillway_lab::peers::{Memcached, Peer};
use spillway_lab::{Host, HostOptions, Lab, Launch, Place, Process, unavailable};

use crate::support::{Client, PATIENCE, SPILLWAY, Scratch, eventually};

const INT: i32 = 2;

/// The interface at the helper's end of the veth pair.
pub const HELPER_END: &str = "helper0";
/// The interface at the other end of the veth pair, on the host of the clients and the server.
pub const PEERS_END: &str = "peers0";
pub const HELPER: Ipv4Addr = Ipv4Addr::new(10, 79, 2, 2);
pub const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 79, 2, 1);
/// Differs from the clients' address, because a server refuses clients whose address is the server's own.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 2, 3);
/// The helper's port for plain clients.
pub const PORT: u16 = 11211;

/// A memcached under `spillway run` on the host `peers`, connected by a veth pair to the host `helper`.
pub struct Scene {
    lab: Lab,
    pub helper: Host,
    pub peers: Host,
    _server: Peer,
    pub scratch: Scratch,
}

impl Scene {
    /// Returns `None` and prints the reason if network namespaces cannot be created.
    pub fn start() -> Option<Scene> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if let Some(reason) = unavailable() {
            eprintln!("skipped: {reason}");
            return None;
        }
        let lab = Lab::new(&format!("cli-xdp-{}", NUMBER.fetch_add(1, Ordering::Relaxed))).unwrap();
        let host = |name| lab.host(name, HostOptions::default()).unwrap();
        let (helper, peers) = (host("helper"), host("peers"));
        let namespace = peers.namespace();
        run(&helper, &format!("ip link add {HELPER_END} type veth peer name {PEERS_END} netns {namespace}"));
        for (host, interface, address) in
            [(&helper, HELPER_END, HELPER), (&peers, PEERS_END, CLIENTS), (&peers, PEERS_END, SERVER)]
        {
            run(host, &format!("ethtool -K {interface} tx off tso off gro on"));
            run(host, &format!("ip addr add {address}/24 dev {interface}"));
            run(host, &format!("ip link set {interface} up"));
        }
        let scratch = Scratch::new();
        let (key, _) = scratch.key("helper.key");
        let link = SocketAddr::from((SERVER, 11411)).to_string();
        let wrapper = [SPILLWAY, "run", "--link", &link, "--key", &key, "--require", "--"];
        let server = Memcached::default().wrapper(wrapper).start(&Place::Host(peers.clone())).unwrap();
        Some(Scene { lab, helper, peers, _server: server, scratch })
    }

    /// Writes the helper's configuration file and returns its path. `helper` is appended to the section `[helper]`,
    /// `more_listen` to the list `listen`.
    pub fn configure(&self, helper: &str, more_listen: &str) -> String {
        let path = self.scratch.path("helper.toml");
        let text = format!(
            "[helper]\nengine = \"xdp\"\ninterface = \"{HELPER_END}\"\nsocket = \"{}\"\n{helper}\n[service.cache]\n\
             server = \"{SERVER}:11411\"\nlisten = [\"{HELPER}:{PORT}\"{more_listen}]\nkey_files = [\"helper.key\"]\n",
            self.scratch.path("helper.sock")
        );
        fs::write(&path, text).unwrap();
        path
    }

    pub fn start_helper(&self) -> Process {
        let launch = Launch::new(SPILLWAY).name("helper");
        self.helper.spawn(&launch.args(["helper", "--config", &self.scratch.path("helper.toml")])).unwrap()
    }

    /// Connects a client on the host `peers` to the helper. `None` if the connection fails.
    pub fn client(&self) -> Option<Client> {
        self.peers.run_inside(|| Client::try_new((HELPER, PORT).into())).unwrap()
    }

    pub fn await_served(&self, helper: &mut Process) {
        eventually("the helper serves", || {
            assert!(helper.exit_status().is_none(), "{}", helper.stderr().unwrap());
            self.client().is_some_and(|mut client| client.version().is_some())
        });
    }

    pub fn status(&self) -> Option<Value> {
        let output = std::process::Command::new(SPILLWAY)
            .args(["status", "--json", "--socket", &self.scratch.path("helper.sock")])
            .output()
            .unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Number of messages that the running helper has sent to the server; 0 if no helper runs.
    pub fn messages(&self) -> u64 {
        let status = self.status().unwrap_or_default();
        status["services"][0]["messages_sent"].as_u64().unwrap_or(0)
    }

    /// Starts a load generator through the helper. It continues after connections are reset (`--allow-resets`).
    pub fn load(&self, arguments: &[&str]) -> Process {
        let (port, report) = (format!("{HELPER}:{PORT}"), self.scratch.path("load.json"));
        let launch = Launch::new(SPILLWAY)
            .args([
                "load",
                "--server",
                &port,
                "-d",
                "0s",
                "--keys",
                "500",
                "--allow-resets",
                "--json",
                &report,
            ])
            .args(arguments);
        self.peers.spawn(&launch).unwrap()
    }

    /// Stops the load generator and returns its totals. Asserts that no reply was wrong and that at most one request
    /// was lost for each reset connection.
    pub fn totals(&self, mut load: Process) -> Value {
        load.signal(INT).unwrap();
        let status = load.wait(PATIENCE).expect("exit status");
        let printed = load.stdout().unwrap() + &load.stderr().unwrap();
        let report: Value =
            serde_json::from_slice(&fs::read(self.scratch.path("load.json")).unwrap()).unwrap();
        let total = &report["total"];
        let count = |name: &str| total[name].as_u64().unwrap();
        assert_eq!(count("wrong"), 0, "{status}: {printed}");
        assert!(count("answered") > 0 && count("lost") <= count("resets"), "{status}: {printed}");
        total.clone()
    }

    pub fn close(self) {
        self.lab.close().unwrap();
    }
}

pub fn run(host: &Host, line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
    assert!(process.wait(PATIENCE).unwrap().success(), "{line}: {}", process.stderr().unwrap());
}

/// Runs the command `spillway` on a host and waits until it exits. Returns whether it succeeded, and its output.
pub fn spillway(host: &Host, arguments: &[&str]) -> (bool, String) {
    let mut process = host.spawn(&Launch::new(SPILLWAY).args(arguments)).unwrap();
    let is_success = process.wait(PATIENCE).expect("the command should end").success();
    (is_success, process.stdout().unwrap() + &process.stderr().unwrap())
}
