//! What an operator should know of a running context.

use std::fmt;

/// What an operator should know of a running context, with the next step. Each is given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Packets arrive without checksums, and are dropped: their sender leaves checksums to hardware that a veth does not have.
    PartialChecksums {
        /// Their number so far.
        packets: u64,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::PartialChecksums { packets } => write!(
                f,
                "{packets} packets had no checksums and were dropped, as all others from there will be: their sender is the \
                 other end of a veth, which must compute checksums; run `ethtool -K INTERFACE tx off tso off` there"
            ),
        }
    }
}
