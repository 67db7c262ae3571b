//! Two levels of rights on one admin socket: members of `admin_group` operate, other users read.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use spillway_lab::{Launch, Place};
use spillway_ports::free_port;
use support::{SPILLWAY, Scratch, eventually, loopback};

/// Number of a group that no user of the host belongs to.
const OPERATORS: &str = "61234";

/// Runs the command as the user `nobody` with these supplementary groups.
fn as_nobody(groups: &[&str], args: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534"]);
    match groups {
        [] => command.arg("--clear-groups"),
        _ => command.arg(format!("--groups={}", groups.join(","))),
    };
    command.arg(SPILLWAY).args(args).output().unwrap()
}

#[test]
fn members_operate_and_other_users_read() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root, to run commands as other users");
    }
    let place = Place::local().unwrap();
    let scratch = Scratch::new();
    // Other users must be able to reach the socket in this directory.
    fs::set_permissions(scratch.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = scratch.path("helper.sock");
    let [server, listen] = [(); 2].map(|()| loopback(free_port()).to_string());
    let service = format!("cache={server}");
    let args = ["helper", "--service", &service, "--listen", &listen, "--status-socket", &socket];
    let launch = Launch::new(SPILLWAY).name("helper").args(args).args(["--admin-group", OPERATORS]);
    let _helper = place.spawn(&launch).unwrap();
    eventually("a status of the helper", || {
        as_nobody(&[], &["status", "--socket", &socket]).status.success()
    });

    let unprivileged_groups: [&[&str]; 2] = [&[], &["61233", "61235"]];
    let changes: [&[&str]; 3] = [
        &["relief", "cache", "off", "--socket", &socket],
        &["drain", "cache", "--socket", &socket],
        &["reload", "--socket", &socket],
    ];
    for groups in unprivileged_groups {
        for change in changes {
            let refused = as_nobody(groups, change);
            let error = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && error.contains("admin_group"), "{change:?}: {error}");
        }
    }
    let status = || {
        let output = as_nobody(&[], &["status", "--socket", &socket]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(!status().contains("relief off"), "{}", status());
    let accepted = as_nobody(&["61233", OPERATORS], changes[0]);
    assert!(accepted.status.success(), "{accepted:?}");
    assert!(status().contains("relief off"), "{}", status());
}
