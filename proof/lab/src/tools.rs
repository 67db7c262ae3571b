//! The few programs the lab runs: `ip` in batches, so that a host costs a handful of processes, and `ethtool`.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::LabError;

/// Where administration programs live that a plain user's PATH may lack.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Paths of the programs a lab needs.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    ip: PathBuf,
    ethtool: PathBuf,
}

impl Tools {
    /// Finds them, or says which package to install.
    pub fn find() -> Result<Tools, LabError> {
        Ok(Tools {
            ip: program("ip").ok_or(LabError::MissingTool { tool: "ip", package: "iproute2" })?,
            ethtool: program("ethtool")
                .ok_or(LabError::MissingTool { tool: "ethtool", package: "ethtool" })?,
        })
    }

    /// Runs `ip` commands, one a line, in the named namespace or in the caller's. Stops at the first that fails.
    pub fn ip(&self, namespace: Option<&str>, batch: &str) -> Result<(), LabError> {
        let mut command = Command::new(&self.ip);
        if let Some(namespace) = namespace {
            command.args(["-n", namespace]);
        }
        command.args(["-batch", "-"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(LabError::io("cannot run ip"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A batch that ends early closes its end; its own message below says why.
            let _ = stdin.write_all(batch.as_bytes());
        }
        let output = child.wait_with_output().map_err(LabError::io("cannot wait for ip"))?;
        if output.status.success() {
            return Ok(());
        }
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(LabError::Command {
            what: format!("ip -batch ({})", batch.trim().replace('\n', "; ")),
            output: printed,
        })
    }

    /// Runs `ethtool` in a namespace and returns what it printed.
    pub fn ethtool(&self, namespace: &str, arguments: &[&str]) -> Result<String, LabError> {
        let output = Command::new(&self.ip)
            .args(["netns", "exec", namespace])
            .arg(&self.ethtool)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(LabError::io("cannot run ethtool"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(LabError::Command { what: format!("ethtool {}", arguments.join(" ")), output: printed })
    }
}

/// The path of a program, from PATH or the system's own directories.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    let name = Path::new(name.as_ref());
    if name.components().count() > 1 {
        return name.is_file().then(|| name.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let sh = program("sh").unwrap();
        assert_eq!(program(&sh), Some(sh));
        assert_eq!(program("no-such-program-anywhere"), None);
        assert_eq!(program("/no/such/program"), None);
    }
}
