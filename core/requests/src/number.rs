//! Decimal numbers that come a digit at a time.

use crate::gave_up::GaveUp;

/// No length or count of these protocols needs more digits.
const DIGITS_MAX: u8 = 18;

/// A whole number, perhaps with a minus sign before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Number {
    value: u64,
    digits: u8,
    is_negative: bool,
}

impl Number {
    /// The next character.
    pub fn push(&mut self, byte: u8) -> Result<(), GaveUp> {
        match byte {
            b'-' if self.digits == 0 && !self.is_negative => self.is_negative = true,
            b'0'..=b'9' if self.digits < DIGITS_MAX => {
                self.value = self.value * 10 + u64::from(byte - b'0');
                self.digits += 1;
            }
            _ => return Err(GaveUp::Syntax),
        }
        Ok(())
    }

    /// The number; `None` where it is negative, as "nothing" is written.
    pub fn take(&mut self) -> Result<Option<u64>, GaveUp> {
        let Number { value, digits, is_negative } = core::mem::take(self);
        if digits == 0 {
            return Err(GaveUp::Syntax);
        }
        Ok((!is_negative).then_some(value))
    }

    /// A number in one piece, without sign.
    pub fn of(text: &[u8]) -> Result<u64, GaveUp> {
        let mut number = Number::default();
        text.iter().try_for_each(|byte| number.push(*byte))?;
        number.take()?.ok_or(GaveUp::Syntax)
    }
}

/// A number on a line of its own, with a carriage return and a line feed behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberLine {
    number: Number,
    has_return: bool,
}

impl NumberLine {
    /// Takes from the input up to the line's end. `Some(None)`: the number is negative.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Option<u64>>, GaveUp> {
        while let Some((byte, rest)) = input.split_first() {
            *input = rest;
            match byte {
                b'\n' if self.has_return => return self.number.take().map(Some),
                _ if self.has_return => return Err(GaveUp::Syntax),
                b'\r' => self.has_return = true,
                digit => self.number.push(*digit)?,
            }
        }
        Ok(None)
    }
}

/// Takes this byte if it is the next one.
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
    fn numbers() {
        assert_eq!(Number::of(b"0"), Ok(0));
        assert_eq!(Number::of(b"1048576"), Ok(1 << 20));
        assert_eq!(Number::of(&[b'9'; 18]), Ok(999_999_999_999_999_999));
        for text in [&b""[..], b"-1", b"-", b"1-", b"+1", b"1 ", b"x", &[b'9'; 19]] {
            assert_eq!(Number::of(text), Err(GaveUp::Syntax));
        }
    }
}
