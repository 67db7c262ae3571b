//! Daemons of switches: a BPF file system of their own, and commands at their admin sockets.

use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use spillway_lab::{LabError, Launch, Process};

use crate::support::{SPILLWAY, eventually, text};

/// A mount namespace with a BPF file system, in which daemons run: the machine may have none, or one with the pins of others.
pub struct Mounts(Process);

impl Mounts {
    /// `owner`: the user that may pin programs. `spawn`: starts a process in the network namespace of daemons.
    pub fn start(owner: u32, spawn: impl FnOnce(&Launch) -> Result<Process, LabError>) -> Mounts {
        let script = format!(
            "mount -t bpf bpf /sys/fs/bpf && install -d -m 0700 -o {owner} /sys/fs/bpf/spillway && chmod o+x \
             /sys/fs/bpf && echo mounted && exec sleep infinity"
        );
        let launch =
            Launch::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let mounts = Mounts(spawn(&launch.name("mounts")).unwrap());
        eventually("a BPF file system", || mounts.0.stdout().unwrap().contains("mounted"));
        mounts
    }

    /// The program's arguments, run in the mount namespace. `wrapper`: commands in front.
    pub fn launch(&self, program: &str, wrapper: &[String], arguments: &[&str]) -> Launch {
        let mounts = format!("--mount=/proc/{}/ns/mnt", self.0.pid());
        let wrapper = ["nsenter".to_owned(), mounts].into_iter().chain(wrapper.iter().cloned());
        Launch::new(program).args(arguments.iter().copied()).wrapper(wrapper).name("switch")
    }
}

/// Waits until a daemon answers at its admin socket.
pub fn answering(mut daemon: Process, socket: &str) -> Process {
    eventually("the daemon answers", || {
        let ended = daemon.exit_status();
        assert!(ended.is_none(), "the daemon has ended: {ended:?}\n{}", daemon.last_output());
        command(socket, &["status"]).status.success()
    });
    daemon
}

/// Runs a command of `spillway` at an admin socket.
pub fn command(socket: &str, arguments: &[&str]) -> Output {
    let arguments = arguments.iter().copied().chain(["--socket", socket]);
    std::process::Command::new(SPILLWAY).args(arguments).output().unwrap()
}

/// The field `result` of a command that succeeds.
#[track_caller]
pub fn result(socket: &str, arguments: &[&str]) -> Value {
    match try_result(socket, arguments) {
        Ok(result) => result,
        Err(output) => panic!("{arguments:?}: {output}"),
    }
}

/// The field `result` of a command, or the output of a command that fails.
pub fn try_result(socket: &str, arguments: &[&str]) -> Result<Value, String> {
    let output = command(socket, &[arguments, &["--json"]].concat());
    if !output.status.success() {
        return Err(text(&output.stdout) + &text(&output.stderr));
    }
    let document: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    Ok(document["result"].clone())
}

/// Asks the daemon to end, as a service manager does.
pub fn terminate(mut daemon: Process) {
    let ended = daemon.stop(Duration::from_secs(10));
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", daemon.last_output());
}
