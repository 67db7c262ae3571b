//! Times and sizes as operators write them: a whole number and a unit, nothing else.

use std::fmt;
use std::time::Duration;

const TIMES: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
const RATES: [(&str, u64); 3] = [("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000)];
const SIZES: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// What is wrong with a time or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// It is no time.
    Time,
    /// It is no size.
    Size,
    /// It is no rate.
    Rate,
    /// It is larger than any.
    TooLarge,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueError::Time => {
                "a time has a unit: a whole number and ns, us, ms, s, m or h, such as 200us or 30s"
            }
            ValueError::Size => {
                "a size has a unit: a whole number and B, KiB, MiB or GiB, such as 64KiB or 1GiB"
            }
            ValueError::Rate => {
                "a rate has a unit: a whole number and kbit, Mbit or Gbit (each second), such as 10Gbit"
            }
            ValueError::TooLarge => "the number is too large",
        })
    }
}

impl std::error::Error for ValueError {}

/// Reads a time such as `200us`, `1s`. `0` needs no unit.
///
/// # Errors
/// Anything else.
pub fn parse_duration(text: &str) -> Result<Duration, ValueError> {
    parse(text, &TIMES, ValueError::Time).map(Duration::from_nanos)
}

/// Reads a size such as `64KiB`, `1GiB`, in bytes. `0` needs no unit.
///
/// # Errors
/// Anything else.
pub fn parse_size(text: &str) -> Result<u64, ValueError> {
    parse(text, &SIZES, ValueError::Size)
}

/// Reads a rate such as `10Gbit`, in bits each second.
///
/// # Errors
/// Anything else.
pub fn parse_rate(text: &str) -> Result<u64, ValueError> {
    parse(text, &RATES, ValueError::Rate)
}

fn parse(text: &str, units: &[(&str, u64)], malformed: ValueError) -> Result<u64, ValueError> {
    if text == "0" {
        return Ok(0);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).ok_or(malformed)?;
    let (digits, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit).ok_or(malformed)?;
    if digits.is_empty() {
        return Err(malformed);
    }
    let number: u64 = digits.parse().map_err(|_| ValueError::TooLarge)?;
    number.checked_mul(*factor).ok_or(ValueError::TooLarge)
}

/// In the largest unit that keeps it whole.
pub(crate) fn duration_text(duration: Duration) -> String {
    text(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), &TIMES, "0s")
}

/// In the largest unit that keeps it whole.
pub(crate) fn rate_text(bits: u64) -> String {
    text(bits, &RATES, "0kbit")
}

/// In the largest unit that keeps it whole.
pub(crate) fn size_text(bytes: u64) -> String {
    text(bytes, &SIZES, "0B")
}

fn text(number: u64, units: &[(&str, u64)], zero: &str) -> String {
    let whole = units.iter().rev().find(|(_, factor)| number > 0 && number.is_multiple_of(*factor));
    whole.map_or(zero.to_owned(), |(name, factor)| format!("{}{name}", number / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("200us"), Ok(Duration::from_micros(200)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "200", "us", "1.5s", "-1s", "1 s", " 1s", "1S", "1sec", "µs", "١s", "0x1s"] {
            assert_eq!(parse_duration(wrong), Err(ValueError::Time), "{wrong}");
        }
        for large in ["99999999999999s", "99999999999999999999999ns"] {
            assert_eq!(parse_duration(large), Err(ValueError::TooLarge), "{large}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        for wrong in ["", "64", "64K", "64KB", "64kib", "KiB", "-1B", "1.5MiB", "1_0B"] {
            assert_eq!(parse_size(wrong), Err(ValueError::Size), "{wrong}");
        }
        assert_eq!(parse_size("99999999999GiB"), Err(ValueError::TooLarge));
    }

    #[test]
    fn rates_have_units() {
        assert_eq!(parse_rate("10Gbit"), Ok(10_000_000_000));
        assert_eq!(rate_text(2_500_000_000), "2500Mbit");
        for wrong in ["", "10", "10G", "10gbit", "10Gbit/s", "1.5Gbit"] {
            assert_eq!(parse_rate(wrong), Err(ValueError::Rate), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read(number in 0_u64..u64::MAX) {
            let duration = Duration::from_nanos(number);
            proptest::prop_assert_eq!(parse_duration(&duration_text(duration)), Ok(duration));
            proptest::prop_assert_eq!(parse_size(&size_text(number)), Ok(number));
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC*") {
            let _ = (parse_duration(&text), parse_size(&text));
        }
    }
}
