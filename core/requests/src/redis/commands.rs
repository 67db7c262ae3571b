//! Classifies redis commands by their first words: whether their latency can be measured.

use crate::stop_reason::StopReason;
use crate::words::Word;

/// How the latency of a complete request is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server answers at once.
    Prompt,
    /// An operator's command or a long scan, whose latency does not reflect the server's load.
    Unmeasured,
    /// The server may delay the reply until an event.
    MayBlock,
    /// Replies to this request and to later ones cannot be matched.
    StopTracking(StopReason),
}

/// A request, as far as it was parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    verdict: Verdict,
    later_words: LaterWords,
}

/// Whether a later word of the command can change the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaterWords {
    Ignored,
    Client,
    /// `XREAD`, `XREADGROUP`: `BLOCK` may come before `STREAMS`.
    StreamRead,
}

impl Command {
    pub(super) const EMPTY: Command = Command { verdict: Verdict::Prompt, later_words: LaterWords::Ignored };

    /// Parses the next word, which must be in upper case.
    pub(super) fn handle_word(&mut self, word: &Word) {
        let text = word.text();
        if word.index == 0 {
            (self.verdict, self.later_words) = classify(text);
            return;
        }
        match self.later_words {
            LaterWords::Client => {
                match text {
                    b"REPLY" => self.verdict = Verdict::StopTracking(StopReason::RepliesOff),
                    b"PAUSE" | b"UNPAUSE" => self.verdict = Verdict::MayBlock,
                    _ => {}
                }
                self.later_words = LaterWords::Ignored;
            }
            LaterWords::StreamRead => match text {
                b"BLOCK" => (self.verdict, self.later_words) = (Verdict::MayBlock, LaterWords::Ignored),
                b"STREAMS" => self.later_words = LaterWords::Ignored,
                _ => {}
            },
            LaterWords::Ignored => {}
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }
}

fn classify(command: &[u8]) -> (Verdict, LaterWords) {
    let verdict = match command {
        b"BLPOP" | b"BRPOP" | b"BLMOVE" | b"BRPOPLPUSH" | b"BLMPOP" | b"BZPOPMIN" | b"BZPOPMAX"
        | b"BZMPOP" | b"WAIT" | b"WAITAOF" | b"DEBUG" => Verdict::MayBlock,
        b"SAVE" | b"FLUSHALL" | b"FLUSHDB" | b"MIGRATE" | b"FAILOVER" | b"SHUTDOWN" | b"SWAPDB"
        | b"MODULE" | b"KEYS" | b"BGREWRITEAOF" | b"BGSAVE" => Verdict::Unmeasured,
        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE" | b"SUNSUBSCRIBE"
        | b"MONITOR" | b"SYNC" | b"PSYNC" | b"REPLCONF" => Verdict::StopTracking(StopReason::Stream),
        _ => Verdict::Prompt,
    };
    let later_words = match command {
        b"CLIENT" => LaterWords::Client,
        b"XREAD" | b"XREADGROUP" => LaterWords::StreamRead,
        _ => LaterWords::Ignored,
    };
    (verdict, later_words)
}
