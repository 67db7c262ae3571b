//! A process's CPU time by thread, and its sockets, from `/proc`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use spillway_shim_core::status::escape_name;

/// A process that is read through `/proc` and not changed.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    folder: PathBuf,
}

/// CPU time since the process began.
#[derive(Clone, Debug)]
pub(super) struct Cpu {
    /// Thread id and CPU time of each thread.
    threads_ns: Vec<(u32, u64)>,
    /// Time that threads were ready to run while no processor was free.
    waited_ns: u64,
    /// Clock ticks in user mode.
    user: u64,
    /// Clock ticks in the kernel.
    system: u64,
}

/// CPU time between two measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CpuUse {
    pub(super) total_ns: u64,
    /// CPU time of the busiest thread.
    pub(super) busiest_ns: u64,
    /// Time that threads waited for a processor; not part of `total_ns`.
    pub(super) waited_ns: u64,
    /// Threads that used CPU time.
    pub(super) threads: usize,
    /// Fraction of the time in user mode; `None` with fewer than [`TICKS_MIN`] clock ticks.
    pub(super) user: Option<f64>,
}

/// Clock ticks needed to split the time into user and kernel.
const TICKS_MIN: u64 = 10;

impl Process {
    pub(super) fn new(pid: u32) -> Result<Process, String> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        if !folder.join("stat").exists() {
            return Err(format!("no process {pid} on this host"));
        }
        Ok(Process { pid, folder })
    }

    pub(super) fn name(&self) -> String {
        escape_name(fs::read(self.folder.join("comm")).unwrap_or_default().trim_ascii_end())
    }

    /// Moves the calling thread into the process's network namespace.
    pub(super) fn enter_network(&self) -> Result<(), String> {
        let own_namespace =
            fs::read_link("/proc/self/ns/net").map_err(|error| format!("/proc/self/ns/net: {error}"))?;
        let path = self.folder.join("ns/net");
        let process_namespace = fs::read_link(&path).map_err(|error| self.not_readable(&error))?;
        if own_namespace == process_namespace {
            return Ok(());
        }
        let namespace_file = fs::File::open(&path).map_err(|error| self.not_readable(&error))?;
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace_file), kind).map_err(|error| {
            format!(
                "process {} has another network namespace, which only root may enter ({error}); run this with sudo",
                self.pid
            )
        })
    }

    /// Inodes of the process's sockets.
    pub(super) fn sockets(&self) -> Result<HashSet<u32>, String> {
        let entries = fs::read_dir(self.folder.join("fd")).map_err(|error| self.not_readable(&error))?;
        let mut inodes = HashSet::new();
        for entry in entries.flatten() {
            // The descriptor may have been closed meanwhile.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let inode: Option<u32> = target
                .to_str()
                .and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            inodes.extend(inode);
        }
        Ok(inodes)
    }

    fn not_readable(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::NotFound => format!("process {} has ended", self.pid),
            io::ErrorKind::PermissionDenied => format!(
                "no permission to read process {}: run this as its user, or as root if root started it",
                self.pid
            ),
            _ => format!("process {}: {error}", self.pid),
        }
    }

    /// CPU time used since the process started.
    pub(super) fn cpu(&self) -> Result<Cpu, String> {
        let stat = fs::read_to_string(self.folder.join("stat")).map_err(|error| self.not_readable(&error))?;
        let (user, system) = ticks(&stat).ok_or_else(|| format!("process {} cannot be read", self.pid))?;
        let tasks = fs::read_dir(self.folder.join("task")).map_err(|error| self.not_readable(&error))?;
        let (mut threads_ns, mut waited_ns) = (Vec::new(), 0);
        for task in tasks.flatten() {
            let Ok(times) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let mut times = times.split_ascii_whitespace().map_while(|time| time.parse::<u64>().ok());
            let id = task.file_name().to_str().and_then(|id| id.parse().ok());
            if let (Some(id), Some(time)) = (id, times.next()) {
                threads_ns.push((id, time));
                waited_ns += times.next().unwrap_or(0);
            }
        }
        Ok(Cpu { threads_ns, waited_ns, user, system })
    }
}

/// Clock ticks in user mode and in the kernel (`utime` and `stime` of `/proc/PID/stat`, proc(5)).
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

impl Cpu {
    /// CPU time since `before`, without threads that have ended meanwhile.
    pub(super) fn since(&self, before: &Cpu) -> CpuUse {
        let waited_ns = self.waited_ns.saturating_sub(before.waited_ns);
        let mut used = CpuUse { total_ns: 0, busiest_ns: 0, waited_ns, threads: 0, user: None };
        for (id, now) in &self.threads_ns {
            let earlier =
                before.threads_ns.iter().find(|(other, _)| other == id).map_or(0, |(_, time)| *time);
            let time = now.saturating_sub(earlier);
            used.total_ns += time;
            used.busiest_ns = used.busiest_ns.max(time);
            used.threads += usize::from(time > 0);
        }
        let (user, system) =
            (self.user.saturating_sub(before.user), self.system.saturating_sub(before.system));
        if user + system >= TICKS_MIN {
            used.user = Some(user as f64 / (user + system) as f64);
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_after_any_program_name() {
        assert_eq!(ticks("1 (a b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13"), Some((11, 12)));
        assert_eq!(ticks("1 (a) S 1"), None);
    }

    #[test]
    fn cpu_time_is_measured_by_thread() {
        let before = Cpu { threads_ns: vec![(1, 100), (2, 50)], waited_ns: 7, user: 5, system: 5 };
        let now = Cpu { threads_ns: vec![(1, 100), (2, 90), (3, 30)], waited_ns: 9, user: 8, system: 14 };
        let used = now.since(&before);
        assert_eq!((used.total_ns, used.busiest_ns, used.threads), (70, 40, 2));
        assert_eq!((used.waited_ns, used.user), (2, Some(0.25)));
        assert_eq!(before.since(&before).user, None);
    }

    #[test]
    fn this_process_can_be_read() {
        let own = Process::new(std::process::id()).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(!own.sockets().unwrap().is_empty());
        drop(socket);
        assert!(own.cpu().unwrap().threads_ns.iter().any(|(_, time)| *time > 0));
        assert!(own.enter_network().is_ok(), "a process should enter its own network namespace");
        assert!(Process::new(u32::MAX).unwrap_err().contains("no process"));
    }
}
