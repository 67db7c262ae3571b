//! Incremental parsers for decimal numbers.

use crate::stop_reason::StopReason;

/// Enough for every length and count of the protocols; 18 digits cannot overflow a `u64`.
const DIGITS_MAX: u8 = 18;

/// An integer with an optional minus sign.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Number {
    value: u64,
    digits: u8,
    is_negative: bool,
}

impl Number {
    pub fn push(&mut self, byte: u8) -> Result<(), StopReason> {
        match byte {
            b'-' if self.digits == 0 && !self.is_negative => self.is_negative = true,
            b'0'..=b'9' if self.digits < DIGITS_MAX => {
                self.value = self.value * 10 + u64::from(byte - b'0');
                self.digits += 1;
            }
            _ => return Err(StopReason::Syntax),
        }
        Ok(())
    }

    /// Returns the number and resets the parser. `None`: the number is negative, which denotes "null" in RESP2.
    pub fn take(&mut self) -> Result<Option<u64>, StopReason> {
        let Number { value, digits, is_negative } = core::mem::take(self);
        if digits == 0 {
            return Err(StopReason::Syntax);
        }
        Ok((!is_negative).then_some(value))
    }

    /// Parses a complete number without a sign.
    pub fn parse(text: &[u8]) -> Result<u64, StopReason> {
        let mut number = Number::default();
        text.iter().try_for_each(|byte| number.push(*byte))?;
        number.take()?.ok_or(StopReason::Syntax)
    }
}

/// A line that holds one number and ends with CR LF.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberLine {
    number: Number,
    has_return: bool,
}

impl NumberLine {
    /// Consumes input up to the line's end. `None`: the line is incomplete. `Some(None)`: the number is negative.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Option<u64>>, StopReason> {
        while let Some((byte, rest)) = input.split_first() {
            *input = rest;
            match byte {
                b'\n' if self.has_return => return self.number.take().map(Some),
                _ if self.has_return => return Err(StopReason::Syntax),
                b'\r' => self.has_return = true,
                digit => self.number.push(*digit)?,
            }
        }
        Ok(None)
    }
}

/// Consumes the next byte if it is `byte`. Returns whether it was.
pub(crate) fn take_if(input: &mut &[u8], byte: u8) -> bool {
    match input.split_first() {
        Some((first, rest)) if *first == byte => {
            *input = rest;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unsigned_numbers_of_up_to_18_digits_are_parsed() {
        assert_eq!(Number::parse(b"0"), Ok(0));
        assert_eq!(Number::parse(b"1048576"), Ok(1 << 20));
        assert_eq!(Number::parse(&[b'9'; 18]), Ok(999_999_999_999_999_999));
        for text in [&b""[..], b"-1", b"-", b"1-", b"+1", b"1 ", b"x", &[b'9'; 19]] {
            assert_eq!(Number::parse(text), Err(StopReason::Syntax));
        }
    }
}
