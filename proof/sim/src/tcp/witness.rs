//! Checks, outside the servers and the switch, that never two servers transmit for one flow.

use std::collections::{BTreeMap, BTreeSet};

use spillway_rules::{FlowState, FlowView};
use spillway_wire::switch::{Flow, ServerId};

/// Which servers have the connections of flows, as their imports and their frames show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Witness {
    /// The server that continues the connection of a flow since the last import; before that it is the original owner.
    holders: BTreeMap<Flow, ServerId>,
    /// Flows whose entry a fresh SYN has ended, with the owner then. Its connection has ended, or ends when the switch drops its
    /// last segments: it may still answer packets that the network delivers late, in TIME-WAIT or before it, but no such answer
    /// passes the switch.
    former: BTreeSet<(Flow, ServerId)>,
    /// Flows whose entry a fresh SYN has ended since the owner of their last import was confirmed.
    ended: BTreeSet<Flow>,
    /// The sender and the generation of the last frame of a flow that the switch let pass.
    passed: BTreeMap<Flow, (ServerId, u64)>,
}

impl Witness {
    /// A server has imported the connection of a flow. `entry`: the flow's entry now. A fresh SYN may have ended it since the
    /// switch has confirmed the server as the owner.
    pub(crate) fn record_import(&mut self, flow: Flow, server: ServerId, entry: Option<&FlowView>) {
        if entry.is_some_and(|entry| entry.owner.server == server) {
            self.ended.remove(&flow);
        }
        self.record_holder(flow, server);
    }

    /// A server has answered a SYN.
    pub(crate) fn record_opening(&mut self, flow: Flow, server: ServerId) {
        self.record_holder(flow, server);
    }

    fn record_holder(&mut self, flow: Flow, server: ServerId) {
        self.holders.insert(flow, server);
        // What it sends from now on belongs to the connection that it has.
        self.former.remove(&(flow, server));
    }

    /// A fresh SYN has ended the entry of a flow, which had this owner.
    pub(crate) fn record_ended(&mut self, flow: Flow, owner: ServerId) {
        self.ended.insert(flow);
        self.former.insert((flow, owner));
    }

    /// Whether a fresh SYN has ended the entry of a flow since the owner of its last import was confirmed: the owner then learns
    /// that it does not own the flow any more.
    pub(crate) fn has_ended(&self, flow: &Flow) -> bool {
        self.ended.contains(flow)
    }

    /// A server has dropped its connection of a flow, because the switch names another owner.
    ///
    /// # Errors
    /// No fresh SYN has ended the server's entry, so that the connection is lost.
    pub(crate) fn check_foreign(&self, flow: &Flow, server: ServerId) -> Result<(), String> {
        if self.former.contains(&(*flow, server)) {
            return Ok(());
        }
        Err(format!("{flow:?}: {server} has the connection, but the switch names another owner"))
    }

    /// The server that has had the connection of a flow last, if it was ever imported.
    pub(crate) fn holder(&self, flow: &Flow) -> Option<ServerId> {
        self.holders.get(flow).copied()
    }

    /// A server sends a segment other than a reset for a flow whose entry is `entry`.
    ///
    /// # Errors
    /// Another server has the connection, or the switch has given the flow to another server.
    pub(crate) fn check_sent(
        &self,
        flow: &Flow,
        server: ServerId,
        original: ServerId,
        entry: Option<&FlowView>,
    ) -> Result<(), String> {
        let holder = self.holders.get(flow).copied().unwrap_or(original);
        // `check_passed` reports the frame if the switch lets it pass.
        let is_former = self.former.contains(&(*flow, server));
        if holder != server && !is_former {
            return Err(format!(
                "two servers transmit: {server} sends for {flow:?}, but {holder} has the connection"
            ));
        }
        let other = entry.filter(|entry| entry.state == FlowState::Owned && entry.owner.server != server);
        // The original owner may answer packets of a new connection before the old one's entry has ended.
        match other.filter(|_| server != original && !is_former) {
            Some(entry) => Err(format!(
                "two servers transmit: {server} sends for {flow:?}, but the switch says that {} owns the flow since {}",
                entry.owner.server, entry.generation
            )),
            None => Ok(()),
        }
    }

