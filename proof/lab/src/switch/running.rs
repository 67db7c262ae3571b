//! The switch's XDP program on the ports of a switch in the lab.

use std::time::{SystemTime, UNIX_EPOCH};

use spillway_bpf::switch::Switch;
use spillway_rules::Config;

use super::LabSwitch;
use crate::{LabError, namespace};

/// The switch's program without a daemon: loaded, without pins, and attached to all ports of a [`LabSwitch`] as long
/// as this value exists.
#[derive(Debug)]
pub struct RunningSwitch(Switch);

impl RunningSwitch {
    pub(super) fn start(switch: &LabSwitch, config: &Config) -> Result<RunningSwitch, LabError> {
        let ports = switch.ports();
        // The kernel resolves the indexes of a program's interfaces in the namespace of the thread that sets them.
        namespace::within(switch.namespace(), || {
            let mut program = Switch::load(config, now_ns()).map_err(LabError::bpf)?;
            for port in &ports {
                program.attach(port.id(), port.interface()).map_err(LabError::bpf)?;
            }
            Ok(RunningSwitch(program))
        })
    }

    /// The loaded program with its maps.
    pub fn program(&self) -> &Switch {
        &self.0
    }

    /// The switch's start time, which control messages contain: nanoseconds since 1970.
    pub fn epoch(&self) -> u64 {
        self.0.epoch()
    }
}

fn now_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX).max(1)
}
