//! The operator's override of all policies.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::preamble::Role;

/// An operator override of a service's relief.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Override {
    /// Policies decide.
    #[default]
    Auto,
    /// Clients are helped, whatever the latency is.
    On,
    /// Clients are not helped, whatever the latency is.
    Off,
}

impl Override {
    /// The override's name in commands and settings.
    pub fn name(self) -> &'static str {
        match self {
            Override::Auto => "auto",
            Override::On => "on",
            Override::Off => "off",
        }
    }

    /// The role whose links must not carry clients under this override.
    pub fn forbidden_role(self) -> Option<Role> {
        match self {
            Override::Auto => None,
            Override::On => Some(Role::Client),
            Override::Off => Some(Role::Helper),
        }
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOverride;

impl fmt::Display for UnknownOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected auto, on or off")
    }
}

impl core::error::Error for UnknownOverride {}

impl FromStr for Override {
    type Err = UnknownOverride;

    fn from_str(text: &str) -> Result<Override, UnknownOverride> {
        [Override::Auto, Override::On, Override::Off]
            .into_iter()
            .find(|word| word.name() == text)
            .ok_or(UnknownOverride)
    }
}

/// The override in force. One given for a limited time falls back to [`Override::Auto`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CurrentOverride {
    word: Override,
    until: Option<Time>,
}

impl CurrentOverride {
    /// Sets the override, for the time `lasts` or without limit.
    pub fn say(&mut self, now: Time, word: Override, lasts: Option<Duration>) {
        *self = CurrentOverride {
            word,
            until: lasts.filter(|_| word != Override::Auto).map(|lasts| now + lasts),
        };
    }

    /// The override in force at this time.
    pub fn at(&self, now: Time) -> Override {
        if self.until.is_some_and(|until| until <= now) { Override::Auto } else { self.word }
    }

    /// When the override falls back to [`Override::Auto`]; `None` without a limit.
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
        for word in [Override::Auto, Override::On, Override::Off] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        assert_eq!("maybe".parse::<Override>(), Err(UnknownOverride));
    }

    #[test]
    fn a_word_for_a_time_falls_back_to_auto() {
        let mut standing = CurrentOverride::default();
        assert_eq!((standing.at(Time::ZERO), standing.until()), (Override::Auto, None));
        standing.say(Time::ZERO, Override::Off, Some(SECOND));
        assert_eq!(standing.at(Time::ZERO + SECOND / 2), Override::Off);
        assert_eq!(standing.at(Time::ZERO + SECOND), Override::Auto);
        standing.say(Time::ZERO + SECOND, Override::On, None);
        assert_eq!(standing.at(Time::ZERO + SECOND * 9999), Override::On);
        standing.say(Time::ZERO, Override::Auto, Some(SECOND));
        assert_eq!(standing.until(), None, "auto needs no end");
    }
}
