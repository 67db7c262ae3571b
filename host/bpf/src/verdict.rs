//! What happens to a packet, and why.

/// The decision of [`Steer`](crate::Steer) on one packet, in the order of `c/verdicts.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Passes: neither TCP nor UDP over IP, such as ARP and ICMP.
    PassOther,
    /// Passes: the headers are cut or invalid.
    PassShort,
    /// Passes: a fragment without ports.
    PassLaterFragment,
    /// Passes: an address and port of the kernel's, or of another host.
    PassForeign,
    /// Goes to the stack: its address and port.
    ToEndpoint,
    /// Goes to the stack: a port in its range for connections that it opens.
    ToRange,
    /// Goes to the stack: a connection that moved here.
    ToFlow,
    /// Goes to the stack: an address that the kernel does not have.
    ToAddress,
    /// Dropped: a fragment for the stack, which does not reassemble. The kernel would, and reset the connection.
    DropFragment,
    /// Dropped: too many IPv6 extension headers to find the port, to an address of the stack.
    DropLongChain,
    /// Dropped: no socket is bound to the packet's queue. The kernel would reset the connection.
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

/// Packets by verdict, since the program was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictCounters(pub(crate) [u64; Verdict::ALL.len()]);

impl VerdictCounters {
    /// Packets with this verdict.
    pub fn of(&self, verdict: Verdict) -> u64 {
        self.0[verdict as usize]
    }

    /// All verdicts with their packets.
    pub fn iter(&self) -> impl Iterator<Item = (Verdict, u64)> + '_ {
        Verdict::ALL.into_iter().zip(self.0)
    }
}
