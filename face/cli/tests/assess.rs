//! `spillway assess` and `spillway doctor` on real programs.

mod support;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use spillway_lab::Place;
use spillway_lab::peers::Memcached;
use support::{Client, SPILLWAY, Scene, SetOnDrop, eventually, loopback};

fn spillway(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn assess(pid: u32) -> Value {
    let (code, text, error) = spillway(&["assess", &pid.to_string(), "--seconds", "1", "--json"]);
    assert_eq!(code, Some(0), "{error}");
    serde_json::from_str(&text).unwrap()
}

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn memcached_under_load_gets_the_verdict_yes() {
    let server = Memcached::default().start(&Place::local().unwrap()).unwrap();
    Client::new(server.address()).set("key", &[b'v'; 64]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = Client::new(server.address());
                while !done.load(Ordering::Relaxed) {
                    assert!(client.get("key").is_some());
                }
            });
        }
        let ending = SetOnDrop(&done);
        let mut last = Value::Null;
        let mut attempts = 0;
        eventually("the verdict that batching helps", || {
            last = assess(server.pid());
            attempts += 1;
            // On a busy machine a client may connect late, and the connection that set the key may still be closing.
            (last["verdict"] == "yes" && last["connections"] == 16) || attempts > 20
        });
        assert_eq!(last["verdict"], "yes", "{last:#}");
        assert!(last["gain_overloaded"].as_f64().unwrap() >= 1.5, "{last:#}");
        assert_eq!(last["connections"], 16, "{last:#}");
        let bytes = |name: &str| last[name].as_f64().unwrap().round();
        // "get key\r\n"; "VALUE key 0 64\r\n", the value, "\r\nEND\r\n".
        assert_eq!((bytes("bytes_per_request"), bytes("bytes_per_reply")), (9.0, 87.0), "{last:#}");
        let (code, text, _) = spillway(&["assess", &server.pid().to_string(), "--seconds", "0.5"]);
        assert!(code == Some(0) && text.contains("memcached") && text.contains("requests/s"), "{text}");
        drop(ending);
    });
}

#[test]
fn computing_program_gets_the_verdict_no_application() {
    let busy = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
    let busy = Program(busy);
    eventually("the verdict that the application is busy", || {
        assess(busy.0.id())["verdict"] == "no_application"
    });
    let (_, text, _) = spillway(&["assess", &busy.0.id().to_string(), "--seconds", "0.5"]);
    assert!(text.contains("sh ("), "{text}");
}

#[test]
fn several_processes_are_measured_at_the_same_time() {
    let idle = || Program(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap());
    let programs = [idle(), idle(), idle()];
    let pids = programs.each_ref().map(|program| program.0.id().to_string());
    let [first, second, third] = pids.each_ref().map(String::as_str);
    let began = Instant::now();
    let (code, text, error) = spillway(&["assess", first, second, third, "--seconds", "3", "--json"]);
    let elapsed = began.elapsed();
    assert!(elapsed < Duration::from_secs(6), "{elapsed:?}");
    let list: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text} {error}"));
    let found: Vec<String> =
        list["result"].as_array().unwrap().iter().map(|report| report["pid"].to_string()).collect();
    assert_eq!((code, found), (Some(0), pids.to_vec()));
    let (code, text, error) = spillway(&["assess", "4194305", second, "--seconds", "0.1"]);
    assert!(code == Some(1) && error.contains("no process 4194305"), "{error}");
    assert!(text.contains(&format!("sleep ({second})")), "{text}");
}

#[test]
fn processes_that_cannot_be_assessed_are_errors() {
    let (code, _, error) = spillway(&["assess", "4194305"]);
    assert!(code == Some(1) && error.contains("no process 4194305"), "{error}");
    let idle = Program(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap());
    assert_eq!(assess(idle.0.id())["verdict"], "unclear_no_clients");
    if !rustix::process::geteuid().is_root() {
        let (code, _, error) = spillway(&["assess", "1", "--seconds", "0.1"]);
        assert!(code == Some(1) && error.contains("no permission to read process"), "{error}");
    }
}

fn doctor(arguments: &[&str]) -> (Option<i32>, Value) {
    let (code, text, error) = spillway(&[&["doctor", "--json"], arguments].concat());
    (code, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text} {error}")))
}

fn finding<'a>(report: &'a Value, what: &str) -> &'a Value {
    report["findings"].as_array().unwrap().iter().rfind(|finding| finding["what"] == what).expect(what)
}

#[test]
fn doctor_finds_the_host_fit_and_probes_a_link_port() {
    let (code, report) = doctor(&[]);
    assert_eq!((code, &report["is_fit"]), (Some(0), &Value::Bool(true)), "{report:#}");
    assert_eq!(finding(&report, "preload library")["state"], "ok", "{report:#}");

    let scene = Scene::start();
    let server = scene.link.to_string();
    let key = scene.scratch.path("helper.key");
    let (code, report) = doctor(&["--link", &server, "--key", &key]);
    assert_eq!((code, &finding(&report, "link")["state"]), (Some(0), &Value::from("ok")), "{report:#}");
    let (code, report) = doctor(&["--link", &server, "--client-key", &scene.scratch.path("client.key")]);
    assert_eq!((code, &finding(&report, "link")["state"]), (Some(0), &Value::from("ok")), "{report:#}");
    // A key of the wrong role, no key at all, the wrong port.
    let (code, report) = doctor(&["--link", &server, "--client-key", &key]);
    assert_eq!((code, &finding(&report, "link")["state"]), (Some(1), &Value::from("missing")), "{report:#}");
    let (code, report) = doctor(&["--link", &server]);
    assert_eq!((code, &finding(&report, "link")["state"]), (Some(0), &Value::from("warning")), "{report:#}");
    let direct = scene.direct().to_string();
    let (code, report) = doctor(&["--link", &direct, "--key", &key]);
    assert_eq!(code, Some(1));
    assert!(finding(&report, "server")["found"].as_str().unwrap().contains("not a link port"), "{report:#}");
    let unused = loopback(spillway_ports::free_port()).to_string();
    assert_eq!(doctor(&["--link", &unused]).0, Some(1));
    scene.await_helped();
}

#[test]
fn doctor_names_missing_requirements_of_an_engine() {
    let (code, report) = doctor(&["--engine", "xdp", "--interface", "lo"]);
    assert_eq!(code, Some(1));
    let interface = finding(&report, "interface");
    assert_eq!(interface["state"], "missing", "{report:#}");
    assert!(interface["found"].as_str().unwrap().contains("Ethernet"), "{report:#}");
    // Occupy one of the local ports of connections that the engine opens.
    let bind = |port| TcpListener::bind(("0.0.0.0", port)).ok();
    let listener = (61_000..=65_535).find_map(bind).expect("one of the ports should be free");
    let (_, report) = doctor(&["--engine", "xdp", "--interface", "lo"]);
    let ports = finding(&report, "local ports");
    assert_eq!(ports["state"], "missing", "{report:#}");
    let found = ports["found"].as_str().unwrap();
    let socket = format!("{} listening", listener.local_addr().unwrap());
    // On hosts with a wider `ip_local_port_range`, `doctor` reports the missing reservation first.
    assert!(found.contains(&socket) || found.contains("ip_local_reserved_ports"), "{report:#}");
    let (code, _, error) = spillway(&["doctor", "--engine", "xdp"]);
    assert!(code == Some(2) && error.contains("--interface"), "{error}");
}
