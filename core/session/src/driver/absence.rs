//! Detects from refusals at the server's own link port that the server's process has ended.
//!
//! A port that refuses connections has no listening process, so the server has lost the session: waiting longer does not
//! bring it back, and a direct client would have seen the end at once. The session still waits for a moment, because a
//! helper may reach the server. A refusal proves nothing where only helpers have carried the session: a firewall may
//! refuse clients at the port.

use core::time::Duration;

use spillway_transport::Time;

#[derive(Debug, Default)]
pub(super) struct Absence {
    was_attached: bool,
    was_attached_to_own: bool,
    /// Time of the first refusal at the server's own port without another outcome after it.
    refused_since: Option<Time>,
}

impl Absence {
    /// The session is attached to a carrier: through the server's own port if `is_own`, else through a helper.
    pub(super) fn attached(&mut self, is_own: bool) {
        self.was_attached = true;
        self.was_attached_to_own |= is_own;
        self.refused_since = None;
    }

    /// An attempt at the server's own port failed, or the carrier through it is lost.
    pub(super) fn own_lost(&mut self, now: Time, is_refused: bool) {
        if is_refused && (self.was_attached_to_own || !self.was_attached) {
            self.refused_since.get_or_insert(now);
        } else {
            self.refused_since = None;
        }
    }

    /// Whether a server has ever answered on any carrier.
    pub(super) fn was_attached(&self) -> bool {
        self.was_attached
    }

    /// When to give up unless the session is attached before.
    pub(super) fn gives_up_at(&self, patience: Duration) -> Option<Time> {
        self.refused_since.map(|since| since + patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    #[test]
    fn refusals_in_a_row_count_from_the_first() {
        let (mut absence, begin) = (Absence::default(), Time(7));
        assert_eq!(absence.gives_up_at(PATIENCE), None);
        absence.own_lost(begin, true);
        absence.own_lost(begin + PATIENCE / 2, true);
        assert_eq!(absence.gives_up_at(PATIENCE), Some(begin + PATIENCE));
        absence.own_lost(begin + PATIENCE / 2, false);
        assert_eq!(absence.gives_up_at(PATIENCE), None, "a process listens there");
        absence.own_lost(begin, true);
        absence.attached(false);
        assert_eq!(absence.gives_up_at(PATIENCE), None, "a helper reaches the server");
    }

    #[test]
    fn a_port_that_never_carried_a_helped_session_proves_nothing() {
        let (mut absence, now) = (Absence::default(), Time(7));
        absence.attached(false);
        absence.own_lost(now, true);
        assert_eq!(absence.gives_up_at(PATIENCE), None);
        absence.attached(true);
        absence.own_lost(now, true);
        assert!(absence.gives_up_at(PATIENCE).is_some());
    }
}
