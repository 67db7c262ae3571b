//! Ramps that ended before the system broke the SLA: what follows for the figures of their series.

use crate::experiments::batch::burst::Series;
use crate::goodput::RampResult;
use crate::scene::System;

/// Reasons why a series' goodput is void; none for a helped series. A ramp that ended early yields a lower bound of
/// the goodput. A denominator that is too small makes a ratio too large, so the series of other systems are void.
/// A numerator that is too small makes a ratio too small, so a helped series stays valid.
pub(super) fn void_reasons(series: &Series) -> Vec<String> {
    if series.system == System::Helped { Vec::new() } else { early_ends(series) }
}

/// The note of a helped series of which a ramp ended early; empty otherwise.
pub(super) fn lower_bound(series: &Series) -> String {
    match early_ends(series) {
        reasons if series.system == System::Helped && !reasons.is_empty() => {
            format!("a lower bound: {}", reasons.join("; "))
        }
        _ => String::new(),
    }
}

/// Round and reason of each ramp that ended before it reached a rate at which the system broke the SLA.
fn early_ends(series: &Series) -> Vec<String> {
    let round = |(n, ramped): (usize, &Option<RampResult>)| {
        ramped.as_ref()?.trouble.as_ref().map(|trouble| format!("round {}: {trouble}", n + 1))
    };
    series.rounds.iter().enumerate().filter_map(round).collect()
}
