//! Servers on the user-level stack in host mode: the original owner's runs behind the switch's program on one interface.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use spillway_lab::{Host, Process};
use spillway_wire::packet::ethernet::Mac;

use super::clients::Clients;
use super::scene::{Scene, addresses};
use super::support::{PATIENCE, SPILLWAY, eventually};
use super::terminate;

/// The command of the laboratory is built with the workspace, not with this crate.
const LABORATORY: &str = "spillway-lab";
const DATAGRAM_PORT: u16 = 7720;
const CONTROL_PORT: u16 = 9511;
const CONNECTIONS: usize = 4;
const ROUNDS: usize = 6;

/// The path of the laboratory's command.
fn laboratory() -> String {
    let path = Path::new(SPILLWAY).with_file_name(LABORATORY);
    assert!(path.exists(), "{} is missing; build the workspace first", path.display());
    path.display().to_string()
}

/// `spillway-lab echo` on both hosts.
struct Servers<'a> {
    scene: &'a Scene,
    peers: String,
}

impl<'a> Servers<'a> {
    fn new(scene: &'a Scene) -> Servers<'a> {
        scene.scratch.key("peers.key");
        let peer = |host: &Host, id: u8, place: SocketAddr| {
            format!(
                "[[moves.peer]]\nname = \"{}\"\nid = {id}\naddress = \"{}:{DATAGRAM_PORT}\"\nmac = \"{}\"\nplace = \"{place}\"\n",
                host.name(),
                scene.addresses(host)[0],
                Mac(host.mac()),
            )
        };
        let [a, b] = [peer(&scene.a, 1, scene.service(0)), peer(&scene.b, 2, scene.place(0))];
        let peers = scene.scratch.path("peers.toml");
        let owner_timeout = if scene.routers.is_some() { "20s" } else { "1s" };
        let moves = format!(
            "[moves]\npeers_key_file = \"peers.key\"\nmode = \"host\"\nowner_timeout = \"{owner_timeout}\"\n"
        );
        fs::write(&peers, moves + &a + &b).unwrap();
        Servers { scene, peers }
    }

    fn socket(&self, host: &Host) -> String {
        self.scene.scratch.path(&format!("{}-echo.sock", host.name()))
    }

    /// Starts a server without waiting. The switch of `a` is the arbiter for both.
    fn spawn(&self, host: &Host) -> Process {
        let service = self.scene.service(0).to_string();
        let control = SocketAddr::new(addresses(&self.scene.a)[0], CONTROL_PORT).to_string();
        let key = self.scene.scratch.path(&format!("{}-at-a.key", host.name()));
        let (socket, peers) = (self.socket(host), &self.peers);
        let arguments = [
            ["--engine", "xdp"],
            ["--interface", host.interface()],
            ["--service", &service],
            ["--switch", &control],
            ["--peers", peers],
            ["--key", &key],
            ["--socket", &socket],
        ];
        let arguments = [&["echo"], arguments.as_flattened()].concat();
        let launch = self.scene.launch_program(&laboratory(), &arguments);
        host.spawn(&launch.name("echo")).unwrap()
    }

    /// Starts a server of another service on the host's interface, whose connections do not move. `wrapper`: commands in front.
    fn spawn_alone(&self, host: &Host, wrapper: &[&str]) -> Process {
        let service = SocketAddr::new(addresses(host)[0], 8080).to_string();
        let directory = self.scene.scratch.path("alone");
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        let (laboratory, socket) = (laboratory(), format!("{directory}/alone.sock"));
        let arguments = ["--interface", host.interface(), "--service", &service, "--socket", &socket];
        let command = [wrapper, &[&laboratory, "echo", "--engine", "xdp"], &arguments].concat();
        let launch = self.scene.launch_program(command[0], &command[1..]);
        host.spawn(&launch.name("alone")).unwrap()
    }

    /// What `spillway doctor` says about the XDP program at the interface of `a`.
    fn doctor(&self) -> String {
        let interface = self.scene.a.interface();
        let arguments = ["doctor", "--engine", "xdp", "--interface", interface];
        let mut doctor = self.scene.a.spawn(&self.scene.launch_program(SPILLWAY, &arguments)).unwrap();
        doctor.wait(PATIENCE).expect("the doctor should end");
        let text = doctor.stdout().unwrap();
        let line = text.lines().find(|line| line.contains("XDP program"));
        line.unwrap_or_else(|| panic!("no line about the XDP program: {text}")).to_owned()
    }

    fn start(&self, host: &Host) -> Process {
        let mut process = self.spawn(host);
        eventually("the server is ready", || {
            let ended = process.exit_status();
            assert!(ended.is_none(), "the server has ended: {ended:?}\n{}", process.last_output());
            process.stdout().unwrap().contains("serving")
        });
        self.wait_until_known(host);
        process
    }

    fn wait_until_known(&self, host: &Host) {
        eventually("the switch knows the server", || {
            let status = self.scene.result(&self.scene.a, &["status"]);
            let servers = status["servers"].as_array().unwrap();
            servers.iter().any(|server| server["name"] == host.name() && server["is_alive"] == true)
        });
    }

    fn command(&self, host: &Host, arguments: &[&str]) -> Output {
        Command::new(SPILLWAY)
            .args(arguments)
            .args(["--socket", &self.socket(host), "--json"])
            .output()
            .unwrap()
    }

    fn status(&self, host: &Host) -> Value {
        let output = self.command(host, &["status"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["result"].take()
    }

    /// Moves all connections of a host; on a loaded machine some may stay or come back, and are moved again.
    fn migrate_all(&self, from: &Host, to: &Host) {
        eventually("all connections move", || {
            let output = self.command(from, &["move", "echo", "--all", "--to", to.name()]);
            let document: Value = serde_json::from_slice(&output.stdout).unwrap();
            document["result"]["failed"].as_array().is_some_and(Vec::is_empty)
        });
        let [a, b] = [&self.scene.a, &self.scene.b].map(|host| self.status(host));
        let here = if to.name() == self.scene.a.name() { &a } else { &b };
        assert_eq!(here["connections"], CONNECTIONS, "moved to {}\n{a}\n{b}", to.name());
    }
}

/// The number of the program behind the switch of `a`.
fn next_program(scene: &Scene) -> Option<u64> {
    scene.result(&scene.a, &["status"])["next_program"].as_u64()
}

#[test]
fn connections_of_servers_on_the_stack_move_without_a_switch_between_the_hosts() {
    let Some(scene) = Scene::start() else { return };
    let mut daemon = scene.start_daemon(&scene.a);
    assert_eq!(next_program(&scene), None);
    let servers = Servers::new(&scene);
    let line = servers.doctor();
    assert!(
        line.starts_with("ok ") && line.contains("in host mode; a server of this engine can run"),
        "{line}"
    );
    // Replies from the stack at `b` have the service's address already: no switch is needed there.
    let [mut a, b] = [servers.start(&scene.a), servers.start(&scene.b)];
    assert!(next_program(&scene).is_some());
    let clients = Clients::start(&scene.client, scene.service(0), CONNECTIONS);
    clients.wait_for_replies();
    let (mut from, mut to) = (&scene.a, &scene.b);
    for round in 0..ROUNDS {
        servers.migrate_all(from, to);
        clients.wait_for_replies();
        (from, to) = (to, from);
        if round == 2 {
            // All connections are at `b`. The program behind the switch stays, and a new daemon adopts both.
            daemon.kill();
            clients.wait_for_replies();
            daemon = scene.start_daemon(&scene.a);
            assert!(next_program(&scene).is_some());
            servers.wait_until_known(&scene.a);
        }
    }
    let figures = clients.stop();
    println!("{} requests, {} moves", figures.requests, CONNECTIONS * ROUNDS);
    assert!(scene.packets(&scene.a, "to_owner") > 0);
    for host in [&scene.a, &scene.b] {
        let moves = servers.status(host)["moves"].clone();
        assert_eq!((moves["lost"].as_u64(), moves["let_go"].as_u64()), (Some(0), Some(0)), "{moves}");
    }

    // One program for each interface, until its process ends.
    let another_user = [
        "setpriv",
        "--reuid=12345",
        "--clear-groups",
        "--inh-caps=+net_admin,+net_raw,+bpf",
        "--ambient-caps=+net_admin,+net_raw,+bpf",
    ];
    for (wrapper, expected) in [
        (&[][..], "another process has placed a program behind it"),
        (&another_user, "if it is that of a switch in host mode"),
    ] {
        let mut second = servers.spawn_alone(&scene.a, wrapper);
        assert!(second.wait(PATIENCE).is_some_and(|ended| !ended.success()));
        let refused = second.stderr().unwrap();
        assert!(refused.contains(expected), "{refused}");
    }
    let line = servers.doctor();
    assert!(line.starts_with("missing ") && line.contains("another process has placed number"), "{line}");
    a.kill();
    let line = servers.doctor();
    assert!(line.starts_with("ok "), "the process has ended: {line}");
    eventually("the daemon removes the program of the server that has ended", || {
        next_program(&scene).is_none()
    });
    let connect =
        || scene.client.run_inside(|| TcpStream::connect_timeout(&scene.service(0), PATIENCE)).unwrap();
    assert_eq!(connect().unwrap_err().kind(), ErrorKind::ConnectionRefused, "the kernel answers");
    let a = servers.start(&scene.a);
    let stream = connect().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    drop(stream);
    terminate(a);
    assert_eq!(next_program(&scene), None, "a server that ends in order removes its program");
    terminate(b);
    terminate(daemon);
    scene.detach(&scene.a);
    scene.close();
}

/// The packets of connections that have moved arrive at `b` in a tunnel, and go on to the stack behind the program that unwraps them.
#[test]
fn connections_of_servers_on_the_stack_move_between_racks() {
    let Some(scene) = Scene::start_racks() else { return };
    let daemons = [&scene.a, &scene.b].map(|host| scene.start_daemon(host));
    let servers = Servers::new(&scene);
    let [a, b] = [servers.start(&scene.a), servers.start(&scene.b)];
    let clients = Clients::start(&scene.client, scene.service(0), CONNECTIONS);
    clients.wait_for_replies();
    let (mut from, mut to) = (&scene.a, &scene.b);
    for _ in 0..ROUNDS {
        servers.migrate_all(from, to);
        clients.wait_for_replies();
        (from, to) = (to, from);
    }
    let figures = clients.stop();
    println!("{} requests, {} moves", figures.requests, CONNECTIONS * ROUNDS);
    eventually("both switches count the packets", || {
        scene.packets(&scene.a, "encapsulated") > 0 && scene.packets(&scene.b, "decapsulated") > 0
    });
    for host in [&scene.a, &scene.b] {
        let moves = servers.status(host)["moves"].clone();
        assert_eq!((moves["lost"].as_u64(), moves["let_go"].as_u64()), (Some(0), Some(0)), "{moves}");
    }
    [a, b].into_iter().chain(daemons).for_each(terminate);
    scene.close();
}
