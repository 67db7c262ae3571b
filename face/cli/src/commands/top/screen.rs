//! A terminal that is drawn on and left as it was.

use std::io::{self, Write, stdout};

/// Of a terminal that does not say.
const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// The other screen, without a cursor. Restored when dropped, a panic included.
pub(super) struct Screen;

impl Screen {
    pub(super) fn open() -> io::Result<Screen> {
        let screen = Screen;
        stdout().write_all(b"\x1b[?1049h\x1b[?25l")?;
        stdout().flush()?;
        Ok(screen)
    }

    /// Draws these lines over what was there, as many and as much of them as there is room for.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let (columns, rows) = size();
        let mut frame = String::from("\x1b[H");
        for (row, line) in lines.iter().take(rows).enumerate() {
            if row > 0 {
                frame.push_str("\r\n");
            }
            // Cleared first: after the last column this would take the last character.
            frame.push_str("\x1b[2K");
            frame.extend(line.chars().take(columns));
        }
        frame.push_str("\x1b[J");
        stdout().write_all(frame.as_bytes())?;
        stdout().flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing can be done for a terminal that is gone.
        let _ = stdout().write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| stdout().flush());
    }
}

fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (COLUMNS, ROWS),
    }
}
