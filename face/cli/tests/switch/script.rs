//! The script of `docs/howto/switch.md` that moves the rule of a flow runs as printed, with the laboratory's addresses;
//! and `spillway-lab agent` explains what it refuses.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use spillway_lab::{Host, Launch};

use crate::daemon::terminate;
use crate::scene::Scene;
use crate::support::{PATIENCE, SPILLWAY, eventually};
use crate::{connect, memcached};

const PAGE: &str = include_str!("../../../../docs/howto/switch.md");
/// The comment above the script.
const MARK: &str = "<!-- run by face/cli/tests/switch/script.rs -->\n```sh\n";
/// The command of the laboratory is built with the workspace, not with this crate.
const LABORATORY: &str = "spillway-lab";

/// The page's names of what the scene has, and the scene's.
fn names(scene: &Scene, client: SocketAddr) -> Vec<(&'static str, String)> {
    let laboratory = Path::new(SPILLWAY).with_file_name(LABORATORY);
    assert!(laboratory.exists(), "{} is missing; build the workspace first", laboratory.display());
    vec![
        ("10.0.0.1:9511", scene.control().to_string()),
        ("10.0.0.5:11211", scene.service().to_string()),
        ("10.0.0.6:21211", scene.place().endpoint().to_string()),
        ("10.0.0.7:40112", client.to_string()),
        ("02:00:00:00:00:06", scene.place().mac().to_string()),
        ("/etc/spillway/", scene.scratch.path("")),
        ("spillway-lab agent", format!("{} agent", laboratory.display())),
        ("spillway flows", format!("{SPILLWAY} flows --socket {}", scene.socket())),
    ]
}

/// Replaces the page's names. Each of them must occur, because the script and the test would differ otherwise.
fn with_names(text: &str, names: &[(&str, String)]) -> String {
    // Through marks, so that no replacement is replaced again.
    let mut marked = text.to_owned();
    for (number, (name, _)) in names.iter().enumerate() {
        marked = marked.replace(name, &format!("<{number}>"));
    }
    names.iter().enumerate().fold(marked, |text, (number, (name, value))| {
        let mark = format!("<{number}>");
        assert!(text.contains(&mark), "the text should contain {name}");
        text.replace(&mark, value)
    })
}

/// The script: each paragraph, and the name of the host on which its first line says it runs.
fn paragraphs() -> Vec<(&'static str, &'static str)> {
    let (_, script) = PAGE.split_once(MARK).expect("docs/howto/switch.md should have the script");
    let (script, _) = script.split_once("```").unwrap();
    let host_of = |paragraph: &str| {
        let comment = paragraph.trim().lines().next().unwrap_or_default().to_owned();
        let hosts = [("server a's host", "a"), ("server b's host", "b"), ("the switch's host", "switch")];
        let host = hosts.into_iter().find(|(text, _)| comment.starts_with(&format!("# on {text}")));
        host.unwrap_or_else(|| panic!("{comment}: no host")).1
    };
    script.split("\n\n").map(|paragraph| (host_of(paragraph), paragraph)).collect()
}

/// Runs a shell script on a host, and returns its exit code and its output on both streams.
fn shell(scene: &Scene, host: &str, script: &str) -> (i32, String, String) {
    let launch = Launch::new("sh").args(["-e", "-c", script]).name("script");
    let started = match host {
        "a" => scene.a.spawn(&launch),
        "b" => scene.b.spawn(&launch),
        _ => scene.switch.spawn(&launch),
    };
    let mut process = started.unwrap();
    let ended = process.wait(PATIENCE).expect("the script should end");
    (ended.code().unwrap_or(-1), process.stdout().unwrap(), process.stderr().unwrap())
}

#[test]
fn the_documented_script_moves_the_rule_of_a_flow() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let mut client = connect(&scene.client, scene.service());
    assert!(client.version().is_some());
    let address = client.stream().local_addr().unwrap();
    let names = names(&scene, address);

    let paragraphs = paragraphs();
    let commands = |text: &str| text.lines().filter(|line| line.starts_with("spillway")).count();
    let total: usize = paragraphs.iter().map(|(_, paragraph)| commands(paragraph)).sum();
    assert_eq!(total, 6, "{paragraphs:?}");
    let whole: String = paragraphs.iter().map(|(_, paragraph)| *paragraph).collect();
    let _every_name_occurs = with_names(&whole, &names);
    let used = |paragraph: &str| -> Vec<(&str, String)> {
        names.iter().filter(|(name, _)| paragraph.contains(name)).cloned().collect()
    };
    let mut printed = String::new();
    for (host, paragraph) in paragraphs {
        let script = with_names(paragraph, &used(paragraph));
        let (code, stdout, stderr) = shell(&scene, host, &script);
        assert_eq!((code, stderr.as_str()), (0, ""), "{script}\n{stdout}");
        printed = stdout;
    }

    // The page shows the line that the last command prints, except the numbers.
    let start = "service=cache client=10.0.0.7:40112";
    let shown = PAGE.lines().find(|line| line.starts_with(start)).expect("the line of a flow");
    let shown = with_names(shown, &used(shown));
    let (shown, _) = shown.split_once(" generation=").unwrap();
    assert!(printed.starts_with(&format!("{shown} generation=")), "{printed} instead of {shown}");
    assert_eq!(printed.lines().count(), 1, "{printed}");

    // The rule has moved, and not the connection: server `b` does not have it.
    client.send(b"version\r\n");
    assert!(client.ended(), "the server without the connection should reset it");
    terminate(daemon);
    scene.close();
}

