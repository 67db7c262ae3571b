//! Recovery of clients from a fault, computed from the load generators' bins.

use spillway_load::report::Bin;

/// Width of the generators' bins, and the resolution of recovery times, in ms.
pub const GRID_MS: u64 = 10;
/// Width of the paper's bins, in ms.
pub const BIN_MS: u64 = 100;
/// Recovery begins with this many good bins in a row.
const BINS_GOOD: u64 = 3;
/// A good bin has at least this share of the figure before the fault.
const SHARE_GOOD: f64 = 0.95;
/// Length of the reference span before the fault, in ms.
pub const BEFORE_MS: u64 = 1_000;
/// Gap between the reference span and the fault, in ms: the span has no requests that the fault delayed.
const CLEAR_MS: u64 = 100;

pub type Figure = fn(&Bin) -> u64;

/// Number of correct replies that arrived in the bin.
pub fn replied(bin: &Bin) -> u64 {
    bin.replied
}

/// Number of requests that were due in the bin and had a correct reply in time.
pub fn timely(bin: &Bin) -> u64 {
    [&bin.direct, &bin.helped].iter().map(|carried| carried.answered - carried.late - carried.wrong).sum()
}

fn sum(bins: &[Bin], from_ms: u64, to_ms: u64, figure: Figure) -> u64 {
    bins.iter().filter(|bin| (from_ms..to_ms).contains(&bin.at_ms)).map(figure).sum()
}

/// The figure of [`BIN_MS`] before the fault, as the mean over the reference span.
pub fn before(bins: &[Bin], fault_ms: u64, figure: Figure) -> f64 {
    let to_ms = (fault_ms - fault_ms % GRID_MS).saturating_sub(CLEAR_MS);
    let from_ms = to_ms.saturating_sub(BEFORE_MS);
    sum(bins, from_ms, to_ms, figure) as f64 * BIN_MS as f64 / BEFORE_MS as f64
}

/// Time from the fault to the first moment, in steps of [`GRID_MS`], from which [`BINS_GOOD`] bins of [`BIN_MS`] in a
/// row each have at least [`SHARE_GOOD`] of the figure before the fault. `None` without such a moment before `end_ms`.
pub fn recovered_ms(bins: &[Bin], fault_ms: u64, end_ms: u64, figure: Figure) -> Option<u64> {
    let count_min = SHARE_GOOD * before(bins, fault_ms, figure);
    let is_good = |at_ms: u64| {
        let mut starts = (0..BINS_GOOD).map(|n| at_ms + n * BIN_MS);
        count_min > 0.0
            && starts.all(|from_ms| sum(bins, from_ms, from_ms + BIN_MS, figure) as f64 >= count_min)
    };
    let last_ms = end_ms.checked_sub(BINS_GOOD * BIN_MS)?;
    let first_ms = fault_ms - fault_ms % GRID_MS;
    let at_ms = (first_ms..=last_ms).step_by(GRID_MS as usize).find(|&at_ms| is_good(at_ms))?;
    Some(at_ms.saturating_sub(fault_ms))
}

/// Times at which the first and the last session moved to another helper, in ms since the fault; `None` without moves.
pub fn carried_on_ms(bins: &[Bin], fault_ms: u64, end_ms: u64) -> Option<(u64, u64)> {
    let is_move_in_span =
        |bin: &&Bin| bin.carrier_changes > 0 && (fault_ms - fault_ms % GRID_MS..end_ms).contains(&bin.at_ms);
    let mut moments = bins.iter().filter(is_move_in_span).map(|bin| bin.at_ms);
    let first = moments.next()?;
    let last = moments.next_back().unwrap_or(first);
    // The last move happened before the end of its bin.
    Some((first.saturating_sub(fault_ms), (last + GRID_MS).saturating_sub(fault_ms)))
}

/// The longest time without any reply from the fault on, in ms.
pub fn silence_ms(bins: &[Bin], fault_ms: u64, end_ms: u64) -> u64 {
    let first_ms = fault_ms - fault_ms % GRID_MS;
    let (mut longest, mut silence) = (0, 0);
    for at_ms in (first_ms..end_ms).step_by(GRID_MS as usize) {
        silence = if sum(bins, at_ms, at_ms + GRID_MS, replied) == 0 { silence + GRID_MS } else { 0 };
        longest = longest.max(silence);
    }
    longest
}

