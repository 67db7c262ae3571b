//! Classifies redis commands by their first words: whether their latency can be measured.

use crate::gave_up::GaveUp;
use crate::words::Word;

/// How the latency of a complete request is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server answers at once.
    Prompt,
    /// An operator's command, whose latency does not reflect the server's load.
    Unmeasured,
    /// The server may delay the reply until an event.
    MayBlock,
    /// Replies to this request and to later ones cannot be matched.
    GiveUp(GaveUp),
}

/// A request, as far as it was parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    verdict: Verdict,
    group: Group,
}

/// Whether a later word of the command can change the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Decided,
    Client,
    /// `XREAD`, `XREADGROUP`: `BLOCK` may come before `STREAMS`.
    StreamRead,
}

impl Command {
    pub(super) const EMPTY: Command = Command { verdict: Verdict::Prompt, group: Group::Decided };

    /// Parses the next word, which must be in upper case.
    pub(super) fn word(&mut self, word: &Word) {
        let text = word.text();
        if word.index == 0 {
            (self.verdict, self.group) = classify(text);
            return;
        }
        match self.group {
            Group::Client => {
                match text {
                    b"REPLY" => self.verdict = Verdict::GiveUp(GaveUp::RepliesOff),
                    b"PAUSE" | b"UNPAUSE" => self.verdict = Verdict::MayBlock,
                    _ => {}
                }
                self.group = Group::Decided;
            }
            Group::StreamRead => match text {
                b"BLOCK" => (self.verdict, self.group) = (Verdict::MayBlock, Group::Decided),
                b"STREAMS" => self.group = Group::Decided,
                _ => {}
            },
            Group::Decided => {}
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }
}

fn classify(command: &[u8]) -> (Verdict, Group) {
    let verdict = match command {
        b"BLPOP" | b"BRPOP" | b"BLMOVE" | b"BRPOPLPUSH" | b"BLMPOP" | b"BZPOPMIN" | b"BZPOPMAX"
        | b"BZMPOP" | b"WAIT" | b"WAITAOF" | b"DEBUG" => Verdict::MayBlock,
        b"SAVE" | b"FLUSHALL" | b"FLUSHDB" | b"MIGRATE" | b"FAILOVER" | b"SHUTDOWN" | b"SWAPDB"
        | b"MODULE" | b"KEYS" | b"BGREWRITEAOF" | b"BGSAVE" => Verdict::Unmeasured,
        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE" | b"SUNSUBSCRIBE"
        | b"MONITOR" | b"SYNC" | b"PSYNC" | b"REPLCONF" => Verdict::GiveUp(GaveUp::Stream),
        _ => Verdict::Prompt,
    };
    let group = match command {
        b"CLIENT" => Group::Client,
        b"XREAD" | b"XREADGROUP" => Group::StreamRead,
        _ => Group::Decided,
    };
    (verdict, group)
}
