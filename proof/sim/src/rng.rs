//! Seeded randomness with what worlds draw.

use spillway_parts::Random;
pub use spillway_parts::mix;

/// A generator whose whole future is its seed.
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(Random::new(Random::new(seed).word()))
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0.word()
    }

    /// A generator of its own, so that two users do not disturb each other.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.word())
    }

    /// Below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    /// From 0 to 1, that excluded.
    pub fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// From `low` to `high`, each order of magnitude as likely as the others.
    pub fn scale(&mut self, low: u64, high: u64) -> u64 {
        let (low_bits, high_bits) = (low.max(1).ilog2(), high.max(1).ilog2());
        let top = 1_u64 << self.range(u64::from(low_bits), u64::from(high_bits));
        self.range(top, top.saturating_mul(2) - 1).clamp(low, high)
    }

    /// True `times` in `of`.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Puts them in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }

    /// Fills a buffer.
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
    fn the_seed_is_everything_and_bounds_hold() {
        let (mut one, mut two) = (Rng::new(7), Rng::new(7));
        for _ in 0..1000 {
            let value = one.range(3, 9);
            assert_eq!(value, two.range(3, 9));
            assert!((3..=9).contains(&value));
            assert!((5..=70_000).contains(&one.scale(5, 70_000)));
            two.scale(5, 70_000);
        }
        assert_ne!(Rng::new(1).word(), Rng::new(2).word());
    }
}
