//! Why an experiment could not run. A bad finding is a result, not an error.

use std::fmt;
use std::io;
use std::path::Path;

use spillway_lab::LabError;

/// Why an experiment could not run.
#[derive(Debug)]
pub enum Error {
    /// An error of the laboratory.
    Lab(LabError),
    /// A program of the experiment failed.
    Process {
        /// The program and its failure.
        what: String,
        /// The last lines of its output.
        output: String,
    },
    /// An option is invalid or a prerequisite is missing; the text contains the next step.
    Usage(String),
    /// Other processes disturb the calibration.
    Disturbed(String),
    /// The machine is too slow for a burst and its relief.
    TooSlow(String),
    /// A system call failed.
    System {
        /// The operation that failed.
        what: String,
        /// The operating system's error.
        cause: io::Error,
    },
}

impl Error {
    pub(crate) fn process(what: impl Into<String>, output: impl Into<String>) -> Error {
        Error::Process { what: what.into(), output: output.into() }
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let what = format!("cannot write {}", path.display());
        move |cause| Error::System { what, cause }
    }
}

impl From<LabError> for Error {
    fn from(error: LabError) -> Error {
        Error::Lab(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Lab(error) => error.fmt(f),
            Error::Process { what, output } if output.trim().is_empty() => f.write_str(what),
            Error::Process { what, output } => write!(f, "{what}; it printed: {}", output.trim()),
            Error::Usage(what) => f.write_str(what),
            Error::Disturbed(why) => {
                write!(f, "{why}, which would spoil the calibration. Wait until the machine is quiet")
            }
            Error::TooSlow(why) => f.write_str(why),
            Error::System { what, cause } => write!(f, "{what}: {cause}"),
        }
    }
}

impl std::error::Error for Error {}
