//! `spillway run`: starts a server with the preload shim in it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use spillway_batch::AddressRange;
use spillway_shim_core::config;

/// Start a server whose clients helpers may serve. The server keeps its process id and its ordinary port.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where helpers connect: HOST:PORT (an IP address), or :PORT for all addresses, which needs a key
    /// [default: :11411 with a key, 127.0.0.1:11411 without]
    #[arg(long, value_name = "ADDR")]
    link: Option<String>,
    /// A key that helpers use; several while keys are rotated. Only its owner may be able to read the file
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// A key that library clients use
    #[arg(long = "client-key", value_name = "FILE")]
    client_keys: Vec<PathBuf>,
    /// Client addresses that helpers may carry [default: private ranges, and loopback over loopback links]
    #[arg(long = "allow-clients", value_name = "CIDR")]
    allow_clients: Vec<AddressRange>,
    /// The server's port to serve, if it listens on several [default: the first that it polls]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Fail rather than run the server without helpers
    #[arg(long)]
    require: bool,
    /// Run the command as if there was no Spillway
    #[arg(long)]
    off: bool,
    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command in place of this process; returns only when that fails.
pub fn run(args: Args) -> ExitCode {
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::from(2) };
    let mut command = Command::new(program);
    command.args(arguments);
    if args.off || env::var_os("SPILLWAY_OFF").is_some_and(|value| value == "1") {
        command.env(name(config::OFF), "1");
        return replaced(&mut command, program);
    }
    let settings = match settings(&args) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("spillway: {error}");
            return ExitCode::from(2);
        }
    };
    match shim().and_then(|shim| can_preload(program).map(|()| shim)) {
        Ok(shim) => {
            command.env("LD_PRELOAD", preload(&shim, env::var_os("LD_PRELOAD"))).envs(settings);
        }
        Err(unfit @ Unfit::NotFound(_)) => {
            eprintln!("spillway: {unfit}");
            return ExitCode::from(127);
        }
        Err(unfit) if args.require => {
            eprintln!("spillway: {unfit}; --require was given, so it is not started");
            return ExitCode::FAILURE;
        }
        Err(unfit) => eprintln!("spillway: {unfit}; it runs without helpers"),
    }
    replaced(&mut command, program)
}

fn replaced(command: &mut Command, program: &OsStr) -> ExitCode {
    let error = command.exec();
    eprintln!("spillway: {} cannot be run: {error}", program.display());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

fn name(constant: &core::ffi::CStr) -> String {
    constant.to_string_lossy().into_owned()
}

/// The shim's environment, checked here as far as it can be, so that mistakes show before the server starts.
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
    let ranges: Vec<String> = args.allow_clients.iter().map(AddressRange::to_string).collect();
    let port = args.port.map(|port| port.to_string()).unwrap_or_default();
    let require = if args.require { "1" } else { "0" };
    Ok(vec![
        (name(config::LINK), link.into()),
        (name(config::KEYS), keys.into()),
        (name(config::CLIENT_KEYS), client_keys.into()),
        (name(config::ALLOW_CLIENTS), ranges.join(",").into()),
        (name(config::PORT), port.into()),
        (name(config::REQUIRE), require.into()),
    ])
}

/// Absolute names, one a line; each file is read once to see that it is a key.
fn key_files(files: &[PathBuf]) -> Result<String, String> {
    let mut lines = Vec::new();
    for file in files {
        let path = fs::canonicalize(file).map_err(|error| format!("key file {}: {error}", file.display()))?;
        let Some(text) = path.to_str().filter(|text| !text.contains('\n')) else {
            return Err(format!("key file {}: its name is not plain text", file.display()));
        };
        spillway_keys::read_key_file(&path).map_err(|error| error.to_string())?;
        lines.push(text.to_owned());
    }
    Ok(lines.join("\n"))
}

