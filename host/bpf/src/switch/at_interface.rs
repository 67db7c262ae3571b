//! Which switch has its program at an interface, for programs that report what is there.

use std::io;
use std::path::Path;

use spillway_rules::Mode;

use super::next_program;
use super::pins::{PINS, switches_at};
use crate::BpfError;
use crate::attach::index_of;

/// A switch whose program is at an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchAt {
    /// The switch's name.
    pub name: String,
    /// Whether another program can run behind that of the switch.
    pub behind: Behind,
}

/// The place behind the program of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// A switch in host mode: a program of the user-level stack can run there.
    Free,
    /// A switch in host mode, behind which another process has placed the program with this number.
    Taken(u32),
    /// A switch in gateway mode has no such place.
    Gateway,
    /// Another version of Spillway has made the switch's tables, in which this one finds no place.
    OtherVersion,
}

impl SwitchAt {
    /// Finds the switch whose program is at an interface. The interface is one of the calling thread's network namespace.
    /// `None`: no switch has its program there, or this process must not read the switch's pins.
    ///
    /// # Errors
    /// The interface does not exist, or the system has failed.
    pub fn find(interface: &str) -> Result<Option<SwitchAt>, BpfError> {
        let index = index_of(interface)
            .map_err(|error| BpfError::of("cannot find a switch")(io::Error::other(error).into()))?;
        let Some((pins, ..)) = switches_at(Path::new(PINS), index.unsigned_abs()).into_iter().next() else {
            return Ok(None);
        };
        let name = pins.directory().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let behind = match pins.mode()? {
            _ if !pins.has_present_layout()? => Behind::OtherVersion,
            Some(Mode::Host) => next_program::of_living_process(&pins)?.map_or(Behind::Free, Behind::Taken),
            _ => Behind::Gateway,
        };
        Ok(Some(SwitchAt { name, behind }))
    }
}
