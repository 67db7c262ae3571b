//! Checks that the dynamic linker loads the preload library into a command, and that the command calls the C library.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use spillway_shim_core::config::glibc_version;

use super::elf::{Elf, Version};
use super::script;

/// Maximum depth of scripts that start other scripts, or are interpreted by them.
const DEPTH_MAX: u32 = 4;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    NoShim(PathBuf),
    NotFound(OsString),
    Static(PathBuf),
    OtherLibc(PathBuf, String),
    Go(PathBuf),
    OtherMachine(PathBuf),
    Bits32(PathBuf),
    Privileged(PathBuf),
    Capable(PathBuf),
    OldGlibc { needed: Version, found: Version },
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
                "{} is a Go program and cannot be helped: it makes system calls without the C library",
                path.display()
            ),
            Unfit::OtherMachine(path) => {
                write!(
                    f,
                    "{} is built for another kind of processor than the preload library",
                    path.display()
                )
            }
            Unfit::Bits32(path) => {
                write!(
                    f,
                    "{} is a 32-bit program and cannot be helped: the preload library is 64-bit",
                    path.display()
                )
            }
            Unfit::Privileged(path) => write!(
                f,
                "{} is set-user-ID or set-group-ID, for which the system ignores preloads; put `spillway run` behind \
                 it in the command rather than before it",
                path.display()
            ),
            Unfit::Capable(path) => write!(
                f,
                "{} has file capabilities, for which the system ignores preloads; give them to the process instead \
                 (AmbientCapabilities= in its unit) and remove them with: setcap -r {0}",
                path.display()
            ),
            Unfit::OldGlibc { needed, found } => write!(
                f,
                "the preload library needs glibc {}.{}, and this system has {}.{}; install a Spillway that was built \
                 for it",
                needed.0, needed.1, found.0, found.1
            ),
            Unfit::Unreadable(path, why) => write!(f, "{} cannot be examined: {why}", path.display()),
        }
    }
}

pub(super) fn can_preload(command: &OsStr, shim: &Path) -> Result<(), Unfit> {
    let path = find_command(command).ok_or_else(|| Unfit::NotFound(command.to_owned()))?;
    let library = fs::read(shim).map_err(|error| Unfit::Unreadable(shim.to_path_buf(), error.to_string()))?;
    let Some(library) = Elf::parse(&library) else {
        return Err(Unfit::Unreadable(shim.to_path_buf(), "not an ELF library".into()));
    };
    if let (Some(needed), Some(found)) = (library.glibc, glibc_version())
        && needed > found
    {
        return Err(Unfit::OldGlibc { needed, found });
    }
    examine(&path, &library, DEPTH_MAX)
}

fn find_command(command: &OsStr) -> Option<PathBuf> {
    let is_command = |path: &Path| {
        fs::metadata(path).is_ok_and(|status| status.is_file() && status.permissions().mode() & 0o111 != 0)
    };
    let path = Path::new(command);
    if path.components().count() > 1 {
        return is_command(path).then(|| path.to_path_buf());
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).map(|folder| folder.join(path)).find(|path| is_command(path))
}

fn examine(path: &Path, shim: &Elf, depth: u32) -> Result<(), Unfit> {
    let unreadable = |why: String| Unfit::Unreadable(path.to_path_buf(), why);
    let bytes = fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    if let Some(script) = bytes.strip_prefix(b"#!") {
        // The kernel ignores set-user-ID of scripts, so `examine_rights` is not needed.
        return if depth == 0 { Ok(()) } else { examine_script(script, shim, depth) };
    }
    examine_rights(path)?;
    let Some(elf) = Elf::parse(&bytes) else {
        return Err(unreadable("neither an ELF program nor a script".into()));
    };
    if !elf.is_64_bit {
        return Err(Unfit::Bits32(path.to_path_buf()));
    }
    if elf.machine != shim.machine {
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

/// The dynamic linker ignores LD_PRELOAD in programs that gain rights when they start (ld.so(8)).
fn examine_rights(path: &Path) -> Result<(), Unfit> {
    let mode = fs::metadata(path).map_or(0, |status| status.permissions().mode());
    if mode & 0o6000 != 0 {
        return Err(Unfit::Privileged(path.to_path_buf()));
    }
    // File capabilities give root no further rights, so LD_PRELOAD works.
    let mut value = [0u8; 64];
    let has_capabilities = rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok();
    if has_capabilities && !rustix::process::getuid().is_root() {
        return Err(Unfit::Capable(path.to_path_buf()));
    }
    Ok(())
}

/// A script needs a fit interpreter and a fit program behind `exec`, since both inherit LD_PRELOAD. If it may start one
/// of several programs, one fit program is enough.
fn examine_script(script: &[u8], shim: &Elf, depth: u32) -> Result<(), Unfit> {
    let text = String::from_utf8_lossy(script);
    let (first_line, rest) = text.split_once('\n').unwrap_or((&text, ""));
    if let Some(path) = script::interpreter(first_line).and_then(|name| find_command(OsStr::new(name))) {
        examine(&path, shim, depth - 1)?;
    }
    let programs: Vec<PathBuf> =
        script::executed_programs(rest).iter().filter_map(|name| find_command(OsStr::new(name))).collect();
    let mut verdicts = programs.iter().map(|path| examine(path, shim, depth - 1));
    let Some(first) = verdicts.next() else { return Ok(()) };
    if first.is_ok() || verdicts.any(|verdict| verdict.is_ok()) { Ok(()) } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_program() -> Elf {
        Elf::parse(&fs::read(env::current_exe().unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn commands_of_this_host_can_be_preloaded() {
        let own_path = env::current_exe().unwrap();
        assert_eq!(can_preload(OsStr::new("sh"), &own_path), Ok(()));
        let missing = OsStr::new("no-such-command-here");
        assert_eq!(can_preload(missing, &own_path), Err(Unfit::NotFound(missing.to_owned())));
        assert!(glibc_version().is_some_and(|version| version >= (2, 17)));
    }

    #[test]
    fn script_is_fit_if_its_interpreter_and_program_are() {
        let shim = own_program();
        let foreign_shim = Elf { machine: shim.machine ^ 1, ..own_program() };
        let path = find_command(OsStr::new("sh")).unwrap();
        assert_eq!(examine(&path, &foreign_shim, 4), Err(Unfit::OtherMachine(path)));
        assert!(examine_script(b"/bin/sh\nexec sleep 1\n", &foreign_shim, 4).is_err());
        assert_eq!(examine_script(b"/bin/sh\nexec no-such-command-here\n", &shim, 4), Ok(()));
        assert_eq!(
            examine_script(b"no-such-interpreter\n", &shim, 4),
            Ok(()),
            "a missing interpreter should be left to exec"
        );
    }

    #[test]
    fn an_old_glibc_is_an_error_with_both_versions() {
        let text = Unfit::OldGlibc { needed: (2, 36), found: (2, 28) }.to_string();
        assert!(text.contains("2.36") && text.contains("2.28"), "{text}");
    }
}
