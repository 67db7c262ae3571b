//! The two programs that experiments start: `spillway`, which is tested, and `spillway-lab`, which tests it.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// Paths of both programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// `spillway`: helpers, sidecars, servers under the preload library, load generators.
    pub spillway: PathBuf,
    /// `spillway-lab`: the echo server, attackers and counted work of experiments.
    pub lab: PathBuf,
}

impl Programs {
    /// Both programs in this directory.
    pub fn in_directory(directory: &Path) -> Programs {
        Programs { spillway: directory.join("spillway"), lab: directory.join("spillway-lab") }
    }

    /// This program, which is `spillway-lab`, and the `spillway` in the same directory.
    ///
    /// # Errors
    /// The directory of this program does not contain `spillway`.
    pub fn of_this_run() -> Result<Programs, Error> {
        let lab = std::env::current_exe()
            .map_err(|cause| Error::System { what: "cannot find the path of this program".into(), cause })?;
        let programs = Programs { lab: lab.clone(), ..Programs::in_directory(lab.parent().unwrap_or(&lab)) };
        if !programs.spillway.is_file() {
            let Programs { spillway, .. } = programs;
            return Err(Error::Usage(format!(
                "there is no {}: spillway-lab tests the `spillway` of its own directory; build both (`make dist`)",
                spillway.display()
            )));
        }
        Ok(programs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_reported_with_the_next_step() {
        // The directory of test programs does not contain `spillway`.
        let error = Programs::of_this_run().unwrap_err().to_string();
        assert!(error.contains("/spillway: ") && error.contains("make dist"), "{error}");
    }
}
