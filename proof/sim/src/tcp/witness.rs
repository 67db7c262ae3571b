//! Checks, outside the servers and the switch, that never two servers transmit for one flow.

use std::collections::BTreeMap;

use spillway_rules::{FlowState, FlowView};
use spillway_wire::switch::{Flow, ServerId};

/// Which servers have the connections of flows, as their imports and their frames show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Witness {
    /// The server that continues the connection of a flow since the last import; before that it is the original owner.
    holders: BTreeMap<Flow, ServerId>,
    /// The owner of a flow whose entry a fresh SYN has ended.
    former: BTreeMap<Flow, ServerId>,
    /// The sender and the generation of the last frame of a flow that the switch let pass.
    passed: BTreeMap<Flow, (ServerId, u64)>,
}

impl Witness {
    /// A server has imported the connection of a flow.
    pub(crate) fn record_import(&mut self, flow: Flow, server: ServerId) {
        self.holders.insert(flow, server);
        self.former.remove(&flow);
    }

    /// A server has answered a SYN.
    pub(crate) fn record_opening(&mut self, flow: Flow, server: ServerId) {
        self.holders.insert(flow, server);
    }

    /// A fresh SYN has ended the entry of a flow. Its owner may still have the connection, if it has not received the client's
    /// last acknowledgement; the switch drops what it sends.
    pub(crate) fn record_ended(&mut self, flow: Flow, owner: ServerId) {
        self.former.insert(flow, owner);
    }

    /// Whether a fresh SYN has ended the entry of a flow since its last import: its owner then learns that it does not own the
    /// flow any more.
    pub(crate) fn has_ended(&self, flow: &Flow) -> bool {
        self.former.contains_key(flow)
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
        let is_dropped = entry.is_none() && self.former.get(flow) == Some(&server);
        if holder != server && !is_dropped {
            return Err(format!(
                "two servers transmit: {server} sends for {flow:?}, but {holder} has the connection"
            ));
        }
        let other = entry.filter(|entry| entry.state == FlowState::Owned && entry.owner.server != server);
        // The original owner may answer packets of a new connection before the old one's entry has ended.
        match other.filter(|_| server != original) {
            Some(entry) => Err(format!(
                "two servers transmit: {server} sends for {flow:?}, but the switch says that {} owns the flow since {}",
                entry.owner.server, entry.generation
            )),
            None => Ok(()),
        }
    }

    /// The switch has let a server's frame pass for a flow whose entry has this generation.
    ///
    /// # Errors
    /// A frame of another server has passed with the same generation.
    pub(crate) fn check_passed(
        &mut self,
        flow: Flow,
        server: ServerId,
        generation: u64,
    ) -> Result<(), String> {
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
        witness.record_import(flow(), b);
        assert!(witness.check_sent(&flow(), b, a, None).is_ok());
        assert!(witness.check_sent(&flow(), a, a, None).unwrap_err().starts_with("two servers transmit"));
    }

    #[test]
    fn after_a_fresh_syn_the_former_owner_sends_nothing_that_passes() {
        let (mut witness, [a, b]) = (Witness::default(), [ServerId(1), ServerId(2)]);
        witness.record_import(flow(), b);
        witness.record_ended(flow(), b);
        witness.record_opening(flow(), a);
        assert!(witness.check_sent(&flow(), a, a, None).is_ok());
        assert!(witness.check_sent(&flow(), b, a, None).is_ok());
        witness.record_import(flow(), a);
        assert!(witness.check_sent(&flow(), b, a, None).is_err(), "an import ends the exception");
    }

    #[test]
    fn frames_of_two_servers_in_one_generation_are_detected() {
        let (mut witness, [a, b]) = (Witness::default(), [ServerId(1), ServerId(2)]);
        assert!(witness.check_passed(flow(), a, 7).is_ok() && witness.check_passed(flow(), b, 8).is_ok());
        assert!(witness.check_passed(flow(), b, 9).is_ok());
        assert!(witness.check_passed(flow(), a, 9).unwrap_err().starts_with("two servers are heard"));
    }
}
