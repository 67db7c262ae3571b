//! Seeded random numbers, the same on every machine.

pub fn mix(value: u64) -> u64 {
    spillway_parts::Random::new(value).word()
}

/// A generator of random numbers, not for secrets.
#[derive(Clone, Debug)]
pub struct Random(spillway_parts::Random);

impl Random {
    /// A generator for `purpose` under `seed`. Generators of different purposes are independent.
    pub fn new(seed: u64, purpose: u64) -> Random {
        Random(spillway_parts::Random::new(mix(seed ^ mix(purpose))))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0.word()
    }

    /// Uniform in (0, 1], so that its logarithm is finite.
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`. `bound` must not be 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        // The bias of multiply and shift is below 2^-32 for 32-bit bounds.
        (((self.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_and_other_seeds_or_purposes_give_different_ones() {
        let draw = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            (0..8).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
    }

    #[test]
    fn draws_are_in_range_and_uniform() {
        let mut random = Random::new(1, 1);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            let unit = random.unit();
            assert!(unit > 0.0 && unit <= 1.0);
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| (9_500..10_500).contains(&n)), "{counts:?}");
    }
}
