//! Measurements of a worker thread: one 64-bit sample per request, which the steering thread adds up in bins.

use crate::report::{Bin, Bins, Target};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// A right reply within the SLA; `Late` is one after the SLA.
    OnTime = 0,
    Late = 1,
    Wrong = 2,
    /// Sent, and not answered.
    Lost = 3,
    /// Not sent: the client's queue was full.
    Dropped = 4,
    /// Not sent: the run ended.
    Unsent = 5,
    /// Not an outcome: the delay from the intended to the actual send time on an idle connection.
    Lag = 6,
    /// Not an outcome: a connection was lost.
    Reset = 7,
}

const VALUE_BITS: u32 = 36;
const VALUE_MAX: u64 = (1 << VALUE_BITS) - 1;
const BIN_MAX: u64 = (1 << 24) - 1;

/// A request's bin, carrier, outcome and time, packed so that sorting groups samples of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample(u64);

impl Sample {
    /// Clamps bins to 2^24 − 1 and times to 19 hours.
    pub fn new(bin: u64, carrier: Target, outcome: Outcome, value_us: u64) -> Sample {
        let carrier = u64::from(carrier == Target::Helper);
        let head = bin.min(BIN_MAX) << 4 | carrier << 3 | outcome as u64;
        Sample(head << VALUE_BITS | value_us.min(VALUE_MAX))
    }

    fn bin(self) -> u64 {
        self.0 >> (VALUE_BITS + 4)
    }
}

/// Counts of one kind of event, as (bin, count).
#[derive(Clone, Debug, Default)]
pub struct Counts(Vec<(u64, u64)>);

impl Counts {
    /// Counts an event in `bin`. Events come in the order of time, so equal bins are adjacent.
    pub fn add(&mut self, bin: u64) {
        match self.0.last_mut() {
            Some(last) if last.0 == bin => last.1 += 1,
            _ => self.0.push((bin, 1)),
        }
    }
}

/// Measurements of one thread since the last message with samples.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    pub list: Vec<Sample>,
    /// Arrivals, by intended time.
    pub offered: Counts,
    /// Right replies, by time of receipt.
    pub replied: Counts,
    /// Wrong replies to no request, by time of receipt.
    pub unasked: Counts,
    /// Changes of carrier by sessions, by their time.
    pub carried_on: Counts,
}

impl Samples {
    /// Adds the measurements to `bins` of width `bin_ms`.
    pub fn sort_into(&mut self, bin_ms: u64, bins: &mut Bins) {
        let mut count = |counts: &Counts, figure: fn(&mut Bin) -> &mut u64| {
            for &(bin, count) in &counts.0 {
                *figure(bins.at(bin * bin_ms)) += count;
            }
        };
        count(&self.offered, |bin| &mut bin.offered);
        count(&self.replied, |bin| &mut bin.replied);
        count(&self.unasked, |bin| &mut bin.unasked);
        count(&self.carried_on, |bin| &mut bin.carried_on);
        self.list.sort_unstable();
        for run in self.list.chunk_by(|a, b| a.bin() == b.bin()) {
            let bin = bins.at(run[0].bin() * bin_ms);
            for same in run.chunk_by(|a, b| a == b) {
                add(bin, same[0], same.len() as u64);
            }
        }
    }
}

fn add(bin: &mut Bin, sample: Sample, count: u64) {
    let value_us = sample.0 & VALUE_MAX;
    let carried = if sample.0 >> (VALUE_BITS + 3) & 1 == 1 { &mut bin.helped } else { &mut bin.direct };
    match sample.0 >> VALUE_BITS & 7 {
        0 | 1 => {
            carried.answered += count;
            carried.late += if sample.0 >> VALUE_BITS & 7 == 1 { count } else { 0 };
            carried.latency_us.record(value_us, count);
        }
        2 => {
            carried.answered += count;
            carried.wrong += count;
        }
        3 => carried.lost += count,
        4 => bin.dropped += count,
        5 => bin.unsent += count,
        6 => bin.lag_us.record(value_us, count),
        _ => carried.resets += count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_counts_in_its_bin_and_carrier() {
        use Outcome::*;
        let mut samples = Samples::default();
        for (bin, carrier, outcome, value) in [
            (7, Target::Helper, OnTime, 500),
            (2, Target::Direct, Late, 70_000),
            (2, Target::Direct, OnTime, 90),
            (2, Target::Direct, OnTime, 90),
            (2, Target::Direct, Wrong, 1),
            (2, Target::Helper, Lost, 0),
            (2, Target::Direct, Dropped, 0),
            (2, Target::Direct, Unsent, 0),
            (2, Target::Direct, Lag, 12),
            (2, Target::Helper, Reset, 0),
        ] {
            samples.list.push(Sample::new(bin, carrier, outcome, value));
        }
        (0..9).for_each(|_| samples.offered.add(2));
        samples.offered.add(7);
        (0..3).for_each(|_| samples.replied.add(7));
        samples.unasked.add(2);
        samples.carried_on.add(2);
        let mut bins = Bins::default();
        samples.sort_into(100, &mut bins);
        let bins = bins.into_vec();
        assert_eq!(bins.iter().map(|b| (b.at_ms, b.offered)).collect::<Vec<_>>(), [(200, 9), (700, 1)]);
        let first = &bins[0];
        assert_eq!((first.dropped, first.unsent), (1, 1));
        assert_eq!((first.replied, first.unasked, first.carried_on, bins[1].replied), (0, 1, 1, 3));
        assert_eq!((first.direct.answered, first.direct.late, first.direct.wrong), (4, 1, 1));
        assert_eq!(first.direct.latency_us.count(), 3);
        assert_eq!((first.helped.lost, first.helped.resets, first.helped.answered), (1, 1, 0));
        assert_eq!(first.lag_us.pairs(), [(12, 1)]);
        assert_eq!(bins[1].helped.latency_us.pairs(), [(500, 1)]);
    }
}
