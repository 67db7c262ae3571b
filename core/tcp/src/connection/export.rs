//! Exports a connection to another stack (Capybara §3.3).

use alloc::vec;

use spillway_transport::Time;
use spillway_wire::state::{Agreed, ConnectionState, Finish, Receiving, Sending, Stage, Stamps};

use super::{Connection, State};
use crate::moving::{self, ExportError};
use crate::seq::since_syn;

impl Connection {
    pub(crate) fn export(&self, now: Time) -> Result<ConnectionState, ExportError> {
        let stage = match self.state {
            State::SynSent | State::SynReceived => return Err(ExportError::Opening),
            State::Established => Stage::Established,
            State::FinWait1 => Stage::FinWait1,
            State::FinWait2 => Stage::FinWait2,
            State::CloseWait => Stage::CloseWait,
            // Both ends have finished, but a gate may still hold back the acknowledgement of the peer's FIN.
            State::Closing | State::TimeWait => Stage::Closing,
            State::LastAck => Stage::LastAck,
            State::Closed => return Err(ExportError::Ended),
        };
        let agreed = &self.agreed;
        Ok(ConnectionState {
            local: self.flow.local(),
            peer: self.flow.peer(),
            stage,
            listener: self.listener,
            sending: self.export_sending(),
            receiving: self.export_receiving(),
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
        })
    }

    fn export_sending(&self) -> Sending {
        let (advertised_by, advertised_with) = self.peer_window.last_update();
        let mut queue = vec![0; self.queue.len()];
        self.queue.copy(self.queue.start(), &mut queue);
        Sending {
            initial: self.base.initial(),
            una: since_syn(self.recovery.una()),
            nxt: since_syn(self.recovery.nxt()),
            window: self.peer_window.size,
            window_largest: self.peer_window.largest,
            window_update: (since_syn(advertised_by), since_syn(advertised_with)),
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

    fn export_receiving(&self) -> Receiving {
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
            late: receiving.waiting.export().map(|(seq, bytes)| (since_syn(seq), bytes.to_vec())).collect(),
        }
    }
}
