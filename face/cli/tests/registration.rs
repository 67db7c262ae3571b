//! A helper's registration in etcd, from its start to its end.

#[path = "../../../host/discovery/tests/support/mod.rs"]
mod etcd;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use etcd::{Etcd, wait_for};
use serde_json::Value;
use spillway_lab::{Launch, Place};
use spillway_ports::free_address;
use support::{PATIENCE, SPILLWAY, Scratch};

const KEY: &str = "/spillway/cache/here";
const TERM: i32 = 15;

fn spillway(command: &[&str], scratch: &Scratch) -> String {
    let output: Output =
        Command::new(SPILLWAY).args(command).args(["--socket", &scratch.path("h.sock")]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_helper_registers_over_https_with_a_certificate_and_a_password() {
    let Some(etcd) = Etcd::secure("/spillway/cache/") else { return };
    let scratch = Scratch::new();
    fs::write(etcd.file("password"), "open sesame\n").unwrap();
    fs::set_permissions(etcd.file("password"), fs::Permissions::from_mode(0o600)).unwrap();
    let (config, file) = (scratch.path("helper.toml"), |name| etcd.file(name).display().to_string());
    let text = format!(
        "[helper]\nname = \"here\"\nthreads = 1\nsocket = \"{}\"\n[service.cache]\nserver = \"{}\"\n\
         link_listen = [\"{}\"]\nregister = \"{}\"\n[etcd]\nca_file = \"{}\"\ncert_file = \"{}\"\n\
         key_file = \"{}\"\nuser = \"helper\"\npassword_file = \"{}\"\n",
        scratch.path("h.sock"),
        free_address(),
        free_address(),
        etcd.source("/spillway/cache/"),
        file("ca.pem"),
        file("helper.pem"),
        file("helper.key"),
        file("password"),
    );
    fs::write(&config, text).unwrap();
    let launch = Launch::new(SPILLWAY).name("helper").args(["helper", "--config", &config]);
    // `place` must live until the helper's log is read below, because it owns the log.
    let place = Place::local().unwrap();
    let mut helper = place.spawn(&launch).unwrap();
    wait_for("the registration", || {
        let output = Command::new(SPILLWAY)
            .args(["status", "--json", "--socket", &scratch.path("h.sock")])
            .output()
            .unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        status["services"][0]["registration"]["registered_ms"].as_u64()
    });
    helper.signal(TERM).unwrap();
    let ended = helper.wait(PATIENCE).expect("exit status of the helper");
    let log = helper.stderr().unwrap();
    assert!(ended.success() && log.contains("no longer registered") && !log.contains("sesame"), "{log}");
}

#[test]
fn a_helper_is_registered_while_it_serves() {
    let Some(etcd) = Etcd::start() else { return };
    let scratch = Scratch::new();
    let (server, link, other_address) = (free_address(), free_address(), free_address());
    let config = |extra: &str| {
        let text = format!(
            "[helper]\nname = \"here\"\nthreads = 1\nsocket = \"{}\"\n[service.cache]\nserver = \"{server}\"\n\
             link_listen = [\"{link}\"]\nregister = \"{}\"\n{extra}\n",
            scratch.path("h.sock"),
            etcd.source("/spillway/cache/")
        );
        fs::write(scratch.path("helper.toml"), text).unwrap();
    };
    let registered = || {
        let value: Value = serde_json::from_str(&etcd.value(KEY)?).ok()?;
        value["link"].as_str().map(str::to_owned)
    };
    config("");
    let launch =
        Launch::new(SPILLWAY).name("helper").args(["helper", "--config", &scratch.path("helper.toml")]);
    let place = Place::local().unwrap();
    let mut helper = place.spawn(&launch).unwrap();
    wait_for("the registration", || registered().filter(|link_address| *link_address == link.to_string()));
    let status: Value = wait_for("the registration in the status", || {
        let status: Value = serde_json::from_str(&spillway(&["status", "--json"], &scratch)).unwrap();
        let registration = &status["services"][0]["registration"];
        registration["registered_ms"].is_u64().then(|| registration.clone())
    });
    assert_eq!((&status["registrations"], &status["error"]), (&1.into(), &Value::Null));
    assert!(spillway(&["status"], &scratch).contains(&format!("registered as {link} for")));

    config(&format!("advertise = \"{other_address}\""));
    let changed = spillway(&["reload"], &scratch);
    assert!(changed.contains(&format!("advertise = \"{other_address}\"")), "{changed}");
    wait_for("the other address", || {
        registered().filter(|link_address| *link_address == other_address.to_string())
    });

    // A drain removes the registration, and a reload adds it again.
    spillway(&["drain", "cache"], &scratch);
    wait_for("no registration", || registered().is_none().then_some(()));
    assert!(!spillway(&["status"], &scratch).contains("registered as"));
    spillway(&["reload"], &scratch);
    wait_for("the registration again", registered);

    // SIGTERM removes the registration before the helper's process ends.
    helper.signal(TERM).unwrap();
    let ended = helper.wait(PATIENCE).expect("exit status of the helper");
    let log = helper.stderr().unwrap();
    assert!(ended.success() && registered().is_none(), "{log}");
    assert!(log.contains("no longer registered"), "{log}");
}
