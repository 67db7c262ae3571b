//! Settings of relief.

use spillway_policy::{ActivationSettings, HELPERS_ASKED_DEFAULT};

use crate::LinkTarget;
use crate::session::SessionSettings;

/// Settings of relief for one service, in one process.
#[derive(Clone, Debug)]
pub struct ReliefSettings {
    /// The server's own link port.
    pub server: LinkTarget,
    /// Helpers' link ports; [`Relief::set_helpers`](super::Relief::set_helpers) replaces them.
    pub helpers: Vec<LinkTarget>,
    /// When sessions move to helpers and back.
    pub activation: ActivationSettings,
    /// Number of helpers whose load is queried before one is chosen (PostMan §5.2). 1: a random helper is used if it
    /// accepts clients.
    pub helpers_asked: usize,
    /// Settings of all sessions. `server_port` is replaced by the address of [`server`](Self::server).
    pub session: SessionSettings,
}

impl ReliefSettings {
    /// The defaults, for a server and its helpers.
    pub fn new(server: LinkTarget, helpers: Vec<LinkTarget>) -> ReliefSettings {
        ReliefSettings {
            server,
            helpers,
            activation: ActivationSettings::default(),
            helpers_asked: HELPERS_ASKED_DEFAULT,
            session: SessionSettings::default(),
        }
    }
}
