//! Unmodified clients in several languages through a sidecar, while one of two helpers is killed each second: no
//! request fails or is done twice, and no connection is lost.

mod support;

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use spillway_lab::peers::{Memcached, Redis};
use support::SPILLWAY;
use support::sidecar::{Deployment, Sidecar};

/// Seconds for which each client works.
const WORK: &str = "6";

/// Debian's Python, which has the client libraries; another Python may come first in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// Runs clients at the same time. Each must exit with 0 and print the number of answered requests last.
fn run_all(mut clients: Vec<(&str, Command)>) {
    let running: Vec<_> = clients
        .iter_mut()
        .map(|(name, command)| {
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn().unwrap_or_else(|error| {
                panic!("{name} should start ({error}); `make setup` installs what it needs")
            });
            (*name, child)
        })
        .collect();
    for (name, child) in running {
        let output = child.wait_with_output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {stdout}\n{errors}");
        let requests = stdout.trim().lines().last().and_then(|line| line.parse::<u64>().ok());
        let requests = requests.unwrap_or_else(|| panic!("{name} prints no number: {stdout}\n{errors}"));
        assert!(requests > 100, "{name} did {requests} requests only");
    }
}

fn client(program: &str, arguments: &[&str], address: SocketAddr) -> Command {
    let mut command = Command::new(program);
    // Debian's directory of Node modules, for a Node from another source.
    command.args(arguments).args([&address.port().to_string(), WORK]).env("NODE_PATH", "/usr/share/nodejs");
    command
}

/// Checks that no connection failed, although helpers were killed and sessions moved.
fn expect_no_failures(sidecar: &Sidecar, killed: u32) {
    let status = sidecar.status();
    assert!(killed >= 3, "only {killed} helpers were killed");
    assert!(sidecar.number("/moves/lost") >= 3, "sessions should move: {status:#}");
    for reason in ["server_reset", "refused", "gone", "no_carrier"] {
        assert_eq!(status["ended"][reason], 0, "{reason}: {status:#}");
    }
    assert!(sidecar.number("/latency_helped/count") > 0, "latency should be measured: {status:#}");
}

#[test]
fn memcached_clients_have_no_failures_while_helpers_are_killed() {
    let mut deployment =
        Deployment::start(2, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--relief", "on"]);
    let java = deployment.scratch.path("Client.java");
    std::fs::write(&java, include_str!("clients/Client.java")).unwrap();
    let ((), killed) = deployment.while_helpers_are_killed(|| {
        run_all(vec![
            ("pymemcache", client(PYTHON, &["-c", include_str!("clients/memcached.py")], sidecar.address)),
            (
                "spymemcached",
                client(
                    "java",
                    &["-Xmx64m", "-cp", "/usr/share/java/spymemcached.jar", &java],
                    sidecar.address,
                ),
            ),
        ]);
    });
    expect_no_failures(&sidecar, killed);
}

#[test]
fn memccapable_passes_while_helpers_are_killed() {
    let mut deployment =
        Deployment::start(2, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--threads", "2", "--relief", "on"]);
    let (_, killed) = deployment.while_helpers_are_killed(|| {
        for protocol in ["-a", "-b", "-a", "-b"] {
            let port = sidecar.address.port().to_string();
            let output =
                Command::new("memccapable").args(["-h", "127.0.0.1", "-p", &port, protocol]).output();
            let output = output.expect("run memccapable (package libmemcached-tools)");
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && !stdout.contains("[FAIL]"), "{stdout}");
            // Pause between the runs, so that they last until helpers are killed.
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    });
    assert!(killed >= 3 && sidecar.number("/accepted") >= 4);
    assert_eq!(
        sidecar.number("/ended/no_carrier") + sidecar.number("/ended/gone"),
        0,
        "{:#}",
        sidecar.status()
    );
}

#[test]
fn redis_clients_have_no_failures_while_helpers_are_killed() {
    let mut deployment =
        Deployment::start(2, |place, run| Redis::default().wrapper(run).start(place).unwrap());
    let sidecar = deployment.sidecar(&["--protocol", "redis", "--relief", "on"]);
    let ((), killed) = deployment.while_helpers_are_killed(|| {
        let port = sidecar.address.port().to_string();
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &port, "-r", "400", "-i", "0.012", "INCR", "cli"]);
        let mut benchmark = Command::new("sh");
        let run =
            format!("redis-benchmark -p {port} -c 20 -n 20000 -t set,get,incr,lpush,mset -q && echo 100000");
        benchmark.args(["-c", &run]);
        run_all(vec![
            ("redis-py", client(PYTHON, &["-c", include_str!("clients/redis.py")], sidecar.address)),
            ("node-redis", client("node", &["-e", include_str!("clients/redis.js")], sidecar.address)),
            // INCR prints the number of requests.
            ("redis-cli", cli),
            ("redis-benchmark", benchmark),
        ]);
    });
    expect_no_failures(&sidecar, killed);
}

#[test]
fn two_hundred_connections_lose_no_request() {
    let mut deployment =
        Deployment::start(2, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--relief", "on"]);
    let report = deployment.scratch.path("report.json");
    let (output, killed) = deployment.while_helpers_are_killed(|| {
        let mut load = Command::new(SPILLWAY);
        load.args([
            "load",
            "--protocol",
            "memcached",
            "--server",
            &sidecar.address.to_string(),
            "--json",
            &report,
        ]);
        load.args(["-c", "200", "--threads", "1", "--rate", "2000", "-d", "6s", "--get-ratio", "0.8"]);
        load.args(["--value-size", "3000", "--keys", "2000"]).output().unwrap()
    });
    let stdout = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let total =
        |name: &str| report["total"][name].as_u64().unwrap_or_else(|| panic!("{name} should be reported"));
    for failure in ["wrong", "lost", "resets", "unasked"] {
        assert_eq!(total(failure), 0, "{failure}\n{stdout}");
    }
    assert!(total("answered") > 1_000, "{stdout}");
    assert!(sidecar.number("/moves/lost") >= 100, "{:#}", sidecar.status());
    expect_no_failures(&sidecar, killed);
}
