//! The key that ends `top`.

use std::io::{self, IsTerminal, Read, stdin};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// Standard input without echo and without waiting for a line's end. Dropping this restores the terminal.
pub(super) struct Keyboard {
    previous: Termios,
}

impl Keyboard {
    /// Calls `quit` on a separate thread when q is pressed; its result does not matter. `None`: standard input is not a terminal, or this program
    /// is in its background, where reading would stop the program.
    pub(super) fn watch(quit: impl FnOnce() -> bool + Send + 'static) -> Option<Keyboard> {
        let input = stdin();
        if !input.is_terminal() || tcgetpgrp(&input).ok()? != rustix::process::getpgrp() {
            return None;
        }
        let keyboard = Keyboard { previous: tcgetattr(&input).ok()? };
        let mut modes = keyboard.previous.clone();
        // Signals of Ctrl-C and Ctrl-Z stay on.
        modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(&input, OptionalActions::Now, &modes).ok()?;
        let read = move || {
            let is_quit = |key: io::Result<u8>| matches!(key, Ok(b'q' | b'Q') | Err(_));
            if input.lock().bytes().any(is_quit) {
                quit();
            }
        };
        std::thread::Builder::new().name("keyboard".into()).spawn(read).ok()?;
        Some(keyboard)
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        // Ignored: the terminal may be closed.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.previous);
    }
}