/// Why a command runs without the shim.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    NoShim(PathBuf),
    NotFound(OsString),
    Static(PathBuf),
    OtherLibc(PathBuf, String),
    Go(PathBuf),
    OtherMachine(PathBuf),
    Privileged(PathBuf),
    Unreadable(PathBuf, String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::NoShim(folder) => write!(
                f,
                "libspillway_shim.so is neither in {0} nor in {0}/../lib/spillway; install it there or name it in \
                 SPILLWAY_SHIM",
                folder.display()
            ),
            Unfit::NotFound(command) => write!(f, "{}: command not found", command.display()),
            Unfit::Static(path) => {
                write!(f, "{} is statically linked and cannot be helped: it ignores preloads", path.display())
            }
            Unfit::OtherLibc(path, interpreter) => {
                write!(f, "{} uses {interpreter} rather than glibc and cannot be helped", path.display())
            }
            Unfit::Go(path) => write!(
                f,
                "{} is a Go program and cannot be helped: it makes system calls past the C library",
                path.display()
            ),
            Unfit::OtherMachine(path) => {
                write!(f, "{} is built for another kind of processor than the shim", path.display())
            }
            Unfit::Privileged(path) => {
                write!(f, "{} is set-user-ID, for which the system ignores preloads", path.display())
            }
            Unfit::Unreadable(path, why) => write!(f, "{} cannot be examined: {why}", path.display()),
        }
    }
}

fn shim() -> Result<PathBuf, Unfit> {
    if let Some(path) = env::var_os("SPILLWAY_SHIM").map(PathBuf::from) {
        return fs::canonicalize(&path).map_err(|error| Unfit::Unreadable(path, error.to_string()));
    }
    let here = env::current_exe().unwrap_or_default();
    let folder = here.parent().unwrap_or(Path::new(".")).to_path_buf();
    let candidates = [folder.join("libspillway_shim.so"), folder.join("../lib/spillway/libspillway_shim.so")];
    candidates.into_iter().find_map(|path| fs::canonicalize(path).ok()).ok_or(Unfit::NoShim(folder))
}

/// Ours first; what was there stays.
fn preload(shim: &Path, before: Option<OsString>) -> OsString {
    let mut all = shim.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}

/// Whether the dynamic linker will load the shim into this command, and its calls will come by.
fn can_preload(program: &OsStr) -> Result<(), Unfit> {
    let path = found(program).ok_or_else(|| Unfit::NotFound(program.to_owned()))?;
    examine(&path, 4)
}

fn found(program: &OsStr) -> Option<PathBuf> {
    let is_command = |path: &Path| {
        fs::metadata(path).is_ok_and(|status| status.is_file() && status.permissions().mode() & 0o111 != 0)
    };
    let path = Path::new(program);
    if path.components().count() > 1 {
        return is_command(path).then(|| path.to_path_buf());
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).map(|folder| folder.join(path)).find(|path| is_command(path))
}

/// A script is as fit as its interpreter: what it starts has the same environment.
fn examine(path: &Path, depth: u32) -> Result<(), Unfit> {
    let unreadable = |why: String| Unfit::Unreadable(path.to_path_buf(), why);
    let status = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
    // Root starting a program that becomes root changes nothing, but one that becomes somebody else does.
    if status.permissions().mode() & 0o6000 != 0 {
        return Err(Unfit::Privileged(path.to_path_buf()));
    }
    let bytes = fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    if let Some(line) = bytes.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let interpreter = line.split_whitespace().next().unwrap_or_default();
        return if depth == 0 { Ok(()) } else { examine(Path::new(interpreter), depth - 1) };
    }
    let own = env::current_exe().ok().and_then(|own| fs::read(own).ok());
    let own = own.as_deref().and_then(Elf::parse).map(|elf| elf.machine);
    let elf = Elf::parse(&bytes).ok_or_else(|| unreadable("not a 64-bit ELF program".into()))?;
    if own.is_some_and(|machine| machine != elf.machine) {
        return Err(Unfit::OtherMachine(path.to_path_buf()));
    }
    if elf.is_go {
        return Err(Unfit::Go(path.to_path_buf()));
    }
    match elf.interpreter {
        None => Err(Unfit::Static(path.to_path_buf())),
        Some(interpreter) if interpreter.contains("ld-linux") || interpreter.contains("ld64.so") => Ok(()),
        Some(other) => Err(Unfit::OtherLibc(path.to_path_buf(), other)),
    }
}

