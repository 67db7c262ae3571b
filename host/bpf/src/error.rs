//! Errors of programs and maps.

use std::fmt;

use libbpf_rs::ErrorKind;
use rustix::thread::{CapabilitySet, capabilities};

/// Why an operation on a program or a map failed.
#[derive(Debug)]
pub struct BpfError {
    /// What failed, such as "cannot load the program `steer`".
    action: String,
    needs: Needs,
    source: libbpf_rs::Error,
}

/// The capabilities without which the kernel refuses a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needs {
    /// The program handles packets.
    Packets,
    /// The program reads the kernel's structures.
    Tracing,
    /// The program handles packets and reads the kernel's structures.
    Both,
}

impl Needs {
    fn capabilities(self) -> (CapabilitySet, &'static str) {
        use CapabilitySet as Set;
        match self {
            Needs::Packets => (Set::BPF | Set::NET_ADMIN, "CAP_BPF and CAP_NET_ADMIN"),
            Needs::Tracing => (Set::BPF | Set::PERFMON, "CAP_BPF and CAP_PERFMON"),
            Needs::Both => {
                (Set::BPF | Set::NET_ADMIN | Set::PERFMON, "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")
            }
        }
    }
}

impl BpfError {
    /// For `map_err`. `action`: what failed.
    pub(crate) fn of(action: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> BpfError {
        move |source| BpfError { action: action.into(), needs: Needs::Packets, source }
    }

    /// The same error of a program with other needs.
    pub(crate) fn needing(self, needs: Needs) -> BpfError {
        BpfError { needs, ..self }
    }

    /// Whether the process lacks a capability that the program needs.
    pub fn is_unprivileged(&self) -> bool {
        self.is_denied() && !has(self.needs.capabilities().0)
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
        let (_, names) = self.needs.capabilities();
        if self.is_unprivileged() {
            write!(f, "; it needs root, or {names}")?;
        } else if self.is_denied() {
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
