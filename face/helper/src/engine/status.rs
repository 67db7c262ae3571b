//! The engine of a running helper, for operators and programs.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use spillway_bpf::Mode;

use super::choice::EngineState;

/// The engine of a helper's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// `sockets` or `xdp`.
    pub name: String,
    /// The interface; only with `xdp`.
    #[serde(default)]
    pub interface: Option<String>,
    /// `native` or `generic`: where the steering program runs; only with `xdp`.
    #[serde(default)]
    pub mode: Option<String>,
    /// Whether the driver uses the stack's frames without a copy (zero-copy mode); only with `xdp`.
    #[serde(default)]
    pub zero_copy: Option<bool>,
    /// Receive queues of the interface; only with `xdp`.
    #[serde(default)]
    pub queues: Option<u32>,
    /// Addresses in use that were removed from the interface: no packet arrives there. Only with `xdp`.
    #[serde(default)]
    pub missing_addresses: Vec<IpAddr>,
}

impl EngineStatus {
    /// Reasons for which clients do not reach the helper, one sentence each.
    pub fn problems(&self) -> impl Iterator<Item = String> + '_ {
        let interface = self.interface.as_deref().unwrap_or_default();
        self.missing_addresses
            .iter()
            .map(move |address| format!("interface {interface} does not have the address {address} any more"))
    }
}

impl From<&EngineState> for EngineStatus {
    fn from(state: &EngineState) -> EngineStatus {
        let name = state.name().to_owned();
        match state {
            EngineState::Sockets => EngineStatus { name, ..EngineStatus::default() },
            EngineState::Xdp(state) => EngineStatus {
                name,
                interface: Some(state.interface.name.clone()),
                mode: Some(match state.mode {
                    Mode::Native => "native".to_owned(),
                    Mode::Generic => "generic".to_owned(),
                }),
                zero_copy: Some(state.is_zero_copy),
                queues: Some(state.interface.queues),
                missing_addresses: state.missing_addresses(),
            },
        }
    }
}
