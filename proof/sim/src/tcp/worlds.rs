//! Which worlds a seed chooses from.

use super::planted_fault::PlantedFault;

/// Which worlds a seed chooses from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Worlds {
    /// All: in two of five nothing moves, in others few connections move.
    #[default]
    All,
    /// Those in which connections move often, after at least one frame of ten, and to another server if they can. Delays are
    /// those of a data centre, and fewer worlds have tight limits. Everything else is drawn as for [`Worlds::All`].
    Moving,
    /// As [`Worlds::Moving`]. Half of the moves hand a request off.
    Requests,
    /// Those in which this planted fault strikes.
    Planted(PlantedFault),
}

impl Worlds {
    /// Whether connections move often in all worlds.
    pub(crate) fn are_moving(self) -> bool {
        matches!(self, Worlds::Moving | Worlds::Requests)
    }

    pub(crate) fn planted(self) -> Option<PlantedFault> {
        match self {
            Worlds::All | Worlds::Moving | Worlds::Requests => None,
            Worlds::Planted(planted) => Some(planted),
        }
    }
}
