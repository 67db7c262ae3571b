//! A frame that the rules decide on.

use alloc::vec::Vec;

use spillway_transport::Time;

use crate::config::PortId;

/// A frame that has arrived.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    /// Time of the arrival.
    pub(crate) now: Time,
    /// The port on which the frame has arrived.
    pub(crate) port: PortId,
    /// The frame, which is rewritten in place. Its length changes only in host mode, if a tunnel begins or ends here.
    pub(crate) frame: &'a mut Vec<u8>,
}
