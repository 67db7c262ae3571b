//! Where a server wants its sessions: with helpers, or at its own port (PostMan §5.3).

use alloc::vec::Vec;
use core::time::Duration;

use spillway_policy::Word;
use spillway_wire::Control;
use spillway_wire::preamble::Role;

use super::Port;
use crate::slots::SessionHandle;

/// The operator's override, and how much time clients have for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    word: Word,
    within_ms: u32,
}

impl Placement {
    /// Clients that are on the wrong carrier leave it at random times within this.
    pub fn new(word: Word, within: Duration) -> Placement {
        Placement { word, within_ms: u32::try_from(within.as_millis()).unwrap_or(u32::MAX) }
    }

    /// The override.
    pub fn word(self) -> Word {
        self.word
    }

    /// What to say to a session that is carried by a link of this role, if it is on the wrong carrier.
    pub fn drains(self, role: Role) -> Option<Control> {
        (self.word.wrong_role() == Some(role)).then_some(Control::Drain { deadline_ms: self.within_ms })
    }
}

impl<C: Copy + PartialEq> Port<C> {
    /// What to say on a session's carrier once it is accepted there, if that is the wrong carrier.
    pub fn drains(&self, session: SessionHandle, placement: Placement) -> Option<Control> {
        placement.drains(self.role(session)?)
    }

    /// The sessions that are on the wrong carriers, these, and what to say on them.
    pub fn misplaced(&self, placement: Placement) -> Vec<(SessionHandle, C, Control)> {
        let of = |(session, role, carrier)| Some((session, carrier, placement.drains(role)?));
        self.carried().filter_map(of).collect()
    }

    /// This number of helped sessions is to return to the server's own port: which, on which carriers, and what to say there.
    /// Those that were asked least since they came by their carrier are asked first.
    pub fn return_home(&mut self, count: usize) -> Vec<(SessionHandle, C, Control)> {
        if count == 0 {
            return Vec::new();
        }
        let helped = self.carried().filter(|(_, role, _)| *role == Role::Helper);
        let asked = |session| self.record(session).map_or(0, |record| record.asked_home);
        let mut helped: Vec<_> =
            helped.map(|(session, _, carrier)| (asked(session), session, carrier)).collect();
        helped.sort_by_key(|(asked, ..)| *asked);
        helped.truncate(count);
        for (_, session, _) in &helped {
            if let Some(record) = self.record_mut(*session) {
                record.asked_home += 1;
            }
        }
        let drain = Control::Drain { deadline_ms: 0 };
        helped.into_iter().map(|(_, session, carrier)| (session, carrier, drain)).collect()
    }

    /// How many sessions are on links of this role now.
    pub fn carried_by(&self, role: Role) -> usize {
        self.carried().filter(|(_, by, _)| *by == role).count()
    }

    fn carried(&self) -> impl Iterator<Item = (SessionHandle, Role, C)> + '_ {
        let records = self.records.iter().flatten();
        records.filter_map(|record| Some((record.session, record.role, self.table.carrier(record.session)?)))
    }
}
