//! A program that passes every packet.

use std::time::Duration;

use libbpf_rs::{Object, ProgramInput};

use crate::attach::{AttachError, Attachment};
use crate::{BpfError, object};

const NAME: &str = "pass";

/// A program that passes every packet: a baseline of measurements. Also for a veth to one end of
/// which packets are redirected: the kernel accepts these if the other end has an XDP program.
#[derive(Debug)]
pub struct Pass(Object);

impl Pass {
    /// Loads the program.
    ///
    /// # Errors
    /// The process lacks CAP_BPF or CAP_NET_ADMIN; it needs both.
    pub fn load() -> Result<Pass, BpfError> {
        Ok(Pass(object::load(NAME, object::open(NAME, object::PASS)?)?))
    }

    /// Attaches the program to an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// Another program is attached, or the driver refuses this one.
    pub fn attach(&self, interface: &str) -> Result<Attachment, AttachError> {
        Attachment::new(&object::program(NAME, &self.0), interface)
    }

    /// Runs the program once on a frame (`BPF_PROG_TEST_RUN`), and returns the time that the kernel measured. It includes
    /// a reading of the clock: a baseline of the times of other programs.
    ///
    /// # Errors
    /// The kernel refuses the frame: it is shorter than an Ethernet header or longer than a page.
    pub fn time_run(&self, frame: &[u8]) -> Result<Duration, BpfError> {
        let input = ProgramInput { data_in: Some(frame), repeat: 1, ..ProgramInput::default() };
        let output = object::program(NAME, &self.0)
            .test_run(input)
            .map_err(BpfError::of("cannot run the program `pass` on a frame"))?;
        Ok(output.duration)
    }
}
