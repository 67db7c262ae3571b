//! Two servers of `spillway-lab` on the hosts `a` and `b`, on the user-level stack or on the kernel's.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use spillway_lab::{Host, Launch, Process};
use spillway_wire::packet::ethernet::Mac;

use crate::daemon::{self, terminate};
use crate::scene::{PLACE_PORT, Scene};
use crate::support::{SPILLWAY, eventually};

/// The command of the laboratory is built with the workspace, not with this crate.
const LABORATORY: &str = "spillway-lab";
const DATAGRAM_PORT: u16 = 7720;

/// The TCP beneath each of the servers `a` and `b`: `xdp` or `kernel`.
pub type Engines = [&'static str; 2];

pub const STACKS: Engines = ["xdp", "xdp"];
pub const KERNELS: Engines = ["kernel", "kernel"];
pub const KERNEL_AND_STACK: Engines = ["kernel", "xdp"];
pub const STACK_AND_KERNEL: Engines = ["xdp", "kernel"];

pub struct Servers {
    processes: [Process; 2],
    sockets: [String; 2],
    service: String,
}

impl Servers {
    /// `command`: `echo`, `kv` or `http`, which is also the service's name in orders.
    pub fn start(scene: &Scene, command: &str) -> Servers {
        Servers::start_on(scene, command, STACKS)
    }

    /// As [`start`](Servers::start), with the TCP beneath each server.
    pub fn start_on(scene: &Scene, command: &str, engines: Engines) -> Servers {
        let peers = write_peers(scene, "peers", "none");
        Servers::start_with_peers(scene, command, engines, [&peers, &peers], |_| &[])
    }

    /// As [`start`](Servers::start), with a policy for moves, and further options.
    pub fn start_with_policy(scene: &Scene, command: &str, policy: &str, further: &[&str]) -> Servers {
        let peers = write_peers(scene, "peers", policy);
        Servers::start_with_peers(scene, command, STACKS, [&peers, &peers], |_| further)
    }

    /// The servers do not have the same key.
    pub fn start_with_different_keys(scene: &Scene, command: &str) -> Servers {
        let peers = ["peers", "others"].map(|name| write_peers(scene, name, "none"));
        Servers::start_with_peers(scene, command, STACKS, [&peers[0], &peers[1]], |_| &[])
    }

    /// Servers of HTTP, each of which has a part of the targets.
    pub fn start_partitioned(scene: &Scene, engines: Engines) -> Servers {
        let peers = write_peers(scene, "peers", "none");
        let partition = |name: &str| if name == "a" { &["--partition", "a"] } else { &["--partition", "b"] };
        Servers::start_with_peers(scene, "http", engines, [&peers, &peers], |name| partition(name))
    }

    /// `peers`: the file of each server. `further`: options of the server with a name.
    fn start_with_peers<'a>(
        scene: &Scene,
        command: &str,
        engines: Engines,
        peers: [&str; 2],
        further: impl Fn(&str) -> &'a [&'a str],
    ) -> Servers {
        let laboratory = Path::new(SPILLWAY).with_file_name(LABORATORY);
        assert!(laboratory.exists(), "{} is missing; build the workspace first", laboratory.display());
        let sockets = ["a.sock", "b.sock"].map(|name| scene.scratch.path(name));
        let start = |host: &Host, name: &str, engine: &str, socket: &str, peers: &str| {
            let (service, control) = (scene.service().to_string(), scene.control().to_string());
            let key = scene.scratch.path(&format!("{name}.key"));
            let options = ["--engine", engine, "--interface", host.interface(), "--service", &service];
            let more = ["--switch", &control, "--peers", peers, "--key", &key, "--socket", socket];
            let launch = Launch::new(laboratory.display().to_string())
                .args([command])
                .args(options)
                .args(more)
                .args(further(name));
            let mut process = host.spawn(&launch.name(name)).unwrap();
            eventually("the server is ready", || {
                let ended = process.exit_status();
                assert!(ended.is_none(), "the server has ended: {ended:?}\n{}", process.last_output());
                process.stdout().unwrap().contains("serving")
            });
            process
        };
        let processes = [
            start(&scene.a, "a", engines[0], &sockets[0], peers[0]),
            start(&scene.b, "b", engines[1], &sockets[1], peers[1]),
        ];
        // The servers' programs have replaced the receive loops of their interfaces.
        scene.switch.prepare_hosts().unwrap();
        let servers = Servers { processes, sockets, service: command.to_owned() };
        eventually("the switch knows both servers", || {
            let status = scene.result(&["status"]);
            status["servers"].as_array().unwrap().iter().all(|server| server["is_alive"] == true)
        });
        servers
    }

    fn socket(&self, name: &str) -> &str {
        &self.sockets[usize::from(name == "b")]
    }

    /// Runs a command of `spillway` at a server's admin socket.
    pub fn command(&self, name: &str, arguments: &[&str]) -> Output {
        daemon::command(self.socket(name), arguments)
    }

    #[track_caller]
    fn result(&self, name: &str, arguments: &[&str]) -> Value {
        match daemon::try_result(self.socket(name), arguments) {
            Ok(result) => result,
            Err(output) => {
                let log = self.processes[usize::from(name == "b")].last_output();
                panic!("{name}: {arguments:?}: {output}\n{log}")
            }
        }
    }

    /// Overrides the policy of a server.
    pub fn set_override(&self, name: &str, word: &str) -> Value {
        self.result(name, &["move", &self.service, "--override", word])
    }

    /// What a server has logged so far.
    pub fn log(&mut self, name: &str) -> String {
        self.processes[usize::from(name == "b")].stderr().unwrap()
    }

    pub fn status(&self, name: &str) -> Value {
        self.result(name, &["status"])
    }

    /// Moves a connection. On a loaded machine the switch or a server may be late: then the connection stays or comes back,
    /// and the order is repeated.
    pub fn migrate(&self, from: &str, client: SocketAddr, to: &str) {
        let connection = client.to_string();
        eventually("the connection moves", || self.try_move(from, &["--connection", &connection], to).0 == 1);
    }

    /// Moves all connections. Returns their number.
    pub fn migrate_all(&self, from: &str, to: &str) -> usize {
        let mut all = 0;
        eventually("all connections move", || {
            let (moved, failed) = self.try_move(from, &["--all"], to);
            all += moved;
            failed == 0
        });
        all
    }

    /// Returns how many connections have moved, and how many have not.
    fn try_move(&self, from: &str, connections: &[&str], to: &str) -> (usize, usize) {
        let arguments = [&["move", &self.service], connections, &["--to", to, "--json"]].concat();
        let output = self.command(from, &arguments);
        let mut document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let result = document["result"].take();
        let failed = result["failed"].as_array().unwrap_or_else(|| panic!("{document}"));
        for connection in failed {
            let why = connection["why"].as_str().unwrap();
            assert!(
                ["the connection has stayed", "the connection has come back"]
                    .iter()
                    .any(|text| why.starts_with(text)),
                "{connection}"
            );
        }
        let pending = result["pending"].as_array().unwrap().len();
        (result["moved"].as_u64().unwrap() as usize, failed.len() + pending)
    }

    /// Both servers together have moved and imported this number of connections, and have lost none.
    #[track_caller]
    pub fn check_moves(&self, moves: usize) {
        let [a, b] = ["a", "b"].map(|name| self.status(name)["moves"].clone());
        let sum = |field: &str| a[field].as_u64().unwrap() + b[field].as_u64().unwrap();
        assert_eq!((sum("moved"), sum("imported")), (moves as u64, moves as u64), "{a}\n{b}");
        assert_eq!(sum("lost") + sum("let_go"), 0, "{a}\n{b}");
    }

    /// The number of moves between both servers.
    pub fn moves(&self) -> u64 {
        ["a", "b"].iter().map(|name| self.status(name)["moves"]["moved"].as_u64().unwrap()).sum()
    }

    /// Connections that are lost, or whose outcome is not known.
    pub fn lost(&self) -> u64 {
        let of = |name: &str, field: &str| self.status(name)["moves"][field].as_u64().unwrap();
        ["a", "b"].iter().map(|name| of(name, "lost") + of(name, "let_go")).sum()
    }

    pub fn stop(self) {
        self.processes.into_iter().for_each(terminate);
    }
}

/// Writes a file with the section `[moves]`, and the key of the servers. Returns the file's path.
fn write_peers(scene: &Scene, name: &str, policy: &str) -> String {
    scene.scratch.key(&format!("{name}.key"));
    let peer = |host: &Host, name: &str, id: u8, place: SocketAddr| {
        format!(
            "[[moves.peer]]\nname = \"{name}\"\nid = {id}\naddress = \"{}:{DATAGRAM_PORT}\"\nmac = \"{}\"\nplace = \
             \"{place}\"\n",
            host.address(),
            Mac(host.mac()),
        )
    };
    let a = peer(&scene.a, "a", 1, scene.service());
    let b = peer(&scene.b, "b", 2, SocketAddr::new(scene.b.address(), PLACE_PORT));
    let path = scene.scratch.path(&format!("{name}.toml"));
    fs::write(&path, format!("[moves]\npeers_key_file = \"{name}.key\"\npolicy = \"{policy}\"\n{a}{b}"))
        .unwrap();
    path
}
