//! Socket options that the application has set on a virtual connection.

use libc::c_int;

/// Maximum number of options kept for one connection. Further options are checked but not kept.
const OPTIONS_MAX: usize = 32;

/// Maximum length of a kept value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Options {
    kept: Vec<Kept>,
    /// The listener that accepted the connection. The connection inherits the listener's options.
    listener: Option<c_int>,
    /// `SO_RCVTIMEO` and `SO_SNDTIMEO` in milliseconds; 0 for no timeout.
    pub(crate) receive_timeout_ms: u64,
    pub(crate) send_timeout_ms: u64,
}

struct Kept {
    level: c_int,
    name: c_int,
    value: [u8; VALUE_BYTES_MAX],
    length: u8,
}

impl Options {
    pub(crate) fn of_listener(listener: c_int) -> Options {
        Options { listener: Some(listener), ..Options::default() }
    }

    pub(crate) fn listener(&self) -> Option<c_int> {
        self.listener
    }

    /// The value that was set for this option.
    pub(crate) fn kept(&self, level: c_int, name: c_int) -> Option<&[u8]> {
        let kept = self.kept.iter().find(|kept| (kept.level, kept.name) == (level, name))?;
        Some(&kept.value[..usize::from(kept.length)])
    }

    pub(crate) fn keep(&mut self, level: c_int, name: c_int, value: &[u8]) {
        let mut kept = Kept { level, name, value: [0; VALUE_BYTES_MAX], length: value.len() as u8 };
        let Some(room) = kept.value.get_mut(..value.len()) else { return };
        room.copy_from_slice(value);
        let before = self.kept.iter().position(|kept| (kept.level, kept.name) == (level, name));
        match before {
            Some(position) => self.kept[position] = kept,
            None if self.kept.len() < OPTIONS_MAX => self.kept.push(kept),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_kept_and_replaced_up_to_the_bounds() {
        let mut options = Options::default();
        for name in 0..100 {
            options.keep(1, name, &name.to_ne_bytes());
        }
        assert_eq!(options.kept.len(), OPTIONS_MAX);
        options.keep(1, 3, b"x");
        assert_eq!(options.kept(1, 3), Some(&b"x"[..]));
        assert_eq!(options.kept(2, 3), None);
        options.keep(1, 4, &[0; VALUE_BYTES_MAX + 1]);
        assert_eq!(
            options.kept(1, 4),
            Some(&4i32.to_ne_bytes()[..]),
            "a value above the limit should not be kept"
        );
    }
}
