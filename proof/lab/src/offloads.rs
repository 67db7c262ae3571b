//! Which offloads an interface has in force. They decide how many bytes a "packet" has, so results name them.

use std::fmt;

use serde::Serialize;

/// The offloads of one interface end that change what a measurement means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offloads {
    /// TCP segmentation left to the device.
    pub tso: bool,
    /// Segmentation done late, in software.
    pub gso: bool,
    /// Received segments joined before the stack sees them.
    pub gro: bool,
    /// Checksums of sent packets left to the device (on a veth: never computed).
    pub tx_checksums: bool,
    /// Checksums of received packets trusted from the device.
    pub rx_checksums: bool,
    /// Packets sent from several pieces of memory.
    pub scatter_gather: bool,
}

impl Offloads {
    /// Reads what `ethtool -k` prints.
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
        let word = |on: bool| if on { "on" } else { "off" };
        write!(
            f,
            "tso {}, gso {}, gro {}, tx checksums {}, rx checksums {}, scatter-gather {}",
            word(self.tso),
            word(self.gso),
            word(self.gro),
            word(self.tx_checksums),
            word(self.rx_checksums),
            word(self.scatter_gather)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listing_of_ethtool_is_read() {
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
    fn nothing_is_on_in_an_empty_listing() {
        assert_eq!(Offloads::parse(""), Offloads::default());
    }
}
