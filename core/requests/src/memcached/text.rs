//! memcached's text protocol: lines of classic and meta commands, some of which are followed by a value.

use spillway_transport::Time;

use super::commands::{Command, ReplyFormat};
use super::matching::{ReplyClass, match_reply};
use crate::number::Number;
use crate::outstanding::Outstanding;
use crate::stop_reason::StopReason;
use crate::words::{Line, Piece, Word};

#[derive(Clone, Debug)]
pub(crate) struct Text {
    requests: Lines,
    command: Command,
    replies: Lines,
    reply: ReplyLine,
}

impl Default for Text {
    fn default() -> Text {
        Text {
            requests: Lines::new(),
            command: Command::EMPTY,
            replies: Lines::new(),
            reply: ReplyLine::Empty,
        }
    }
}

impl Text {
    pub fn requests(
        &mut self,
        now: Time,
        mut bytes: &[u8],
        outstanding: &mut Outstanding,
    ) -> Result<(), StopReason> {
        while let Some(token) = self.requests.next(&mut bytes)? {
            match token {
                Token::Word(word) => self.command.handle_word(&word)?,
                Token::LineEnd => match self.command.value_bytes()? {
                    Some(bytes) => self.requests.expect_value(bytes),
                    None => self.push_request(now, outstanding)?,
                },
                Token::ValueEnd => self.push_request(now, outstanding)?,
            }
        }
        Ok(())
    }

    fn push_request(&mut self, now: Time, outstanding: &mut Outstanding) -> Result<(), StopReason> {
        let command = core::mem::replace(&mut self.command, Command::EMPTY);
        outstanding.push(now, command.kind())
    }

    pub fn replies(
        &mut self,
        mut bytes: &[u8],
        outstanding: &mut Outstanding,
        mut answered: impl FnMut(Option<Time>),
    ) -> Result<(), StopReason> {
        while let Some(token) = self.replies.next(&mut bytes)? {
            let reply = match token {
                Token::Word(word) => {
                    self.reply.handle_word(&word)?;
                    continue;
                }
                Token::LineEnd => match core::mem::replace(&mut self.reply, ReplyLine::Empty) {
                    ReplyLine::Empty | ReplyLine::Value(None) | ReplyLine::MetaValue(None) => {
                        return Err(StopReason::Syntax);
                    }
                    ReplyLine::Value(Some(bytes)) => {
                        self.replies.expect_value(bytes);
                        continue;
                    }
                    ReplyLine::MetaValue(Some(bytes)) => {
                        self.replies.expect_value(bytes);
                        self.reply = ReplyLine::Reply(ReplyClass::Of(ReplyFormat::Meta));
                        continue;
                    }
                    ReplyLine::Statistic => continue,
                    ReplyLine::Reply(reply) => reply,
                },
                Token::ValueEnd => match core::mem::replace(&mut self.reply, ReplyLine::Empty) {
                    ReplyLine::Reply(reply) => reply,
                    _ => continue, // another value or `END` follows
                },
            };
            if let Some(since) = match_reply(reply, outstanding)? {
                answered(since);
            }
        }
        Ok(())
    }

    pub fn is_between_messages(&self) -> bool {
        self.requests.is_between_messages() && self.replies.is_between_messages()
    }
}

/// The kind of a reply's line, as far as the line was parsed.
#[derive(Clone, Copy, Debug)]
enum ReplyLine {
    Empty,
    /// `VALUE key flags bytes`, with the number of bytes.
    Value(Option<u64>),
    /// `VA bytes`, with the number of bytes.
    MetaValue(Option<u64>),
    Statistic,
    /// The line completes a reply, unless it is a `VA` line: its value follows.
    Reply(ReplyClass),
}

impl ReplyLine {
    fn handle_word(&mut self, word: &Word) -> Result<(), StopReason> {
        if word.index == 0 {
            *self = match word.text() {
                b"VALUE" => ReplyLine::Value(None),
                b"VA" => ReplyLine::MetaValue(None),
                b"STAT" | b"ITEM" | b"PREFIX" => ReplyLine::Statistic,
                b"END" => ReplyLine::Reply(ReplyClass::End),
                b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" => ReplyLine::Reply(ReplyClass::Error),
                b"RESET" => ReplyLine::Reply(ReplyClass::Of(ReplyFormat::Statistics)),
                b"HD" | b"EN" | b"NS" | b"EX" | b"NF" | b"ME" => {
                    ReplyLine::Reply(ReplyClass::Of(ReplyFormat::Meta))
                }
                b"MN" => ReplyLine::Reply(ReplyClass::Of(ReplyFormat::MetaNoop)),
                // STORED, DELETED, OK, a number, VERSION …
                _ => ReplyLine::Reply(ReplyClass::Of(ReplyFormat::Line)),
            };
            return Ok(());
        }
        match self {
            ReplyLine::Value(bytes) if word.index == 3 => *bytes = Some(Number::parse(word.text())?),
            ReplyLine::MetaValue(bytes) if word.index == 1 => *bytes = Some(Number::parse(word.text())?),
            _ => {}
        }
        Ok(())
    }
}

/// Parser of one direction: lines, and values between them.
#[derive(Clone, Copy, Debug)]
struct Lines {
    line: Line,
    value: Option<Value>,
}

/// A value that is not complete yet.
#[derive(Clone, Copy, Debug)]
struct Value {
    bytes_left: u64,
    /// Whether the carriage return after the value was consumed.
    has_return: bool,
}

enum Token {
    Word(Word),
    LineEnd,
    ValueEnd,
}

impl Lines {
    const fn new() -> Lines {
        Lines { line: Line::new(), value: None }
    }

    fn expect_value(&mut self, bytes: u64) {
        self.value = Some(Value { bytes_left: bytes, has_return: false });
    }

    fn is_between_messages(&self) -> bool {
        self.value.is_none() && self.line.is_empty()
    }

    fn next(&mut self, input: &mut &[u8]) -> Result<Option<Token>, StopReason> {
        let Some(value) = &mut self.value else {
            return Ok(self.line.next(input)?.map(|piece| match piece {
                Piece::Word(word) => Token::Word(word),
                Piece::End => Token::LineEnd,
            }));
        };
        let taken = input.len().min(usize::try_from(value.bytes_left).unwrap_or(usize::MAX));
        value.bytes_left -= taken as u64;
        *input = &input[taken..];
        while value.bytes_left == 0 {
            let Some((byte, rest)) = input.split_first() else { return Ok(None) };
            *input = rest;
            match byte {
                b'\r' if !value.has_return => value.has_return = true,
                b'\n' if value.has_return => {
                    self.value = None;
                    return Ok(Some(Token::ValueEnd));
                }
                // The value's length differs from the announced one. The server replies with an error and parses the
                // rest as commands.
                _ => return Err(StopReason::Syntax),
            }
        }
        Ok(None)
    }
}
