//! Facts about a server that do not change while it runs: names, addresses, mode.

use std::net::SocketAddr;

use spillway_bpf::Mode;
use spillway_wire::switch::ServerId;

use crate::settings::{EngineSettings, PeerServer};

/// Facts about a server that do not change while it runs. All of its threads share them.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) service: SocketAddr,
    pub(crate) interface: String,
    pub(crate) place: SocketAddr,
    pub(crate) mode: Mode,
    /// This server's name among its peers; `None` if no connection moves.
    pub(crate) own: Option<String>,
    /// Name of the policy for moves.
    pub(crate) policy: &'static str,
    peers: Vec<PeerServer>,
}

impl About {
    pub(crate) fn new(
        settings: &EngineSettings,
        own: Option<PeerServer>,
        place: SocketAddr,
        mode: Mode,
    ) -> About {
        About {
            name: settings.name.clone(),
            service: settings.service,
            interface: settings.interface.clone(),
            place,
            mode,
            own: own.map(|own| own.name),
            policy: settings
                .moves
                .as_ref()
                .and_then(|moves| moves.policy)
                .map_or("none", |settings| settings.policy.name()),
            peers: settings.moves.as_ref().map(|moves| moves.peers.clone()).unwrap_or_default(),
        }
    }

    /// The name of an order's target, for the log.
    pub(crate) fn name_of(&self, id: Option<ServerId>) -> &str {
        let peer = id.and_then(|id| self.peers.iter().find(|peer| peer.id == id));
        peer.map_or("the least loaded server", |peer| &peer.name)
    }

    /// The server with this name.
    pub(crate) fn id_of(&self, name: &str) -> Option<ServerId> {
        self.peers.iter().find(|peer| peer.name == name).map(|peer| peer.id)
    }
}
