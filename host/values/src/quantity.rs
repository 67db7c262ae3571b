//! Times, sizes and rates: a number and a unit.

use std::fmt;
use std::time::Duration;

const TIMES: [(&str, u64); 7] = [
    ("ns", 1),
    ("µs", 1_000),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
const RATES: [(&str, u64); 3] = [("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000)];
const SIZES: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Why a text is not a time, a size or a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// The text is not a time.
    Time,
    /// The text is not a size.
    Size,
    /// The text is not a rate.
    Rate,
    /// The value exceeds 64 bits in the smallest unit.
    TooLarge,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueError::Time => {
                "give a time with its unit: a number and ns, us, ms, s, m or h, such as 200us, 1.5s or 10m"
            }
            ValueError::Size => {
                "give a size with its unit: a number and B, KiB, MiB or GiB, such as 64KiB or 1.5GiB"
            }
            ValueError::Rate => {
                "give a rate with its unit: a number and kbit, Mbit or Gbit (per second), such as 10Gbit"
            }
            ValueError::TooLarge => "the number is too large",
        })
    }
}

impl std::error::Error for ValueError {}

/// Parses a time such as `200us`, `1s`; `0` needs no unit. Fails for other texts and values beyond 64 bits.
pub fn parse_duration(text: &str) -> Result<Duration, ValueError> {
    parse(text, &TIMES, ValueError::Time).map(Duration::from_nanos)
}

/// Parses a size such as `64KiB`, `1GiB`, in bytes; `0` needs no unit. Fails for other texts and values beyond 64 bits.
pub fn parse_size(text: &str) -> Result<u64, ValueError> {
    parse(text, &SIZES, ValueError::Size)
}

/// Parses a rate such as `10Gbit`, in bits per second. Fails for other texts and values beyond 64 bits.
pub fn parse_rate(text: &str) -> Result<u64, ValueError> {
    parse(text, &RATES, ValueError::Rate)
}

/// Maximal number of digits of a fraction. It keeps the product of fraction and unit within 128 bits.
const FRACTION_DIGITS_MAX: usize = 9;

fn parse(text: &str, units: &[(&str, u64)], malformed: ValueError) -> Result<u64, ValueError> {
    if text == "0" {
        return Ok(0);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(malformed)?;
    let (number, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit).ok_or(malformed)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
        return Err(malformed);
    }
    // All factors have at most 64 bits, so neither the products nor their sum exceed 128 bits.
    let whole: u64 = whole.parse().map_err(|_| ValueError::TooLarge)?;
    let scale = 10_u128.pow(fraction.len() as u32);
    let fraction: u128 = fraction.parse().map_err(|_| malformed)?;
    let value = u128::from(whole) * u128::from(*factor) + fraction * u128::from(*factor) / scale;
    u64::try_from(value).map_err(|_| ValueError::TooLarge)
}

/// Formats a value as [`parse_duration`] reads it, in the largest unit that needs no fraction.
pub fn duration_text(duration: Duration) -> String {
    formatted(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), &TIMES, "0s")
}

/// Formats a value as [`parse_rate`] reads it, in the largest unit that needs no fraction. A rate that is not a whole
/// number of kbit is written with a fraction, because kbit is the smallest unit.
pub fn rate_text(bits: u64) -> String {
    if bits.is_multiple_of(1_000) {
        return formatted(bits, &RATES, "0kbit");
    }
    let fraction = format!("{:03}", bits % 1_000);
    format!("{}.{}kbit", bits / 1_000, fraction.trim_end_matches('0'))
}

/// Formats a value as [`parse_size`] reads it, in the largest unit that needs no fraction.
pub fn size_text(bytes: u64) -> String {
    formatted(bytes, &SIZES, "0B")
}

fn formatted(number: u64, units: &[(&str, u64)], zero: &str) -> String {
    let unit = units.iter().rev().find(|(_, factor)| number > 0 && number.is_multiple_of(*factor));
    unit.map_or(zero.to_owned(), |(name, factor)| format!("{}{name}", number / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_duration("200us"), Ok(Duration::from_micros(200)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("0.1ms"), Ok(Duration::from_micros(100)));
        assert_eq!(parse_duration("100µs"), parse_duration("100us"));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        for wrong in
            ["", "200", "us", "1.s", ".5s", "1.2.3s", "-1s", "1 s", " 1s", "1S", "1sec", "µs", "١s", "0x1s"]
        {
            assert_eq!(parse_duration(wrong), Err(ValueError::Time), "{wrong}");
        }
        // In nanoseconds the whole part alone fits 128 bits; with the fraction the number does not.
        let beyond_128_bits = "94522879700260684295381835.999999999h";
        for large in ["99999999999999s", "99999999999999999999999ns", beyond_128_bits] {
            assert_eq!(parse_duration(large), Err(ValueError::TooLarge), "{large}");
        }
    }

    #[test]
    fn sizes_need_a_unit() {
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("1.5MiB"), Ok(3 << 19));
        for wrong in ["", "64", "64K", "64KB", "64kib", "KiB", "-1B", "1.MiB", "1_0B"] {
            assert_eq!(parse_size(wrong), Err(ValueError::Size), "{wrong}");
        }
        assert_eq!(parse_size("99999999999GiB"), Err(ValueError::TooLarge));
    }

    #[test]
    fn rates_need_a_unit() {
        assert_eq!(parse_rate("10Gbit"), Ok(10_000_000_000));
        assert_eq!(rate_text(2_500_000_000), "2500Mbit");
        assert_eq!(rate_text(0), "0kbit");
        assert_eq!(rate_text(1_000_500), "1000.5kbit");
        assert_eq!(rate_text(50), "0.05kbit");
        for wrong in ["", "10", "10G", "10gbit", "10Gbit/s", "1,5Gbit"] {
            assert_eq!(parse_rate(wrong), Err(ValueError::Rate), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn formatted_values_parse_to_the_same_value(number in 0_u64..u64::MAX) {
            let duration = Duration::from_nanos(number);
            proptest::prop_assert_eq!(parse_duration(&duration_text(duration)), Ok(duration));
            proptest::prop_assert_eq!(parse_size(&size_text(number)), Ok(number));
            proptest::prop_assert_eq!(parse_rate(&rate_text(number)), Ok(number));
            // The numbers above are seldom a whole number of kbit, so that only the format with a fraction is tested.
            let kbit = number / 1_000 * 1_000;
            proptest::prop_assert_eq!(parse_rate(&rate_text(kbit)), Ok(kbit));
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "\\PC*") {
            let _ = (parse_duration(&text), parse_size(&text), parse_rate(&text));
        }
    }
}