/// The figure in steps of [`BIN_MS`], as (start of the step in ms since the fault, figure a second).
pub fn throughput_course(
    bins: &[Bin],
    fault_ms: u64,
    span_ms: (i64, i64),
    figure: Figure,
) -> Vec<(i64, f64)> {
    let zero_ms = (fault_ms - fault_ms % GRID_MS).cast_signed();
    (span_ms.0..span_ms.1)
        .step_by(BIN_MS as usize)
        .map(|at_ms| {
            let from_ms = u64::try_from(zero_ms + at_ms).unwrap_or(0);
            (at_ms, sum(bins, from_ms, from_ms + BIN_MS, figure) as f64 * 1000.0 / BIN_MS as f64)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULT_MS: u64 = 2_003;

    /// Bins with ten requests each. From 2 s on, `replies` computes (replies, requests with a reply in time)
    /// from the ms since 2 s.
    fn bins(replies: impl Fn(u64) -> (u64, u64)) -> Vec<Bin> {
        let bin = |n: u64| {
            let at_ms = n * GRID_MS;
            let (replied, in_time) = if at_ms < 2_000 { (10, 10) } else { replies(at_ms - 2_000) };
            let mut bin = Bin { at_ms, offered: 10, replied, ..Bin::default() };
            (bin.helped.answered, bin.helped.late) = (10, 10 - in_time);
            bin
        };
        (0..400).map(bin).collect()
    }

    #[test]
    fn recovery_is_the_start_of_three_good_bins() {
        let undisturbed = bins(|_| (10, 10));
        assert_eq!(before(&undisturbed, FAULT_MS, replied), 100.0);
        assert_eq!(recovered_ms(&undisturbed, FAULT_MS, 4_000, replied), Some(0));
        let late = bins(|at_ms| if at_ms < 180 { (0, 0) } else { (10, 10) });
        // One empty bin of the grid is 10 % of a bin, more than the tolerated 5 %.
        assert_eq!(recovered_ms(&late, FAULT_MS, 4_000, timely), Some(177));
        assert_eq!(silence_ms(&late, FAULT_MS, 4_000), 180);
        // A relapse within the three bins delays recovery to its end.
        let relapse = bins(|at_ms| if at_ms < 50 || (300..320).contains(&at_ms) { (0, 0) } else { (10, 10) });
        assert_eq!(recovered_ms(&relapse, FAULT_MS, 4_000, timely), Some(317));
        assert_eq!(recovered_ms(&bins(|_| (9, 9)), FAULT_MS, 4_000, timely), None);
        assert_eq!(
            recovered_ms(&bins(|_| (10, 10)), FAULT_MS, 2_200, timely),
            None,
            "a span shorter than three bins has no recovery"
        );
    }

    #[test]
    fn replies_to_a_backlog_are_throughput_but_not_in_time() {
        // No reply for 150 ms, then the whole backlog.
        let burst = bins(|at_ms| match at_ms {
            0..150 => (0, 0),
            150 => (160, 10),
            _ => (10, 10),
        });
        assert_eq!(recovered_ms(&burst, FAULT_MS, 4_000, timely), Some(147));
        assert!(recovered_ms(&burst, FAULT_MS, 4_000, replied).unwrap() < 147);
    }

    #[test]
    fn throughput_and_moves_are_relative_to_the_fault() {
        let all = bins(|at_ms| if at_ms < 200 { (5, 5) } else { (10, 10) });
        let throughput_course = throughput_course(&all, FAULT_MS, (-200, 300), replied);
        assert_eq!(
            throughput_course,
            [(-200, 1000.0), (-100, 1000.0), (0, 500.0), (100, 500.0), (200, 1000.0)]
        );
        let mut carried = all;
        assert_eq!(carried_on_ms(&carried, FAULT_MS, 4_000), None);
        carried[204].carrier_changes = 3;
        carried[210].carrier_changes = 1;
        assert_eq!(carried_on_ms(&carried, FAULT_MS, 4_000), Some((37, 107)));
    }
}
