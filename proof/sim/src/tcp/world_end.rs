//! The checks at the end of a run, and the connections that were lost by design.

use std::collections::BTreeSet;

use spillway_handoff::Cause;
use spillway_rules::Verdict;
use spillway_transport::Conn;
use spillway_wire::switch::Flow;

use super::loss::Loss;
use super::world::World;
use crate::pattern::Token;
use crate::phases::PhasedWorld;

/// Connections lost by design of the switch's protocol, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lost {
    pub(crate) by_silence: u64,
    pub(crate) by_restart: u64,
    pub(crate) in_doubt: u64,
    /// Connections that were lost with the server that had them, which has restarted.
    pub(crate) with_server: u64,
}

impl World {
    pub(crate) fn finish(&mut self) {
        self.judge();
        self.oracle.borrow_mut().all_ended();
        let leftovers = self.leftovers();
        let checks = self.hosts.iter().filter_map(|host| host.check(self.rogue.is_some()).err());
        for what in leftovers.into_iter().chain(checks) {
            self.oracle.borrow_mut().violation(what);
        }
    }

    /// Excuses the connections that were lost by design since the last call, at their clients, too.
    pub(super) fn excuse_lost(&mut self) {
        for host in 0..self.hosts.len() {
            for flow in self.hosts[host].rack.directory.take_new_losses() {
                self.hosts.iter_mut().for_each(|host| host.rack.directory.excuse(&flow));
            }
        }
    }

    /// Judges the broken connections: those that were lost by design of the switch's protocol are excused.
    fn judge(&mut self) {
        let lost: BTreeSet<Flow> = self
            .hosts
            .iter()
            .flat_map(|host| host.rack.directory.lost.iter().map(|(flow, _)| *flow))
            .collect();
        let mut tokens: BTreeSet<Token> = BTreeSet::new();
        let mut doubtful = Vec::new();
        for host in &self.hosts {
            let excused = &host.rack.directory.excused;
            tokens.extend(excused.iter().filter_map(|name| host.program.inner.tokens.get(name)));
            let is_excused = |name: &Conn| {
                excused.contains(name)
                    || host.rack.directory.flow_of(*name).is_some_and(|flow| lost.contains(&flow))
            };
            let rest = host.program.inner.doubtful.iter().filter(|(name, _)| !is_excused(name));
            doubtful
                .extend(rest.map(|(name, what)| format!("{what}: {}", host.rack.directory.place_of(*name))));
        }
        let mut oracle = self.oracle.borrow_mut();
        oracle.judge(&tokens);
        doubtful.into_iter().for_each(|what| oracle.violation(what));
        let counts = self.lost();
        if counts.by_restart > 0 && self.fabric.switch.empty_restarts == 0 {
            oracle.violation(format!("{counts:?}, but the switch has never lost its entries"));
        }
        if counts.by_silence + counts.in_doubt > 0 && self.faults == 0 {
            oracle.violation(format!("{counts:?}, but no server was paused or cut off"));
        }
    }

    /// Segments that the switch dropped because their sender did not own the flow.
    pub(crate) fn not_owner(&self) -> u64 {
        self.fabric.switch.count(Verdict::DropNotOwner)
    }

    /// Connections lost by design of the switch's protocol.
    pub(crate) fn lost(&self) -> Lost {
        let mut counts = Lost::default();
        for (flow, loss) in self.hosts.iter().flat_map(|host| &host.rack.directory.lost) {
            match loss {
                Loss::Protocol(Cause::Doubt) if self.witness.has_ended(flow) => {}
                Loss::Protocol(Cause::Silence) => counts.by_silence += 1,
                Loss::Protocol(Cause::Restart) => counts.by_restart += 1,
                Loss::Protocol(Cause::Doubt | Cause::Foreign) => counts.in_doubt += 1,
                Loss::Server => counts.with_server += 1,
                Loss::LastSegments | Loss::Closed => {}
            }
        }
        counts
    }
}
