//! The operator's decision where a server's sessions belong: with helpers, or at the server's own port (PostMan §5.3).

use core::time::Duration;

use spillway_policy::Override;
use spillway_wire::Control;
use spillway_wire::preamble::Role;

/// The operator's override, and how much time clients have to follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    relief_override: Override,
    within_ms: u32,
}

impl Placement {
    /// Clients on the wrong carrier leave it at random times within `within`.
    pub fn new(relief_override: Override, within: Duration) -> Placement {
        Placement { relief_override, within_ms: u32::try_from(within.as_millis()).unwrap_or(u32::MAX) }
    }

    /// The override.
    pub fn manual_override(self) -> Override {
        self.relief_override
    }

    /// The *drain* for a session on a link of this role, if that is the wrong carrier.
    pub fn drain_for(self, role: Role) -> Option<Control> {
        (self.relief_override.forbidden_role() == Some(role))
            .then_some(Control::Drain { deadline_ms: self.within_ms })
    }
}
