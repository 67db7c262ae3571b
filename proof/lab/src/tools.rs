//! Runs `ethtool`, and `ip` in batches, which start fewer processes.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::LabError;

/// Directories of administration programs, which may be missing in an ordinary user's PATH.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

#[derive(Clone, Debug)]
pub(crate) struct Tools {
    ip: PathBuf,
    ethtool: PathBuf,
}

impl Tools {
    /// Looks the programs up. The error names the package to install.
    pub fn find() -> Result<Tools, LabError> {
        Ok(Tools {
            ip: program("ip").ok_or(LabError::MissingTool { tool: "ip", package: "iproute2" })?,
            ethtool: program("ethtool")
                .ok_or(LabError::MissingTool { tool: "ethtool", package: "ethtool" })?,
        })
    }

    /// Runs `ip` commands, one per line, in a named namespace or in the caller's. Stops at the first failure.
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
            // Fails if `ip` ends early; its error output is returned below.
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
