//! Lost carriers, for the log: hundreds of sessions may lose the same one at a time, and are told in one line.

use std::net::SocketAddr;

use spillway_client::session::CarrierLoss;
use tracing::warn;

/// Said where nothing can take clients over from the server's own link port.
pub(crate) const NO_HELPER: &str = "no helper is known: connections stay direct";

/// Link ports told apart between two lines.
const ADDRESSES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Losses {
    all: Vec<Lost>,
    others: u64,
    /// That no helper is known has been told since one was.
    is_told: bool,
}

/// One link port.
#[derive(Debug)]
struct Lost {
    address: SocketAddr,
    /// How often a session lost it, or tried it in vain: one session may do so many times in a second.
    attempts: u64,
    why: String,
}

impl Losses {
    pub fn note(&mut self, address: SocketAddr, why: &CarrierLoss) {
        if let Some(lost) = self.all.iter_mut().find(|lost| lost.address == address) {
            lost.attempts += 1;
        } else if self.all.len() < ADDRESSES_MAX {
            self.all.push(Lost { address, attempts: 1, why: why.to_string() });
        } else {
            self.others += 1;
        }
    }

    /// Says what has come together. Called about once a second; `helpers` are known.
    pub fn tell(&mut self, helpers: usize) {
        if helpers > 0 {
            self.is_told = false;
        } else if !self.all.is_empty() && !std::mem::replace(&mut self.is_told, true) {
            warn!("{NO_HELPER}");
        }
        for Lost { address, attempts, why } in self.all.drain(..) {
            warn!(%address, attempts, why, "a link port does not carry sessions any more, or did not take them");
        }
        let attempts = std::mem::take(&mut self.others);
        if attempts > 0 {
            warn!(attempts, "sessions lost further link ports");
        }
    }
}
