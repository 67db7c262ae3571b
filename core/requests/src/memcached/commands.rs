//! Commands of memcached's text protocol: whether a value follows, and the format of the reply.

use crate::number::Number;
use crate::outstanding::Kind;
use crate::stop_reason::StopReason;
use crate::words::Word;

/// The server rejects longer keys and then parses the value as commands.
const KEY_BYTES_MAX: u64 = 250;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyFormat {
    /// No reply, or an error line: the request has `noreply`.
    Nothing,
    Line,
    /// Lines with values, up to `END`.
    Values,
    /// `STAT` lines, up to `END`; or one other line.
    Statistics,
    /// One line of a meta command, with or without a value.
    Meta,
    MetaNoop,
}

impl ReplyFormat {
    pub(super) fn code(self) -> u8 {
        self as u8
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    EmptyLine,
    Retrieval,
    /// `set` and the like: a value follows the line.
    Storage,
    /// A request of one line with a reply of one line; the last word may be `noreply`.
    Change,
    /// As `Change`, but a command for operators.
    Administration,
    Statistics,
    /// `lru_crawler`, of which some forms have unlimited output.
    Crawler,
    Meta,
    MetaSet,
    MetaNoop,
    /// `quit`, `shutdown`: the server closes the connection.
    Closing,
    /// `watch`: the server sends log lines from now on.
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
            b"quit" | b"shutdown" => Family::Closing,
            b"watch" => Family::Watching,
            _ => return None,
        })
    }
}

/// A request's line, as far as it was parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    family: Family,
    is_quiet: bool,
    /// Length of the value that follows the line.
    value_bytes: Option<u64>,
}

impl Command {
    pub(super) const EMPTY: Command =
        Command { family: Family::EmptyLine, is_quiet: false, value_bytes: None };

    pub(super) fn handle_word(&mut self, word: &Word) -> Result<(), StopReason> {
        if word.index == 0 {
            self.family = Family::of(word.text()).ok_or(StopReason::UnknownCommand)?;
            return Ok(());
        }
        match self.family {
            Family::Storage if word.index == 4 => self.value_bytes = Some(Number::parse(word.text())?),
            Family::MetaSet if word.index == 2 => self.value_bytes = Some(Number::parse(word.text())?),
            Family::Storage | Family::MetaSet if word.index == 1 && word.length > KEY_BYTES_MAX => {
                return Err(StopReason::Syntax);
            }
            // The key, also in `delete noreply`: the server replies to that request.
            Family::Change if word.index == 1 => {}
            Family::Storage | Family::Change | Family::Administration => {
                // Only the last word can be the option `noreply`.
                self.is_quiet = word.text() == b"noreply";
            }
            Family::Meta | Family::MetaSet if word.index >= 2 => {
                self.is_quiet |= word.text().first() == Some(&b'q');
            }
            Family::Crawler if word.index == 1 && matches!(word.text(), b"metadump" | b"mgdump") => {
                return Err(StopReason::Stream);
            }
            _ => {}
        }
        Ok(())
    }

    /// Length of the value that follows the complete line, if one follows.
    pub(super) fn value_bytes(&self) -> Result<Option<u64>, StopReason> {
        match self.family {
            // Without a length, the server parses the value as commands.
            Family::Storage | Family::MetaSet => self.value_bytes.map(Some).ok_or(StopReason::Syntax),
            Family::Watching => Err(StopReason::Stream),
            _ => Ok(None),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        let reply_format = match self.family {
            Family::Storage | Family::Change | Family::Administration if self.is_quiet => {
                ReplyFormat::Nothing
            }
            Family::Closing => ReplyFormat::Nothing,
            Family::Retrieval => ReplyFormat::Values,
            Family::Statistics => ReplyFormat::Statistics,
            Family::Meta | Family::MetaSet => ReplyFormat::Meta,
            Family::MetaNoop => ReplyFormat::MetaNoop,
            _ => ReplyFormat::Line,
        };
        match self.family {
            _ if self.is_quiet || self.family == Family::Closing => Kind::quiet(reply_format.code()),
            Family::Administration | Family::Statistics | Family::Crawler => {
                Kind::unmeasured(reply_format.code())
            }
            _ => Kind::prompt(reply_format.code()),
        }
    }
}
