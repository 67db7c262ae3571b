//! Checks of the host: kernel, limits, files.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketType, socket, sockopt};
use rustix::process::{Resource, getrlimit};
use spillway_shim_core::config::glibc_version;
use spillway_shim_core::status::page_directories;

use super::finding::Finding;
use crate::commands::run::shim;

const KEY_DIRECTORY: &str = "/etc/spillway";
/// The first version with `MADV_WIPEONFORK`, which clears memory in forked children.
const KERNEL_MIN: (u32, u32) = (4, 14);
/// Clock sources that are read without a system call.
const FAST_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
/// Numbers of capabilities (`linux/capability.h`).
const NET_ADMIN: u32 = 12;
const SYS_ADMIN: u32 = 21;
/// Lower limits get a warning: each client needs a descriptor.
const OPEN_FILES_MIN: u64 = 65_536;

pub(super) fn findings() -> Vec<Finding> {
    vec![
        kernel(),
        processor(),
        glibc(),
        preload_library(),
        open_files(),
        reuse_port(),
        clock(),
        status_pages(),
        cgroups(),
        namespaces(),
    ]
}

fn read_text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

fn kernel() -> Finding {
    let release = read_text("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) if (major, minor) < KERNEL_MIN => {
            Finding::missing("kernel", release, "the preload library needs Linux 4.14 or later")
        }
        _ => Finding::ok("kernel", release),
    }
}

fn processor() -> Finding {
    match ARCH {
        "x86_64" | "aarch64" => Finding::ok("processor", ARCH),
        other => Finding::warning("processor", other, "tested on x86_64 only; others are expected to work"),
    }
}

fn glibc() -> Finding {
    match glibc_version() {
        Some((major, minor)) => Finding::ok("glibc", format!("{major}.{minor}")),
        None => Finding::missing("glibc", "version unknown", "`spillway run` needs glibc"),
    }
}

fn preload_library() -> Finding {
    match shim() {
        Ok(path) => Finding::ok("preload library", path.display().to_string()),
        Err(unfit) => Finding::warning("preload library", unfit.to_string(), "needed on server hosts only"),
    }
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let show = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |number| number.to_string());
    let found = format!("{} now, {} at most", show(limit.current), show(limit.maximum));
    if limit.maximum.is_some_and(|files| files < OPEN_FILES_MIN) {
        let next =
            "each client needs one: LimitNOFILE= in units, ulimit -n or /etc/security/limits.conf elsewhere";
        return Finding::warning("open files", found, next);
    }
    if limit.current.is_some_and(|files| files < OPEN_FILES_MIN) {
        let next = "a helper raises it by itself; a server under `spillway run` needs one for each helped client, so \
                    give it more (LimitNOFILE=, ulimit -n, or its own option)";
        return Finding::warning("open files", found, next);
    }
    Finding::ok("open files", found)
}

fn reuse_port() -> Finding {
    let outcome = socket(AddressFamily::INET, SocketType::STREAM, None)
        .and_then(|socket| sockopt::set_socket_reuseport(&socket, true));
    match outcome {
        Ok(()) => Finding::ok("SO_REUSEPORT", "works: a helper shares its ports among threads"),
        Err(error) => Finding::missing(
            "SO_REUSEPORT",
            error.to_string(),
            "run helpers with --threads 1, or a newer kernel",
        ),
    }
}

fn clock() -> Finding {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match read_text(path) {
        Some(name) if FAST_CLOCKS.contains(&name.as_str()) => Finding::ok("clock", name),
        Some(name) => {
            let next = "reading the clock takes a system call, which costs helpers and servers CPU time; choose tsc if \
                        the machine has it";
            Finding::warning("clock", name, next)
        }
        None => Finding::warning("clock", "unknown", format!("{path} cannot be read")),
    }
}

fn status_pages() -> Finding {
    let is_writable = |path: &&String| {
        rustix::fs::access(path.as_str(), rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
    };
    let directories = page_directories();
    match directories.iter().find(is_writable) {
        Some(directory) => {
            Finding::ok("status pages", format!("servers of this user write them to {directory}"))
        }
        None => Finding::warning(
            "status pages",
            format!("this user cannot write to {}", directories.join(" or ")),
            "servers of this user run, but `spillway status` does not show them",
        ),
    }
}

fn cgroups() -> Finding {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let legacy = Path::new("/sys/fs/cgroup/cpu").exists();
    match (unified, legacy) {
        (true, _) => Finding::ok("cgroups", "version 2"),
        (false, true) => Finding::ok("cgroups", "version 1"),
        (false, false) => {
            Finding::warning("cgroups", "none", "only `spillway-lab demo` and `spillway-lab bench` need them")
        }
    }
}

fn namespaces() -> Finding {
    let what = "laboratory";
    let next =
        "only `spillway-lab demo` and `spillway-lab bench` need them; all other commands run without root";
    let has_namespaces = Path::new("/proc/self/ns/net").exists();
    let is_root = rustix::process::geteuid().is_root();
    let capable = capability(NET_ADMIN) && capability(SYS_ADMIN);
    match (has_namespaces, capable) {
        (true, true) => Finding::ok(what, "network namespaces can be created"),
        (false, _) => Finding::warning(what, "the kernel has no network namespaces", next),
        (true, false) if is_root => {
            Finding::warning(what, "root without CAP_NET_ADMIN and CAP_SYS_ADMIN", next)
        }
        (true, false) => Finding::warning(what, "network namespaces need root", next),
    }
}

/// Whether this process has a capability in its effective set.
pub(super) fn capability(number: u32) -> bool {
    let status = read_text("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> number & 1 == 1)
}

/// Checks the key files in [`KEY_DIRECTORY`] and those of options. A bad file is an error only if an option names it.
pub(super) fn key_files(named: &[Option<&Path>]) -> Vec<Finding> {
    let mut files: Vec<PathBuf> = named.iter().flatten().map(|path| path.to_path_buf()).collect();
    let is_key = |path: &PathBuf| path.extension().is_some_and(|end| end == "key");
    if let Ok(entries) = fs::read_dir(KEY_DIRECTORY) {
        let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_key).collect();
        found.sort();
        found.truncate(100);
        files.extend(found);
    }
    files.sort();
    files.dedup();
    let is_named = |path: &Path| named.contains(&Some(path));
    files
        .iter()
        .map(|path| match spillway_keys::read_key_file(path) {
            Ok(key) => Finding::ok("key file", format!("{}: key {}", path.display(), key.id())),
            Err(error) if is_named(path) => Finding::missing("key file", error.to_string(), ""),
            Err(error) => Finding::warning("key file", error.to_string(), ""),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn this_host_meets_the_requirements_of_kernel_sockets() {
        let findings = findings();
        assert!(findings.iter().all(|finding| finding.state != State::Missing), "{findings:?}");
        assert!(
            findings.iter().all(|finding| finding.state == State::Ok || !finding.next.is_empty()),
            "{findings:?}"
        );
    }

    #[test]
    fn a_named_key_file_must_exist() {
        let path = Path::new("/no/such.key");
        let findings = key_files(&[Some(path), None]);
        assert!(
            findings
                .iter()
                .any(|finding| finding.state == State::Missing && finding.found.contains("spillway key new"))
        );
    }
}
