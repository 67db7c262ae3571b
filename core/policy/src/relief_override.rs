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
            .find(|known| known.name() == text)
            .ok_or(UnknownOverride)
    }
}

/// The override in force. An override for a limited time falls back to [`Override::Auto`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CurrentOverride {
    relief_override: Override,
    until: Option<Time>,
}

impl CurrentOverride {
    /// Sets the override, for the time `lasts` or without limit.
    pub fn set(&mut self, now: Time, relief_override: Override, lasts: Option<Duration>) {
        *self = CurrentOverride {
            relief_override,
            until: lasts.filter(|_| relief_override != Override::Auto).map(|lasts| now + lasts),
        };
    }

    /// The override in force at this time.
    pub fn at(&self, now: Time) -> Override {
        if self.until.is_some_and(|until| until <= now) { Override::Auto } else { self.relief_override }
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
    fn names_of_overrides_parse() {
        for relief_override in [Override::Auto, Override::On, Override::Off] {
            assert_eq!(relief_override.to_string().parse(), Ok(relief_override));
        }
        assert_eq!("maybe".parse::<Override>(), Err(UnknownOverride));
    }

    #[test]
    fn override_for_a_limited_time_falls_back_to_auto() {
        let mut current = CurrentOverride::default();
        assert_eq!(
            (current.at(Time::ZERO), current.until()),
            (Override::Auto, None),
            "the override should be over"
        );
        current.set(Time::ZERO, Override::Off, Some(SECOND));
        assert_eq!(current.at(Time::ZERO + SECOND / 2), Override::Off);
        assert_eq!(current.at(Time::ZERO + SECOND), Override::Auto);
        current.set(Time::ZERO + SECOND, Override::On, None);
        assert_eq!(current.at(Time::ZERO + SECOND * 9999), Override::On);
        current.set(Time::ZERO, Override::Auto, Some(SECOND));
        assert_eq!(current.until(), None, "auto should have no time limit");
    }
}
