//! The data of the link port's events in the application's epoll set.

/// Index of the listening socket.
pub(crate) const LISTENER: u32 = 0;
/// Index of the mailbox. A link's index is its slot plus one.
pub(crate) const MAILBOX: u32 = u32::MAX;

/// The event data with the application's mark in the upper half and an index in the lower.
pub(crate) fn join(mark: u32, index: u32) -> u64 {
    u64::from(mark) << 32 | u64::from(index)
}

/// The reverse: (mark, index).
pub(crate) fn split(data: u64) -> (u32, u32) {
    ((data >> 32) as u32, data as u32) // halves
}

/// The readiness that a socket is watched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_marks_and_indexes_are_split_again() {
        for (mark, index) in [(0, 0), (7, LISTENER), (u32::MAX, 1), (1, u32::MAX)] {
            assert_eq!(split(join(mark, index)), (mark, index));
        }
    }
}
