//! Measurements of a worker thread: one 64-bit sample per request. The load generator's main thread (*steering thread*,
//! `run/steering.rs`) adds the samples to bins.

use crate::report::{Bin, Bins, Target};

/// What a sample counts: the outcome of a request, a delayed send or a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SampleKind {
    /// A right reply within the SLA.
    OnTime = 0,
    /// A right reply after the SLA.
    Late = 1,
    Wrong = 2,
    /// Sent, but not answered.
    Lost = 3,
    /// Not sent: the client's queue was full.
    Dropped = 4,
    /// Not sent: the run ended.
    Unsent = 5,
    /// A request was sent on an idle connection. The value is the delay from its intended to its actual send time.
    Lag = 6,
    /// A connection was lost.
    Reset = 7,
}

const VALUE_BITS: u32 = 36;
const VALUE_MAX: u64 = (1 << VALUE_BITS) - 1;
const BIN_MAX: u64 = (1 << 24) - 1;

/// From the highest bit: bin (24 bits), carrier (1 bit, set if helped), kind (3 bits), latency or lag in µs (36 bits).
/// Sorting thus groups equal samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample(u64);

impl Sample {
    /// `value_us`: the latency or the lag, 0 where there is none. Clamps bins to 2^24 − 1 and values to 19 hours.
    pub fn new(bin: u64, carrier: Target, kind: SampleKind, value_us: u64) -> Sample {
        let carrier = u64::from(carrier == Target::Helper);
        let bin_carrier_kind = bin.min(BIN_MAX) << 4 | carrier << 3 | kind as u64;
        Sample(bin_carrier_kind << VALUE_BITS | value_us.min(VALUE_MAX))
    }

    fn bin(self) -> u64 {
        self.0 >> (VALUE_BITS + 4)
    }
}

/// Counts of one kind of event: pairs of bin and count.
#[derive(Clone, Debug, Default)]
pub struct Counts(Vec<(u64, u64)>);

impl Counts {
    /// Counts an event in `bin`. Events are counted in the order of time, so that equal bins are adjacent.
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
    /// Wrong replies that answer no request, by time of receipt.
    pub unasked: Counts,
    /// Changes of carrier by sessions, by the time of the change.
    pub carrier_changes: Counts,
}

impl Samples {
    /// Adds the measurements to `bins` of width `bin_ms`.
    pub fn add_to(&mut self, bin_ms: u64, bins: &mut Bins) {
        let mut add_counts = |counts: &Counts, figure: fn(&mut Bin) -> &mut u64| {
            for &(bin, count) in &counts.0 {
                *figure(bins.at(bin * bin_ms)) += count;
            }
        };
        add_counts(&self.offered, |bin| &mut bin.offered);
        add_counts(&self.replied, |bin| &mut bin.replied);
        add_counts(&self.unasked, |bin| &mut bin.unasked);
        add_counts(&self.carrier_changes, |bin| &mut bin.carrier_changes);
        self.list.sort_unstable();
        for of_bin in self.list.chunk_by(|a, b| a.bin() == b.bin()) {
            let bin = bins.at(of_bin[0].bin() * bin_ms);
            for same in of_bin.chunk_by(|a, b| a == b) {
                add_sample(bin, same[0], same.len() as u64);
            }
        }
    }
}

fn add_sample(bin: &mut Bin, sample: Sample, count: u64) {
    const ON_TIME: u64 = SampleKind::OnTime as u64;
    const LATE: u64 = SampleKind::Late as u64;
    const WRONG: u64 = SampleKind::Wrong as u64;
    const LOST: u64 = SampleKind::Lost as u64;
    const DROPPED: u64 = SampleKind::Dropped as u64;
    const UNSENT: u64 = SampleKind::Unsent as u64;
    const LAG: u64 = SampleKind::Lag as u64;
    let value_us = sample.0 & VALUE_MAX;
    let figures = if sample.0 >> (VALUE_BITS + 3) & 1 == 1 { &mut bin.helped } else { &mut bin.direct };
    let kind = sample.0 >> VALUE_BITS & 7;
    match kind {
        ON_TIME | LATE => {
            figures.answered += count;
            figures.late += if kind == LATE { count } else { 0 };
            figures.latency_us.record(value_us, count);
        }
        WRONG => {
            figures.answered += count;
            figures.wrong += count;
        }
        LOST => figures.lost += count,
        DROPPED => bin.dropped += count,
        UNSENT => bin.unsent += count,
        LAG => bin.lag_us.record(value_us, count),
        _ => figures.resets += count, // SampleKind::Reset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_counted_in_its_bin_and_carrier() {
        use SampleKind::*;
        let mut samples = Samples::default();
        for (bin, carrier, kind, value) in [
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
            samples.list.push(Sample::new(bin, carrier, kind, value));
        }
        (0..9).for_each(|_| samples.offered.add(2));
        samples.offered.add(7);
        (0..3).for_each(|_| samples.replied.add(7));
        samples.unasked.add(2);
        samples.carrier_changes.add(2);
        let mut bins = Bins::default();
        samples.add_to(100, &mut bins);
        let bins = bins.into_vec();
        assert_eq!(bins.iter().map(|b| (b.at_ms, b.offered)).collect::<Vec<_>>(), [(200, 9), (700, 1)]);
        let first = &bins[0];
        assert_eq!((first.dropped, first.unsent), (1, 1));
        assert_eq!((first.replied, first.unasked, first.carrier_changes, bins[1].replied), (0, 1, 1, 3));
        assert_eq!((first.direct.answered, first.direct.late, first.direct.wrong), (4, 1, 1));
        assert_eq!(first.direct.latency_us.count(), 3);
        assert_eq!((first.helped.lost, first.helped.resets, first.helped.answered), (1, 1, 0));
        assert_eq!(first.lag_us.pairs(), [(12, 1)]);
        assert_eq!(bins[1].helped.latency_us.pairs(), [(500, 1)]);
    }
}
