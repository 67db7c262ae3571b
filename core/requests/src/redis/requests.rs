//! Parser of redis requests: an array of bulk strings, or an inline command.

use super::commands::{Command, Verdict};
use crate::number::{NumberLine, take_if};
use crate::stop_reason::StopReason;
use crate::words::{Line, Piece, Word};

#[derive(Clone, Debug)]
pub(super) struct Requests {
    command: Command,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Start,
    /// In an inline command. The flag is set once a word was parsed: an empty line is not a request.
    Inline(Line, bool),
    /// In the line with the number of words.
    Count(NumberLine),
    /// Before the dollar sign of a word.
    Dollar(Words),
    /// In the line with the length of a word.
    Length(Words, NumberLine),
    /// In a word, with the number of bytes that remain, its CR LF included.
    Word(Words, Word, u64),
}

/// Index of a request's next word, and the number of words that remain.
#[derive(Clone, Copy, Debug)]
struct Words {
    index: u32,
    left: u64,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests { command: Command::EMPTY, state: State::Start }
    }
}

impl Requests {
    /// Consumes input up to the end of a request. `None`: the request is incomplete.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Verdict>, StopReason> {
        while !input.is_empty() || matches!(self.state, State::Inline(line, _) if line.is_ending()) {
            if self.parse_some(input)? {
                let command = core::mem::replace(&mut self.command, Command::EMPTY);
                self.state = State::Start;
                return Ok(Some(command.verdict()));
            }
        }
        Ok(None)
    }

    pub fn is_between_messages(&self) -> bool {
        matches!(self.state, State::Start)
    }

    /// Consumes some input. Returns whether a request that has a reply is complete.
    fn parse_some(&mut self, input: &mut &[u8]) -> Result<bool, StopReason> {
        match &mut self.state {
            State::Start => {
                self.state = if take_if(input, b'*') {
                    State::Count(NumberLine::default())
                } else {
                    State::Inline(Line::new(), false)
                };
            }
            State::Inline(line, has_words) => match line.next(input)? {
                Some(Piece::Word(word)) => {
                    *has_words = true;
                    self.command.handle_word(&word.to_uppercase());
                }
                Some(Piece::End) => {
                    let is_request = *has_words;
                    self.state = State::Start;
                    return Ok(is_request);
                }
                None => {}
            },
            State::Count(line) => {
                if let Some(count) = line.next(input)? {
                    self.state = match count {
                        None | Some(0) => State::Start, // the server ignores empty requests
                        Some(left) => State::Dollar(Words { index: 0, left }),
                    };
                }
            }
            State::Dollar(words) => {
                if !take_if(input, b'$') {
                    return Err(StopReason::Syntax);
                }
                self.state = State::Length(*words, NumberLine::default());
            }
            State::Length(words, line) => {
                if let Some(length) = line.next(input)? {
                    let length = length.ok_or(StopReason::Syntax)?;
                    self.state = State::Word(*words, Word::new(words.index), length + 2);
                }
            }
            State::Word(words, word, left) => {
                let taken = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                let (bytes, rest) = input.split_at(taken);
                *input = rest;
                let word_bytes = left.saturating_sub(2).min(taken as u64);
                word.push(&bytes[..usize::try_from(word_bytes).unwrap_or(taken)]);
                *left -= taken as u64;
                if *left == 0 {
                    self.command.handle_word(&word.to_uppercase());
                    let next = Words { index: words.index.saturating_add(1), left: words.left - 1 };
                    self.state = State::Dollar(next);
                    return Ok(next.left == 0);
                }
            }
        }
        Ok(false)
    }
}
