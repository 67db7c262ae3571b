//! Experiments on the switch.

pub mod cost;

use super::{Experiment, Needs};

/// The experiments, in the order in which `bench list` prints them.
pub(super) const EXPERIMENTS: [Experiment; 1] = [Experiment {
    name: "switch-cost",
    question: "time of a packet and of a control message in the switch's XDP program, by kind and size of the table; compared with a daemon, \
               with the kernel's bridge, and in a row of five switches",
    paper: "Prism, §6: rules changed by remote calls to the switch's control plane took up to 828 µs, and led to changes in the data plane",
    figures: &[],
    needs: Needs { root: true, minutes: 6 },
    run: cost::run,
}];
