//! Names of runs. The names of a run's namespaces, groups and files begin with the run's name; see `clean`.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::LabError;

const RUN_PREFIX: &str = "spillway";
/// A host's number is one base-62 digit in names of interfaces.
pub(crate) const HOSTS_MAX: usize = 62;
const NAME_BYTES_MAX: usize = 24;
const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// `spillway-NAME-PID-N`, where N counts the runs of one process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunName {
    pub name: String,
    pub pid: u32,
    pub number: u32,
}

impl RunName {
    /// A name that no run of a living process has.
    pub fn new(name: &str) -> Result<RunName, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        check("lab", name)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(RunName { name: name.to_owned(), pid: std::process::id(), number })
    }

    /// Parses a run's name, or the name of a namespace, `RUN.HOST`. `None` for other names.
    pub fn parse(text: &str) -> Option<RunName> {
        let run = text.split('.').next()?;
        let rest = run.strip_prefix(RUN_PREFIX)?.strip_prefix('-')?;
        let (rest, number) = rest.rsplit_once('-')?;
        let (name, pid) = rest.rsplit_once('-')?;
        check("lab", name).ok()?;
        Some(RunName { name: name.to_owned(), pid: decimal(pid)?, number: decimal(number)? })
    }

    pub fn namespace(&self, host: &str) -> String {
        format!("{self}.{host}")
    }

    /// The names of the host's end and of the bridge's end of a host's cable. They are unique on the machine,
    /// because NAPI threads are found by their name, `napi/INTERFACE-ID`, in a process table that all
    /// namespaces share. They have 8 characters, because older kernels cut the threads' names at 15.
    pub fn interfaces(&self, host: usize) -> (String, String) {
        let stem = self.stem(host);
        (format!("{stem}h"), format!("{stem}b"))
    }

    /// The names of both ends of the cable from a switch to the next one in the row.
    pub fn trunk(&self, switch: usize) -> (String, String) {
        let stem = self.stem(switch);
        (format!("{stem}n"), format!("{stem}p"))
    }

    fn stem(&self, cable: usize) -> String {
        let digit = |n: usize| char::from(DIGITS[n % 62]);
        let mut pid = self.pid as usize;
        let mut stem = String::from("s");
        for _ in 0..4 {
            stem.push(digit(pid));
            pid /= 62;
        }
        stem.push(digit(self.number as usize));
        stem.push(digit(cable));
        stem
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{RUN_PREFIX}-{}-{}-{}", self.name, self.pid, self.number)
    }
}

/// Accepts lower-case letters, digits and inner hyphens: safe in names of files, cgroups and namespaces.
pub(crate) fn check(kind: &str, name: &str) -> Result<(), LabError> {
    let fits = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    if fits {
        return Ok(());
    }
    Err(LabError::BadOption(format!(
        "a {kind} name is 1 to {NAME_BYTES_MAX} lower-case letters, digits and inner hyphens, not {name:?}"
    )))
}

/// Parses digits only, whereas `str::parse` also accepts a sign.
fn decimal(text: &str) -> Option<u32> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_parsed_from_its_name_and_its_namespaces() {
        let run = RunName { name: "burst-relief".into(), pid: 4_194_303, number: 7 };
        assert_eq!(run.to_string(), "spillway-burst-relief-4194303-7");
        assert_eq!(RunName::parse(&run.to_string()), Some(run.clone()));
        assert_eq!(RunName::parse(&run.namespace("server")), Some(run));
    }

    #[test]
    fn other_names_are_not_parsed_as_runs() {
        for other in [
            "",
            "spillway",
            "spillway-helper",
            "spillway-x-1",
            "spillway--1-2",
            "spillway-x-1-+2",
            "spillwayx-a-1-2",
        ] {
            assert_eq!(RunName::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn interface_names_differ_and_have_at_most_8_bytes() {
        let mut seen = std::collections::BTreeSet::new();
        for pid in [1, 61, 62, 4_194_303, 4_194_304] {
            for number in 0..62 {
                let run = RunName { name: "a".into(), pid, number };
                for host in 0..HOSTS_MAX {
                    let (host_end, bridge_end) = run.interfaces(host);
                    assert!(host_end.len() <= 8 && bridge_end.len() <= 8);
                    assert!(seen.insert(host_end) && seen.insert(bridge_end));
                    let (next, previous) = run.trunk(host);
                    assert!(next.len() <= 8 && seen.insert(next) && seen.insert(previous));
                }
            }
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        for bad in ["", "a.b", "a/b", "A", "-a", "a-", "x y", &"n".repeat(NAME_BYTES_MAX + 1)] {
            assert!(check("host", bad).is_err(), "{bad:?}");
        }
        assert!(check("host", &"n".repeat(NAME_BYTES_MAX)).is_ok());
    }
}
