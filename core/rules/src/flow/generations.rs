//! Numbers that name each change of a flow.

/// The switch's counter of generations. It starts at the switch's start time in nanoseconds, so that no generation
/// returns after the tables were lost: the switch makes less than one change in a nanosecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generations(u64);

impl Generations {
    /// The counter of a switch that started at this time, in nanoseconds since 1970.
    pub(crate) fn since(epoch: u64) -> Generations {
        Generations(epoch)
    }

    /// A new generation: higher than all before.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        self.0
    }
}