/// Runs `spillway-lab agent` as a server, on its host.
struct Servers<'a> {
    scene: &'a Scene,
    laboratory: String,
}

impl Servers<'_> {
    fn host(&self, id: u8) -> (&Host, &str) {
        if id == 1 { (&self.scene.a, "a") } else { (&self.scene.b, "b") }
    }

    /// Returns the document, and the text of the error.
    fn try_as(&self, id: u8, options: &str, request: &str) -> (Value, String) {
        let key = self.scene.scratch.path(if id == 1 { "a.key" } else { "b.key" });
        let (host, name) = self.host(id);
        let common = format!("--switch {} --id {id} --local {}", self.scene.control(), host.address());
        let script = format!("{} agent {common} --key {key} --json {options} {request}", self.laboratory);
        let (code, stdout, stderr) = shell(self.scene, name, &script);
        let document: Value =
            serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
        assert_eq!(document["ok"], code == 0, "{stdout}{stderr}");
        (document, stderr)
    }

    #[track_caller]
    fn run_as(&self, id: u8, request: &str) -> Value {
        let (document, stderr) = self.try_as(id, "", request);
        assert_eq!((&document["ok"], stderr.as_str()), (&json!(true), ""), "{request}: {document}");
        document
    }

    #[track_caller]
    fn refused_as(&self, id: u8, request: &str, status: &str, next_step: &str) {
        let (document, stderr) = self.try_as(id, "", request);
        assert_eq!(document["status"], status, "{request}: {document}");
        assert!(stderr.contains(next_step), "{request}: {stderr}");
    }
}

#[test]
fn an_agent_of_the_laboratory_sends_every_request_and_explains_refusals() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let laboratory = Path::new(SPILLWAY).with_file_name(LABORATORY).display().to_string();
    let servers = Servers { scene: &scene, laboratory };
    let service = format!("--service {}", scene.service());
    let flow = format!("--client {}:40112 {service}", scene.client.address());
    let target = format!("--target {} --mac {}", scene.place().endpoint(), scene.place().mac());

    // Before hello, the switch answers questions only.
    servers.refused_as(1, &format!("get {flow}"), "no entry", "belongs to its original server");
    servers.refused_as(1, &format!("heartbeat {service}"), "no owner", "say `hello`");
    servers.refused_as(1, &format!("prepare {flow} {target}"), "no owner", "say `hello`");
    let term = servers.run_as(1, "hello")["term"].as_u64().unwrap();
    assert!(servers.run_as(1, "hello")["term"].as_u64() > Some(term), "each hello begins a term");
    servers.run_as(2, "hello");
    servers.run_as(1, &format!("heartbeat {service} --load 7"));
    servers.run_as(2, &format!("heartbeat {service} --load 5 --free-places 3 --weight 2"));
    let owners = servers.run_as(1, &format!("list {service}"))["owners"].take();
    let listed = |index: usize, load: u32| {
        assert_eq!((&owners[index]["alive"], &owners[index]["load"]), (&json!(true), &json!(load)));
    };
    listed(0, 7);
    listed(1, 5);
    assert_eq!(owners.as_array().unwrap().len(), 2, "{owners}");

    // Without a target the switch chooses the least loaded server, which refuses; then `a` keeps the flow.
    servers.refused_as(2, &format!("prepare {flow}"), "forbidden", "`get` shows the owner");
    assert_eq!(servers.run_as(1, &format!("prepare {flow}"))["entry"]["state"], "asked");
    let refused = servers.run_as(2, &format!("prepared {flow} --refuse"));
    assert_eq!(refused["entry"]["state"], "owned", "{refused}");

    // *hold* without *prepare*, now that the flow has an entry.
    let generation = refused["entry"]["generation"].as_u64().unwrap();
    servers.refused_as(
        1,
        &format!("hold {flow} {target} --generation {}", generation - 1),
        "stale",
        "another generation",
    );
    let elsewhere = format!("--target {} --mac 02:00:00:00:00:99", scene.place().endpoint());
    servers.refused_as(1, &format!("hold {flow} {elsewhere}"), "forbidden", "no server has --target");
    let held = servers.run_as(1, &format!("hold {flow} {target} --generation {generation} --lifetime 60s"));
    assert_eq!(held["entry"]["state"], "held", "{held}");
    let owned = servers.run_as(2, &format!("own {flow}"));
    assert_eq!(owned["entry"]["owner"]["address"], scene.place().endpoint().to_string());
    servers.refused_as(1, &format!("release {flow}"), "forbidden", "neither the flow's owner");
    assert_eq!(servers.run_as(1, &format!("get {flow}"))["entry"], owned["entry"]);
    assert_eq!(servers.run_as(2, &format!("release {flow}"))["entry"]["state"], "none");

    // The switch does not answer a message under a wrong key.
    fs::rename(scene.scratch.path("b.key"), scene.scratch.path("other.key")).unwrap();
    fs::copy(scene.scratch.path("a.key"), scene.scratch.path("b.key")).unwrap();
    let (document, stderr) = servers.try_as(2, "--timeout 200ms", "hello");
    assert!(document["error"].as_str().unwrap().contains("has not answered"), "{document}");
    assert!(stderr.contains("drop_control_tag") && stderr.contains("200ms"), "{stderr}");
    eventually("the messages under a wrong key are counted", || {
        scene.result(&["status"])["packets"]["drop_control_tag"].as_u64() > Some(0)
    });
    terminate(daemon);
    scene.close();
}
