//! Times on the command line; a number without a unit is seconds, as in older versions.

use std::time::Duration;

use spillway_values::parse_duration;

/// A time with its unit, such as `500ms`. A number alone is seconds.
pub(crate) fn time_or_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(time) => Ok(time),
        None => parse_duration(text).map_err(|error| error.to_string()),
    }
}

/// Like [`time_or_seconds`], limited to 100 ms to 1 h: the duration or interval of measurements.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = time_or_seconds(text)?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    if allowed.contains(&interval) { Ok(interval) } else { Err("give a time from 100ms to 1h".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_a_unit_are_seconds() {
        assert_eq!(time_or_seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(time_or_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(time_or_seconds("500ms"), Ok(Duration::from_millis(500)));
        for invalid in ["-1", "nan", "inf", "1e300", "soon", ""] {
            assert!(time_or_seconds(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn intervals_outside_100_ms_to_1_h_are_refused() {
        assert_eq!(interval("1"), Ok(Duration::from_secs(1)));
        assert!(interval("0").is_err() && interval("2h").is_err());
    }
}
