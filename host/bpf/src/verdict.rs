//! Decisions of the steering program on packets.

/// The decision of [`Steer`](crate::Steer) on a packet, with the reason. The order is that of `c/verdicts.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Passed to the kernel: neither TCP nor UDP over IP, for example ARP or ICMP.
    PassOther,
    /// Passed to the kernel: cut or invalid headers.
    PassShort,
    /// Passed to the kernel: a later fragment, which has no ports.
    PassLaterFragment,
    /// Passed to the kernel: an address and port of the kernel or of another host.
    PassForeign,
    /// Passed to the stack: an address and port of the stack.
    ToEndpoint,
    /// Passed to the stack: a port from the range for connections that the stack opens.
    ToRange,
    /// Passed to the stack: a connection that moved here.
    ToFlow,
    /// Passed to the stack: an address that the kernel does not have.
    ToAddress,
    /// Dropped: a fragment for the stack, which does not reassemble. The kernel would reassemble it, and send a reset.
    DropFragment,
    /// Dropped: a packet to an address of the stack with more IPv6 extension headers than the program parses.
    DropLongChain,
    /// Dropped: no socket is bound to the packet's queue. The kernel would send a reset.
    DropNoSocket,
}

impl Verdict {
    /// All verdicts, in the order of their numbers.
    pub const ALL: [Verdict; 11] = [
        Verdict::PassOther,
        Verdict::PassShort,
        Verdict::PassLaterFragment,
        Verdict::PassForeign,
        Verdict::ToEndpoint,
        Verdict::ToRange,
        Verdict::ToFlow,
        Verdict::ToAddress,
        Verdict::DropFragment,
        Verdict::DropLongChain,
        Verdict::DropNoSocket,
    ];

    /// The verdict's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::PassOther => "pass_other",
            Verdict::PassShort => "pass_short",
            Verdict::PassLaterFragment => "pass_later_fragment",
            Verdict::PassForeign => "pass_foreign",
            Verdict::ToEndpoint => "to_endpoint",
            Verdict::ToRange => "to_range",
            Verdict::ToFlow => "to_flow",
            Verdict::ToAddress => "to_address",
            Verdict::DropFragment => "drop_fragment",
            Verdict::DropLongChain => "drop_long_chain",
            Verdict::DropNoSocket => "drop_no_socket",
        }
    }
}

/// Number of packets by verdict, since the program was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictCounters(pub(crate) [u64; Verdict::ALL.len()]);

impl VerdictCounters {
    /// Number of packets with this verdict.
    pub fn of(&self, verdict: Verdict) -> u64 {
        self.0[verdict as usize]
    }

    /// All verdicts with their numbers of packets.
    pub fn iter(&self) -> impl Iterator<Item = (Verdict, u64)> + '_ {
        Verdict::ALL.into_iter().zip(self.0)
    }
}
