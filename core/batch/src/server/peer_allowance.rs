//! The allowance of a library client for control messages and empty frames: how much each part of the input uses up, and
//! how much data in both directions adds.

use spillway_transport::Time;
use spillway_wire::HEADER_BYTES;

use crate::event::ServerEvent;
use crate::overhead::Allowance;
use crate::run::{RunOutcome, frames};

/// The allowance of one link's peer. A helper has none, because its link carries many clients' control messages: the
/// helper limits each client.
#[derive(Debug, Default)]
pub(super) struct PeerAllowance(Option<Allowance>);

impl PeerAllowance {
    /// The peer is a library client: limits it from now on.
    pub(super) fn begin(&mut self) {
        self.0 = Some(Allowance::default());
    }

    /// Charges `taken` bytes of input, which led to `event`, to the allowance. Data raises the allowance instead.
    #[inline]
    pub(super) fn charge(&mut self, now: Time, taken: usize, event: Option<&ServerEvent<'_>>) {
        let Some(allowance) = &mut self.0 else { return };
        match event {
            Some(ServerEvent::Data { bytes, .. } | ServerEvent::Carried { bytes, .. }) => {
                allowance.earn(bytes.len());
                // The other bytes are empty frames before this one.
                allowance.spend(now, taken.saturating_sub(HEADER_BYTES + bytes.len()));
            }
            _ => allowance.spend(now, taken),
        }
    }

    /// Charges `taken` bytes of input to the allowance. If they include the run in `outcome`, its data raises the
    /// allowance instead.
    #[inline]
    pub(super) fn charge_run(&mut self, now: Time, taken: usize, outcome: &RunOutcome<'_>) {
        let Some(allowance) = &mut self.0 else { return };
        let run = if let RunOutcome::Run(run) = outcome { *run } else { &[] };
        allowance.spend(now, taken - run.len());
        for (_, payload) in frames(run) {
            match payload.len() {
                0 => allowance.spend(now, HEADER_BYTES),
                bytes => allowance.earn(bytes),
            }
        }
    }

    /// Raises the allowance for `bytes` of data that were sent to the peer.
    #[inline]
    pub(super) fn earn(&mut self, bytes: usize) {
        if let Some(allowance) = &mut self.0 {
            allowance.earn(bytes);
        }
    }

    /// Decides whether reading pauses. Call when all input is decomposed.
    pub(super) fn decide_pause(&mut self, now: Time) {
        if let Some(allowance) = &mut self.0 {
            allowance.decide_pause(now);
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout). `None`: reading is not paused.
    pub(super) fn paused_until(&self) -> Option<Time> {
        self.0.as_ref()?.paused_until()
    }

    /// Ends a pause whose time is over.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if let Some(allowance) = &mut self.0 {
            allowance.handle_timeout(now);
        }
    }
}
