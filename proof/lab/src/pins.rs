//! The pinned programs and maps of switches, which outlive their daemon. A daemon in a lab pins below a directory that is
//! named after the run, or after the run with an underscore and more, so that the run's removal finds it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use spillway_bpf::switch::PINS;

use crate::LabError;

/// The names of all pinned switches on this machine, cut at the first underscore.
pub(crate) fn names() -> Vec<String> {
    let Ok(entries) = fs::read_dir(PINS) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.map(|name| name.split('_').next().unwrap_or_default().to_owned()).collect()
}

/// Removes the pins of a run's switches, and returns their number. The kernel then detaches and frees what nothing else
/// uses.
pub(crate) fn remove(run: &str) -> Result<usize, LabError> {
    remove_in(Path::new(PINS), run)
}

fn remove_in(directory: &Path, run: &str) -> Result<usize, LabError> {
    let mut removed = 0;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_of(&name, run) {
            continue;
        }
        match fs::remove_dir_all(entry.path()) {
            Ok(()) => removed += 1,
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => {
                return Err(LabError::io(format!("cannot remove the pins {}", entry.path().display()))(e));
            }
        }
    }
    Ok(removed)
}

fn is_of(name: &str, run: &str) -> bool {
    name.strip_prefix(run).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pins_of_the_run_are_removed() {
        let directory = std::env::temp_dir().join(format!("spillway-pins-{}", std::process::id()));
        let run = "spillway-x-1-1";
        for name in [run, "spillway-x-1-1_second", "spillway-x-1-10", "production"] {
            fs::create_dir_all(directory.join(name).join("maps")).unwrap();
        }
        assert_eq!(remove_in(&directory, run).unwrap(), 2);
        let mut left: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["production", "spillway-x-1-10"]);
        assert_eq!(remove_in(&directory, run).unwrap(), 0);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(
            remove_in(&directory, run).unwrap(),
            0,
            "a machine without switches has no directory of pins"
        );
    }
}
