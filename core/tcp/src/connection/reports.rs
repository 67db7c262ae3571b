//! The application's requests for events, and the events that a connection has reported.

use spillway_wire::state::ConnectionState;

/// Each event is reported once. The transport's contract has the order of events.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// The application requests reports of acknowledged bytes.
    is_watched: bool,
    /// The application requests a `Room` event.
    wants_room: bool,
    /// The stream offset reported as acknowledged.
    acknowledged: u64,
    /// The peer's end of the stream was reported.
    has_finished: bool,
    /// The end of the connection was reported.
    is_lost: bool,
}

impl Reports {
    /// The reports of an imported connection, whose state was checked.
    pub(super) fn restored(state: &ConnectionState) -> Reports {
        Reports {
            is_watched: state.sending.is_watched,
            wants_room: state.sending.wants_room,
            acknowledged: state.sending.reported_acknowledged,
            has_finished: state.receiving.reported_finished,
            is_lost: false,
        }
    }

    pub(super) fn watch(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
    }

    pub(super) fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Whether an acknowledgement may lead to an event.
    #[inline]
    pub(super) fn depends_on_acknowledgements(&self) -> bool {
        self.is_watched || self.wants_room
    }

    pub(super) fn is_watched(&self) -> bool {
        self.is_watched
    }

    pub(super) fn wants_room(&self) -> bool {
        self.wants_room
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub(super) fn has_finished(&self) -> bool {
        self.has_finished
    }

    /// Bytes are acknowledged up to stream offset `through`. Returns whether to report that now.
    pub(super) fn on_acknowledged(&mut self, through: u64) -> bool {
        let is_due = self.is_watched && through > self.acknowledged;
        if is_due {
            self.acknowledged = through;
        }
        is_due
    }

    /// The requested `Room` event is reported now.
    pub(super) fn on_room(&mut self) {
        self.wants_room = false;
    }

    /// The peer has finished. Returns whether to report that now.
    pub(super) fn on_finished(&mut self) -> bool {
        !core::mem::replace(&mut self.has_finished, true)
    }

    /// The connection is over. Returns whether to report that now.
    pub(super) fn on_lost(&mut self) -> bool {
        !core::mem::replace(&mut self.is_lost, true)
    }
}
