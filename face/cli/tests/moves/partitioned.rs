//! Each of two servers has a part of the targets, and hands the requests for the other part off.

use spillway_lab::Launch;

use crate::daemon::terminate;
use crate::output_of;
use crate::scene::Scene;
use crate::servers::{Engines, KERNEL_AND_STACK, KERNELS, STACK_AND_KERNEL, STACKS, Servers};

/// Processes of curl that run at the same time, and the requests of each.
const CURLS: usize = 8;
const CURL_REQUESTS: usize = 2_000;

#[test]
fn curl_on_two_stacks() {
    curl_gets_each_response_from_the_server_that_has_its_target(STACKS);
}

#[test]
fn curl_on_two_kernels() {
    curl_gets_each_response_from_the_server_that_has_its_target(KERNELS);
}

#[test]
fn curl_on_a_kernel_and_a_stack() {
    curl_gets_each_response_from_the_server_that_has_its_target(KERNEL_AND_STACK);
}

#[test]
fn curl_on_a_stack_and_a_kernel() {
    curl_gets_each_response_from_the_server_that_has_its_target(STACK_AND_KERNEL);
}

#[test]
fn python_and_node_on_two_stacks() {
    python_and_node_get_each_response_from_the_server_that_has_its_target(STACKS);
}

#[test]
fn python_and_node_on_two_kernels() {
    python_and_node_get_each_response_from_the_server_that_has_its_target(KERNELS);
}

/// How often a connection is handed off whose requests these servers have served. It begins at server a.
fn hand_offs(served_by: &[&str]) -> usize {
    let changes = served_by.windows(2).filter(|pair| pair[0] != pair[1]).count();
    changes + usize::from(served_by[0] == "b")
}

/// Each curl sends all of its requests on one connection.
fn curl_gets_each_response_from_the_server_that_has_its_target(engines: Engines) {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_partitioned(&scene, engines);
    let curls: Vec<_> = (0..CURLS)
        .map(|number| {
            let url = format!("http://{}/[1-{CURL_REQUESTS}]", scene.service());
            let report = " %{http_code} %{num_connects} %header{served-by}\\n";
            let options = ["--silent", "--show-error", "--max-time", "60", "--write-out", report, &url];
            scene.client.spawn(&Launch::new("curl").args(options).name(format!("curl-{number}"))).unwrap()
        })
        .collect();
    let outputs: Vec<String> = curls.into_iter().map(output_of).collect();
    let served_by: Vec<&str> = outputs[0].lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    let line = |(at, server): (usize, &&str)| format!("/{} 200 {} {server}\n", at + 1, u8::from(at == 0));
    let expected: String = served_by.iter().enumerate().map(line).collect();
    for (number, output) in outputs.iter().enumerate() {
        assert_eq!(*output, expected, "curl {number}");
    }
    for server in ["a", "b"] {
        let targets = served_by.iter().filter(|name| **name == server).count();
        assert!(targets > CURL_REQUESTS / 3, "{targets} of {CURL_REQUESTS} targets belong to {server}");
    }
    let moves = CURLS * hand_offs(&served_by);
    println!("{moves} requests of {} were handed off", CURLS * CURL_REQUESTS);
    servers.check_moves(moves);
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// As above, with Python's http.client and Node. Each gets all of its responses on one connection.
fn python_and_node_get_each_response_from_the_server_that_has_its_target(engines: Engines) {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_partitioned(&scene, engines);
    let (host, port) = (scene.service().ip().to_string(), scene.service().port().to_string());
    let requests = CURL_REQUESTS.to_string();
    let scripts =
        [("/usr/bin/python3", "-c", include_str!("http.py")), ("node", "-e", include_str!("http.js"))];
    let clients = scripts.iter().cycle().take(2 * scripts.len()).enumerate();
    let clients: Vec<_> = clients
        .map(|(number, (program, option, script))| {
            let launch = Launch::new(*program).args([*option, *script, &host, &port, &requests]);
            scene.client.spawn(&launch.name(format!("client-{number}"))).unwrap()
        })
        .collect();
    let outputs: Vec<String> = clients.into_iter().map(output_of).collect();
    let served_by: Vec<&str> = outputs[0].lines().collect();
    assert_eq!(served_by.len(), CURL_REQUESTS);
    assert!(outputs.iter().all(|output| *output == outputs[0]), "each target has one server");
    let moves = outputs.len() * hand_offs(&served_by);
    println!("{moves} requests of {} were handed off", outputs.len() * CURL_REQUESTS);
    servers.check_moves(moves);
    servers.stop();
    terminate(daemon);
    scene.close();
}
