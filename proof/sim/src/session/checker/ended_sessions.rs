//! The records of ended sessions that the server must have.

use std::collections::{BTreeSet, VecDeque};

use spillway_transport::Time;
use spillway_wire::session::SessionId;

/// The sessions that ended at the present server process.
#[derive(Debug, Default)]
pub(super) struct EndedSessions {
    /// The sessions in the order of their ends, and until when the server must keep a record of each end.
    ended: VecDeque<(Time, SessionId)>,
    /// Sessions of whose end the server has no record, because it has lost a copy of them since; see
    /// [`add`](Self::add).
    lost_copies: BTreeSet<SessionId>,
}

impl EndedSessions {
    /// A session ends now, and the server must keep a record of the end `until` a time.
    ///
    /// A replayed *connect* may begin a copy of a session of whose end the server has no record. When the server loses
    /// the copy (`is_lost_copy`), it keeps no record of its end, but the copy counts among the ended sessions.
    pub(super) fn add(&mut self, now: Time, until: Time, id: SessionId, is_lost_copy: bool) {
        while self.ended.front().is_some_and(|(kept_until, _)| *kept_until <= now) {
            self.ended.pop_front();
        }
        self.ended.push_back((until, id));
        if is_lost_copy {
            self.lost_copies.insert(id);
        } else {
            self.lost_copies.remove(&id);
        }
    }

    /// The server's process ends, and its records are lost.
    pub(super) fn clear(&mut self) {
        self.ended.clear();
    }

    /// Whether the session has ended at the present server process, as far as known.
    pub(super) fn contains(&self, id: SessionId) -> bool {
        self.ended.iter().any(|(_, ended)| *ended == id)
    }

    /// Whether the server must have a record of the session's end. It records at most `sessions_max` ended sessions.
    pub(super) fn must_be_recorded(&self, now: Time, id: SessionId, sessions_max: usize) -> bool {
        let recorded_until = self.ended.iter().rev().find(|(_, ended)| *ended == id).map(|(until, _)| *until);
        // Sessions that end in one turn have no known order.
        let ended_since = |until: Time| self.ended.iter().filter(|(other, _)| *other >= until).count();
        recorded_until.is_some_and(|until| until > now && ended_since(until) <= sessions_max)
            && !self.lost_copies.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_must_be_kept_until_its_time_or_the_bound() {
        let id = |number: u8| SessionId([number; 16]);
        let mut ended = EndedSessions::default();
        ended.add(Time(0), Time(10), id(1), false);
        assert!(ended.must_be_recorded(Time(9), id(1), 1) && !ended.must_be_recorded(Time(10), id(1), 1));
        ended.add(Time(1), Time(11), id(2), true);
        assert!(!ended.must_be_recorded(Time(2), id(1), 1), "one record is too many");
        assert!(ended.must_be_recorded(Time(2), id(1), 2));
        assert!(!ended.must_be_recorded(Time(2), id(2), 2), "the server has no record of a lost copy's end");
        ended.add(Time(11), Time(21), id(2), false);
        assert!(!ended.contains(id(1)) && ended.must_be_recorded(Time(12), id(2), 1));
        ended.clear();
        assert!(!ended.contains(id(2)));
    }
}
