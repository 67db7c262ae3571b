//! `spillway run`: starts a server with the preload library.

mod elf;
mod program;
mod script;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use spillway_batch::AddressRange;
use spillway_shim_core::config;
use spillway_values::{parse_duration, parse_size};

use program::Unfit;

/// Start a server that helpers may serve
///
/// The server keeps its process id and its ordinary port. COMMAND may be a script or another program that starts the
/// server: the process that first waits for clients gets the link port; its children and other workers do not.
///
/// Programs that cannot be helped (static, Go, C libraries other than glibc, set-user-ID) run without help and with a
/// warning, or, with --require, are not started. SPILLWAY_OFF=1 in the environment is the same as --off.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The link port: HOST:PORT with an IP address, or :PORT for all addresses, which needs a key
    /// [default: :11411 with a key, 127.0.0.1:11411 without]
    #[arg(long, value_name = "ADDR")]
    link: Option<String>,
    /// A key of helpers; repeat while keys are rotated. Only its owner may be able to read the file
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// A key of library clients; repeat while keys are rotated
    #[arg(long = "client-key", value_name = "FILE")]
    client_keys: Vec<PathBuf>,
    /// Client addresses that helpers may carry [default: private ranges, and loopback over loopback links]
    #[arg(long = "allow-clients", value_name = "CIDR")]
    allow_clients: Vec<AddressRange>,
    /// The server's port to serve, if it listens on several [default: the first one it polls]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Largest number of sessions; 0 refuses them. Each holds up to 256 KiB of replies that its client has not
    /// acknowledged
    #[arg(long, value_name = "N", default_value_t = config::SESSIONS_MAX_DEFAULT)]
    sessions_max: usize,
    /// Memory for all sessions, at least 16MiB; beyond it, sessions that hold most and do not read end
    #[arg(long, value_name = "SIZE", value_parser = parse_sessions_memory, default_value = "256MiB")]
    sessions_memory: u64,

    /// Send helped sessions back after requests were few and fast for this time; 0s: never
    #[arg(long, value_name = "TIME", value_parser = parse_release_after, default_value = "10s")]
    release_after: Duration,
    /// Refuse links that would not be encrypted (older peers). Needs --key or --client-key
    #[arg(long)]
    require_encryption: bool,
    /// Do not start a server that cannot be helped
    #[arg(long)]
    require: bool,
    /// Run the command without Spillway
    #[arg(long)]
    off: bool,
    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Replaces this process by the command; returns only if that fails.
pub fn run(args: Args) -> ExitCode {
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::from(2) };
    let mut command = Command::new(program);
    command.args(arguments);
    if args.off || env::var_os("SPILLWAY_OFF").is_some_and(|value| value == "1") {
        command.env(name(config::SWITCHED_OFF), "1");
        return execute(&mut command, program);
    }
    let settings = match settings(&args) {
        Ok(settings) => settings,
        Err(error) => {
            spillway_daemon::log_line(&format!("spillway: {error}"));
            return ExitCode::from(2);
        }
    };
    match shim().and_then(|shim| program::can_preload(program, &shim).map(|()| shim)) {
        Ok(shim) => {
            command.env("LD_PRELOAD", preload(&shim, env::var_os("LD_PRELOAD"))).envs(settings);
        }
        Err(unfit @ Unfit::NotFound(_)) => {
            spillway_daemon::log_line(&format!("spillway: {unfit}"));
            return ExitCode::from(127);
        }
        Err(unfit) if args.require => {
            spillway_daemon::log_line(&format!(
                "spillway: {unfit}; --require was given, so it is not started"
            ));
            return ExitCode::FAILURE;
        }
        Err(unfit) => spillway_daemon::log_line(&format!("spillway: {unfit}; it runs without helpers")),
    }
    execute(&mut command, program)
}

