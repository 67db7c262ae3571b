//! Seeded random numbers that spread clients in time; not for secrets.

/// Marsaglia's xorshift64. `spillway_parts::Random` would change the runs of recorded simulator seeds.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// A generator with this seed; its lowest bit is ignored.
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

    /// A number of at least 0 and less than 1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}
