//! Randomness that keeps clients apart in time: seeded once, never for secrets.

/// Marsaglia's xorshift64. Not `spillway_parts::Random`: recorded seeds of the simulator would mean other worlds.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Two clients with different seeds wait different times.
    pub fn seeded(seed: u64) -> Jitter {
        Jitter(seed | 1)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to 1, less than 1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}
