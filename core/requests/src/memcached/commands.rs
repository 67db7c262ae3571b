//! Commands of the text protocol: what each is followed by, and what its reply looks like.

use crate::gave_up::GaveUp;
use crate::number::Number;
use crate::outstanding::Kind;
use crate::words::Word;

/// The server refuses longer ones, and takes their values for commands then.
const KEY_BYTES_MAX: u64 = 250;

/// What a reply looks like, or a line of one belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Only an error, if anything: `noreply`.
    Nothing,
    /// One line.
    Line,
    /// Lines with values, up to `END`.
    Values,
    /// `STAT` lines, up to `END`; or one other line.
    Statistics,
    /// One line of a meta command, perhaps with a value.
    Meta,
    /// `MN`.
    MetaNoop,
}

impl Shape {
    pub(super) fn number(self) -> u8 {
        self as u8
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// An empty line.
    Empty,
    /// `get`, `gat`: keys, nothing else.
    Retrieval,
    /// `set` and the like: a value of so many bytes follows.
    Storage,
    /// One line, one line back; `noreply` as the last word.
    Change,
    /// The same, for operators.
    Administration,
    Statistics,
    /// `lru_crawler`, of which some forms print without end.
    Crawler,
    Meta,
    MetaSet,
    MetaNoop,
    /// `quit`, `shutdown`: the connection ends.
    Leaving,
    /// `watch`: the server logs on it from now on.
    Watching,
}

impl Family {
    fn of(command: &[u8]) -> Option<Family> {
        Some(match command {
            b"get" | b"gets" | b"gat" | b"gats" => Family::Retrieval,
            b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => Family::Storage,
            b"incr" | b"decr" | b"delete" | b"touch" | b"version" => Family::Change,
            b"flush_all" | b"verbosity" | b"cache_memlimit" | b"slabs" | b"lru" | b"extstore"
            | b"refresh_certs" => Family::Administration,
            b"stats" => Family::Statistics,
            b"lru_crawler" => Family::Crawler,
            b"mg" | b"md" | b"ma" | b"me" => Family::Meta,
            b"ms" => Family::MetaSet,
            b"mn" => Family::MetaNoop,
            b"quit" | b"shutdown" => Family::Leaving,
            b"watch" => Family::Watching,
            _ => return None,
        })
    }
}

/// What is known of a request's line so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    family: Family,
    is_quiet: bool,
    /// Bytes of the value that follows.
    value: Option<u64>,
}

impl Command {
    pub(super) const EMPTY: Command = Command { family: Family::Empty, is_quiet: false, value: None };

    /// The next word of its line.
    pub(super) fn word(&mut self, word: &Word) -> Result<(), GaveUp> {
        if word.index == 0 {
            self.family = Family::of(word.text()).ok_or(GaveUp::UnknownCommand)?;
            return Ok(());
        }
        match self.family {
            Family::Storage if word.index == 4 => self.value = Some(Number::of(word.text())?),
            Family::MetaSet if word.index == 2 => self.value = Some(Number::of(word.text())?),
            Family::Storage | Family::MetaSet if word.index == 1 && word.length > KEY_BYTES_MAX => {
                return Err(GaveUp::Syntax);
            }
            Family::Storage | Family::Change | Family::Administration => {
                // It counts as the last word only.
                self.is_quiet = word.text() == b"noreply";
            }
            Family::Meta | Family::MetaSet if word.index >= 2 => {
                self.is_quiet |= word.text().first() == Some(&b'q');
            }
            Family::Crawler if word.index == 1 && matches!(word.text(), b"metadump" | b"mgdump") => {
                return Err(GaveUp::Stream);
            }
            _ => {}
        }
        Ok(())
    }

    /// The line is complete: the bytes of its value, if one follows.
    pub(super) fn value(&self) -> Result<Option<u64>, GaveUp> {
        match self.family {
            // The server would take the value for commands.
            Family::Storage | Family::MetaSet => self.value.map(Some).ok_or(GaveUp::Syntax),
            Family::Watching => Err(GaveUp::Stream),
            _ => Ok(None),
        }
    }

    /// What kind of request it is, once complete.
    pub(super) fn kind(&self) -> Kind {
        let shape = match self.family {
            Family::Storage | Family::Change | Family::Administration if self.is_quiet => Shape::Nothing,
            Family::Leaving => Shape::Nothing,
            Family::Retrieval => Shape::Values,
            Family::Statistics => Shape::Statistics,
            Family::Meta | Family::MetaSet => Shape::Meta,
            Family::MetaNoop => Shape::MetaNoop,
            _ => Shape::Line,
        };
        match self.family {
            _ if self.is_quiet || self.family == Family::Leaving => Kind::quiet(shape.number()),
            Family::Administration | Family::Statistics | Family::Crawler => Kind::unmeasured(shape.number()),
            _ => Kind::prompt(shape.number()),
        }
    }
}