fn execute(command: &mut Command, program: &OsStr) -> ExitCode {
    let error = command.exec();
    spillway_daemon::log_line(&format!("spillway: {} cannot be run: {error}", program.display()));
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

fn name(constant: &core::ffi::CStr) -> String {
    constant.to_string_lossy().into_owned()
}

/// The preload library's environment, checked here so that mistakes are errors before the server starts.
fn settings(args: &Args) -> Result<Vec<(String, OsString)>, String> {
    let keys = key_files(&args.keys)?;
    let client_keys = key_files(&args.client_keys)?;
    let has_key = !keys.is_empty() || !client_keys.is_empty();
    let link = match &args.link {
        Some(link) => link.clone(),
        None if has_key => ":11411".into(),
        None => "127.0.0.1:11411".into(),
    };
    config::link_address(&link, has_key)?;
    if args.require_encryption && !has_key {
        return Err(
            "--require-encryption needs --key or --client-key: links without a key are not encrypted".into(),
        );
    }
    let ranges: Vec<String> = args.allow_clients.iter().map(AddressRange::to_string).collect();
    let port = args.port.map(|port| port.to_string()).unwrap_or_default();
    let require = if args.require { "1" } else { "0" };
    let launch = spillway_keys::fresh_nonce().map_err(|error| format!("no random bytes: {error}"))?;
    let launch: String = launch.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(vec![
        (name(config::LINK), link.into()),
        (name(config::KEYS), keys.into()),
        (name(config::CLIENT_KEYS), client_keys.into()),
        (name(config::ALLOW_CLIENTS), ranges.join(",").into()),
        (name(config::PORT), port.into()),
        (name(config::SESSIONS_MAX), args.sessions_max.to_string().into()),
        (name(config::SESSIONS_MEMORY), args.sessions_memory.to_string().into()),
        (name(config::RELEASE_AFTER), args.release_after.as_millis().to_string().into()),
        (name(config::REQUIRE), require.into()),
        (name(config::REQUIRE_ENCRYPTION), if args.require_encryption { "1" } else { "0" }.into()),
        (name(config::LAUNCH), launch.into()),
        (name(config::STARTED_PID), std::process::id().to_string().into()),
    ])
}

/// Parses a time that the preload library can read: milliseconds in 32 bits; 0 means never.
fn parse_release_after(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    let is_readable = time.is_zero() || (1..=u128::from(u32::MAX)).contains(&time.as_millis());
    if is_readable { Ok(time) } else { Err("give a time from 1ms to 1193h, or 0s for never".into()) }
}

fn parse_sessions_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    let is_enough = bytes >= config::SESSIONS_MEMORY_MIN as u64;
    is_enough
        .then_some(bytes)
        .ok_or_else(|| "give at least 16MiB: sixteen tables of sessions share it".into())
}

/// Returns absolute paths, one a line. Reads each file, to check that it holds a key.
fn key_files(files: &[PathBuf]) -> Result<String, String> {
    let mut lines = Vec::new();
    for file in files {
        spillway_keys::read_key_file(file).map_err(|error| error.to_string())?;
        let path = fs::canonicalize(file).map_err(|error| format!("key file {}: {error}", file.display()))?;
        let Some(text) = path.to_str().filter(|text| !text.contains('\n')) else {
            return Err(format!("key file {}: its name is not plain text", file.display()));
        };
        lines.push(text.to_owned());
    }
    Ok(lines.join("\n"))
}

/// The preload library: from SPILLWAY_SHIM, this command's directory, or the package's library directory.
pub(crate) fn shim() -> Result<PathBuf, Unfit> {
    if let Some(path) = env::var_os("SPILLWAY_SHIM").map(PathBuf::from) {
        return fs::canonicalize(&path).map_err(|error| Unfit::Unreadable(path, error.to_string()));
    }
    let executable = env::current_exe().unwrap_or_default();
    let folder = executable.parent().unwrap_or(Path::new(".")).to_path_buf();
    let candidates = [folder.join("libspillway_shim.so"), folder.join("../lib/spillway/libspillway_shim.so")];
    candidates.into_iter().find_map(|path| fs::canonicalize(path).ok()).ok_or(Unfit::NoShim(folder))
}

/// The value of LD_PRELOAD: the preload library before the previous value.
fn preload(shim: &Path, before: Option<OsString>) -> OsString {
    let mut value = shim.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_times_out_of_the_librarys_range_are_refused() {
        for valid in ["0", "0s", "1ms", "1.5s", "1193h"] {
            assert_eq!(parse_release_after(valid), Ok(parse_duration(valid).unwrap()));
        }
        for invalid in ["999us", "1194h", "5000000h", "10"] {
            assert!(parse_release_after(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn previous_preload_value_is_kept() {
        let shim = Path::new("/lib/shim.so");
        assert_eq!(preload(shim, None), "/lib/shim.so");
        assert_eq!(preload(shim, Some("".into())), "/lib/shim.so");
        assert_eq!(preload(shim, Some("/a.so:/b.so".into())), "/lib/shim.so:/a.so:/b.so");
    }
}
