//! Seeded randomness: SplitMix64 (Steele, Lea, Flood 2014).

use core::time::Duration;

/// A generator whose whole future is its seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`; 0 when that is 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(limit)) >> 64) as u64 // below `limit`
    }

    /// From nothing to `longest`, that excluded.
    pub(crate) fn time(&mut self, longest: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// A quarter less to a quarter more.
    pub(crate) fn about(&mut self, time: Duration) -> Duration {
        time.saturating_sub(time / 4).saturating_add(self.time(time / 2))
    }

    /// Puts them in a random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            #[expect(clippy::cast_possible_truncation, reason = "at most `i`")]
            let other = self.below(i as u64 + 1) as usize;
            items.swap(i, other);
        }
    }
}
