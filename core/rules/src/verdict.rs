//! Decisions on packets.

use crate::config::PortId;

/// What the switch does with a packet, with the reason. The order is that of `host/bpf/c/switch/verdicts.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Forwarded to a station.
    Switched,
    /// Forwarded to the next hop of its destination's prefix.
    Routed,
    /// Copied to all other ports.
    Flooded,
    /// A client's packet, or an ICMP error about one of the service, sent to the owner of the flow.
    ToOwner,
    /// The same, sent to the target of the flow, which buffers it.
    ToTarget,
    /// The same in host mode, sent through a tunnel to the owner or to the target.
    Encapsulated,
    /// In host mode, a packet of a flow that has moved to the local server: passed to the kernel without the header of the
    /// tunnel.
    Decapsulated,
    /// A client's packet that does not fit into a tunnel: turned into the ICMP error by which the client finds the path MTU.
    TooLongAnswered,
    /// A packet from the owner of a flow to its client.
    FromOwner,
    /// A control message, turned into its answer.
    Answered,
    /// A control message, sent on to another server.
    Relayed,
    /// Passed to the kernel of the switch's host.
    Passed,
    /// Dropped: arrived on an interface that is not a configured port; or at the daemon's port, or a local server's, without
    /// being a control message.
    DropUnknownPort,
    /// Dropped: truncated or invalid headers.
    DropShort,
    /// Dropped: for a group address that bridges do not forward (IEEE 802.1Q §8.6.3).
    DropLinkLocal,
    /// Dropped: would leave through the port on which it arrived.
    DropSamePort,
    /// Dropped, at a server's port: the sender does not own the flow; or an RST of the owner of a held flow; or more
    /// headers than are parsed, which could hide such a segment.
    DropNotOwner,
    /// Dropped: the first fragment of a packet of a flow with an entry.
    DropFragment,
    /// Dropped: the Ethernet destination is not a configured station, or the flow's owner or target is not configured
    /// any more.
    DropUnknownStation,
    /// Dropped: no prefix contains its destination; in host mode, a packet for another server's host whose hop limit is
    /// used up.
    DropNoRoute,
    /// Dropped: a control message from a port that is neither a server's nor the daemon's.
    DropControlPort,
    /// Dropped: not a control message, or from an unknown sender.
    DropControlInvalid,
    /// Dropped: a control message with a wrong tag.
    DropControlTag,
    /// Dropped, at a server's port: ARP or neighbour discovery that announces an address of another port's server, or
    /// of the switch.
    DropAnnouncement,
    /// Dropped, in host mode: does not fit into a tunnel, and its sender gets no error: it is an error itself, or routers may
    /// fragment it, or the tunnel's packets are shorter than those that each host must accept.
    DropTooLong,
}

impl Verdict {
    /// All verdicts, in the order of their numbers.
    pub const ALL: [Verdict; 25] = [
        Verdict::Switched,
        Verdict::Routed,
        Verdict::Flooded,
        Verdict::ToOwner,
        Verdict::ToTarget,
        Verdict::Encapsulated,
        Verdict::Decapsulated,
        Verdict::TooLongAnswered,
        Verdict::FromOwner,
        Verdict::Answered,
        Verdict::Relayed,
        Verdict::Passed,
        Verdict::DropUnknownPort,
        Verdict::DropShort,
        Verdict::DropLinkLocal,
        Verdict::DropSamePort,
        Verdict::DropNotOwner,
        Verdict::DropFragment,
        Verdict::DropUnknownStation,
        Verdict::DropNoRoute,
        Verdict::DropControlPort,
        Verdict::DropControlInvalid,
        Verdict::DropControlTag,
        Verdict::DropAnnouncement,
        Verdict::DropTooLong,
    ];

