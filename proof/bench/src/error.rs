//! Why an experiment could not be done. Findings, bad ones too, are no errors.

use std::fmt;
use std::io;
use std::path::Path;

use spillway_lab::LabError;

/// Why an experiment could not be done.
#[derive(Debug)]
pub enum Error {
    /// The laboratory refused.
    Lab(LabError),
    /// One of our own processes did not do what it is for.
    Process {
        /// Which, and what it did not do.
        what: String,
        /// What it printed last.
        output: String,
    },
    /// An option makes no sense, or something needed is missing; the text says what to do.
    Usage(String),
    /// The system refused something.
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
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
            Error::System { what, cause } => write!(f, "{what}: {cause}"),
        }
    }
}

impl std::error::Error for Error {}
