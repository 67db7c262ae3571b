//! Tags for the library's own descriptors in the epoll sets of an application.

/// Which of the library's own descriptors an epoll event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// The set's event counter: another thread has queued a ready connection.
    Wake,
    /// The link port: a peer connects.
    Port,
    /// The watch of the status page: a reader has written a request.
    Control,
    /// A link's socket.
    Link(u32),
}

/// Upper bits that differ from those of pointers, descriptors and small numbers.
const MARK: u64 = 0xf553_504c_5700_0000;
const MARK_MASK: u64 = 0xffff_ffff_ff00_0000;

impl Tag {
    pub(crate) fn value(self) -> u64 {
        MARK | match self {
            Tag::Wake => 0,
            Tag::Port => 1,
            Tag::Control => 2,
            Tag::Link(index) => 3 + u64::from(index),
        }
    }

    pub(crate) fn of(data: u64) -> Option<Tag> {
        if data & MARK_MASK != MARK {
            return None;
        }
        Some(match data & !MARK_MASK {
            0 => Tag::Wake,
            1 => Tag::Port,
            2 => Tag::Control,
            link => Tag::Link((link - 3) as u32), // 24 bits
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_survive_a_round_trip_and_other_data_has_no_tag() {
        for tag in [Tag::Wake, Tag::Port, Tag::Control, Tag::Link(0), Tag::Link(4095)] {
            assert_eq!(Tag::of(tag.value()), Some(tag));
        }
        for data in [0, 7, u64::MAX, 0x7fff_ffff_ffff, 0xffff_8000_0000_0000] {
            assert_eq!(Tag::of(data), None);
        }
    }
}
