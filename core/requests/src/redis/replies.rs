//! Replies, in RESP2 and RESP3: each value tells its own extent; aggregates hold values.

use alloc::vec::Vec;

use crate::gave_up::GaveUp;
use crate::number::{NumberLine, take_if};

/// Aggregates in aggregates; no reply of redis comes near.
const DEPTH_MAX: usize = 64;
/// Values in an aggregate: more than a server could hold.
const COUNT_MAX: u64 = 1 << 40;

/// The direction from the server.
#[derive(Clone, Debug, Default)]
pub(super) struct Replies {
    at: At,
    /// What encloses the value that comes, from outside in.
    enclosing: Vec<Enclosing>,
    /// The whole value is a push message, which answers nobody.
    is_push: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum At {
    /// Before a value's first byte.
    #[default]
    Start,
    /// In a line whose content does not matter.
    Line,
    /// Behind the first byte of a value that begins with a number.
    Head(u8),
    Number(u8, NumberLine),
    /// In a string, of which so many bytes are to come, its line end included.
    Bulk(u64),
    /// In the rest of the line of a string or an aggregate without a length.
    Streamed(u8),
    /// Before the next piece of a string without a length.
    Piece,
    PieceLength(NumberLine),
    PieceBytes(u64),
    /// In the line that ends an aggregate without a length.
    Dot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enclosing {
    /// So many values are to come.
    Values(u64),
    /// So many values of an attribute, which goes before the value it describes.
    Attribute(u64),
    /// Values up to a dot.
    UpToDot,
}

impl Replies {
    /// Takes from the input up to the end of a reply. False: there is more to come.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<bool, GaveUp> {
        while !input.is_empty() {
            if self.step(input)? {
                self.at = At::Start;
                if self.is_whole() && !core::mem::take(&mut self.is_push) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    pub fn is_between(&self) -> bool {
        matches!(self.at, At::Start) && self.enclosing.is_empty()
    }

    /// Takes something. True when a value is complete.
    fn step(&mut self, input: &mut &[u8]) -> Result<bool, GaveUp> {
        match &mut self.at {
            At::Start => return self.begin(input),
            At::Line => return Ok(skip_line(input)),
            At::Head(kind) => {
                self.at = match *kind {
                    b'$' | b'*' | b'%' | b'~' if take_if(input, b'?') => At::Streamed(*kind),
                    kind => At::Number(kind, NumberLine::default()),
                };
            }
            At::Number(kind, line) => {
                let kind = *kind;
                if let Some(number) = line.next(input)? {
                    return self.extent(kind, number);
                }
            }
            At::Bulk(left) => {
                skip(input, left);
                return Ok(*left == 0);
            }
            At::Streamed(kind) => {
                let is_string = *kind == b'$';
                if skip_line(input) {
                    if is_string {
                        self.at = At::Piece;
                    } else {
                        self.enclose(Enclosing::UpToDot)?;
                    }
                }
            }
            At::Piece => {
                if !take_if(input, b';') {
                    return Err(GaveUp::Syntax);
                }
                self.at = At::PieceLength(NumberLine::default());
            }
            At::PieceLength(line) => {
                if let Some(length) = line.next(input)? {
                    match length.ok_or(GaveUp::Syntax)? {
                        0 => return Ok(true),
                        length => self.at = At::PieceBytes(length + 2),
                    }
                }
            }
            At::PieceBytes(left) => {
                skip(input, left);
                if *left == 0 {
                    self.at = At::Piece;
                }
            }
            At::Dot => {
                if skip_line(input) {
                    // The aggregate is complete, and it is a value itself.
                    self.enclosing.pop();
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// A value's first byte.
    fn begin(&mut self, input: &mut &[u8]) -> Result<bool, GaveUp> {
        let Some((kind, rest)) = input.split_first() else { return Ok(false) };
        *input = rest;
        self.at = match kind {
            // Simple string, error, integer, double, boolean, null, big number.
            b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => At::Line,
            // Strings, long errors, verbatim strings; arrays, sets, maps, attributes.
            b'$' | b'!' | b'=' | b'*' | b'~' | b'%' | b'|' => At::Head(*kind),
            b'>' => {
                self.is_push |= self.enclosing.is_empty();
                At::Head(*kind)
            }
            b'.' if self.enclosing.last() == Some(&Enclosing::UpToDot) => At::Dot,
            _ => return Err(GaveUp::Syntax),
        };
        Ok(false)
    }

    /// A value of this kind has this length or count. True when that makes it complete.
    fn extent(&mut self, kind: u8, number: Option<u64>) -> Result<bool, GaveUp> {
        // Nothing, as RESP2 has it.
        let Some(number) = number else { return Ok(true) };
        let values = match kind {
            b'$' | b'!' | b'=' => {
                self.at = At::Bulk(number + 2);
                return Ok(false);
            }
            b'%' | b'|' => number.saturating_mul(2),
            _ => number,
        };
        if values > COUNT_MAX {
            return Err(GaveUp::Syntax);
        }
        match (kind, values) {
            (b'|', 0) => self.at = At::Start, // describes nothing
            (b'|', values) => self.enclose(Enclosing::Attribute(values))?,
            (_, 0) => return Ok(true),
            (_, values) => self.enclose(Enclosing::Values(values))?,
        }
        Ok(false)
    }

    fn enclose(&mut self, enclosing: Enclosing) -> Result<(), GaveUp> {
        if self.enclosing.len() >= DEPTH_MAX {
            return Err(GaveUp::TooDeep);
        }
        self.enclosing.push(enclosing);
        self.at = At::Start;
        Ok(())
    }

    /// A value is complete. Whether it was the last one of all that encloses it.
    fn is_whole(&mut self) -> bool {
        while let Some(last) = self.enclosing.last_mut() {
            match last {
                Enclosing::UpToDot => return false,
                Enclosing::Attribute(1) => {
                    self.enclosing.pop();
                    return false; // the value that it describes is to come
                }
                Enclosing::Values(1) => drop(self.enclosing.pop()),
                Enclosing::Values(left) | Enclosing::Attribute(left) => {
                    *left -= 1;
                    return false;
                }
            }
        }
        true
    }
}

/// Whether the line ended.
fn skip_line(input: &mut &[u8]) -> bool {
    let end = input.iter().position(|byte| *byte == b'\n');
    *input = &input[end.map_or(input.len(), |end| end + 1)..];
    end.is_some()
}

fn skip(input: &mut &[u8], left: &mut u64) {
    let taken = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    *input = &input[taken..];
    *left -= taken as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &[u8], cut: usize) -> Result<(u32, bool), GaveUp> {
        let (mut replies, mut count) = (Replies::default(), 0);
        for mut piece in [&text[..cut], &text[cut..]] {
            while replies.next(&mut piece)? {
                count += 1;
            }
        }
        Ok((count, replies.is_between()))
    }

    #[test]
    fn values_of_all_kinds_are_one_reply_each() {
        for text in [
            "+OK\r\n",
            "-ERR no\r\n",
            ":42\r\n",
            ",3.14\r\n",
            "#t\r\n",
            "_\r\n",
            "(123456789012345678901234567890\r\n",
            "$5\r\nhe\r\no\r\n",
            "$0\r\n\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "%0\r\n",
            "=7\r\ntxt:abc\r\n",
            "!4\r\nERR \r\n",
            "*3\r\n:1\r\n$2\r\nab\r\n*2\r\n+a\r\n*0\r\n",
            "~2\r\n:1\r\n:2\r\n",
            "%2\r\n+a\r\n*1\r\n:1\r\n+b\r\n%1\r\n_\r\n_\r\n",
            "|1\r\n+ttl\r\n:3600\r\n$1\r\nx\r\n",
            "*2\r\n|1\r\n+a\r\n*1\r\n:1\r\n:1\r\n:2\r\n",
            "|0\r\n:1\r\n",
            ">2\r\n+invalidate\r\n*1\r\n+k\r\n:1\r\n",
            ">1\r\n*1\r\n>1\r\n:1\r\n+OK\r\n",
            "$?\r\n;4\r\nab\r\n\r\n;1\r\nc\r\n;0\r\n",
            "*?\r\n:1\r\n*1\r\n:2\r\n.\r\n",
            "*2\r\n%?\r\n+a\r\n:1\r\n.\r\n:1\r\n",
            "*?\r\n.\r\n",
        ] {
            for cut in 0..=text.len() {
                assert_eq!(count(text.as_bytes(), cut), Ok((1, true)), "{text:?} cut at {cut}");
            }
            for length in 1..text.len() {
                // A push message before the reply is complete by itself.
                let (replies, _) = count(&text.as_bytes()[..length], 0).unwrap();
                assert_eq!(replies, 0, "{:?}", &text[..length]);
            }
        }
        assert_eq!(count(b"+a\r\n:1\r\n$1\r\nx\r\n*1\r\n:1\r\n", 5), Ok((4, true)));
    }

    #[test]
    fn what_is_no_reply_is_told() {
        for text in
            ["x", "$x\r\n", "*1\r\nx", "*\r\n", "$1\rx", ".\r\n", "$?\r\nx", ";1\r\n", "*9999999999999\r\n"]
        {
            assert_eq!(count(text.as_bytes(), 0), Err(GaveUp::Syntax), "{text:?}");
        }
        let deep = "*2\r\n".repeat(DEPTH_MAX);
        assert_eq!(count(deep.as_bytes(), 0), Ok((0, false)));
        assert_eq!(count((deep + "*2\r\n").as_bytes(), 0), Err(GaveUp::TooDeep));
    }
}
