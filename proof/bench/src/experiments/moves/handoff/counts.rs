//! What all parts of the experiment count, and the checks that fail it.

use super::SYSTEMS;
use super::system::System;
use crate::results::Check;

/// Counts of one system.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub requests: u64,
    /// Requests that another server than that of the request before has served: each is a hand-off.
    pub hand_offs: u64,
    /// Hand-offs whose steps should be known, and those whose steps are.
    pub traced: u64,
    pub joined: u64,
    /// Responses of a wrong server, or with a wrong byte.
    pub wrong: u64,
    /// Connections of clients that have ended early.
    pub broken: u64,
    /// Resets of connections in the client's kernel.
    pub resets: u64,
    /// Connections that the servers have lost or let go.
    pub lost: u64,
    /// Retransmission timeouts of the client's kernel.
    pub timeouts: u64,
    /// Requests that took as long as a retransmission timeout.
    pub late: u64,
}

/// Counts of all systems.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AllCounts([Counts; SYSTEMS.len()]);

impl AllCounts {
    pub(super) fn of(&self, system: System) -> &Counts {
        &self.0[system as usize]
    }

    pub(super) fn of_mut(&mut self, system: System) -> &mut Counts {
        &mut self.0[system as usize]
    }

    /// The checks of the systems that were measured.
    pub(super) fn checks(&self) -> Vec<Check> {
        let is_measured = |system: &System| self.of(*system).requests > 0;
        SYSTEMS.into_iter().filter(is_measured).flat_map(|system| self.of(system).checks(system)).collect()
    }
}

impl Counts {
    fn checks(&self, system: System) -> Vec<Check> {
        let Counts { requests, hand_offs, traced, joined, .. } = self;
        let of = format!("{requests} requests and {hand_offs} hand-offs");
        let name = |what: &str| format!("{}: {what}", system.name());
        let mut checks = vec![
            Check::new(&name("hand-offs"), *hand_offs > 0, &of),
            Check::none(&name("wrong"), self.wrong, &of),
            Check::none(&name("resets"), self.broken.max(self.resets), &of),
            Check::none(&name("lost"), self.lost, &of),
            Check::none(&name("retransmission timeouts"), self.timeouts, &of),
        ];
        if *traced > 0 {
            // A hand-off whose *accepted* was lost ends at its source without its last step.
            let is_known = joined * 100 >= traced * 99;
            let detail = format!("all steps of {joined} of {traced} hand-offs are known");
            checks.push(Check::new(&name("steps"), is_known, detail));
        }
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_fails_its_check_of_its_system() {
        let mut counts = AllCounts::default();
        assert_eq!(counts.checks().len(), 0, "nothing was measured");
        let good = Counts { requests: 300, hand_offs: 200, traced: 200, joined: 199, ..Counts::default() };
        *counts.of_mut(System::Kernel) = good;
        assert!(counts.checks().len() == 6 && counts.checks().iter().all(|check| check.ok));
        let bad = Counts { wrong: 1, broken: 1, lost: 1, timeouts: 1, joined: 197, hand_offs: 0, ..good };
        *counts.of_mut(System::Stack) = bad;
        let failed: Vec<String> =
            counts.checks().into_iter().filter(|check| !check.ok).map(|check| check.name).collect();
        assert_eq!(failed.len(), 6, "{failed:?}");
        assert!(failed.iter().all(|name| name.starts_with("stack: ")), "{failed:?}");
    }
}
