//! The switch's daemon, which experiments start in a laboratory, and waiting for programs.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use spillway_lab::{LabSwitch, Launch, Process};

use crate::error::Error;
use crate::programs::Programs;
use crate::stop;

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a switch's daemon with a configuration file, in a mount namespace with a BPF file system of its own, and waits until
/// it answers at its admin socket.
pub(crate) fn start_daemon(
    switch: &LabSwitch,
    programs: &Programs,
    config: &Path,
    socket: &Path,
) -> Result<Process, Error> {
    let script = "mount -t bpf bpf /sys/fs/bpf && install -d -m 0700 /sys/fs/bpf/spillway && exec \"$0\" switch --config \"$1\"";
    let launch = Launch::new("unshare")
        .name("switch")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .args([programs.spillway.as_path(), config]);
    let mut daemon = switch.spawn(&launch)?;
    wait_until("the switch does not answer", || {
        if daemon.exit_status().is_some() {
            return Err(Error::process("the switch has ended", daemon.last_output()));
        }
        Ok(ask_switch(socket).is_ok())
    })?;
    Ok(daemon)
}

/// Waits until the switch has had heartbeats of this number of servers, which are all that it has.
pub(crate) fn wait_until_known(socket: &Path, count: usize) -> Result<(), Error> {
    let are_alive = || {
        let status: Value = ask_switch(socket)?;
        let servers = status["servers"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(servers.len() == count && servers.iter().all(|server| server["is_alive"] == true))
    };
    wait_until("the switch knows no heartbeat of a server", are_alive)
}

fn ask_switch(socket: &Path) -> Result<Value, Error> {
    let request = serde_json::json!({ "command": "status" });
    spillway_daemon::send_json_request(socket, &request, READY_TIMEOUT)
        .map_err(|error| Error::process(format!("the switch did not answer: {error}"), ""))
}

/// Waits until a condition is true. `problem` describes what is wrong while it is not.
pub(crate) fn wait_until(
    problem: &str,
    mut is_true: impl FnMut() -> Result<bool, Error>,
) -> Result<(), Error> {
    let deadline = Instant::now() + READY_TIMEOUT;
    while !is_true()? {
        stop::check()?;
        if Instant::now() > deadline {
            return Err(Error::process(format!("{problem} after {READY_TIMEOUT:?}"), ""));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
