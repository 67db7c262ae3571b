//! A program that passes every packet.

use libbpf_rs::Object;

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
}
