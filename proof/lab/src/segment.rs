//! One Ethernet segment whose hosts may run XDP programs that send packets back to it, such as the switch in host mode.

use std::sync::{Mutex, PoisonError};

use spillway_bpf::{Attachment, Pass};

use crate::host::HostParts;
use crate::{LabError, namespace};

/// The programs that pass all packets at the bridge's ends of the cables, as long as the lab exists. A veth drops what an XDP
/// program at its end sends (`XDP_TX`) if the other end has no program.
#[derive(Debug)]
pub(crate) struct Segment {
    pass: Pass,
    attachments: Mutex<Vec<Attachment>>,
}

impl Segment {
    pub(crate) fn load() -> Result<Segment, LabError> {
        Ok(Segment { pass: Pass::load().map_err(LabError::bpf)?, attachments: Mutex::default() })
    }

    /// Joins a host whose cable is up.
    pub(crate) fn join(&self, host: &HostParts) -> Result<(), LabError> {
        let (bridge, interface) = &host.bridge_end;
        let attach = || self.pass.attach(interface).map_err(LabError::bpf);
        let attachment = namespace::within(bridge, attach)?;
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner).push(attachment);
        Ok(())
    }
}
