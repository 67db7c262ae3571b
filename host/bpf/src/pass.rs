//! A program that passes every packet.

use libbpf_rs::Object;

use crate::attach::{AttachError, Attachment};
use crate::{BpfError, object};

const NAME: &str = "pass";

/// A program that passes every packet: a baseline of measurements. The end of a veth to which packets are
/// redirected needs such a program, too.
#[derive(Debug)]
pub struct Pass(Object);

impl Pass {
    /// Loads the program.
    ///
    /// # Errors
    /// The process has no CAP_BPF or CAP_NET_ADMIN.
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
}
