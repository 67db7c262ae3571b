//! `spillway check`: exit status, positions of mistakes, the reference and its page; and the units.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SPILLWAY: &str = env!("CARGO_BIN_EXE_spillway");
const VALID: &str = "[service.cache]\nserver = \"127.0.0.1:11411\"\nlisten = [\"127.0.0.1:11211\"]\n";

struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let path = std::env::temp_dir().join(format!("spillway-check-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn spillway(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn valid_file_is_shown_and_mistakes_have_positions() {
    let file = File::new("fine.toml", VALID);
    let (code, stdout, _) = spillway(&["check", file.path()]);
    assert!(code == Some(0) && stdout.contains("fine, 1 services"), "{stdout}");
    let (code, shown, _) = spillway(&["check", file.path(), "--show"]);
    assert_eq!(code, Some(0));
    for line in ["threads = 0", "max_memory = \"1GiB\"", "clients = [\"10.0.0.0/8\"", "max_delay = \"200us\""]
    {
        assert!(shown.contains(line), "{shown}");
    }
    // The output is a valid configuration file with the same values.
    let second = File::new("again.toml", &shown);
    assert_eq!(spillway(&["check", second.path(), "--show"]).1, shown);

    let invalid = File::new("invalid.toml", &format!("{VALID}protocol = \"http\"\nlinks_per_thread = 0\n"));
    let (code, stdout, stderr) = spillway(&["check", invalid.path()]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(lines[0].starts_with(&format!("{}:4:12: give \"tcp\"", invalid.path())), "{stderr}");
    assert!(lines[1].starts_with(&format!("{}:5:20: give a whole number", invalid.path())), "{stderr}");
    let (code, _, helper) = spillway(&["helper", "--config", invalid.path()]);
    assert!(code == Some(1) && helper.contains(lines[0]) && helper.contains(lines[1]), "{helper}");
    let (code, _, stderr) = spillway(&["check", "/no/such/file"]);
    assert!(code == Some(1) && stderr.contains("cannot be read"), "{stderr}");
    let (code, _, stderr) = spillway(&["helper", "--config", invalid.path(), "--threads", "2"]);
    assert!(code == Some(2) && stderr.contains("--threads"), "{stderr}");
}

#[test]
fn check_without_keys_reads_no_key_files() {
    let remote = VALID.replace("127.0.0.1:11411", "10.0.0.5:11411");
    let file = File::new("keys.toml", &format!("{remote}key_files = [\"/no/such/key\"]\n"));
    let (code, _, stderr) = spillway(&["check", file.path()]);
    assert!(code == Some(1) && stderr.contains(":4:14: ") && stderr.contains("spillway key new"), "{stderr}");
    assert_eq!(spillway(&["check", file.path(), "--without-keys"]).0, Some(0));
}

#[test]
fn reference_equals_the_configuration_page() {
    assert_reference(&["check", "--reference"], "docs/configuration.md");
}

fn assert_reference(arguments: &[&str], page: &str) {
    let (code, reference, _) = spillway(arguments);
    assert_eq!(code, Some(0));
    assert!(
        fs::read_to_string(project(page)).unwrap() == reference,
        "{page} differs from the reference; write it with: spillway {} > {page}",
        arguments.join(" ")
    );
}

/// The example of the reference.
const SWITCH: &str = include_str!("../../switch/src/config/example.toml");

#[test]
fn a_switchs_file_is_distinguished_from_a_helpers() {
    let file = File::new("switch.toml", SWITCH);
    let (code, stdout, stderr) = spillway(&["check", file.path(), "--without-keys"]);
    assert!(code == Some(0) && stdout.contains("fine, 3 ports, 1 services, 2 servers"), "{stdout}{stderr}");
    let (_, shown, _) = spillway(&["check", file.path(), "--without-keys", "--show"]);
    assert!(shown.contains("owner_timeout = \"1s\"") && shown.contains("may_own = [\"cache\"]"), "{shown}");
    let (code, stdout, _) = spillway(&["check", file.path(), "--without-keys", "--json"]);
    let envelope: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &envelope["result"]["servers"]), (Some(0), &serde_json::json!(["a", "b"])));

    let invalid = SWITCH.replace("port = \"eth1\"", "port = \"eth7\"");
    let invalid = File::new("invalid-switch.toml", &invalid);
    let (code, _, stderr) = spillway(&["check", invalid.path(), "--without-keys"]);
    let expected = format!("{}:26:8: no [[port]] has interface = \"eth7\"", invalid.path());
    assert!(code == Some(1) && stderr.starts_with(&expected), "{stderr}");
    let (code, _, stderr) = spillway(&["switch", "--config", invalid.path()]);
    assert!(code == Some(1) && stderr.contains(&expected), "{stderr}");
    let (code, _, stderr) = spillway(&["switch", "--config", "/no/such/file"]);
    assert!(code == Some(1) && stderr.contains("cannot be read"), "{stderr}");
}

