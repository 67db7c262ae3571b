//! What joins the hosts of a laboratory.

use std::sync::Arc;

use crate::LabError;
use crate::forwarding::BRIDGE;
use crate::hub::Hub;
use crate::segment::Segment;
use crate::switch::{LabSwitch, Row};

/// What joins the hosts of one lab.
#[derive(Debug)]
pub(crate) enum Joint {
    Bridge,
    Hub(Hub),
    Segment(Segment),
    Switches(Vec<LabSwitch>),
}

impl Joint {
    /// All switches of a row.
    pub fn of(row: &Arc<Row>) -> Joint {
        Joint::Switches((0..row.sites.len()).map(|index| LabSwitch::new(row, index)).collect())
    }

    /// All switches, in the order of the row.
    pub fn switches(&self) -> &[LabSwitch] {
        match self {
            Joint::Switches(switches) => switches,
            Joint::Bridge | Joint::Hub(_) | Joint::Segment(_) => &[],
        }
    }

    /// Whether a namespace of bridge or switches has this name, which a host cannot have.
    pub fn has_place(&self, name: &str) -> bool {
        match self {
            Joint::Bridge | Joint::Hub(_) | Joint::Segment(_) => name == BRIDGE,
            Joint::Switches(switches) => switches.iter().any(|switch| switch.name() == name),
        }
    }

    /// The switch for a host's cable; `None` if the lab has a bridge.
    ///
    /// # Errors
    /// The lab has no switch with this index.
    pub fn switch(&self, index: usize) -> Result<Option<&LabSwitch>, LabError> {
        match self {
            Joint::Bridge | Joint::Hub(_) | Joint::Segment(_) if index == 0 => Ok(None),
            _ => self.switches().get(index).map(Some).ok_or_else(|| {
                LabError::BadOption(format!(
                    "this lab has no switch with index {index}: set LabOptions::forwarding and more_switches"
                ))
            }),
        }
    }
}
