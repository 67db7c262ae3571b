//! Parser of redis replies in RESP2 and RESP3.

use alloc::vec::Vec;

use crate::number::{NumberLine, take_if};
use crate::stop_reason::StopReason;

/// Limit on nested aggregates. Real replies of redis are far less deep.
const DEPTH_MAX: usize = 64;
/// Limit on values in an aggregate, above what a server can hold in memory.
const COUNT_MAX: u64 = 1 << 40;

#[derive(Clone, Debug, Default)]
pub(super) struct Replies {
    state: State,
    /// The aggregates around the current value, outermost first.
    enclosing: Vec<Enclosing>,
    /// The outermost value is a push message, which is not a reply to a request.
    is_push: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Before a value's first byte.
    #[default]
    Start,
    /// In the rest of a one-line value.
    Line,
    /// After the type byte of a value that has a length or count.
    Head(u8),
    /// In the length or count of a value of this type.
    Number(u8, NumberLine),
    /// In a string, with the number of bytes that remain, its CR LF included.
    Bulk(u64),
    /// In the first line of a streamed string or aggregate (RESP3), which has no length.
    Streamed(u8),
    /// Before the next chunk of a streamed string.
    Chunk,
    ChunkLength(NumberLine),
    /// In a chunk, with the number of bytes that remain, its CR LF included.
    ChunkBytes(u64),
    /// In the line that ends a streamed aggregate.
    Dot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enclosing {
    /// Array, set, map or push, with the number of values that remain.
    Values(u64),
    /// Attribute, with the number of values that remain. The value that it describes follows.
    Attribute(u64),
    /// Streamed aggregate, which ends with a dot.
    Streamed,
}

impl Replies {
    /// Consumes input up to the end of a reply. Returns false if the reply is incomplete.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<bool, StopReason> {
        while !input.is_empty() {
            if self.parse_some(input)? {
                self.state = State::Start;
                if self.count_value() && !core::mem::take(&mut self.is_push) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    pub fn is_between_messages(&self) -> bool {
        matches!(self.state, State::Start) && self.enclosing.is_empty()
    }

    /// Consumes some input. Returns whether a value is complete.
    fn parse_some(&mut self, input: &mut &[u8]) -> Result<bool, StopReason> {
        match &mut self.state {
            State::Start => return self.parse_type(input),
            State::Line => return Ok(skip_line(input)),
            State::Head(kind) => {
                self.state = match *kind {
                    b'$' | b'*' | b'%' | b'~' if take_if(input, b'?') => State::Streamed(*kind),
                    kind => State::Number(kind, NumberLine::default()),
                };
            }
            State::Number(kind, line) => {
                let kind = *kind;
                if let Some(number) = line.next(input)? {
                    return self.handle_length(kind, number);
                }
            }
            State::Bulk(left) => {
                skip_bytes(input, left);
                return Ok(*left == 0);
            }
            State::Streamed(kind) => {
                let is_string = *kind == b'$';
                if skip_line(input) {
                    if is_string {
                        self.state = State::Chunk;
                    } else {
                        self.open_aggregate(Enclosing::Streamed)?;
                    }
                }
            }
            State::Chunk => {
                if !take_if(input, b';') {
                    return Err(StopReason::Syntax);
                }
                self.state = State::ChunkLength(NumberLine::default());
            }
            State::ChunkLength(line) => {
                if let Some(length) = line.next(input)? {
                    match length.ok_or(StopReason::Syntax)? {
                        0 => return Ok(true),
                        length => self.state = State::ChunkBytes(length + 2),
                    }
                }
            }
            State::ChunkBytes(left) => {
                skip_bytes(input, left);
                if *left == 0 {
                    self.state = State::Chunk;
                }
            }
            State::Dot => {
                if skip_line(input) {
                    // The complete aggregate is itself a value of the aggregate that encloses it.
                    self.enclosing.pop();
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn parse_type(&mut self, input: &mut &[u8]) -> Result<bool, StopReason> {
        let Some((kind, rest)) = input.split_first() else { return Ok(false) };
        *input = rest;
        self.state = match kind {
            // Simple string, error, integer, double, boolean, null, big number.
            b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => State::Line,
            // Strings, long errors, verbatim strings; arrays, sets, maps, attributes.
            b'$' | b'!' | b'=' | b'*' | b'~' | b'%' | b'|' => State::Head(*kind),
            b'>' => {
                self.is_push |= self.enclosing.is_empty();
                State::Head(*kind)
            }
            b'.' if self.enclosing.last() == Some(&Enclosing::Streamed) => State::Dot,
            _ => return Err(StopReason::Syntax),
        };
        Ok(false)
    }

    /// Handles the length or count of a value. Returns whether the value is complete; an empty aggregate is.
    fn handle_length(&mut self, kind: u8, number: Option<u64>) -> Result<bool, StopReason> {
        // RESP2 writes null as a negative length.
        let Some(number) = number else { return Ok(true) };
        let values = match kind {
            b'$' | b'!' | b'=' => {
                self.state = State::Bulk(number + 2);
                return Ok(false);
            }
            b'%' | b'|' => number.saturating_mul(2),
            _ => number,
        };
        if values > COUNT_MAX {
            return Err(StopReason::Syntax);
        }
        match (kind, values) {
            (b'|', 0) => self.state = State::Start,
            (b'|', values) => self.open_aggregate(Enclosing::Attribute(values))?,
            (_, 0) => return Ok(true),
            (_, values) => self.open_aggregate(Enclosing::Values(values))?,
        }
        Ok(false)
    }

    fn open_aggregate(&mut self, enclosing: Enclosing) -> Result<(), StopReason> {
        if self.enclosing.len() >= DEPTH_MAX {
            return Err(StopReason::TooDeep);
        }
        self.enclosing.push(enclosing);
        self.state = State::Start;
        Ok(())
    }

    /// Counts a complete value in its aggregates. Returns whether the outermost value is complete.
    fn count_value(&mut self) -> bool {
        while let Some(last) = self.enclosing.last_mut() {
            match last {
                Enclosing::Streamed => return false,
                Enclosing::Attribute(1) => {
                    self.enclosing.pop();
                    return false;
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

/// Consumes input up to the line's end. Returns false if the line is incomplete.
fn skip_line(input: &mut &[u8]) -> bool {
    let end = input.iter().position(|byte| *byte == b'\n');
    *input = &input[end.map_or(input.len(), |end| end + 1)..];
    end.is_some()
}

/// Consumes at most `left` bytes of input, and subtracts their number from `left`.
fn skip_bytes(input: &mut &[u8], left: &mut u64) {
    let taken = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    *input = &input[taken..];
    *left -= taken as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the text in two pieces. Returns the number of replies, and whether the text ends between two
    /// replies.
    fn count(text: &[u8], cut: usize) -> Result<(u32, bool), StopReason> {
        let (mut replies, mut count) = (Replies::default(), 0);
        for mut piece in [&text[..cut], &text[cut..]] {
            while replies.next(&mut piece)? {
                count += 1;
            }
        }
        Ok((count, replies.is_between_messages()))
    }

    #[test]
    fn each_outermost_value_is_one_reply() {
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
                assert_eq!(
                    count(text.as_bytes(), cut),
                    Ok((1, true)),
                    "{text:?} should be one reply when cut at {cut}"
                );
            }
            for length in 1..text.len() {
                let (replies, _) = count(&text.as_bytes()[..length], 0).unwrap();
                assert_eq!(
                    replies,
                    0,
                    "an incomplete value should not count as a reply: {:?}",
                    &text[..length]
                );
            }
        }
        assert_eq!(count(b"+a\r\n:1\r\n$1\r\nx\r\n*1\r\n:1\r\n", 5), Ok((4, true)));
    }

    #[test]
    fn malformed_replies_are_rejected() {
        for text in
            ["x", "$x\r\n", "*1\r\nx", "*\r\n", "$1\rx", ".\r\n", "$?\r\nx", ";1\r\n", "*9999999999999\r\n"]
        {
            assert_eq!(count(text.as_bytes(), 0), Err(StopReason::Syntax), "{text:?} should be rejected");
        }
        let deep = "*2\r\n".repeat(DEPTH_MAX);
        assert_eq!(count(deep.as_bytes(), 0), Ok((0, false)));
        assert_eq!(count((deep + "*2\r\n").as_bytes(), 0), Err(StopReason::TooDeep));
    }
}