    /// The verdict's name in metrics and in tables of cases.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Switched => "switched",
            Verdict::Routed => "routed",
            Verdict::Flooded => "flooded",
            Verdict::ToOwner => "to_owner",
            Verdict::ToTarget => "to_target",
            Verdict::Encapsulated => "encapsulated",
            Verdict::Decapsulated => "decapsulated",
            Verdict::TooLongAnswered => "too_long_answered",
            Verdict::FromOwner => "from_owner",
            Verdict::Answered => "answered",
            Verdict::Relayed => "relayed",
            Verdict::Passed => "passed",
            Verdict::DropUnknownPort => "drop_unknown_port",
            Verdict::DropShort => "drop_short",
            Verdict::DropLinkLocal => "drop_link_local",
            Verdict::DropSamePort => "drop_same_port",
            Verdict::DropNotOwner => "drop_not_owner",
            Verdict::DropFragment => "drop_fragment",
            Verdict::DropUnknownStation => "drop_unknown_station",
            Verdict::DropNoRoute => "drop_no_route",
            Verdict::DropControlPort => "drop_control_port",
            Verdict::DropControlInvalid => "drop_control_invalid",
            Verdict::DropControlTag => "drop_control_tag",
            Verdict::DropAnnouncement => "drop_announcement",
            Verdict::DropTooLong => "drop_too_long",
        }
    }
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// To the kernel of the switch's host. At a host's egress: out of the interface.
    Pass,
    /// Nowhere.
    Drop,
    /// Out of this port. Relayed control messages may leave through the port on which they arrived, and in host mode
    /// all packets.
    To(PortId),
    /// Out of all configured ports but the one on which it arrived.
    Flood,
    /// Out of the port on which it arrived.
    Answer,
}

/// What the switch decided on a packet, whose bytes it has rewritten in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The reason, which is counted.
    pub verdict: Verdict,
    /// Where the packet goes.
    pub action: Action,
}

impl Decision {
    pub(crate) fn pass() -> Decision {
        Decision { verdict: Verdict::Passed, action: Action::Pass }
    }

    /// Passes to the kernel for another reason than [`pass`](Self::pass).
    pub(crate) fn up(verdict: Verdict) -> Decision {
        Decision { verdict, action: Action::Pass }
    }

    pub(crate) fn drop(verdict: Verdict) -> Decision {
        debug_assert!(verdict >= Verdict::DropUnknownPort, "{verdict:?} is no reason to drop a packet");
        Decision { verdict, action: Action::Drop }
    }

    pub(crate) fn to(verdict: Verdict, port: PortId) -> Decision {
        Decision { verdict, action: Action::To(port) }
    }
}

/// Number of packets by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictCounters([u64; Verdict::ALL.len()]);

/// Counters of another implementation of the rules, in the order of [`Verdict::ALL`].
impl From<[u64; Verdict::ALL.len()]> for VerdictCounters {
    fn from(counters: [u64; Verdict::ALL.len()]) -> VerdictCounters {
        VerdictCounters(counters)
    }
}

impl VerdictCounters {
    /// Number of packets with this verdict.
    pub fn of(&self, verdict: Verdict) -> u64 {
        self.0[verdict as usize]
    }

    /// All verdicts with their numbers of packets.
    pub fn iter(&self) -> impl Iterator<Item = (Verdict, u64)> + '_ {
        Verdict::ALL.into_iter().zip(self.0)
    }

    pub(crate) fn count(&mut self, verdict: Verdict) {
        let counter = &mut self.0[verdict as usize];
        *counter = counter.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_list() {
        for (number, verdict) in Verdict::ALL.into_iter().enumerate() {
            assert_eq!(verdict as usize, number, "{}", verdict.name());
        }
    }

    #[test]
    fn each_verdict_has_its_counter() {
        let mut counters = VerdictCounters::default();
        for (number, verdict) in Verdict::ALL.into_iter().enumerate() {
            (0..=number).for_each(|_| counters.count(verdict));
        }
        assert!(counters.iter().enumerate().all(|(number, (_, count))| count == number as u64 + 1));
        assert_eq!(counters.of(Verdict::DropControlTag), 23);
    }
}
