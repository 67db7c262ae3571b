//! The transport of load generators, and of helpers that are measured with them.

use std::path::Path;

use spillway_lab::Host;

use crate::programs::Programs;

/// The transport of load generators, and of helpers that are measured with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The kernel's sockets.
    #[default]
    Sockets,
    /// The user-level TCP stack, on its host's interface. Hosts that send to it must compute checksums.
    Xdp,
}

impl Engine {
    /// The engine's name on command lines and in results.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Sockets => "sockets",
            Engine::Xdp => "xdp",
        }
    }

    /// The program whose command `load` has this engine.
    pub(super) fn program(self, programs: &Programs) -> &Path {
        match self {
            Engine::Sockets => &programs.spillway,
            Engine::Xdp => &programs.lab,
        }
    }

    /// Options of the command for a host.
    pub(super) fn arguments(self, host: &Host) -> Vec<String> {
        match self {
            Engine::Sockets => Vec::new(),
            Engine::Xdp => ["--engine", "xdp", "--interface", host.interface()].map(str::to_owned).to_vec(),
        }
    }

    /// Whether a generator's start and end replace the threads of the host's interface.
    pub(super) fn replaces_interface_threads(self) -> bool {
        self == Engine::Xdp
    }
}

impl std::str::FromStr for Engine {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Engine, &'static str> {
        let all = [Engine::Sockets, Engine::Xdp];
        all.into_iter().find(|engine| engine.name() == text).ok_or("give sockets or xdp")
    }
}
