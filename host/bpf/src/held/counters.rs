//! What has happened to packets of held flows.

/// The program's decision on a packet of a held flow. The order is that of `enum outcome` in `c/hold.bpf.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeldOutcome {
    /// Copied to the ring.
    Held,
    /// Passed to the kernel: the flow is being released, and all its packets were taken.
    PassedDrained,
    /// Dropped: the flow's budget is used up.
    DropOverBudget,
    /// Dropped: the ring is full.
    DropRingFull,
    /// Dropped: a packet's first fragment. Later ones have no ports and pass, so the whole packet could not be held.
    DropFragment,
    /// Dropped: longer than 65,535 bytes.
    DropLength,
}

impl HeldOutcome {
    /// All outcomes, in the order of their numbers.
    pub const ALL: [HeldOutcome; 6] = [
        HeldOutcome::Held,
        HeldOutcome::PassedDrained,
        HeldOutcome::DropOverBudget,
        HeldOutcome::DropRingFull,
        HeldOutcome::DropFragment,
        HeldOutcome::DropLength,
    ];

    /// The outcome's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            HeldOutcome::Held => "held",
            HeldOutcome::PassedDrained => "passed_drained",
            HeldOutcome::DropOverBudget => "drop_over_budget",
            HeldOutcome::DropRingFull => "drop_ring_full",
            HeldOutcome::DropFragment => "drop_fragment",
            HeldOutcome::DropLength => "drop_length",
        }
    }
}

/// Number of packets by outcome, since the program was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldCounters(pub(super) [u64; HeldOutcome::ALL.len()]);

impl HeldCounters {
    /// Number of packets with this outcome.
    pub fn of(&self, outcome: HeldOutcome) -> u64 {
        self.0[outcome as usize]
    }
}
