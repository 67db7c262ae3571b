//! Random choice of keys, with uniform or Zipf popularity.

use std::sync::Arc;

use crate::random::Random;

/// Draws key numbers in O(1) by Walker's alias method, so that all keys cost the same. Clones share the table.
#[derive(Clone, Debug)]
pub struct Keys {
    count: u32,
    /// Empty for uniform popularity.
    table: Arc<[Slot]>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Probability, times 2^32, that a draw of this slot returns the slot's own key instead of `other`.
    own_probability: u32,
    other: u32,
}

impl Keys {
    /// `count` equally likely keys. `count` must not be 0.
    pub fn uniform(count: u32) -> Keys {
        Keys { count, table: Arc::from([]) }
    }

    /// Key `k` (from 0) has a probability proportional to 1 / (k + 1)^`exponent`. `count` must not be 0.
    pub fn zipf(count: u32, exponent: f64) -> Keys {
        let weights: Vec<f64> = (1..=count).map(|rank| f64::from(rank).powf(-exponent)).collect();
        let total: f64 = weights.iter().sum();
        let mut share: Vec<f64> = weights.iter().map(|weight| weight * f64::from(count) / total).collect();
        let mut table: Vec<Slot> =
            (0..count).map(|key| Slot { own_probability: u32::MAX, other: key }).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) = (0..count).partition(|&k| share[k as usize] < 1.0);
        while let (Some(&below_average), Some(&above_average)) = (small.last(), large.last()) {
            small.pop();
            table[below_average as usize] = Slot {
                own_probability: (share[below_average as usize] * (u32::MAX as f64)) as u32,
                other: above_average,
            };
            share[above_average as usize] -= 1.0 - share[below_average as usize];
            if share[above_average as usize] < 1.0 {
                large.pop();
                small.push(above_average);
            }
        }
        Keys { count, table: table.into() }
    }

    /// Number of keys.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The next key number, below `count`.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let slot = random.below(self.count);
        match self.table.get(slot as usize) {
            None => slot,
            Some(entry) if (random.next_u64() >> 32) as u32 <= entry.own_probability => slot,
            Some(entry) => entry.other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw_counts(keys: &Keys, draws: u32) -> Vec<u32> {
        let mut random = Random::new(42, 1);
        let mut counts = vec![0u32; keys.count() as usize];
        for _ in 0..draws {
            counts[keys.draw(&mut random) as usize] += 1;
        }
        counts
    }

    #[test]
    fn zipf_draws_follow_the_distribution() {
        let (count, exponent, draws) = (1000, 0.99, 1_000_000);
        let counts = draw_counts(&Keys::zipf(count, exponent), draws);
        let total: f64 = (1..=count).map(|rank| f64::from(rank).powf(-exponent)).sum();
        for rank in [1u32, 2, 3, 10, 50, 200] {
            let expected = f64::from(draws) * f64::from(rank).powf(-exponent) / total;
            let got = f64::from(counts[rank as usize - 1]);
            // Five standard deviations of a binomial count.
            let is_near = (got - expected).abs() < 5.0 * expected.sqrt();
            assert!(is_near, "rank {rank}: drawn {got} times, expected {expected:.0}");
        }
    }

    #[test]
    fn uniform_keys_are_drawn_equally_and_a_single_key_always() {
        let counts = draw_counts(&Keys::uniform(100), 1_000_000);
        assert!(counts.iter().all(|&n| (9_400..10_600).contains(&n)));
        assert_eq!(Keys::zipf(1, 0.99).draw(&mut Random::new(1, 1)), 0);
    }

    #[test]
    fn equal_seeds_draw_equal_keys() {
        let draw = || {
            let (keys, mut random) = (Keys::zipf(100_000, 0.99), Random::new(3, 9));
            (0..1000).map(|_| keys.draw(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(draw(), draw());
    }
}
