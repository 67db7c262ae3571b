//! The machine that figures were taken on, and how much of it was taken away meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};

/// What a reader must know to compare figures with those of another machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Operating system and kernel release.
    pub kernel: String,
    /// Cores this process may use.
    pub cores: usize,
    /// The processor's own name.
    pub cpu: String,
    /// Of the server's interface in the laboratory.
    pub offloads: String,
    /// The server program and its version.
    pub server: String,
    /// Where each host runs, and other settings of the laboratory.
    pub lab: BTreeMap<String, String>,
}

impl Machine {
    /// Describes this machine; what the laboratory adds is empty.
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

    /// Asks a program for its version: the first line that it prints for `argument`.
    pub(crate) fn version_of(program: &str, argument: &str) -> String {
        let output = Command::new(program).arg(argument).output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
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

/// Time that this machine's own host kept from it: stalls that spoil a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stolen {
    ticks: u64,
}

/// The kernel counts stolen time in hundredths of a second.
const TICK_MS: f64 = 10.0;

impl Stolen {
    /// What was stolen so far, over all cores.
    pub fn now() -> Stolen {
        Stolen { ticks: steal(&fs::read_to_string("/proc/stat").unwrap_or_default()) }
    }

    /// Milliseconds since an earlier moment.
    pub fn since_ms(&self, earlier: &Stolen) -> f64 {
        self.ticks.saturating_sub(earlier.ticks) as f64 * TICK_MS
    }
}

fn steal(stat: &str) -> u64 {
    let line = stat.lines().find(|line| line.starts_with("cpu ")).unwrap_or_default();
    line.split_whitespace().nth(8).and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_description() {
        let machine = Machine::here();
        assert!(machine.kernel.starts_with("Linux "), "{}", machine.kernel);
        assert!(machine.cores >= 1 && !machine.cpu.is_empty());
        assert_eq!(model("processor : 0\nmodel name\t: Some CPU\n"), "Some CPU");
        assert_eq!(model(""), "unknown");
    }

    #[test]
    fn stolen_time_is_the_eighth_figure() {
        let stat = "cpu  59933 0 8444 311831 874 0 239 47 0 0\ncpu0 1 1 1 1 1 1 1 9 0 0\n";
        assert_eq!(steal(stat), 47);
        assert_eq!(steal(""), 0);
        assert_eq!(Stolen { ticks: 9 }.since_ms(&Stolen { ticks: 4 }), 50.0);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        assert_eq!(Machine::version_of("no-such-program-here", "-V"), "no-such-program-here");
    }
}
