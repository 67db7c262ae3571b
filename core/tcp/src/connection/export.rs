//! Exports a connection to another stack (Capybara §3.3).

use alloc::boxed::Box;
use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::state::{Agreed, ConnectionState, Finish, Receiving, Sending, Stage, Stamps};
use spillway_wire::{Bytes, Chunks};

use super::{Connection, State};
use crate::moving::{self, ExportError};
use crate::seq::since_syn;

impl Connection {
    /// The stage of a connection that can be exported.
    pub(crate) fn exported_stage(&self) -> Result<Stage, ExportError> {
        Ok(match self.state {
            State::SynSent | State::SynReceived => return Err(ExportError::Opening),
            State::Established => Stage::Established,
            State::FinWait1 => Stage::FinWait1,
            State::FinWait2 => Stage::FinWait2,
            State::CloseWait => Stage::CloseWait,
            // Both ends have finished, but a gate may still hold back the acknowledgement of the peer's FIN.
            State::Closing | State::TimeWait => Stage::Closing,
            State::LastAck => Stage::LastAck,
            State::Closed => return Err(ExportError::Ended),
        })
    }

    pub(crate) fn export(mut self: Box<Connection>, now: Time, stage: Stage) -> ConnectionState {
        let queue = core::mem::take(&mut self.queue).into_chunks();
        let late = core::mem::take(&mut self.receiving.waiting).into_pieces();
        let agreed = &self.agreed;
        ConnectionState {
            local: self.flow.local(),
            peer: self.flow.peer(),
            stage,
            listener: self.listener,
            sending: self.export_sending(queue),
            receiving: self
                .export_receiving(late.map(|(seq, bytes)| (since_syn(seq), bytes.into())).collect()),
            agreed: Agreed {
                mss: agreed.mss,
                has_sack: agreed.has_sack,
                stamps: agreed.timestamps.map(|ours| Stamps {
                    clock: ours.value_at(now),
                    recent: ours.recent,
                    recent_age_ns: now.0.saturating_sub(ours.recent_at.0),
                }),
            },
            received_age_ns: now.0.saturating_sub(self.last_received_at.0),
            recovery: Some(moving::recovery::to_wire(self.recovery.export(now, &self.timers))),
            attachment: None,
            request: None,
            socket_options: None,
        }
    }

    fn export_sending(&self, queue: Chunks) -> Sending {
        let last_update = self.peer_window.last_update();
        Sending {
            initial: self.base.initial(),
            una: since_syn(self.recovery.una()),
            nxt: since_syn(self.recovery.nxt()),
            window: self.peer_window.size,
            window_largest: self.peer_window.largest,
            window_update: last_update.map(|(seq, ack)| (since_syn(seq), since_syn(ack))),
            scale: self.peer_window.scale,
            finish: match self.fin {
                None => Finish::No,
                Some(_) if !self.is_fin_acknowledged() => Finish::Unacknowledged,
                Some(_) => Finish::Acknowledged,
            },
            wants_room: self.reports.wants_room(),
            is_watched: self.reports.is_watched(),
            reported_acknowledged: self.reports.acknowledged(),
            queue,
        }
    }

    fn export_receiving(&self, late: Vec<(u64, Bytes)>) -> Receiving {
        let receiving = &self.receiving;
        Receiving {
            initial: receiving.base.initial(),
            next: since_syn(receiving.next),
            granted: since_syn(receiving.granted),
            edge: since_syn(receiving.edge),
            window_largest: receiving.largest,
            scale: receiving.scale,
            fin: receiving.fin.map(since_syn),
            reported_finished: self.reports.has_finished(),
            gate: receiving.gate.position().map(since_syn),
            acknowledged: since_syn(self.acking.last_sent),
            owes: self.acking.owes(&self.timers),
            late,
        }
    }
}
