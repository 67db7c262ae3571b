//! Removes the remains of killed runs.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use serde::Serialize;

use crate::cgroup::Layout;
use crate::names::RunName;
use crate::{LabError, namespace, pins, run};

/// The result of [`clean`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanReport {
    /// Runs whose namespaces, groups, processes or files were removed.
    pub removed: Vec<RemovedRun>,
    /// Runs that were kept because their owner is alive.
    pub kept: Vec<KeptRun>,
    /// Runs that could not be removed completely, each with the error.
    pub failures: Vec<String>,
}

/// The removed parts of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemovedRun {
    /// The run's name.
    pub run: String,
    /// Network namespaces removed.
    pub namespaces: usize,
    /// Control groups removed.
    pub groups: usize,
    /// Processes killed in these groups.
    pub processes: usize,
    /// Switches whose pinned programs and maps were removed.
    pub pinned_switches: usize,
    /// Whether a directory of files was removed.
    pub directory: bool,
}

/// A run that was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptRun {
    /// The run's name.
    pub run: String,
    /// The owner's process id.
    pub pid: u32,
}

/// Removes the namespaces, control groups, processes and files of all runs whose owner has ended.
///
/// # Errors
/// When not run by root. What could not be removed is in the report.
pub fn clean() -> Result<CleanReport, LabError> {
    clean_runs(false)
}

/// As [`clean`], but also removes runs whose owner is alive, so that their experiments fail.
///
/// # Errors
/// When not run by root. What could not be removed is in the report.
pub fn clean_all_runs() -> Result<CleanReport, LabError> {
    clean_runs(true)
}

fn clean_runs(includes_live_runs: bool) -> Result<CleanReport, LabError> {
    if !rustix::process::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    let layout = Layout::detect().ok();
    let mut report = CleanReport::default();
    for name in existing_runs(layout.as_ref()) {
        let run = name.to_string();
        if !includes_live_runs && run::is_owner_alive(&name) {
            report.kept.push(KeptRun { run, pid: name.pid });
            continue;
        }
        match run::remove(&run, layout.as_ref()) {
            Ok(removed) if removed == run::Removed::default() => {}
            Ok(removed) => report.removed.push(RemovedRun {
                run,
                namespaces: removed.namespaces,
                groups: removed.groups,
                processes: removed.processes,
                pinned_switches: removed.pins,
                directory: removed.directory,
            }),
            Err(e) => report.failures.push(format!("{run}: {e}")),
        }
    }
    Ok(report)
}

/// All runs that have a namespace, a group, a pinned switch or a directory on this machine.
fn existing_runs(layout: Option<&Layout>) -> BTreeSet<RunName> {
    let groups = layout.map(Layout::top_groups).unwrap_or_default();
    let files = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let files = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    namespace::names()
        .into_iter()
        .chain(groups)
        .chain(pins::names())
        .chain(files)
        .filter_map(|name| RunName::parse(&name))
        .collect()
}

impl fmt::Display for CleanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.removed.is_empty() && self.kept.is_empty() && self.failures.is_empty() {
            return write!(f, "nothing to clean");
        }
        let removed = self.removed.iter().map(|removed| {
            format!(
                "removed {}: {} namespaces, {} control groups, {} processes{}{}",
                removed.run,
                removed.namespaces,
                removed.groups,
                removed.processes,
                match removed.pinned_switches {
                    0 => String::new(),
                    switches => format!(", {switches} pinned switches"),
                },
                if removed.directory { ", its files" } else { "" }
            )
        });
        let kept =
            self.kept.iter().map(|kept| format!("kept {}: process {} is using it", kept.run, kept.pid));
        let failures = self.failures.iter().map(|failure| format!("failed {failure}"));
        write!(f, "{}", removed.chain(kept).chain(failures).collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_lists_removed_and_kept_runs_and_failures() {
        assert_eq!(CleanReport::default().to_string(), "nothing to clean");
        let report = CleanReport {
            removed: vec![RemovedRun {
                run: "spillway-a-1-0".into(),
                namespaces: 3,
                groups: 14,
                processes: 1,
                pinned_switches: 2,
                directory: true,
            }],
            kept: vec![KeptRun { run: "spillway-b-2-0".into(), pid: 2 }],
            failures: vec!["spillway-c-3-0: no".into()],
        };
        assert_eq!(
            report.to_string(),
            "removed spillway-a-1-0: 3 namespaces, 14 control groups, 1 processes, 2 pinned switches, its files\n\
             kept spillway-b-2-0: process 2 is using it\nfailed spillway-c-3-0: no"
        );
    }
}
