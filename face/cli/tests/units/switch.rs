//! The switch's unit: a daemon with two capabilities, whose program and tables outlive it.

use std::process::Command;

use serde_json::Value;

use super::System;

/// The example of the reference, whose interfaces are called `port0` to `port2` here.
const EXAMPLE: &str = include_str!("../../../switch/src/config/example.toml");

/// The commands of docs/howto/switch.md that install the unit, with keys of both servers.
const INSTALL: &str = r#"
    id spillway >/dev/null || useradd --system --shell /usr/sbin/nologin spillway
    install -D -m 0644 /usr/share/spillway/systemd/spillway-switch.service /etc/systemd/system/spillway-switch.service
    mkdir -p /etc/spillway /etc/systemd/system/spillway-switch.service.d
    echo '[Service]' >/etc/systemd/system/spillway-switch.service.d/keys.conf
    for key in a.key b.key; do
        spillway key new /etc/spillway/$key
        echo "LoadCredential=$key:/etc/spillway/$key" >>/etc/systemd/system/spillway-switch.service.d/keys.conf
    done
    systemctl daemon-reload
"#;

/// CAP_NET_ADMIN (12) and CAP_BPF (39) of <linux/capability.h>.
const CAPABILITIES: u64 = 1 << 12 | 1 << 39;

pub fn switch_unit(system: &System) {
    for end in 0..3 {
        ip(system, &format!("link add port{end} type veth peer name host{end}"));
        ip(system, &format!("link set port{end} up"));
    }
    // systemd mounts this file system, but not in a container.
    system.run_successfully(&["mount", "-t", "bpf", "bpf", "/sys/fs/bpf"]);
    system.run_successfully(&["sh", "-ec", INSTALL]);
    let config = EXAMPLE.replace("\"eth", "\"port");
    configure(system, &config);
    system.run_successfully(&["systemctl", "start", "spillway-switch"]);

    let pid = show(system, "MainPID");
    let status = system.run_successfully(&["cat", &format!("/proc/{pid}/status")]);
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().to_owned()
    };
    assert_eq!(u64::from_str_radix(&field("CapBnd:"), 16), Ok(CAPABILITIES), "{status}");
    assert_eq!(u64::from_str_radix(&field("CapEff:"), 16), Ok(CAPABILITIES), "{status}");
    assert!(field("NoNewPrivs:") == "1" && !field("Uid:").starts_with('0'), "{status}");
    let first = switch_status(system);
    let problems: Vec<&Value> =
        first["ports"].as_array().unwrap().iter().map(|port| &port["problem"]).collect();
    assert_eq!(problems, [&Value::Null; 3], "{first}");

    // A reload reports its outcome; a refused one leaves the settings in force.
    configure(system, &config.replace("[switch]\n", "[switch]\nowner_timeout = \"2s\"\n"));
    system.run_successfully(&["systemctl", "reload", "spillway-switch"]);
    configure(system, "[switch]\n");
    assert!(!system.run(&["systemctl", "reload", "spillway-switch"]).status.success());
    assert_eq!(show(system, "MainPID"), pid);

    // A killed daemon is started again, and finds its tables.
    configure(system, &config);
    system.run_successfully(&["systemctl", "kill", "-s", "KILL", "spillway-switch"]);
    system.eventually("the daemon runs again", |system| {
        show(system, "SubState") == "running"
            && ![pid.as_str(), "0"].contains(&show(system, "MainPID").as_str())
    });
    assert_eq!(switch_status(system)["epoch"], first["epoch"]);

    // The program stays without the daemon, until it is detached.
    let pins = ["test", "-e", "/sys/fs/bpf/spillway/switch/port-0"];
    system.run_successfully(&["systemctl", "stop", "spillway-switch"]);
    assert_eq!(show(system, "Result"), "success");
    system.run_successfully(&pins);
    system.run_successfully(&["spillway", "switch", "--config", "/etc/spillway/switch.toml", "--detach"]);
    assert!(!system.run(&pins).status.success());
}

/// Runs this host's `ip`, which a fresh Debian does not contain, in the system's network namespace.
fn ip(system: &System, arguments: &str) {
    let target = system.init.to_string();
    let output = Command::new("nsenter")
        .args(["--target", &target, "--net", "ip"])
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", super::text(&output));
}

fn configure(system: &System, text: &str) {
    let script = format!("cat >/etc/spillway/switch.toml <<'END'\n{text}END");
    system.run_successfully(&["bash", "-c", &script]);
}

fn show(system: &System, property: &str) -> String {
    system.run_successfully(&["systemctl", "show", "-P", property, "spillway-switch"]).trim().to_owned()
}

fn switch_status(system: &System) -> Value {
    let socket = "/run/spillway/switch.sock";
    let text = system.run_successfully(&["spillway", "status", "--socket", socket, "--json"]);
    let mut envelope: Value = serde_json::from_str(&text).unwrap();
    envelope["result"].take()
}
