//! How the link port and its links get into the application's epoll set.

/// What to put into the epoll set for the link port itself.
pub(crate) const LISTENER: u32 = 0;
/// And for the mailbox. Links have what is between.
pub(crate) const MAILBOX: u32 = u32::MAX;

/// The application's mark in the upper half, ours in the lower.
pub(crate) fn join(mark: u32, place: u32) -> u64 {
    u64::from(mark) << 32 | u64::from(place)
}

/// The reverse: (mark, place).
pub(crate) fn split(data: u64) -> (u32, u32) {
    ((data >> 32) as u32, data as u32) // halves
}

/// What a socket is to be watched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_places_round_trip() {
        for (mark, place) in [(0, 0), (7, LISTENER), (u32::MAX, 1), (1, u32::MAX)] {
            assert_eq!(split(join(mark, place)), (mark, place));
        }
    }
}
