//! `--json` prints one envelope, whatever a command did.

mod support;

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use support::{SPILLWAY, Scratch};

/// The exit code and the envelope of a command, asked where no daemon and no server of this host is seen.
fn run(scratch: &Scratch, args: &[&str]) -> (Option<i32>, Value) {
    let output = Command::new(SPILLWAY)
        .args(args)
        .env("SPILLWAY_STATUS_DIR", scratch.path(""))
        .env("XDG_RUNTIME_DIR", scratch.path(""))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let envelope = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text:?}"));
    (output.status.code(), envelope)
}

#[test]
fn a_failure_is_an_envelope_with_its_error() {
    let scratch = Scratch::new();
    let (socket, file) = (scratch.path("none.sock"), scratch.path("none.toml"));
    let commands: [(&str, &[&str]); 9] = [
        ("status", &["status", "--json", "--socket", &socket]),
        ("connections", &["connections", "--json"]),
        ("relief", &["relief", "cache", "on", "--json", "--socket", &socket]),
        ("drain", &["drain", "cache", "--json", "--socket", &socket]),
        ("reload", &["reload", "--json", "--socket", &socket]),
        ("server on", &["server", "on", "nothing", "--json"]),
        ("server off", &["server", "off", "nothing", "--json"]),
        ("assess", &["assess", "4194305", "--duration", "0.1", "--json"]),
        ("key new", &["key", "new", "/no/such/directory/a.key", "--json"]),
    ];
    for (name, args) in commands {
        let (code, envelope) = run(&scratch, args);
        assert_eq!(
            (code, &envelope["ok"], &envelope["schema"]),
            (Some(1), &json!(false), &json!(1)),
            "{args:?}"
        );
        assert_eq!(envelope["command"], name);
        assert!(envelope["errors"][0].is_string() && envelope["warnings"].is_array(), "{args:?}: {envelope}");
    }
    let (code, envelope) = run(&scratch, &["check", &file, "--json"]);
    assert_eq!((code, &envelope["ok"]), (Some(1), &json!(false)));
    assert!(envelope["result"]["problems"][0].as_str().is_some_and(|problem| problem.contains("none.toml")));
}

#[test]
fn a_success_is_an_envelope_with_its_result() {
    let scratch = Scratch::new();
    let key = scratch.path("a.key");
    let (code, envelope) = run(&scratch, &["key", "new", &key, "--json"]);
    assert_eq!((code, &envelope["result"]["file"]), (Some(0), &json!(key)));
    let config = scratch.path("helper.toml");
    fs::write(&config, "[service.cache]\nserver = \"127.0.0.1:11411\"\nlisten = [\"127.0.0.1:11211\"]\n")
        .unwrap();
    let (code, envelope) = run(&scratch, &["check", &config, "--json"]);
    assert_eq!((code, &envelope["result"]["services"]), (Some(0), &json!(["cache"])));
    let own = std::process::id().to_string();
    let (code, envelope) = run(&scratch, &["assess", &own, "--duration", "0.1", "--json"]);
    assert_eq!((code, &envelope["ok"]), (Some(0), &json!(true)), "{envelope}");
    assert_eq!(envelope["result"]["pid"].to_string(), own);
    let (_, envelope) = run(&scratch, &["doctor", "--json"]);
    assert_eq!(envelope["ok"], envelope["result"]["is_fit"], "{envelope}");
}
