//! Errors of programs and maps.

use std::fmt;

use libbpf_rs::ErrorKind;

/// Why an operation on a program or a map failed.
#[derive(Debug)]
pub struct BpfError {
    /// What failed, such as "cannot load the program `steer`".
    action: String,
    source: libbpf_rs::Error,
}

impl BpfError {
    /// For `map_err`. `action`: what failed.
    pub(crate) fn of(action: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> BpfError {
        move |source| BpfError { action: action.into(), source }
    }

    /// Whether the process lacks CAP_BPF or CAP_NET_ADMIN.
    pub fn is_unprivileged(&self) -> bool {
        self.source.kind() == ErrorKind::PermissionDenied
    }

    /// Whether a map has no room for another entry.
    pub fn is_full(&self) -> bool {
        self.source.kind() == ErrorKind::TooBig
    }
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:#}", self.action, self.source)?;
        if self.is_unprivileged() {
            f.write_str("; it needs root, or CAP_BPF and CAP_NET_ADMIN")?;
        }
        Ok(())
    }
}

impl std::error::Error for BpfError {}
