//! Why ports are not attached.

use std::collections::BTreeMap;

use spillway_bpf::switch::{PortError, PortState};
use spillway_rules::PortId;

/// Why ports are not attached, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    /// How ports have lost their interfaces, until they are attached again.
    lost: BTreeMap<u8, String>,
    /// Why the last attempt to attach a port has failed.
    refused: BTreeMap<u8, String>,
}

impl Problems {
    /// Settings were applied: `failures` has the ports that could not be attached; all others are attached.
    pub(crate) fn applied(&mut self, failures: Vec<(PortId, PortError)>) {
        self.refused = failures.into_iter().map(|(port, error)| (port.number(), error.to_string())).collect();
        self.lost.retain(|port, _| self.refused.contains_key(port));
    }

    /// Ports have lost their interfaces.
    pub(crate) fn lost(&mut self, ports: Vec<(PortId, PortState)>) {
        self.lost.extend(ports.into_iter().map(|(port, state)| (port.number(), problem_of(&state))));
    }

    /// A port could not be attached.
    pub(crate) fn refused(&mut self, port: u8, why: String) {
        self.refused.insert(port, why);
    }

    /// A port is attached.
    pub(crate) fn solved(&mut self, port: u8) {
        self.lost.remove(&port);
        self.refused.remove(&port);
    }

    /// Why a port is not attached. `state`: that of its link, if it has one.
    pub(crate) fn text(&self, port: u8, state: Option<&PortState>) -> String {
        let lost = state.map(problem_of).or_else(|| self.lost.get(&port).cloned());
        match (lost, self.refused.get(&port)) {
            (Some(lost), Some(refused)) => format!("{lost}; {refused}"),
            (Some(why), None) => why,
            (None, Some(why)) => why.clone(),
            (None, None) => "it was not attached yet".to_owned(),
        }
    }
}

/// Why a port in this state does not forward.
pub(crate) fn problem_of(state: &PortState) -> String {
    match state {
        PortState::Elsewhere => "the interface has gone to another network namespace".to_owned(),
        PortState::Closed { .. } => {
            "the kernel has removed the interface from the tables, because it was in another network namespace".to_owned()
        }
        PortState::WithoutEgress { .. } => "another program has removed the filter at the interface's egress".to_owned(),
        PortState::Unknown { why } => why.clone(),
        PortState::Detached | PortState::Attached { .. } => {
            "the interface was removed, or another program has detached the switch".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_says_how_it_lost_its_interface_until_it_is_attached() {
        let mut problems = Problems::default();
        let port = PortId::new(2).unwrap();
        problems.lost(vec![(port, PortState::Elsewhere)]);
        problems.refused(2, "interface p2: cannot be found".to_owned());
        assert_eq!(
            problems.text(2, None),
            "the interface has gone to another network namespace; interface p2: cannot be found"
        );
        assert_eq!(problems.text(1, Some(&PortState::Unknown { why: "no memory".into() })), "no memory");
        problems.solved(2);
        assert_eq!(problems.text(2, None), "it was not attached yet");
        problems.lost(vec![(port, PortState::Detached)]);
        problems.applied(Vec::new());
        assert_eq!(problems.text(2, None), "it was not attached yet");
    }
}
