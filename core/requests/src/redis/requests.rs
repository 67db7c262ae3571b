//! Requests: `*count`, then as many bulk strings; or a line of words.

use super::commands::{Command, Verdict};
use crate::gave_up::GaveUp;
use crate::number::{NumberLine, take_if};
use crate::words::{Line, Piece, Word};

/// The direction from the client.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    command: Command,
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Start,
    /// Whether it has words: an empty line is no request.
    Inline(Line, bool),
    /// In the line that says how many words there are.
    Count(NumberLine),
    /// Before the dollar sign of a word, and so many words are to come.
    Dollar(Words),
    /// In the line that says how long a word is.
    Length(Words, NumberLine),
    /// In a word, of which so many bytes are to come, its line end included.
    Word(Words, Word, u64),
}

/// Words of a request: the place of the next one, and how many there are.
#[derive(Clone, Copy, Debug)]
struct Words {
    index: u32,
    left: u64,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests { command: Command::EMPTY, at: At::Start }
    }
}

impl Requests {
    /// Takes from the input up to the end of a request. `None`: there is more to come.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Verdict>, GaveUp> {
        while !input.is_empty() || matches!(self.at, At::Inline(line, _) if line.is_ending()) {
            if self.step(input)? {
                let command = core::mem::replace(&mut self.command, Command::EMPTY);
                self.at = At::Start;
                return Ok(Some(command.verdict()));
            }
        }
        Ok(None)
    }

    pub fn is_between(&self) -> bool {
        matches!(self.at, At::Start)
    }

    /// Takes something. True when a request is complete that will have a reply.
    fn step(&mut self, input: &mut &[u8]) -> Result<bool, GaveUp> {
        match &mut self.at {
            At::Start => {
                self.at = if take_if(input, b'*') {
                    At::Count(NumberLine::default())
                } else {
                    At::Inline(Line::new(), false)
                };
            }
            At::Inline(line, has_words) => match line.next(input)? {
                Some(Piece::Word(word)) => {
                    *has_words = true;
                    self.command.word(&word.capitals());
                }
                Some(Piece::End) => {
                    let is_request = *has_words;
                    self.at = At::Start;
                    return Ok(is_request);
                }
                None => {}
            },
            At::Count(line) => {
                if let Some(count) = line.next(input)? {
                    self.at = match count {
                        None | Some(0) => At::Start, // ignored by the server
                        Some(left) => At::Dollar(Words { index: 0, left }),
                    };
                }
            }
            At::Dollar(words) => {
                if !take_if(input, b'$') {
                    return Err(GaveUp::Syntax);
                }
                self.at = At::Length(*words, NumberLine::default());
            }
            At::Length(words, line) => {
                if let Some(length) = line.next(input)? {
                    let length = length.ok_or(GaveUp::Syntax)?;
                    self.at = At::Word(*words, Word::new(words.index), length + 2);
                }
            }
            At::Word(words, word, left) => {
                let taken = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                let (bytes, rest) = input.split_at(taken);
                *input = rest;
                let of_word = left.saturating_sub(2).min(taken as u64);
                word.push(&bytes[..usize::try_from(of_word).unwrap_or(taken)]);
                *left -= taken as u64;
                if *left == 0 {
                    self.command.word(&word.capitals());
                    let next = Words { index: words.index.saturating_add(1), left: words.left - 1 };
                    self.at = At::Dollar(next);
                    return Ok(next.left == 0);
                }
            }
        }
        Ok(false)
    }
}
