//! What a command means for measuring: read from its first words.

use crate::gave_up::GaveUp;
use crate::words::Word;

/// What a complete request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Answered as soon as the server can.
    Prompt,
    /// An operator's command whose time is its own affair.
    Unmeasured,
    /// Answered when something happens.
    MayBlock,
    /// From here on replies cannot be told any more.
    Leave(GaveUp),
}

/// A request as far as its words have come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    verdict: Verdict,
    group: Group,
}

/// Commands of which a later word decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Decided,
    Client,
    /// `XREAD`, `XREADGROUP`: options, up to `STREAMS`.
    StreamRead,
}

impl Command {
    pub(super) const EMPTY: Command = Command { verdict: Verdict::Prompt, group: Group::Decided };

    /// The next word, in capital letters.
    pub(super) fn word(&mut self, word: &Word) {
        let text = word.text();
        if word.index == 0 {
            (self.verdict, self.group) = judge(text);
            return;
        }
        match self.group {
            Group::Client => {
                match text {
                    b"REPLY" => self.verdict = Verdict::Leave(GaveUp::RepliesOff),
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

fn judge(command: &[u8]) -> (Verdict, Group) {
    let verdict = match command {
        b"BLPOP" | b"BRPOP" | b"BLMOVE" | b"BRPOPLPUSH" | b"BLMPOP" | b"BZPOPMIN" | b"BZPOPMAX"
        | b"BZMPOP" | b"WAIT" | b"WAITAOF" | b"DEBUG" => Verdict::MayBlock,
        b"SAVE" | b"FLUSHALL" | b"FLUSHDB" | b"MIGRATE" | b"FAILOVER" | b"SHUTDOWN" | b"SWAPDB"
        | b"MODULE" | b"KEYS" | b"BGREWRITEAOF" | b"BGSAVE" => Verdict::Unmeasured,
        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE" | b"SUNSUBSCRIBE"
        | b"MONITOR" | b"SYNC" | b"PSYNC" | b"REPLCONF" => Verdict::Leave(GaveUp::Stream),
        _ => Verdict::Prompt,
    };
    let group = match command {
        b"CLIENT" => Group::Client,
        b"XREAD" | b"XREADGROUP" => Group::StreamRead,
        _ => Group::Decided,
    };
    (verdict, group)
}
