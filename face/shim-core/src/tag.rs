//! Marks for the library's own descriptors in the epoll sets of an application.

/// Which of the library's own descriptors an epoll event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// Another thread made something ready.
    Wake,
    /// A peer connects to the link port.
    Port,
    /// A reader of the status page makes a request.
    Control,
    /// A link's socket.
    Link(u32),
}

/// A value that no pointer, descriptor or small number has.
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
    fn tags_are_ours_and_nothing_else_is() {
        for tag in [Tag::Wake, Tag::Port, Tag::Control, Tag::Link(0), Tag::Link(4095)] {
            assert_eq!(Tag::of(tag.value()), Some(tag));
        }
        for data in [0, 7, u64::MAX, 0x7fff_ffff_ffff, 0xffff_8000_0000_0000] {
            assert_eq!(Tag::of(data), None);
        }
    }
}
