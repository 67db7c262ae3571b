//! What relief is told when it begins.

use spillway_policy::{ASKED_DEFAULT, ActivationSettings};

use crate::LinkTarget;
use crate::session::SessionSettings;

/// What one process is told of one service.
#[derive(Clone, Debug)]
pub struct ReliefSettings {
    /// The server's own link port.
    pub server: LinkTarget,
    /// Helpers' link ports; [`Relief::set_helpers`](super::Relief::set_helpers) gives other ones later.
    pub helpers: Vec<LinkTarget>,
    /// When to ask for help, and how carefully.
    pub activation: ActivationSettings,
    /// So many helpers are asked for their load before one is chosen (PostMan §5.2). 1: one at random, which is only asked
    /// whether it takes clients.
    pub asked: usize,
    /// Of all sessions. `server_port` is that of [`server`](Self::server).
    pub session: SessionSettings,
}

impl ReliefSettings {
    /// The defaults, for a server and its helpers.
    pub fn new(server: LinkTarget, helpers: Vec<LinkTarget>) -> ReliefSettings {
        ReliefSettings {
            server,
            helpers,
            activation: ActivationSettings::default(),
            asked: ASKED_DEFAULT,
            session: SessionSettings::default(),
        }
    }
}