    /// The switch has let a server's frame pass for a flow whose entry is `entry`.
    ///
    /// # Errors
    /// Another server owns the flow, or a frame of another server has passed with the same generation.
    pub(crate) fn check_passed(
        &mut self,
        flow: Flow,
        server: ServerId,
        original: ServerId,
        entry: Option<&FlowView>,
    ) -> Result<(), String> {
        let owner = entry.map_or(original, |entry| entry.owner.server);
        if server != owner {
            return Err(format!(
                "the switch lets a frame of {server} pass for {flow:?}, but {owner} owns the flow"
            ));
        }
        let Some(generation) = entry.map(|entry| entry.generation) else { return Ok(()) };
        match self.passed.insert(flow, (server, generation)) {
            Some((other, at)) if other != server && at == generation => Err(format!(
                "two servers are heard: {other} and {server} for {flow:?} in generation {generation}"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use spillway_rules::SiteView;
    use spillway_transport::Time;
    use spillway_wire::packet::ethernet::Mac;

    use super::*;

    fn flow() -> Flow {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap().into();
        Flow::new(end("10.0.0.2:40000"), end("10.0.0.1:80")).unwrap()
    }

    #[test]
    fn only_the_last_importer_may_transmit() {
        let (mut witness, [a, b]) = (Witness::default(), [ServerId(1), ServerId(2)]);
        assert!(witness.check_sent(&flow(), a, a, None).is_ok());
        assert!(
            witness.check_sent(&flow(), b, a, None).is_err(),
            "before an import the original owner transmits"
        );
        witness.record_import(flow(), b, Some(&entry(b, 8)));
        assert!(witness.check_sent(&flow(), b, a, None).is_ok());
        assert!(witness.check_sent(&flow(), a, a, None).unwrap_err().starts_with("two servers transmit"));
    }

    /// An entry that names an owner.
    fn entry(owner: ServerId, generation: u64) -> FlowView {
        let site = SiteView { at: flow().service(), mac: Mac([2; 6]), server: owner, term: 1 };
        FlowView {
            client: flow().client(),
            service: flow().service(),
            state: FlowState::Owned,
            generation,
            repeat_generation: None,
            owner: site,
            target: None,
            original: site,
            deadline: None,
            last_packet: Time(1),
            has_client_fin: false,
            client_fin_claim: None,
            has_owner_fin: false,
            owner_fin_claim: None,
            owner_rst: None,
        }
    }

    /// The former owner, in TIME-WAIT, answers a packet of its connection that arrives late, perhaps when a new connection of
    /// the flow has moved to a third server.
    #[test]
    fn after_a_fresh_syn_the_former_owner_may_answer_late_packets_but_is_not_heard() {
        let (mut witness, [a, b, c]) = (Witness::default(), [ServerId(1), ServerId(2), ServerId(3)]);
        witness.record_import(flow(), b, Some(&entry(b, 8)));
        witness.record_ended(flow(), b);
        witness.record_opening(flow(), a);
        assert!(witness.check_sent(&flow(), a, a, None).is_ok());
        assert!(witness.check_sent(&flow(), b, a, None).is_ok());
        assert!(witness.check_passed(flow(), b, a, None).is_err(), "the flow is the original owner's");
        witness.record_import(flow(), c, Some(&entry(c, 8)));
        assert!(witness.check_sent(&flow(), b, a, Some(&entry(c, 8))).is_ok());
        assert!(witness.check_foreign(&flow(), b).is_ok() && witness.check_foreign(&flow(), c).is_err());
        assert!(
            witness.check_sent(&flow(), a, a, None).is_err(),
            "its connection has not ended: it has left"
        );
        let heard = witness.check_passed(flow(), b, a, Some(&entry(c, 8)));
        assert!(heard.unwrap_err().starts_with("the switch lets a frame of 2 pass"));
        witness.record_import(flow(), b, Some(&entry(b, 8)));
        witness.record_import(flow(), c, Some(&entry(c, 8)));
        assert!(witness.check_sent(&flow(), b, a, None).is_err(), "an import of its own ends the exception");
        assert!(witness.check_foreign(&flow(), b).is_err());
    }

    /// The switch has confirmed the target, whose import follows the answer, perhaps when a fresh SYN has ended the entry.
    #[test]
    fn an_import_after_the_end_of_its_entry_leaves_the_flow_ended() {
        let (mut witness, [a, b]) = (Witness::default(), [ServerId(1), ServerId(2)]);
        witness.record_ended(flow(), b);
        witness.record_import(flow(), b, None);
        assert!(witness.has_ended(&flow()));
        witness.record_import(flow(), b, Some(&entry(a, 8)));
        assert!(witness.has_ended(&flow()));
        witness.record_import(flow(), b, Some(&entry(b, 9)));
        assert!(!witness.has_ended(&flow()));
    }

    #[test]
    fn frames_of_two_servers_in_one_generation_are_detected() {
        let (mut witness, [a, b]) = (Witness::default(), [ServerId(1), ServerId(2)]);
        let mut pass =
            |server, generation| witness.check_passed(flow(), server, a, Some(&entry(server, generation)));
        assert!(pass(a, 7).is_ok() && pass(b, 8).is_ok() && pass(b, 9).is_ok());
        assert!(pass(a, 9).unwrap_err().starts_with("two servers are heard"));
    }
}
