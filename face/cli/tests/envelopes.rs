//! `--json` prints one envelope for each outcome of a command.

mod support;

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use support::{SPILLWAY, Scratch};

/// The exit code and the envelope of a command that sees no daemon and no server of this host.
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
fn failure_prints_an_envelope_with_errors() {
    let scratch = Scratch::new();
    let (socket, file) = (scratch.path("none.sock"), scratch.path("none.toml"));
    let commands: [(&str, &[&str]); 11] = [
        ("status", &["status", "--json", "--socket", &socket]),
        ("top", &["top", "--once", "--interval", "0.1", "--json", "--socket", &socket]),
        ("connections", &["connections", "--json"]),
        ("relief", &["relief", "cache", "on", "--json", "--socket", &socket]),
        ("drain", &["drain", "cache", "--json", "--socket", &socket]),
        ("reload", &["reload", "--json", "--socket", &socket]),
        ("server on", &["server", "on", "nothing", "--json"]),
        ("server off", &["server", "off", "nothing", "--json"]),
        ("assess", &["assess", "4194305", "--duration", "0.1", "--json"]),
        ("key new", &["key", "new", "/no/such/directory/a.key", "--json"]),
        (
            "sidecar",
            &[
                "sidecar",
                "--check",
                "--json",
                "--protocol",
                "tcp",
                "--listen",
                "no-address",
                "--link",
                "127.0.0.1:1",
            ],
        ),
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
    let top = ["top", "--once", "--interval", "0.1", "--json", "--socket", &socket];
    let (_, envelope) = run(&scratch, &top);
    assert_eq!(envelope["result"]["helpers"][0]["socket"], json!(socket));
    assert!(envelope["result"]["helpers"][0]["error"].is_string(), "{envelope}");
    let (code, envelope) = run(&scratch, &["check", &file, "--json"]);
    assert_eq!((code, &envelope["ok"]), (Some(1), &json!(false)));
    assert!(envelope["result"]["problems"][0].as_str().is_some_and(|problem| problem.contains("none.toml")));
}

#[test]
fn success_prints_an_envelope_with_a_result() {
    let scratch = Scratch::new();
    let key = scratch.path("a.key");
    let (code, envelope) = run(&scratch, &["key", "new", &key, "--json"]);
    assert_eq!((code, &envelope["result"]["file"]), (Some(0), &json!(key)));
    let config = scratch.path("helper.toml");
    fs::write(&config, "[service.cache]\nserver = \"127.0.0.1:11411\"\nlisten = [\"127.0.0.1:11211\"]\n")
        .unwrap();
    let (code, envelope) = run(&scratch, &["check", &config, "--json"]);
    assert_eq!((code, &envelope["result"]["services"]), (Some(0), &json!(["cache"])));
    let own_pid = std::process::id().to_string();
    let (code, envelope) = run(&scratch, &["assess", &own_pid, "--duration", "0.1", "--json"]);
    assert_eq!((code, &envelope["ok"]), (Some(0), &json!(true)), "{envelope}");
    assert_eq!(envelope["result"]["pid"].to_string(), own_pid);
    let sidecar =
        ["sidecar", "--check", "--json", "--protocol", "tcp", "--listen", "11211", "--link", "127.0.0.1:1"];
    let (code, envelope) = run(&scratch, &sidecar);
    assert_eq!((code, &envelope["result"]["listen"]), (Some(0), &json!(["127.0.0.1:11211"])), "{envelope}");

    let (_, envelope) = run(&scratch, &["doctor", "--json"]);
    assert_eq!(envelope["ok"], envelope["result"]["is_fit"], "{envelope}");
}
