//! Waiting, so that many who wait for the same do not come together.

use std::time::Duration;

/// Three to five quarters of it.
pub(crate) fn spread(time: Duration) -> Duration {
    let mut bytes = [0; 2];
    // Without randomness it is just not spread.
    let _ = getrandom::fill(&mut bytes);
    let part = u32::from(u16::from_ne_bytes(bytes) % 512);
    time / 4 * 3 + time / 1024 * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_within_a_quarter() {
        let second = Duration::from_secs(1);
        let times: Vec<Duration> = (0..100).map(|_| spread(second)).collect();
        assert!(times.iter().all(|time| *time >= second * 3 / 4 && *time <= second * 5 / 4));
        assert!(times.iter().any(|time| *time != times[0]));
    }
}
