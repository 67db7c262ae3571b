//! Errors of programs and maps.

use std::fmt;

use libbpf_rs::ErrorKind;
use rustix::thread::{CapabilitySet, capabilities};

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
        self.is_denied() && !is_privileged()
    }

    /// The verifier's refusal of a program is the same error as a lack of privileges.
    fn is_denied(&self) -> bool {
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
        } else if self.is_denied() {
            f.write_str("; the process has CAP_BPF and CAP_NET_ADMIN, so the kernel's verifier has refused the program")?;
        }
        Ok(())
    }
}

impl std::error::Error for BpfError {}

/// Whether the calling thread may load programs.
fn is_privileged() -> bool {
    let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}
