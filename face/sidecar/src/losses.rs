//! Lost carriers, for the log: hundreds of sessions may lose the same one at a time, and are told in one line.

use std::net::SocketAddr;

use spillway_client::session::CarrierLoss;
use tracing::warn;

/// Link ports told apart between two lines.
const ADDRESSES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Losses {
    all: Vec<(SocketAddr, u64, String)>,
    others: u64,
}

impl Losses {
    pub fn note(&mut self, address: SocketAddr, why: &CarrierLoss) {
        if let Some((_, count, _)) = self.all.iter_mut().find(|(known, _, _)| *known == address) {
            *count += 1;
        } else if self.all.len() < ADDRESSES_MAX {
            self.all.push((address, 1, why.to_string()));
        } else {
            self.others += 1;
        }
    }

    /// Says what has come together. Called about once a second.
    pub fn tell(&mut self) {
        for (address, sessions, why) in self.all.drain(..) {
            warn!(%address, sessions, why, "a link port does not carry sessions any more, or did not take them");
        }
        if std::mem::take(&mut self.others) > 0 {
            warn!("sessions lost further link ports");
        }
    }
}