/// What we need to know of an ELF program.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    machine: u16,
    interpreter: Option<String>,
    is_go: bool,
}

const INTERPRETER: u32 = 3;
const NOTE: u32 = 4;

impl Elf {
    /// 64 bits, little end first: the processors that we build for. `None` for anything else.
    fn parse(bytes: &[u8]) -> Option<Elf> {
        if bytes.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let table = usize::try_from(number::<8>(bytes, 32)?).ok()?;
        let (size, count) = (number::<2>(bytes, 54)? as usize, number::<2>(bytes, 56)? as usize);
        let mut elf = Elf { machine: number::<2>(bytes, 18)? as u16, interpreter: None, is_go: false };
        for index in 0..count {
            let entry = table.checked_add(index.checked_mul(size)?)?;
            let offset = usize::try_from(number::<8>(bytes, entry.checked_add(8)?)?).ok()?;
            let length = usize::try_from(number::<8>(bytes, entry.checked_add(32)?)?).ok()?;
            let content = || bytes.get(offset..offset.checked_add(length)?);
            match number::<4>(bytes, entry)? as u32 {
                INTERPRETER => {
                    let text = String::from_utf8_lossy(content()?);
                    elf.interpreter = Some(text.trim_end_matches('\0').to_owned());
                }
                // A note begins with three lengths, then its owner.
                NOTE => elf.is_go |= content()?.get(12..16) == Some(b"Go\0\0".as_slice()),
                _ => {}
            }
        }
        Some(elf)
    }
}

/// A number of `N` bytes at `offset`, lowest first.
fn number<const N: usize>(bytes: &[u8], offset: usize) -> Option<u64> {
    let part = bytes.get(offset..offset.checked_add(N)?)?;
    Some(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program header table of these (type, content).
    fn program(machine: u16, parts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 * parts.len()];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = 64;
        (bytes[54], bytes[56]) = (56, parts.len() as u8);
        for (index, (kind, content)) in parts.iter().enumerate() {
            let (entry, offset) = (64 + 56 * index, bytes.len() as u64);
            bytes[entry..entry + 4].copy_from_slice(&kind.to_le_bytes());
            bytes[entry + 8..entry + 16].copy_from_slice(&offset.to_le_bytes());
            bytes[entry + 32..entry + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend_from_slice(content);
        }
        bytes
    }

    #[test]
    fn programs_are_told_apart() {
        let glibc =
            Elf::parse(&program(62, &[(1, b"code"), (INTERPRETER, b"/lib64/ld-linux-x86-64.so.2\0")]));
        let glibc = glibc.unwrap();
        assert_eq!(glibc.interpreter.as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!((glibc.machine, glibc.is_go), (62, false));
        assert_eq!(Elf::parse(&program(62, &[(1, b"code")])).unwrap().interpreter, None);
        let note = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
        assert!(Elf::parse(&program(62, &[(NOTE, note)])).unwrap().is_go);
    }

    #[test]
    fn lies_in_a_program_are_no_panic() {
        let whole = program(62, &[(INTERPRETER, b"/lib/ld.so\0"), (NOTE, b"x")]);
        for cut in 0..whole.len() {
            let _ = Elf::parse(&whole[..cut]);
        }
        for position in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[position] = 0xff;
            let _ = Elf::parse(&bytes);
        }
        assert_eq!(Elf::parse(b"#!/bin/sh"), None);
    }

    #[test]
    fn an_existing_preload_is_kept() {
        let shim = Path::new("/lib/shim.so");
        assert_eq!(preload(shim, None), "/lib/shim.so");
        assert_eq!(preload(shim, Some("".into())), "/lib/shim.so");
        assert_eq!(preload(shim, Some("/a.so:/b.so".into())), "/lib/shim.so:/a.so:/b.so");
    }

    #[test]
    fn commands_of_this_machine() {
        assert_eq!(can_preload(OsStr::new("sh")), Ok(()));
        let missing = OsStr::new("no-such-command-here");
        assert_eq!(can_preload(missing), Err(Unfit::NotFound(missing.to_owned())));
    }
}
