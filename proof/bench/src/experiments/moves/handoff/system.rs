//! What the servers stand on.

use crate::experiments::moves::site::ServerTcp;

/// What the servers stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    Kernel,
    Stack,
}

impl System {
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Kernel => "kernel",
            System::Stack => "stack",
        }
    }

    pub(super) fn tcp(self) -> ServerTcp {
        match self {
            System::Kernel => ServerTcp::Kernel,
            System::Stack => ServerTcp::Xdp,
        }
    }
}
