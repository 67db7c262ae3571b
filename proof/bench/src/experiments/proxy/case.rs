//! What is measured: a system, under a load.

use std::fmt;

/// What answers the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// Servers on the user-level stack hand connections off, and backends hand them directly to each other.
    Stack,
    /// As `Stack`, but backends return connections to the frontend, which examines each request, as in the paper.
    StackReturn,
    /// As `Stack`, with servers on kernel sockets.
    Kernel,
    /// As `StackReturn`, with servers on kernel sockets.
    KernelReturn,
    /// nginx relays.
    Nginx,
    /// haproxy relays.
    Haproxy,
}

/// How a system's frontend works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is a server with this engine, and hands requests off to servers with the same engine.
    HandOff {
        /// The value of the servers' option `--engine`.
        engine: &'static str,
        /// Whether connections return to the frontend for each request.
        returns: bool,
    },
    /// It is a reverse proxy.
    Proxy,
}

impl System {
    pub(super) const ALL: [System; 6] = [
        System::Stack,
        System::StackReturn,
        System::Kernel,
        System::KernelReturn,
        System::Nginx,
        System::Haproxy,
    ];
    /// The names of [`ALL`](Self::ALL).
    pub(super) const NAMES: [&str; 6] = [
        "spillway-stack",
        "spillway-stack-return",
        "spillway-kernel",
        "spillway-kernel-return",
        "nginx",
        "haproxy",
    ];
    /// The systems that run unless others are selected.
    pub const DEFAULT: [System; 4] = [System::Stack, System::StackReturn, System::Nginx, System::Haproxy];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            System::Stack => "spillway-stack",
            System::StackReturn => "spillway-stack-return",
            System::Kernel => "spillway-kernel",
            System::KernelReturn => "spillway-kernel-return",
            System::Nginx => "nginx",
            System::Haproxy => "haproxy",
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            System::Stack => Kind::HandOff { engine: "xdp", returns: false },
            System::StackReturn => Kind::HandOff { engine: "xdp", returns: true },
            System::Kernel => Kind::HandOff { engine: "kernel", returns: false },
            System::KernelReturn => Kind::HandOff { engine: "kernel", returns: true },
            System::Nginx | System::Haproxy => Kind::Proxy,
        }
    }
}

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Load {
    /// Each connection sends its next request when it has its response; hosts have quotas.
    Closed,
    /// At a rate that does not depend on responses; hosts have no quotas.
    Open,
}

impl Load {
    pub fn name(self) -> &'static str {
        match self {
            Load::Closed => "closed",
            Load::Open => "open",
        }
    }
}

/// A system under a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub system: System,
    /// Number of backends.
    pub backends: usize,
    /// Size of the objects.
    pub bytes: u32,
    pub load: Load,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { system, backends, bytes, load } = self;
        write!(f, "{}, {backends} backends, {bytes} B, {} loop", system.name(), load.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_the_systems() {
        assert_eq!(System::ALL.map(System::name), System::NAMES);
    }
}
