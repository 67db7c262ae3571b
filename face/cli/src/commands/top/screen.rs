//! Draws full-screen text on a terminal, and restores the terminal.

use std::io::{self, Write, stdout};

/// The size of a terminal that does not report one.
const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// The terminal's alternate screen, without a cursor. Dropping it, also in a panic, restores the terminal.
pub(super) struct Screen;

impl Screen {
    pub(super) fn open() -> io::Result<Screen> {
        let screen = Screen;
        stdout().write_all(b"\x1b[?1049h\x1b[?25l")?;
        stdout().flush()?;
        Ok(screen)
    }

    /// Draws lines over the previous ones, cut to the terminal's size.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let (columns, rows) = size();
        let mut frame = String::from("\x1b[H");
        for (row, line) in lines.iter().take(rows).enumerate() {
            if row > 0 {
                frame.push_str("\r\n");
            }
            // Clear the line before writing: clearing after a full line would erase its last character.
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
        // Ignored: the terminal may be closed.
        let _ = stdout().write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| stdout().flush());
    }
}

fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (COLUMNS, ROWS),
    }
}
