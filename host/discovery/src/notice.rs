use std::fmt;

/// A change of a source's state. Its text is a line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The source does not answer, or its answer contains no list. The last list stays. Reported again if the error
    /// changes.
    Failed {
        /// The source's text.
        source: String,
        /// The error.
        why: String,
    },
    /// The source answers again.
    Recovered {
        /// The source's text.
        source: String,
    },
    /// Entries that are not valid helpers are ignored.
    Skipped {
        /// Number of these entries.
        entries: usize,
        /// Key of the first one.
        first: String,
        /// What is wrong with the first one.
        why: &'static str,
    },
    /// More helpers than [`HELPERS_MAX`](crate::HELPERS_MAX); the rest is ignored.
    TooMany,
    /// Another cluster answers, or the same one after a loss of its data.
    OtherCluster,
    /// Helpers are missing from an answer, but their removal was not seen. They stay in the list for
    /// [`Settings::grace`](crate::Settings::grace).
    Missing {
        /// Number of missing helpers.
        helpers: usize,
    },
}

impl Notice {
    /// Whether the notice reports a problem.
    pub fn is_problem(&self) -> bool {
        !matches!(self, Notice::Recovered { .. })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Failed { source, why } => {
                write!(f, "cannot get the helpers of {source} ({why}): the last list stays")
            }
            Notice::Recovered { source } => write!(f, "{source} answers again"),
            Notice::Skipped { entries, first, why } => {
                write!(f, "{entries} entries are not valid helpers and are ignored; {first}: {why}")
            }
            Notice::TooMany => {
                write!(f, "more than {} helpers: the rest is ignored", crate::HELPERS_MAX)
            }
            Notice::OtherCluster => {
                f.write_str("another etcd cluster answers, or one that has lost its data")
            }
            Notice::Missing { helpers } => {
                write!(
                    f,
                    "{helpers} helpers are missing but their removal was not seen: they stay in the list for a while"
                )
            }
        }
    }
}
