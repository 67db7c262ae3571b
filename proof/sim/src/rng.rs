//! Seeded random numbers, and the distributions that simulated worlds draw from.

use spillway_parts::Random;
pub use spillway_parts::mix;

/// A pseudorandom generator: equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Rng {
        // The seed is mixed first: otherwise two seeds whose difference is a multiple of the generator's step would
        // give the same sequence, shifted.
        Rng(Random::new(Random::new(seed).word()))
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0.word()
    }

    /// A new generator, seeded from this one: draws from either do not change the other's numbers.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.word())
    }

    /// Uniform from 0 to `limit` - 1. `limit` must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    /// Uniform from 0 (included) to 1 (excluded).
    pub fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Uniform from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// From `low` to `high`, both included, with each power of two about equally likely: draws a power of
    /// two, then uniformly from this power to below its double. Returns 0 only if `high` is 0.
    pub fn log_uniform(&mut self, low: u64, high: u64) -> u64 {
        let (low_bits, high_bits) = (low.max(1).ilog2(), high.max(1).ilog2());
        let power_of_two = 1_u64 << self.range(u64::from(low_bits), u64::from(high_bits));
        self.range(power_of_two, power_of_two.saturating_mul(2) - 1).clamp(low, high)
    }

    /// True with probability `favourable / of`.
    pub fn chance(&mut self, favourable: u64, of: u64) -> bool {
        self.below(of) < favourable
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }

    /// Fills `bytes` with random values.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.word().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_within_bounds() {
        let (mut first, mut second) = (Rng::new(7), Rng::new(7));
        for _ in 0..1000 {
            let value = first.range(3, 9);
            assert_eq!(value, second.range(3, 9));
            assert!((3..=9).contains(&value));
            assert!((5..=70_000).contains(&first.log_uniform(5, 70_000)));
            second.log_uniform(5, 70_000);
        }
        assert_ne!(Rng::new(1).word(), Rng::new(2).word());
    }
}
