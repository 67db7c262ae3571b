//! Live connections of an unmodified client move between two servers, on the user-level stack or on the kernel's, through a
//! switch process.
//! Skipped without root.

#[path = "moves/clients.rs"]
mod clients;
#[path = "moves/partitioned.rs"]
mod partitioned;
#[path = "moves/pipelined.rs"]
mod pipelined;
#[path = "moves/servers.rs"]
mod servers;
// The tests of the switch use all of the daemon and of the scene.
#[allow(dead_code)]
#[path = "switch/daemon.rs"]
mod daemon;
#[path = "switch/lab.rs"]
mod lab;
#[allow(dead_code)]
#[path = "switch/scene.rs"]
mod scene;
mod support;

use std::time::{Duration, Instant};

use clients::Clients;
use daemon::terminate;
use scene::Scene;
use servers::{Engines, KERNELS, STACK_AND_KERNEL, STACKS, Servers};
use spillway_lab::{Launch, Process};
use support::{Client, PATIENCE, eventually, value_of};

const CONNECTIONS: usize = 8;
const ROUNDS: usize = 10;
const POLICY_CONNECTIONS: usize = 32;
/// Connections that the proactive policy balances, and the time of a request: a server is overloaded by a few of them.
const PROACTIVE_CONNECTIONS: u64 = 60;
const WORK: &str = "500us";
/// Processes of curl that run at the same time, the requests of each, and the moves after which no further ones start.
const CURLS: usize = 8;
const CURL_REQUESTS: usize = 2_000;
const CURL_MOVES: u64 = 100;

