//! Incremental parser for lines of words.

use crate::stop_reason::StopReason;

/// Maximum stored bytes of a word. All commands, numbers and options that the parsers recognise are shorter.
const STORED_BYTES_MAX: usize = 24;

/// One word of a line. Only its first bytes are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub index: u32,
    /// Length of the complete word in bytes.
    pub length: u64,
    stored: [u8; STORED_BYTES_MAX],
}

impl Word {
    pub const fn new(index: u32) -> Word {
        Word { index, length: 0, stored: [0; STORED_BYTES_MAX] }
    }

    /// The word's bytes; empty if the word is longer than [`STORED_BYTES_MAX`], because its end is not stored.
    pub fn text(&self) -> &[u8] {
        usize::try_from(self.length).ok().and_then(|length| self.stored.get(..length)).unwrap_or_default()
    }

    pub fn to_uppercase(self) -> Word {
        Word { stored: self.stored.map(|byte| byte.to_ascii_uppercase()), ..self }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if let Some(space) =
            usize::try_from(self.length).ok().and_then(|offset| self.stored.get_mut(offset..))
        {
            let stored = bytes.len().min(space.len());
            space[..stored].copy_from_slice(&bytes[..stored]);
        }
        self.length = self.length.saturating_add(bytes.len() as u64);
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    Word(Word),
    End,
}

/// A line of words separated by spaces. It ends with LF or CR LF.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    word: Word,
    has_return: bool,
    /// The line feed was consumed, and `Piece::End` is the next piece.
    is_ending: bool,
}

impl Line {
    pub const fn new() -> Line {
        Line { word: Word::new(0), has_return: false, is_ending: false }
    }

    pub fn is_empty(&self) -> bool {
        self.word.index == 0 && self.word.length == 0 && !self.has_return
    }

    /// Whether `next` returns `Piece::End` without further input.
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Consumes input up to the end of a word or of the line. `None`: the word is incomplete.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Piece>, StopReason> {
        loop {
            if self.is_ending {
                *self = Line::new();
                return Ok(Some(Piece::End));
            }
            let end = input.iter().position(|byte| matches!(byte, b' ' | b'\r' | b'\n'));
            let (word_bytes, rest) = input.split_at(end.unwrap_or(input.len()));
            if self.has_return && !(word_bytes.is_empty() && rest.first().is_none_or(|byte| *byte == b'\n')) {
                return Err(StopReason::Syntax);
            }
            self.word.push(word_bytes);
            let Some((separator, rest)) = rest.split_first() else {
                *input = rest;
                return Ok(None);
            };
            *input = rest;
            match separator {
                b'\r' => {
                    self.has_return = true;
                    continue;
                }
                b'\n' => self.is_ending = true,
                _ => {}
            }
            if self.word.length > 0 {
                let next = Word::new(self.word.index.saturating_add(1));
                return Ok(Some(Piece::Word(core::mem::replace(&mut self.word, next))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Words with their indices; `None` is the end of a line.
    type Pieces = Vec<Option<(u32, Vec<u8>)>>;

    fn words(text: &[u8], cut: usize) -> Result<Pieces, StopReason> {
        let (mut line, mut all) = (Line::new(), Vec::new());
        for mut piece in [&text[..cut], &text[cut..]] {
            while let Some(piece) = line.next(&mut piece)? {
                all.push(match piece {
                    Piece::Word(word) => Some((word.index, word.text().to_vec())),
                    Piece::End => None,
                });
            }
        }
        assert!(
            line.is_empty() == text.ends_with(b"\n") || text.is_empty(),
            "only an incomplete line should be left"
        );
        Ok(all)
    }

    #[test]
    fn words_are_independent_of_how_the_input_is_split() {
        let text = b"get  a b\r\n\r\nlong aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nx \r\n";
        let word = |index, text: &[u8]| Some((index, text.to_vec()));
        let expected = [
            word(0, b"get"),
            word(1, b"a"),
            word(2, b"b"),
            None,
            None,
            word(0, b"long"),
            word(1, b""),
            None,
            word(0, b"x"),
            None,
        ];
        for cut in 0..=text.len() {
            assert_eq!(words(text, cut).unwrap(), expected, "the words should not depend on a cut at {cut}");
        }
        for cut in 0..3 {
            assert_eq!(words(b"a\rb\n", cut), Err(StopReason::Syntax));
        }
    }
}
