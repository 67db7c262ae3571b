//! What operators are told about a source.

use std::fmt;

/// Something that an operator may want to know. Its text is a line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Nobody answers, or with nothing of use. The last list stays. Told again only when the reason is another.
    Failed {
        /// Who was asked.
        source: String,
        /// What happened.
        why: String,
    },
    /// It answers again.
    Back {
        /// Who was asked.
        source: String,
    },
    /// Entries that are no helpers are passed over.
    Skipped {
        /// How many.
        entries: usize,
        /// The first of them.
        first: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// More helpers than [`HELPERS_MAX`](crate::HELPERS_MAX); the others are left out.
    TooMany,
    /// Another cluster answers, or the same one with its data lost.
    OtherCluster,
    /// Helpers are missing from an answer whose removal was not seen. They stay in the list for a while.
    Missing {
        /// How many.
        helpers: usize,
    },
}

impl Notice {
    /// Whether an operator has something to put right.
    pub fn is_trouble(&self) -> bool {
        !matches!(self, Notice::Back { .. })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Failed { source, why } => {
                write!(f, "helpers of {source} are not to be had ({why}): the last list stays")
            }
            Notice::Back { source } => write!(f, "{source} answers again"),
            Notice::Skipped { entries, first, why } => {
                write!(f, "{entries} entries that are no helpers are passed over; {first}: {why}")
            }
            Notice::TooMany => {
                write!(f, "more than {} helpers: the others are left out", crate::HELPERS_MAX)
            }
            Notice::OtherCluster => {
                f.write_str("another etcd cluster answers, or one that has lost its data")
            }
            Notice::Missing { helpers } => {
                write!(
                    f,
                    "{helpers} helpers are missing whose removal was not seen: they stay in the list for a while"
                )
            }
        }
    }
}
