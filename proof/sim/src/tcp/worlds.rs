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
    /// Those in which this planted fault strikes.
    Planted(PlantedFault),
}

impl Worlds {
    pub(crate) fn planted(self) -> Option<PlantedFault> {
        match self {
            Worlds::All | Worlds::Moving => None,
            Worlds::Planted(planted) => Some(planted),
        }
    }
}
