//! Packet loss on a host's cable, by a BPF program at both ends.

use spillway_bpf::Attachment;

use crate::{LabError, namespace};

/// Loss on a host's cable, in both directions, while the value exists.
#[derive(Debug)]
pub struct Loss {
    _attachments: [Attachment; 2],
}

impl Loss {
    /// Drops this share (0 to 1) of the IPv4 packets that arrive at two interfaces, given as (namespace, interface).
    pub(crate) fn between(ends: [(&str, &str); 2], share: f64) -> Result<Loss, LabError> {
        if !(0.0..=1.0).contains(&share) {
            return Err(LabError::BadOption(format!(
                "cannot drop a share of {share} of the packets: give 0 to 1"
            )));
        }
        let program = spillway_bpf::Loss::load(share).map_err(LabError::bpf)?;
        let [first, second] = ends.map(|(namespace, interface)| {
            namespace::within(namespace, || program.attach(interface).map_err(LabError::bpf))
        });
        Ok(Loss { _attachments: [first?, second?] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_outside_0_to_1_are_refused() {
        for share in [-0.1, 1.1, f64::NAN] {
            assert!(matches!(Loss::between([("", ""); 2], share), Err(LabError::BadOption(_))));
        }
    }
}
