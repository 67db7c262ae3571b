//! Seeded pseudo-random numbers: SplitMix64 (Steele, Lea, Flood 2014). Not for secrets.
//!
//! The algorithm is fixed: recorded seeds of simulators and tests stay valid only while a seed gives the same sequence.

use core::time::Duration;

/// The generator's increment: 2^64 divided by the golden ratio.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator whose sequence depends on the seed alone. Its period is 2^64.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// SplitMix64's output function: mixes the bits of a number. Different numbers give different results.
#[inline]
#[must_use]
pub const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// Starts from a seed.
    #[inline]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(INCREMENT);
        mix(self.0)
    }

    /// A number below `limit`, or 0 if `limit` is 0. The bias is below `limit` in 2^64.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from 0 inclusive to 1 exclusive, in steps of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A random time from zero inclusive to `longest` exclusive; zero if `longest` is zero.
    pub fn time(&mut self, longest: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// A random time from 3/4 to 5/4 of `time`.
    pub fn about(&mut self, time: Duration) -> Duration {
        time.saturating_sub(time / 4).saturating_add(self.time(time / 2))
    }

    /// Puts items in a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            #[expect(clippy::cast_possible_truncation, reason = "at most `i`")]
            let other = self.below(i as u64 + 1) as usize;
            items.swap(i, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn sequence_of_a_seed_is_the_published_one() {
        let mut random = Random::new(1_234_567);
        let words: Vec<u64> = (0..5).map(|_| random.word()).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(words, published);
    }

    proptest::proptest! {
        #[test]
        fn random_values_are_within_their_bounds(seed: u64, limit: u64, millis: u32, length in 0..50_usize) {
            let mut random = Random::new(seed);
            assert!(random.below(limit) < limit.max(1), "a number should be below its limit");
            assert!((0.0..1.0).contains(&random.unit()), "a fraction should be in 0..1");
            let time = Duration::from_millis(millis.into());
            assert!(
                random.time(time) < time.max(Duration::from_nanos(1)),
                "a time should be below its maximum"
            );
            assert!(
                (time * 3 / 4..=time * 5 / 4).contains(&random.about(time)),
                "a time should differ by a quarter at most"
            );
            let mut items: Vec<usize> = (0..length).collect();
            random.shuffle(&mut items);
            items.sort_unstable();
            assert!(items.into_iter().eq(0..length), "a shuffle should keep each item once");
        }
    }
}
