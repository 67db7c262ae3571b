//! Features that the reader of a state must know, because the connection would break without them.

use core::fmt;

/// A set of features, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u32);

const NAMES: [(Features, &str); 3] = [
    (Features::GATE, "held acknowledgements"),
    (Features::ATTACHMENT, "an attachment"),
    (Features::REQUEST, "a request to serve"),
];

impl Features {
    /// Acknowledgements are held back (PostMan §4.2): an end without this feature would acknowledge bytes too early.
    pub const GATE: Features = Features(1);
    /// The application has attached bytes, which the importing application must get.
    pub const ATTACHMENT: Features = Features(2);
    /// A request moves with the connection: an end without this feature would neither serve nor return it.
    pub const REQUEST: Features = Features(4);
    /// All features of this version.
    pub const KNOWN: Features = Features(7);

    /// The set with these bits, known or not.
    pub const fn from_bits(bits: u32) -> Features {
        Features(bits)
    }

    /// One bit for each feature.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// The features that `other` does not have.
    #[must_use]
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The names of the features; unknown ones by their bits.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (feature, name) in NAMES {
            if !feature.without(*self).is_empty() {
                continue;
            }
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        let unknown = self.without(Features::KNOWN);
        if !unknown.is_empty() {
            write!(f, "{separator}unknown features (bits {:#x})", unknown.bits())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn features_are_named_and_unknown_ones_have_their_bits() {
        let all = Features::from_bits(0x8007);
        let names =
            "held acknowledgements, an attachment, a request to serve, unknown features (bits 0x8000)";
        assert_eq!(all.to_string(), names);
        assert_eq!(all.without(Features::KNOWN), Features::from_bits(0x8000));
        assert_eq!(Features::GATE.with(Features::ATTACHMENT).with(Features::REQUEST), Features::KNOWN);
        assert_eq!(Features::ATTACHMENT.to_string(), "an attachment");
    }
}
