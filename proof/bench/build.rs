//! Sets `SPILLWAY_COMMIT` to the commit that is built, so that results can name it.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Git appends to this log at every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=SPILLWAY_COMMIT={commit}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
