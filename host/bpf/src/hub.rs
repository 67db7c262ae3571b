//! Forwards frames between the interfaces of a bridge.

use std::time::Duration;

use libbpf_rs::{Object, ProgramInput};

use crate::attach::{AttachError, Attachment};
use crate::map::Map;
use crate::{BpfError, object};

const NAME: &str = "forward";

/// Forwards unicast frames to known stations from each interface to which it is attached. All other frames
/// pass to the kernel, whose bridge floods them.
#[derive(Debug)]
pub struct Hub {
    object: Object,
    stations: Map,
}

impl Hub {
    /// Loads the program, without stations.
    ///
    /// # Errors
    /// The process lacks CAP_BPF or CAP_NET_ADMIN; it needs both.
    pub fn load() -> Result<Hub, BpfError> {
        let object = object::load(NAME, object::open(NAME, object::HUB)?)?;
        Ok(Hub { stations: Map::of(&object, "stations")?, object })
    }

    /// Forwards frames for an Ethernet address to the interface with this index. The interface must be able
    /// to send redirected frames: on a veth, the other end needs generic receive offload or an XDP program.
    ///
    /// # Errors
    /// The map has its maximum of 256 stations.
    pub fn set_station(&self, address: [u8; 6], interface: u32) -> Result<(), BpfError> {
        let mut key = [0; 8];
        key[..6].copy_from_slice(&address);
        self.stations.set(&key, &interface.to_ne_bytes())
    }

    /// Attaches the program to an interface of the calling thread's network namespace. All interfaces of a hub must be in one
    /// namespace.
    ///
    /// # Errors
    /// Another program is attached, or the driver refuses this one.
    pub fn attach(&self, interface: &str) -> Result<Attachment, AttachError> {
        Attachment::new(&object::program(NAME, &self.object), interface)
    }

    /// Runs the program once on a frame (`BPF_PROG_TEST_RUN`). Returns `XDP_PASS` or `XDP_REDIRECT`.
    ///
    /// # Errors
    /// The kernel refuses the frame: it is shorter than an Ethernet header or longer than a page.
    pub fn test_run(&self, frame: &[u8]) -> Result<u32, BpfError> {
        Ok(self.run(frame)?.0)
    }

    /// Runs the program once as [`Hub::test_run`], and returns the time that the kernel measured, which includes a
    /// reading of the clock.
    ///
    /// # Errors
    /// As [`Hub::test_run`].
    pub fn time_run(&self, frame: &[u8]) -> Result<Duration, BpfError> {
        Ok(self.run(frame)?.1)
    }

    fn run(&self, frame: &[u8]) -> Result<(u32, Duration), BpfError> {
        let input = ProgramInput { data_in: Some(frame), repeat: 1, ..ProgramInput::default() };
        let output = object::program(NAME, &self.object)
            .test_run(input)
            .map_err(BpfError::of("cannot run the program `forward` on a frame"))?;
        Ok((output.return_value, output.duration))
    }
}
