//! Joins hosts by an XDP program on the bridge's ends of their cables, which costs less CPU than the bridge.

use std::sync::{Mutex, PoisonError};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use spillway_bpf::Attachment;

use crate::host::HostParts;
use crate::{LabError, addresses, namespace};

/// The loaded program and its attachments, which exist as long as the lab.
#[derive(Debug)]
pub(crate) struct Hub {
    program: spillway_bpf::Hub,
    attachments: Mutex<Vec<Attachment>>,
}

impl Hub {
    pub(crate) fn load() -> Result<Hub, LabError> {
        let program = spillway_bpf::Hub::load().map_err(LabError::bpf)?;
        Ok(Hub { program, attachments: Mutex::default() })
    }

    /// Joins a host whose cable is up.
    pub(crate) fn join(&self, host: &HostParts) -> Result<(), LabError> {
        let (bridge, bridge_interface) = &host.bridge_end;
        let attachment = namespace::within(bridge, || {
            let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)
                .map_err(LabError::errno("cannot open a socket"))?;
            let index = name_to_index(&socket, bridge_interface)
                .map_err(LabError::errno(format!("cannot find the interface {bridge_interface}")))?;
            self.program.set_station(addresses::host_mac(host.address), index).map_err(LabError::bpf)?;
            self.program.attach(bridge_interface).map_err(LabError::bpf)
        })?;
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner).push(attachment);
        host.accept_redirected()
    }
}
