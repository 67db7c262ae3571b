//! A captured socket sends no further bytes, because the peer's window counts as closed.

use std::io;

use crate::ends::Ends;
use crate::error::{CaptureError, system};
use crate::info::Progress;
use crate::repair::Repair;
use crate::system::RepairWindow;

/// What a capture leaves behind at the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Muted {
    /// The queues' ends in the state.
    pub ends: Ends,
    /// When the state was read.
    pub progress: Progress,
    /// The windows in the state. The socket's own copy says that the peer's window is closed.
    pub window: RepairWindow,
}

/// Closes the peer's window in the socket's view. Returns the windows as they were before the first call: `known`, unless a
/// segment has changed them since.
pub(crate) fn mute(repair: Repair<'_>, known: Option<RepairWindow>) -> Result<RepairWindow, CaptureError> {
    let mute = || -> io::Result<RepairWindow> {
        let now = repair.window()?;
        let closed = RepairWindow { snd_wnd: 0, ..now };
        if let Some(known) = known
            && closed == (RepairWindow { snd_wnd: 0, ..known })
            && now.snd_wnd == 0
        {
            return Ok(known);
        }
        repair.set_window(closed)?;
        Ok(now)
    };
    mute().map_err(system("close the socket's window"))
}

/// Gives the socket back the peer's window, unless a segment has set it since.
pub(crate) fn unmute(repair: Repair<'_>, window: RepairWindow) -> Result<(), CaptureError> {
    let unmute = || -> io::Result<()> {
        let now = repair.window()?;
        let is_muted = now.snd_wnd == 0 && now.snd_wl1 == window.snd_wl1;
        if is_muted { repair.set_window(RepairWindow { snd_wnd: window.snd_wnd, ..now }) } else { Ok(()) }
    };
    unmute().map_err(system("open the socket's window again"))
}
