//! Errors of programs and maps.

use std::fmt;

use libbpf_rs::ErrorKind;
use rustix::thread::{CapabilitySet, capabilities};

/// Why an operation on a program or a map failed.
#[derive(Debug)]
pub struct BpfError {
    /// What failed, such as "cannot load the program `steer`".
    action: String,
    /// The capabilities without which the kernel refuses the operation.
    needed: CapabilitySet,
    source: libbpf_rs::Error,
}

/// What programs for packets need.
const PACKETS: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN);
/// What programs need that read the kernel's structures.
const TRACING: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);

impl BpfError {
    /// For `map_err`. `action`: what failed.
    pub(crate) fn of(action: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> BpfError {
        move |source| BpfError { action: action.into(), needed: PACKETS, source }
    }

    /// The same error of a program that reads the kernel's structures.
    pub(crate) fn of_tracing(self) -> BpfError {
        BpfError { needed: TRACING, ..self }
    }

    /// Whether the process lacks a capability: CAP_BPF, and CAP_NET_ADMIN or, for programs that read the kernel's structures,
    /// CAP_PERFMON.
    pub fn is_unprivileged(&self) -> bool {
        self.is_denied() && !has(self.needed)
    }

    fn needed_names(&self) -> &'static str {
        if self.needed == TRACING { "CAP_BPF and CAP_PERFMON" } else { "CAP_BPF and CAP_NET_ADMIN" }
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
            write!(f, "; it needs root, or {}", self.needed_names())?;
        } else if self.is_denied() {
            let names = self.needed_names();
            write!(f, "; the process has {names}, so the kernel's verifier has refused the program")?;
        }
        Ok(())
    }
}

impl std::error::Error for BpfError {}

/// Whether the calling thread has these capabilities.
fn has(needed: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}
