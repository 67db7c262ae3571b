//! Logs lost carriers. Hundreds of sessions may lose the same carrier at once, so each link port gets one line.

use std::net::SocketAddr;

use spillway_client::session::CarrierLoss;
use tracing::warn;

pub(crate) const NO_HELPER: &str = "no helper is known: connections stay direct";

/// Maximum number of link ports with a line of their own. Losses of further link ports are counted together.
const ADDRESSES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Losses {
    by_address: Vec<Lost>,
    other_attempts: u64,
    /// Whether [`NO_HELPER`] was logged since a helper was last known.
    is_no_helper_logged: bool,
}

#[derive(Debug)]
struct Lost {
    address: SocketAddr,
    /// Number of losses of this link port and failed attempts to reach it; a session may retry many times a second.
    attempts: u64,
    why: String,
}

impl Losses {
    pub fn note(&mut self, address: SocketAddr, why: &CarrierLoss) {
        if let Some(lost) = self.by_address.iter_mut().find(|lost| lost.address == address) {
            lost.attempts += 1;
        } else if self.by_address.len() < ADDRESSES_MAX {
            self.by_address.push(Lost { address, attempts: 1, why: why.to_string() });
        } else {
            self.other_attempts += 1;
        }
    }

    /// Logs the losses since the last call. Called about once a second; `helpers`: the number of known helpers.
    pub fn log(&mut self, helpers: usize) {
        if helpers > 0 {
            self.is_no_helper_logged = false;
        } else if !self.by_address.is_empty() && !std::mem::replace(&mut self.is_no_helper_logged, true) {
            warn!("{NO_HELPER}");
        }
        for Lost { address, attempts, why } in self.by_address.drain(..) {
            warn!(%address, attempts, why, "sessions lost this link port, or could not connect to it");
        }
        let attempts = std::mem::take(&mut self.other_attempts);
        if attempts > 0 {
            warn!(attempts, "sessions lost further link ports");
        }
    }
}
