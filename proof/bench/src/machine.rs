//! The machine on which figures are measured, and the CPU time that other programs and the hypervisor take from it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};

use crate::steady::Steady;

/// Description of a machine, for readers who compare figures with those of another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Operating system and kernel release.
    pub kernel: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Model name of the processor.
    pub cpu: String,
    /// Offload settings of the server's interface in the laboratory.
    pub offloads: String,
    /// The server program and its version.
    pub server: String,
    /// Cores of each host, and other settings of the laboratory.
    pub lab: BTreeMap<String, String>,
}

impl Machine {
    /// As [`here`](Self::here), with how the machine is held steady, and whether the build suits measurements.
    pub(crate) fn held(steady: &Steady) -> Machine {
        let mut machine = Machine::here();
        machine.lab.extend(steady.description());
        if cfg!(debug_assertions) {
            machine.lab.insert("build".into(), "with assertions: times are not those of a release".into());
        }
        machine
    }

    /// Describes this machine; the fields that the laboratory fills are empty.
    pub fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Machine {
            kernel: format!(
                "{} {}",
                read("/proc/sys/kernel/ostype").trim(),
                read("/proc/sys/kernel/osrelease").trim()
            ),
            cores: available_parallelism().map_or(1, usize::from),
            cpu: model(&read("/proc/cpuinfo")),
            offloads: String::new(),
            server: String::new(),
            lab: BTreeMap::new(),
        }
    }

    /// A program's version: the first line that it prints for `argument`.
    pub(crate) fn version_of(program: &str, argument: &str) -> String {
        let output = Command::new(program).arg(argument).output();
        // Some programs print their version to standard error.
        let printed = output
            .map(|output| if output.stdout.is_empty() { output.stderr } else { output.stdout })
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&printed);
        text.lines().next().unwrap_or(program).trim().to_owned()
    }
}

fn model(cpuinfo: &str) -> String {
    let value = |name: &str| {
        cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))
            .map(str::trim)
    };
    value("model name").or_else(|| value("Processor")).unwrap_or("unknown").to_owned()
}

/// CPU times of the machine and of this process, to find out what disturbed a measurement from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// CPU time of all processes and interrupts on all cores, in s.
    pub busy_s: f64,
    /// Time that the hypervisor withheld (steal time), summed over all cores, in s.
    pub stolen_s: f64,
    /// CPU time of this process, in s.
    pub own_s: f64,
}

/// Unit of `/proc/stat`: USER_HZ is 100 (proc(5)).
const TICK_S: f64 = 0.01;
/// The root group's usage, in ns, at the usual mount points of cgroup v1.
const ROOT_USAGE: [&str; 2] =
    ["/sys/fs/cgroup/cpuacct/cpuacct.usage", "/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage"];

impl Load {
    /// Reads the counters now.
    pub fn now() -> Load {
        let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let own_s = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9;
        let load = parse(&fs::read_to_string("/proc/stat").unwrap_or_default());
        Load { own_s, busy_s: scheduler_busy_s().unwrap_or(load.busy_s), ..load }
    }

    /// The difference from an earlier reading.
    pub fn since(&self, earlier: &Load) -> Load {
        Load {
            busy_s: (self.busy_s - earlier.busy_s).max(0.0),
            stolen_s: (self.stolen_s - earlier.stolen_s).max(0.0),
            own_s: (self.own_s - earlier.own_s).max(0.0),
        }
    }
}

/// CPU time of the whole machine by the scheduler's clock, in s; `None` without cgroup v1. `/proc/stat` samples at
/// ticks and misses threads that run only between two ticks.
fn scheduler_busy_s() -> Option<f64> {
    let usage = ROOT_USAGE.iter().find_map(|file| fs::read_to_string(file).ok())?;
    Some(usage.trim().parse::<u64>().ok()? as f64 / 1e9)
}

fn parse(stat: &str) -> Load {
    let line = stat.lines().find(|line| line.starts_with("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|column| column.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let sum = |columns: &[usize]| columns.iter().filter_map(|&n| ticks.get(n)).sum::<u64>() as f64 * TICK_S;
    Load { busy_s: sum(&[0, 1, 2, 5, 6]), stolen_s: sum(&[7]), own_s: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::here();
        assert!(machine.kernel.starts_with("Linux "), "{}", machine.kernel);
        assert!(machine.cores >= 1 && !machine.cpu.is_empty());
        assert_eq!(model("processor : 0\nmodel name\t: Some CPU\n"), "Some CPU");
        assert_eq!(model(""), "unknown");
    }

    #[test]
    fn load_is_parsed_from_proc_stat() {
        let stat = "cpu  100 1 200 9999 874 3 6 47 0 0\ncpu0 1 1 1 1 1 1 1 9 0 0\n";
        let load = parse(stat);
        assert!((load.busy_s - 3.1).abs() < 1e-9 && (load.stolen_s - 0.47).abs() < 1e-9);
        assert_eq!(parse(""), Load::default());
        let later = Load { busy_s: 4.1, own_s: 0.5, ..load };
        let added = later.since(&load);
        assert!((added.busy_s - 1.0).abs() < 1e-9 && added.stolen_s == 0.0 && added.own_s == 0.5);
        assert!(Load::now().busy_s > 0.0);
    }

    #[test]
    fn a_missing_program_yields_its_name() {
        assert_eq!(Machine::version_of("no-such-program-here", "-V"), "no-such-program-here");
    }
}
