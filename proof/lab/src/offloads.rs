//! Offloads of an interface. Results list them because they determine the size of counted packets.

use std::fmt;

use serde::Serialize;

/// The active offloads of an interface that affect measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offloads {
    /// The device segments TCP.
    pub tso: bool,
    /// The kernel segments late, just before the device.
    pub gso: bool,
    /// The receive path joins segments before the network stack.
    pub gro: bool,
    /// The device computes checksums of sent packets. A veth does not: its packets have partial checksums.
    pub tx_checksums: bool,
    /// The device checks checksums of received packets.
    pub rx_checksums: bool,
    /// The device can send a packet from several memory areas.
    pub scatter_gather: bool,
}

impl Offloads {
    pub(crate) fn parse(text: &str) -> Offloads {
        let on = |name: &str| {
            text.lines().any(|line| {
                line.strip_prefix(name)
                    .and_then(|rest| rest.strip_prefix(':'))
                    .is_some_and(|rest| rest.split_whitespace().next() == Some("on"))
            })
        };
        Offloads {
            tso: on("tcp-segmentation-offload"),
            gso: on("generic-segmentation-offload"),
            gro: on("generic-receive-offload"),
            tx_checksums: on("tx-checksumming"),
            rx_checksums: on("rx-checksumming"),
            scatter_gather: on("scatter-gather"),
        }
    }
}

impl fmt::Display for Offloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = |on: bool| if on { "on" } else { "off" };
        write!(
            f,
            "tso {}, gso {}, gro {}, tx checksums {}, rx checksums {}, scatter-gather {}",
            state(self.tso),
            state(self.gso),
            state(self.gro),
            state(self.tx_checksums),
            state(self.rx_checksums),
            state(self.scatter_gather)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_ethtool_is_parsed() {
        let text = "Features for eth0:\nrx-checksumming: on\ntx-checksumming: off [fixed]\n\ttx-checksum-ipv4: on\n\
                    scatter-gather: on\n\ttx-scatter-gather: off\ntcp-segmentation-offload: on [requested off]\n\
                    generic-segmentation-offload: off\ngeneric-receive-offload: on\n";
        let offloads = Offloads::parse(text);
        assert_eq!(
            offloads,
            Offloads {
                tso: true,
                gso: false,
                gro: true,
                tx_checksums: false,
                rx_checksums: true,
                scatter_gather: true
            }
        );
        assert_eq!(
            offloads.to_string(),
            "tso on, gso off, gro on, tx checksums off, rx checksums on, scatter-gather on"
        );
    }

    #[test]
    fn every_offload_is_off_in_empty_output() {
        assert_eq!(Offloads::parse(""), Offloads::default());
    }
}