#[test]
fn reference_of_switches_equals_its_page() {
    assert_reference(&["check", "--reference", "switch"], "docs/switch-configuration.md");
}

fn unit_text(name: &str) -> String {
    fs::read_to_string(project("packaging/systemd").join(name)).unwrap()
}

#[test]
fn the_helpers_unit_is_valid_and_hardened() {
    is_valid_and_hardened("spillway-helper.service", "User=spillway");
}

#[test]
fn the_sidecars_unit_is_valid_and_hardened() {
    is_valid_and_hardened("spillway-sidecar@.service", "DynamicUser=yes");
}

/// The daemon of a switch needs these privileges, and no others.
#[test]
fn the_switchs_unit_is_hardened_and_gives_exactly_its_privileges() {
    let name = "spillway-switch.service";
    let unit = unit_text(name);
    let capabilities: Vec<&str> = unit.lines().filter(|line| line.contains("CAP_")).collect();
    assert_eq!(
        capabilities,
        ["CapabilityBoundingSet=CAP_NET_ADMIN CAP_BPF", "AmbientCapabilities=CAP_NET_ADMIN CAP_BPF"]
    );
    assert_unit(name, "User=spillway", "30");
}

/// A helper on the engine xdp needs these privileges, and no others.
#[test]
fn the_drop_in_for_the_engine_xdp_gives_exactly_its_privileges() {
    let drop_in = unit_text("spillway-helper.service.d/xdp.conf");
    let settings: Vec<&str> =
        drop_in.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '['])).collect();
    let capabilities = "CAP_NET_ADMIN CAP_NET_RAW CAP_BPF";
    assert_eq!(
        settings,
        [
            format!("CapabilityBoundingSet={capabilities}").as_str(),
            format!("AmbientCapabilities={capabilities}").as_str(),
            "LimitMEMLOCK=infinity",
            "RestrictAddressFamilies=AF_NETLINK AF_PACKET AF_XDP",
            "SystemCallFilter=bpf capset",
            "ProcSubset=all",
        ]
    );
}

/// A unit without any capability.
fn is_valid_and_hardened(name: &str, user: &str) {
    let unit = unit_text(name);
    assert!(unit.lines().any(|line| line == "CapabilityBoundingSet="));
    assert_unit(name, user, "15");
}

/// `exposure_max`: ten times the highest exposure in the scale of systemd-analyze.
fn assert_unit(name: &str, user: &str, exposure_max: &str) {
    let unit = unit_text(name);
    for line in ["Type=notify", "NoNewPrivileges=yes", "ProtectSystem=strict", user] {
        assert!(unit.lines().any(|other| other == line), "{line}");
    }
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("skipped: systemd-analyze is not installed");
        return;
    }
    // systemd requires the unit's own file name, an existing program and an existing user.
    let directory = std::env::temp_dir().join(format!("spillway-unit-{}-{name}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let path = directory.join(name);
    let runnable = unit.replace("/usr/bin/spillway", SPILLWAY).replace("=spillway\n", "=daemon\n");
    fs::write(&path, runnable.replace("RuntimeDirectory=daemon", "RuntimeDirectory=spillway")).unwrap();
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").args(arguments).arg(&path).output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    };
    let (is_valid, stdout) = analyze(&["verify", "--man=no"]);
    // `verify` may report problems of other units on this host.
    let problems: Vec<&str> = stdout.lines().filter(|line| line.contains("spillway")).collect();
    let threshold = format!("--threshold={exposure_max}");
    let security = analyze(&["security", "--no-pager", "--offline=true", &threshold]);
    fs::remove_dir_all(&directory).unwrap();
    assert!(problems.is_empty(), "{stdout}");
    if !is_valid {
        println!("systemd-analyze verify cannot check units on this host: {stdout}");
    }
    assert!(security.0, "the unit's exposure is above {exposure_max} tenths: {}", security.1);
}
