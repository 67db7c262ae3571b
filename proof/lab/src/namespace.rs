//! Named network namespaces: entering, settings, counters and removal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsmount, fsopen, unmount,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Serialize;

use crate::LabError;

const DIRECTORY: &str = "/run/netns";

/// An interface's traffic since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InterfaceCounters {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received, counted after receive offloads.
    pub rx_packets: u64,
    /// Packets received but dropped.
    pub rx_dropped: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent, counted before segmentation.
    pub tx_packets: u64,
    /// Packets not sent: on a veth, the other end's ring of 256 packets was full.
    pub tx_dropped: u64,
}

impl InterfaceCounters {
    /// Parses the line of `interface` in the text of `/proc/net/dev`.
    pub(crate) fn parse(text: &str, interface: &str) -> Option<InterfaceCounters> {
        let line = text.lines().find_map(|l| l.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
        let values: Vec<u64> = line.split_whitespace().map_while(|v| v.parse().ok()).collect();
        let value = |index: usize| values.get(index).copied();
        Some(InterfaceCounters {
            rx_bytes: value(0)?,
            rx_packets: value(1)?,
            rx_dropped: value(3)?,
            tx_bytes: value(8)?,
            tx_packets: value(9)?,
            tx_dropped: value(11)?,
        })
    }
}

/// Parses `/proc/net/snmp` or `netstat`: pairs of lines with names, then values, both after a prefix.
pub(crate) fn named_counters(text: &str) -> BTreeMap<String, u64> {
    let lines: Vec<&str> = text.lines().collect();
    let mut counters = BTreeMap::new();
    for pair in lines.chunks_exact(2) {
        let (mut names, mut values) = (pair[0].split_whitespace(), pair[1].split_whitespace());
        let (Some(prefix), Some(_)) = (names.next(), values.next()) else { continue };
        for (name, value) in names.zip(values) {
            // Skips negative values, such as `Tcp:MaxConn`.
            if let Ok(value) = value.parse() {
                counters.insert(format!("{prefix}{name}"), value);
            }
        }
    }
    counters
}

pub(crate) fn open(name: &str) -> Result<OwnedFd, LabError> {
    let path = PathBuf::from(DIRECTORY).join(name);
    File::open(&path)
        .map(OwnedFd::from)
        .map_err(LabError::io(format!("cannot open the network namespace {}", path.display())))
}

pub(crate) fn join(namespace: &OwnedFd) -> rustix::io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

/// Runs `work` in a new thread inside a namespace and returns its result. A panic in `work` continues in the caller.
pub(crate) fn within<T: Send>(
    name: &str,
    work: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    let namespace = open(name)?;
    let inside = || {
        join(&namespace).map_err(LabError::errno(format!("cannot enter the network namespace {name}")))?;
        work()
    };
    match std::thread::scope(|scope| scope.spawn(inside).join()) {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Sets sysctls of the calling thread's namespace only.
pub(crate) fn set_sysctls(settings: &[(&str, &str)]) -> Result<(), LabError> {
    for (name, value) in settings {
        if name.starts_with('/') || name.contains("..") || !name.starts_with("net/") {
            return Err(LabError::BadOption(format!(
                "only settings below net/, written with slashes, belong to one namespace; not {name:?}"
            )));
        }
        let file = format!("/proc/sys/{name}");
        fs::write(&file, value).map_err(LabError::io(format!("cannot write {value:?} to {file}")))?;
    }
    Ok(())
}

/// Sets a sysctl to the first of these values that the kernel accepts. Returns the last error if it accepts none.
pub(crate) fn set_first_allowed(name: &str, values: &[&str]) -> Result<(), LabError> {
    let mut outcome = Ok(());
    for value in values {
        outcome = set_sysctls(&[(name, value)]);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

pub(crate) fn sysctl(name: &str) -> Result<String, LabError> {
    let file = format!("/proc/sys/{name}");
    let text = fs::read_to_string(&file).map_err(LabError::io(format!("cannot read {file}")))?;
    Ok(text.trim().to_owned())
}

/// Writes a file under `/sys/class/net/` of the calling thread's namespace.
///
/// A sysfs shows the namespace in which it was mounted, so this function mounts one, detached from the file tree.
pub(crate) fn write_interface_file(interface: &str, file: &str, value: &str) -> Result<(), LabError> {
    let sysfs = || {
        let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let path = format!("class/net/{interface}/{file}");
        openat(&mount, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
    };
    let what = format!("cannot set {file} of interface {interface} to {value}");
    let opened = sysfs().map_err(LabError::errno(what.clone()))?;
    File::from(opened).write_all(value.as_bytes()).map_err(LabError::io(what))
}

pub(crate) fn names() -> Vec<String> {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Removes a namespace's name and returns whether it existed. The kernel removes the namespace when its last user ends.
/// Starts no process, so that the signal thread can call it.
pub(crate) fn remove(name: &str) -> Result<bool, LabError> {
    let path = PathBuf::from(DIRECTORY).join(name);
    // Fails when `ip netns add` was interrupted before its mount; the file must still be removed.
    let _ = unmount(&path, UnmountFlags::DETACH);
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(LabError::io(format!("cannot remove the network namespace {}", path.display()))(e)),
    }
}

pub(crate) fn kill(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_one_interface_are_read() {
        let text = "Inter-|   Receive                    |  Transmit\n face |bytes ...\n\
                    \x20   lo:  10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n\
                    s0abh: 1000 20 0 3 0 0 0 0 4000 50 0 6 0 0 0 0\n";
        let counters = InterfaceCounters::parse(text, "s0abh").unwrap();
        let expected = InterfaceCounters {
            rx_bytes: 1000,
            rx_packets: 20,
            rx_dropped: 3,
            tx_bytes: 4000,
            tx_packets: 50,
            tx_dropped: 6,
        };
        assert_eq!(counters, expected);
        assert_eq!(InterfaceCounters::parse(text, "s0ab"), None);
        assert_eq!(InterfaceCounters::parse("lo: 1 2", "lo"), None);
    }

    #[test]
    fn counters_are_read_by_name() {
        let text = "Tcp: RtoAlgorithm MaxConn RetransSegs\nTcp: 1 -1 42\nTcpExt: TCPTimeouts\nTcpExt: 7\n";
        let counters = named_counters(text);
        assert_eq!((counters["Tcp:RetransSegs"], counters["TcpExt:TCPTimeouts"]), (42, 7));
        assert!(!counters.contains_key("Tcp:MaxConn"));
    }

    #[test]
    fn sysctls_outside_net_are_refused() {
        for name in ["kernel/sched_rt_runtime_us", "/proc/sys/net/x", "net/../kernel/x", "net.core.somaxconn"]
        {
            assert!(matches!(set_sysctls(&[(name, "1")]), Err(LabError::BadOption(_))), "{name}");
        }
    }
}