fn connections_move_back_and_forth_under_load_and_nothing_is_lost(engines: Engines) {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_on(&scene, "echo", engines);
    let mut clients = Clients::start(&scene.client, scene.service(), CONNECTIONS);
    clients.wait_for_replies();
    let mut moves = 0;
    for round in 0..ROUNDS {
        let (from, to) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
        for client in clients.addresses() {
            // A command that takes as long as a move, and moves nothing.
            let began = clients.mark();
            servers.status(from);
            clients.record_quiet(client, began);
            let began = clients.mark();
            servers.migrate(from, client, to);
            clients.record_move(client, began);
            moves += 1;
        }
        assert_eq!(servers.status(to)["connections"], CONNECTIONS, "round {round}");
        clients.wait_for_replies();
    }
    let figures = clients.stop();
    println!(
        "{moves} moves, {} requests; longest wait for a reply (median): {:?} in the time of a move, {:?} in another one",
        figures.requests, figures.longest_moving, figures.longest_quiet
    );
    servers.check_moves(moves);
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// A number in the environment, or a default that suits each test run.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// With `MOVES_CONNECTIONS=1000 MOVES_SECONDS=60` a thousand connections for a minute.
fn all_connections_move_back_and_forth_at_once(engines: Engines) {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_on(&scene, "echo", engines);
    let connections = number("MOVES_CONNECTIONS", 64) as usize;
    let clients = Clients::start(&scene.client, scene.service(), connections);
    clients.wait_for_replies();
    let until = Instant::now() + Duration::from_secs(number("MOVES_SECONDS", 3));
    let (mut moves, mut from, mut to) = (0, "a", "b");
    while moves == 0 || Instant::now() < until {
        let begun = Instant::now();
        let moved = servers.migrate_all(from, to);
        assert_eq!(moved, connections);
        let took = begun.elapsed();
        moves += moved;
        (from, to) = (to, from);
        clients.wait_for_replies();
        println!("{moved} moves in {took:.1?}; all clients had replies after {:.1?}", begun.elapsed());
    }
    let figures = clients.stop();
    println!("{connections} connections, {moves} moves, {} requests", figures.requests);
    servers.check_moves(moves);
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// No order: the policy of the server at which all connections begin moves some of them. How much load the clients cause
/// depends on the machine, so the override *on* replaces the thresholds, and the policy is the one that then needs no other
/// load than one above the other server's.
#[test]
fn the_policy_alone_moves_connections_and_nothing_is_lost() {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_with_policy(&scene, "echo", "reactive", &[]);
    // The override forbids moves until all connections are open.
    assert_eq!(servers.set_override("a", "off")["override"], "off");
    servers.set_override("b", "off");
    let clients = Clients::start(&scene.client, scene.service(), POLICY_CONNECTIONS);
    clients.wait_for_replies();
    let a = servers.status("a");
    assert_eq!(a["connections"], POLICY_CONNECTIONS, "{a}");
    assert_eq!((&a["policy"]["name"], &a["moves"]["moved"]), (&"reactive".into(), &0.into()), "{a}");
    servers.set_override("a", "on");
    eventually("the policy moves connections", || servers.status("b")["connections"].as_u64() >= Some(2));
    servers.set_override("a", "auto");
    clients.wait_for_replies();
    servers.set_override("a", "off");
    // Moves that were ordered before the override end.
    let moves = || ["a", "b"].map(|name| servers.status(name)["moves"].clone());
    eventually("no move is under way", || {
        let [a, b] = moves();
        a["moved"] == b["imported"]
    });
    clients.wait_for_replies();
    let [a, b] = ["a", "b"].map(|name| servers.status(name));
    let ordered = ["load", "above_mean", "override_on"].map(|reason| a["policy"][reason].as_u64().unwrap());
    assert!(ordered.iter().sum::<u64>() >= a["moves"]["moved"].as_u64().unwrap(), "{a}");
    assert!(a["policy"]["load_ppm"].as_u64() > Some(0), "{a}");
    assert_eq!(b["moves"]["moved"], 0, "{b}");
    assert_eq!(servers.lost(), 0, "{a}\n{b}");
    let figures = clients.stop();
    println!("ordered {ordered:?}, {} moves, {} requests", a["moves"]["moved"], figures.requests);
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// Neither an order nor an override: all connections begin at one server, which has more requests than it can serve, and
/// the proactive policy moves some of them by its own thresholds. With `MOVES_CONNECTIONS=1000 MOVES_SECONDS=60` a thousand
/// connections for a minute.
#[test]
fn the_proactive_policy_alone_relieves_an_overloaded_server_and_nothing_is_lost() {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_with_policy(&scene, "echo", "proactive", &["--work", WORK]);
    let connections = number("MOVES_CONNECTIONS", PROACTIVE_CONNECTIONS) as usize;
    let clients = Clients::start(&scene.client, scene.service(), connections);
    eventually("the policy moves connections", || servers.status("b")["connections"].as_u64() >= Some(2));
    let until = Instant::now() + Duration::from_secs(number("MOVES_SECONDS", 3));
    while Instant::now() < until {
        clients.wait_for_replies();
    }
    for name in ["a", "b"] {
        servers.set_override(name, "off");
    }
    // Moves that were ordered before the override end.
    let moves = |field: &str| ["a", "b"].map(|name| servers.status(name)["moves"][field].as_u64().unwrap());
    let sum = |field: &str| moves(field).iter().sum::<u64>();
    eventually("no move is under way", || sum("moved") == sum("imported"));
    clients.wait_for_replies();
    let [a, b] = ["a", "b"].map(|name| servers.status(name));
    for status in [&a, &b] {
        let (above_mean, others) = (&status["policy"]["above_mean"], &status["policy"]["load"]);
        assert_eq!((others, &status["policy"]["override_on"]), (&0.into(), &0.into()), "{status}");
        assert!(above_mean.as_u64() >= status["moves"]["moved"].as_u64(), "{status}");
    }
    assert!(a["moves"]["moved"].as_u64() >= Some(2), "{a}");
    assert_eq!(servers.lost(), 0, "{a}\n{b}");
    let figures = clients.stop();
    println!(
        "{connections} connections, {:?} moves by the policy, {} requests",
        moves("moved"),
        figures.requests
    );
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// What a client that succeeds has printed.
fn output_of(mut client: Process) -> String {
    let ended = client.wait(PATIENCE).expect("the client has ended");
    assert!(ended.success(), "{ended}: {}", client.stderr().unwrap());
    client.stdout().unwrap()
}

/// The connections of curl move back and forth between two requests. Each curl sends all of its requests on one connection.
fn curl_gets_all_responses_on_one_connection_that_moves(engines: Engines) {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_on(&scene, "http", engines);
    let curl = |name: &str, arguments: &[&str]| {
        let options = ["--silent", "--show-error", "--max-time", "60"];
        scene.client.spawn(&Launch::new("curl").args(options).args(arguments).name(name)).unwrap()
    };
    let url = |path: &str| format!("http://{}/{path}", scene.service());
    let moved = || ["a", "b"].map(|name| servers.status(name)["moves"]["moved"].as_u64().unwrap());
    let (mut started, mut from, mut to) = (0, "a", "b");
    while moved().iter().sum::<u64>() < CURL_MOVES {
        let start = |number: usize| {
            let report = ["--write-out", " %{http_code} %{num_connects}\\n"];
            let urls = url(&format!("{number}/[1-{CURL_REQUESTS}]"));
            let arguments = [&report[..], &[urls.as_str()]].concat();
            (number, curl(&format!("curl-{number}"), &arguments))
        };
        let mut curls: Vec<_> = (started..started + CURLS).map(start).collect();
        started += CURLS;
        while curls.iter_mut().any(|(_, curl)| curl.exit_status().is_none()) {
            // A connection that has ended meanwhile does not move.
            servers.command(from, &["move", "http", "--all", "--to", to]);
            (from, to) = (to, from);
        }
        for (number, curl) in curls {
            let line = |request: usize| format!("/{number}/{request} 200 {}\n", u8::from(request == 1));
            let expected: String = (1..=CURL_REQUESTS).map(line).collect();
            assert_eq!(output_of(curl), expected, "curl {number}");
        }
    }
    let moves = moved().iter().sum::<u64>();
    println!("{moves} moves, {} requests", started * CURL_REQUESTS);
    let long = format!("Long: {}", "x".repeat(10_000));
    for (refused, arguments) in [("501", ["--data", "body"]), ("431", ["--header", &long])] {
        let report = ["--output", "/dev/null", "--write-out", "%{http_code}"];
        let url = url("refused");
        let curl = curl(refused, &[&report[..], &arguments, &[url.as_str()]].concat());
        assert_eq!(output_of(curl), refused);
    }
    servers.check_moves(usize::try_from(moves).unwrap());
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// A server without a switch's answer, and orders that cannot be carried out.
fn orders_that_cannot_be_carried_out_are_refused_with_a_reason(engines: Engines) {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_on(&scene, "kv", engines);
    let mut client = scene.client.run_inside(|| Client::new(scene.service())).unwrap();
    client.set("key", b"value");
    let address = client.stream().local_addr().unwrap();
    let refused = |from: &str, arguments: &[&str]| {
        let output = servers.command(from, arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = address.to_string();
    assert!(
        refused("a", &["move", "kv", "--connection", &text, "--to", "c"]).contains("no server has this name")
    );
    assert!(refused("a", &["move", "web", "--connection", &text]).contains("there is: kv"));
    assert!(
        refused("b", &["move", "kv", "--connection", &text, "--to", "a"])
            .contains("does not have the connection")
    );
    assert!(refused("a", &["move", "kv", "--connection", &text, "--to", "a"]).contains("does not own"));
    assert!(refused("a", &["move", "kv", "--override", "on"]).contains("no policy to override"));

    // Each server has its own store: the reply shows where the connection is.
    assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    servers.migrate("a", address, "b");
    assert_eq!(client.get("key"), None);
    let large = value_of("large", 300_000);
    client.set("large", &large);
    assert_eq!(client.get("large"), Some(large));
    servers.migrate("b", address, "a");
    assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    drop(client);
    eventually("the connection ends at the server that has it", || {
        servers.status("a")["connections"] == 0 && servers.status("b")["connections"] == 0
    });
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// The interface of the server that has the connections goes down for longer than `owner_timeout`.
#[test]
fn an_interface_that_is_down_for_a_while_ends_no_connection() {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let mut servers = Servers::start(&scene, "echo");
    let clients = Clients::start(&scene.client, scene.service(), CONNECTIONS);
    clients.wait_for_replies();
    let set = |state: &str| {
        let arguments = ["link", "set", scene.a.interface(), state];
        let mut ip = scene.a.spawn(&Launch::new("ip").args(arguments)).unwrap();
        assert!(ip.wait(PATIENCE).unwrap().success());
    };
    set("down");
    std::thread::sleep(Duration::from_secs(3));
    set("up");
    clients.wait_for_replies();
    let figures = clients.stop();
    println!("{} requests", figures.requests);
    // The server checks its interface once a second.
    eventually("the log has the change", || servers.log("a").contains("is up again"));
    let log = servers.log("a");
    let lines = |text: &str| log.matches(text).count();
    assert_eq!((lines("is down: no packet arrives"), lines("is up again")), (1, 1), "{log}");
    assert_eq!(servers.lost(), 0);
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// Servers with different keys move no connection, and say why.
#[test]
fn servers_with_different_keys_say_so_and_keep_their_connections() {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let mut servers = Servers::start_with_different_keys(&scene, "kv");
    let mut client = scene.client.run_inside(|| Client::new(scene.service())).unwrap();
    client.set("key", b"value");
    for (name, peer) in [("a", "b"), ("b", "a")] {
        let expected = format!("datagrams from {peer} fail authentication: is its peers_key_file the same?");
        eventually("the log names the peer", || servers.log(name).contains(&expected));
    }
    let text = client.stream().local_addr().unwrap().to_string();
    let output = servers.command("a", &["move", "kv", "--connection", &text, "--to", "b"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("the connection has come back"), "{error}");
    assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    let log = servers.log("a");
    assert!(log.contains("connection not moved: the connection has come back"), "{log}");
    drop(client);
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// A server that gets SIGTERM resets its connections.
fn a_server_that_ends_resets_its_connections(engines: Engines) {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_on(&scene, "kv", engines);
    let mut client = scene.client.run_inside(|| Client::new(scene.service())).unwrap();
    assert!(client.version().is_some());
    servers.migrate("a", client.stream().local_addr().unwrap(), "b");
    assert!(client.version().is_some());
    client.stream().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    servers.stop();
    assert!(client.ended(), "the server resets the connection");
    terminate(daemon);
    scene.close();
}

/// The tests that run on each TCP, with the name of the TCP.
macro_rules! on {
    ($name:ident, $engines:expr, $($test:ident),+) => {
        mod $name {
            $(
                #[test]
                fn $test() {
                    super::$test($engines);
                }
            )+
        }
    };
}

on!(
    stacks,
    super::STACKS,
    connections_move_back_and_forth_under_load_and_nothing_is_lost,
    all_connections_move_back_and_forth_at_once,
    curl_gets_all_responses_on_one_connection_that_moves,
    orders_that_cannot_be_carried_out_are_refused_with_a_reason,
    a_server_that_ends_resets_its_connections
);
on!(
    kernels,
    super::KERNELS,
    connections_move_back_and_forth_under_load_and_nothing_is_lost,
    all_connections_move_back_and_forth_at_once,
    curl_gets_all_responses_on_one_connection_that_moves,
    orders_that_cannot_be_carried_out_are_refused_with_a_reason,
    a_server_that_ends_resets_its_connections
);
on!(
    stack_and_kernel,
    super::STACK_AND_KERNEL,
    connections_move_back_and_forth_under_load_and_nothing_is_lost,
    all_connections_move_back_and_forth_at_once
);
