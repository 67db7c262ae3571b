//! Errors of the laboratory. Their texts name the operator's next step.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why an operation of the laboratory failed.
#[derive(Debug)]
pub enum LabError {
    /// The process lacks the capabilities for namespaces and cgroups.
    NotRoot,
    /// A program that the lab runs is not installed.
    MissingTool {
        /// The program's name.
        tool: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The machine's control groups lack a feature.
    Cgroup(String),
    /// The caller passed an invalid option; nothing was changed.
    BadOption(String),
    /// A program ran and reported a failure.
    Command {
        /// The command, shortened.
        what: String,
        /// The program's output.
        output: String,
    },
    /// A peer or process did not become ready, or ended too early.
    NotReady {
        /// The peer or process, and its host.
        what: String,
        /// The end of its output.
        output: String,
    },
    /// A system call failed.
    Io {
        /// The operation and its object.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A switch has not answered a control message.
    NoAnswer {
        /// Where the message was sent.
        switch: SocketAddr,
        /// The time for which the sender has waited.
        waited: Duration,
    },
    /// A BPF program could not be loaded or attached.
    Bpf(Box<dyn std::error::Error + Send + Sync>),
}

impl LabError {
    /// Wraps a system error with the failed operation.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> LabError {
        let what = what.into();
        move |source| LabError::Io { what, source }
    }

    pub(crate) fn errno(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> LabError {
        let what = what.into();
        move |errno| LabError::Io { what, source: errno.into() }
    }

    pub(crate) fn bpf(error: impl std::error::Error + Send + Sync + 'static) -> LabError {
        LabError::Bpf(Box::new(error))
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabError::NotRoot => {
                write!(
                    f,
                    "the lab makes network namespaces and cgroups: run it as root, in a container with CAP_SYS_ADMIN \
                     and CAP_NET_ADMIN"
                )
            }
            LabError::MissingTool { tool, package } => {
                write!(f, "the program `{tool}` is not installed: apt-get install {package}")
            }
            LabError::Cgroup(detail) => write!(f, "control groups: {detail}"),
            LabError::BadOption(detail) => write!(f, "{detail}"),
            LabError::Command { what, output } => write!(f, "`{what}` failed: {}", output.trim()),
            LabError::NotReady { what, output } if output.trim().is_empty() => write!(f, "{what}"),
            LabError::NotReady { what, output } => write!(f, "{what}; it printed: {}", output.trim()),
            LabError::Io { what, source } => write!(f, "{what}: {source}"),
            LabError::NoAnswer { switch, waited } => write!(
                f,
                "the switch has not answered from {switch} within {waited:?}: it drops messages with a wrong key, with the \
                 number of an unknown server, and from ports without servers; `spillway status` at the switch counts them \
                 as drop_control_tag, drop_control_invalid and drop_control_port"
            ),
            LabError::Bpf(source) => source.fmt(f),
        }
    }
}

// No `source`: the text contains the cause, which a program that prints the chain would print twice.
impl std::error::Error for LabError {}
