//! Drops a share of the IPv4 packets that an interface receives.

use libbpf_rs::Object;

use crate::attach::{AttachError, Attachment};
use crate::{BpfError, object};

const NAME: &str = "lose";

/// Drops each packet independently and before receive offloads join segments, as a real link does.
#[derive(Debug)]
pub struct Loss(Object);

impl Loss {
    /// Loads the program with the share of packets to drop, from 0 to 1.
    ///
    /// # Errors
    /// The process lacks CAP_BPF or CAP_NET_ADMIN; it needs both.
    pub fn load(share: f64) -> Result<Loss, BpfError> {
        let mut object = object::open(NAME, object::LOSS)?;
        // This map has the `const volatile` variables, of which `threshold` is the only one.
        let mut maps = object.maps_mut();
        let mut constants = maps
            .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
            .unwrap_or_else(|| unreachable!("c/loss.bpf.c defines a constant"));
        if let Some(bytes) = constants.initial_value_mut().and_then(|bytes| bytes.first_chunk_mut()) {
            *bytes = threshold(share).to_ne_bytes();
        }
        drop(maps);
        Ok(Loss(object::load(NAME, object)?))
    }

    /// Attaches the program to an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// Another program is attached, or the driver refuses this one.
    pub fn attach(&self, interface: &str) -> Result<Attachment, AttachError> {
        Attachment::new(&object::program(NAME, &self.0), interface)
    }
}

/// The number with which the program compares 32 random bits. With a share of 1, one packet in 2^32 passes.
fn threshold(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * 2f64.powi(32)).round().min(f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::threshold;

    #[test]
    fn threshold_is_the_share_of_2_to_the_32() {
        assert_eq!([0.0, 0.01, 0.5, 1.0].map(threshold), [0, 42_949_673, 1 << 31, u32::MAX]);
    }
}
