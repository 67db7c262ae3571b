//! Where an operator wants a server's sessions: with helpers, or at the server's own port (PostMan §5.3).

use core::time::Duration;

use spillway_policy::Override;
use spillway_wire::Control;
use spillway_wire::preamble::Role;

/// The operator's override, and how much time clients have to follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    word: Override,
    within_ms: u32,
}

impl Placement {
    /// Clients on the wrong carrier leave it at random times within `within`.
    pub fn new(word: Override, within: Duration) -> Placement {
        Placement { word, within_ms: u32::try_from(within.as_millis()).unwrap_or(u32::MAX) }
    }

    /// The override.
    pub fn word(self) -> Override {
        self.word
    }

    /// The *drain* for a session on a link of this role, if that is the wrong carrier.
    pub fn drains(self, role: Role) -> Option<Control> {
        (self.word.forbidden_role() == Some(role)).then_some(Control::Drain { deadline_ms: self.within_ms })
    }
}
