//! Detects from refusals at the server's own link port that the server's process has ended.
//!
//! A port that refuses connections has no listening process, so the server has lost the session. The driver still waits
//! for a short time, because a helper may reach the server. Refusals are ignored if only helpers have carried the
//! session, because a firewall may refuse clients at the port.

use core::time::Duration;

use spillway_transport::Time;

#[derive(Debug, Default)]
pub(super) struct Absence {
    was_attached: bool,
    was_attached_to_own_port: bool,
    /// Time of the first of the latest refusals in a row at the server's own port.
    refused_since: Option<Time>,
}

impl Absence {
    /// The session is attached to a carrier: through the server's own port if `is_own_port`, else through a helper.
    pub(super) fn note_attached(&mut self, is_own_port: bool) {
        self.was_attached = true;
        self.was_attached_to_own_port |= is_own_port;
        self.refused_since = None;
    }

    /// An attempt at the server's own port failed, or the carrier through it is lost.
    pub(super) fn note_own_port_lost(&mut self, now: Time, is_refused: bool) {
        if is_refused && (self.was_attached_to_own_port || !self.was_attached) {
            self.refused_since.get_or_insert(now);
        } else {
            self.refused_since = None;
        }
    }

    /// Whether a server has ever answered on any carrier.
    pub(super) fn was_attached(&self) -> bool {
        self.was_attached
    }

    /// When to give the session up, unless it is attached before.
    pub(super) fn give_up_at(&self, timeout: Duration) -> Option<Time> {
        self.refused_since.map(|since| since + timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    #[test]
    fn the_time_limit_counts_from_the_first_refusal_in_a_row() {
        let (mut absence, start) = (Absence::default(), Time(7));
        assert_eq!(absence.give_up_at(PATIENCE), None);
        absence.note_own_port_lost(start, true);
        absence.note_own_port_lost(start + PATIENCE / 2, true);
        assert_eq!(absence.give_up_at(PATIENCE), Some(start + PATIENCE));
        absence.note_own_port_lost(start + PATIENCE / 2, false);
        assert_eq!(
            absence.give_up_at(PATIENCE),
            None,
            "another outcome than a refusal should reset the time limit"
        );
        absence.note_own_port_lost(start, true);
        absence.note_attached(false);
        assert_eq!(
            absence.give_up_at(PATIENCE),
            None,
            "a helper that reaches the server should reset the time limit"
        );
    }

    #[test]
    fn refusals_are_ignored_if_only_helpers_have_carried_the_session() {
        let (mut absence, now) = (Absence::default(), Time(7));
        absence.note_attached(false);
        absence.note_own_port_lost(now, true);
        assert_eq!(absence.give_up_at(PATIENCE), None);
        absence.note_attached(true);
        absence.note_own_port_lost(now, true);
        assert!(absence.give_up_at(PATIENCE).is_some(), "the absence should have an end");
    }
}
