//! Experiments, the demo and its report.
