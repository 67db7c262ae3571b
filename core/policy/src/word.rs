//! The operator's override of all policies.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::preamble::Role;

/// An operator override of a service's relief.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Word {
    /// Policies decide.
    #[default]
    Auto,
    /// Clients are helped, whatever the latency is.
    On,
    /// Clients are not helped, whatever the latency is.
    Off,
}

impl Word {
    /// The override's name in commands and settings.
    pub fn name(self) -> &'static str {
        match self {
            Word::Auto => "auto",
            Word::On => "on",
            Word::Off => "off",
        }
    }

    /// The role whose links must not carry clients under this override.
    pub fn wrong_role(self) -> Option<Role> {
        match self {
            Word::Auto => None,
            Word::On => Some(Role::Client),
            Word::Off => Some(Role::Helper),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownWord;

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected auto, on or off")
    }
}

impl core::error::Error for UnknownWord {}

impl FromStr for Word {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Word, UnknownWord> {
        [Word::Auto, Word::On, Word::Off].into_iter().find(|word| word.name() == text).ok_or(UnknownWord)
    }
}

/// The override in force. One given for a limited time falls back to [`Word::Auto`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    word: Word,
    until: Option<Time>,
}

impl Standing {
    /// Sets the override, for the time `lasts` or without limit.
    pub fn say(&mut self, now: Time, word: Word, lasts: Option<Duration>) {
        *self = Standing { word, until: lasts.filter(|_| word != Word::Auto).map(|lasts| now + lasts) };
    }

    /// The override in force at this time.
    pub fn at(&self, now: Time) -> Word {
        if self.until.is_some_and(|until| until <= now) { Word::Auto } else { self.word }
    }

    /// When the override falls back to [`Word::Auto`]; `None` without a limit.
    pub fn until(&self) -> Option<Time> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::string::ToString;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn words_are_read_as_they_are_written() {
        for word in [Word::Auto, Word::On, Word::Off] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        assert_eq!("maybe".parse::<Word>(), Err(UnknownWord));
    }

    #[test]
    fn a_word_for_a_time_falls_back_to_auto() {
        let mut standing = Standing::default();
        assert_eq!((standing.at(Time::ZERO), standing.until()), (Word::Auto, None));
        standing.say(Time::ZERO, Word::Off, Some(SECOND));
        assert_eq!(standing.at(Time::ZERO + SECOND / 2), Word::Off);
        assert_eq!(standing.at(Time::ZERO + SECOND), Word::Auto);
        standing.say(Time::ZERO + SECOND, Word::On, None);
        assert_eq!(standing.at(Time::ZERO + SECOND * 9999), Word::On);
        standing.say(Time::ZERO, Word::Auto, Some(SECOND));
        assert_eq!(standing.until(), None, "auto needs no end");
    }
}
