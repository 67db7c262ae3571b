//! Lines of a control stream that arrives in pieces.

/// Longer lines are ignored.
pub(super) const LINE_BYTES_MAX: usize = 4096;

/// Joins the pieces of a control stream to lines.
#[derive(Debug, Default)]
pub(super) struct ControlLines {
    partial: Vec<u8>,
    /// The current line is too long: its remaining bytes are dropped.
    is_skipping: bool,
}

/// A line of a control stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ControlLine {
    /// A line without its end; bytes that are not UTF-8 are replaced.
    Complete(String),
    /// A line of more than [`LINE_BYTES_MAX`] bytes, reported once, when it becomes too long.
    TooLong,
}

impl ControlLines {
    /// Adds a piece of the stream. Returns the lines that it ends, except blank ones.
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Vec<ControlLine> {
        let mut lines = Vec::new();
        while let Some(end) = piece.iter().position(|&byte| byte == b'\n') {
            self.extend(&piece[..end], &mut lines);
            piece = &piece[end + 1..];
            let line = std::mem::take(&mut self.partial);
            let is_skipped = std::mem::take(&mut self.is_skipping);
            if !is_skipped && !line.trim_ascii().is_empty() {
                lines.push(ControlLine::Complete(String::from_utf8_lossy(&line).into_owned()));
            }
        }
        self.extend(piece, &mut lines);
        lines
    }

    fn extend(&mut self, bytes: &[u8], lines: &mut Vec<ControlLine>) {
        if self.is_skipping {
            return;
        }
        if self.partial.len() + bytes.len() > LINE_BYTES_MAX {
            self.partial.clear();
            self.is_skipping = true;
            lines.push(ControlLine::TooLong);
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(line: &str) -> ControlLine {
        ControlLine::Complete(line.to_owned())
    }

    #[test]
    fn lines_are_joined_from_pieces_and_blank_ones_are_left_out() {
        let mut lines = ControlLines::default();
        assert_eq!(lines.push(b"sta"), []);
        assert_eq!(lines.push(b"rt\n\n \nrate 5\nst"), [complete("start"), complete("rate 5")]);
        assert_eq!(lines.push(b"op\n"), [complete("stop")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_ignored_to_its_end() {
        for piece in [1, 100, LINE_BYTES_MAX] {
            let mut lines = ControlLines::default();
            let long = [vec![b'x'; 2 * LINE_BYTES_MAX], b" stop\nstart\n".to_vec()].concat();
            let seen: Vec<_> = long.chunks(piece).flat_map(|piece| lines.push(piece)).collect();
            assert_eq!(seen, [ControlLine::TooLong, complete("start")], "pieces of {piece} bytes");
        }
        let longest = vec![b'x'; LINE_BYTES_MAX];
        let text = String::from_utf8(longest.clone()).unwrap();
        assert_eq!(ControlLines::default().push(&[longest, vec![b'\n']].concat()), [complete(&text)]);
    }
}
