//! The figures and tables of the four papers that experiments reproduce.

use std::fmt;

/// A paper that Spillway builds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    /// "PostMan: Rapidly Mitigating Bursty Traffic by Offloading Packet Processing", USENIX ATC 2019.
    PostMan,
    /// "Prism: Proxies without the Pain", NSDI 2021.
    Prism,
    /// "Capybara: μSecond-Scale Live TCP Migration", APSys 2023.
    Capybara,
    /// "NetRS: Cutting Response Latency of Distributed Key-Value Store with In-Network Replica Selection", ICDCS 2018.
    NetRs,
}

/// One figure or table with measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    paper: Paper,
    name: &'static str,
}

impl Figure {
    /// `name`: `F` for a figure or `T` for a table, then its number in the paper.
    pub const fn new(paper: Paper, name: &'static str) -> Figure {
        Figure { paper, name }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.paper, self.name)
    }
}

/// Figures and tables that no experiment reproduces yet, and why.
pub const PENDING: [(Figure, &str); 8] = [
    (Figure::new(Paper::PostMan, "F5"), "needs a replicated log (Paxos) as the server"),
    (Figure::new(Paper::PostMan, "F7"), "needs a replicated log (Paxos) as the server"),
    (Figure::new(Paper::Prism, "F12"), "needs an object store"),
    (Figure::new(Paper::Prism, "F13"), "needs an object store"),
    (Figure::new(Paper::NetRs, "F4"), "replica selection is not built yet"),
    (Figure::new(Paper::NetRs, "F5"), "replica selection is not built yet"),
    (Figure::new(Paper::NetRs, "F6"), "replica selection is not built yet"),
    (Figure::new(Paper::NetRs, "F7"), "replica selection is not built yet"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::all;

    /// Every figure and table with measurements, 24 in all.
    const PAPERS: [(Paper, &[&str]); 4] = [
        (Paper::PostMan, &["T1", "F4", "F5", "F6", "F7", "F8", "F9", "F10", "F11", "F12"]),
        (Paper::Prism, &["T1", "F2", "F9", "F10", "F11", "F12", "F13"]),
        (Paper::Capybara, &["F1", "F4", "F5"]),
        (Paper::NetRs, &["F4", "F5", "F6", "F7"]),
    ];

    #[test]
    fn each_figure_is_claimed_by_one_experiment_or_pending() {
        let figures =
            PAPERS.iter().flat_map(|(paper, names)| names.iter().map(|name| Figure::new(*paper, name)));
        let mut count = 0;
        for figure in figures {
            let claims = all().filter(|experiment| experiment.figures.contains(&figure)).map(|e| e.name);
            let pending = PENDING.iter().filter(|(pending, _)| *pending == figure).map(|_| "pending");
            let claims_and_pending: Vec<_> = claims.chain(pending).collect();
            assert_eq!(claims_and_pending.len(), 1, "{figure}: {claims_and_pending:?}");
            count += 1;
        }
        assert_eq!(count, 24);
        let claimed: usize = all().map(|experiment| experiment.figures.len()).sum();
        assert_eq!(claimed + PENDING.len(), count, "each listed figure should be in PAPERS");
    }
}
