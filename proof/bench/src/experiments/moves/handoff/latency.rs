//! How long hand-offs take: their steps, and what a client sees.

use std::time::Duration;

use super::counts::Counts;
use super::stand::{Stand, Timed};
use super::steps::{self, HandOff, Interval, LINES, PARTS_OF_BLOCK};
use super::{Effort, KINDS};
use crate::error::Error;
use crate::experiments::moves::distribution::Distribution;

/// Requests between two requests for the steps of their hand-offs. The servers keep more.
const TOGETHER: usize = 900;
/// Number of hand-offs whose steps each server keeps.
pub(super) const TRACES: usize = 4 * TOGETHER;
/// Time after which the sources know that hand-offs have ended.
const SETTLE: Duration = Duration::from_millis(5);

/// Figures of a round, in µs.
#[derive(Clone, Debug)]
pub(super) struct Latency {
    /// By the kinds of [`KINDS`].
    pub kinds: [Kind; KINDS.len()],
    /// Both hand-offs of a cycle by the servers' clocks.
    pub cycle: Distribution,
    /// What both requests of a cycle take longer than requests without hand-offs.
    pub cycle_at_client: Distribution,
    /// Requests without hand-off.
    pub quiet: Distribution,
}

/// Figures of one kind of hand-offs.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub total: Distribution,
    pub blackout: Distribution,
    /// Medians of [`LINES`] and of [`PARTS_OF_BLOCK`].
    pub lines: [f64; LINES.len()],
    pub parts_of_block: [f64; PARTS_OF_BLOCK.len()],
    /// Requests that were handed off, at the client.
    pub request: Distribution,
}

/// Measures a round with a new connection.
pub(super) fn round(stand: &mut Stand, effort: &Effort, counts: &mut Counts) -> Result<Latency, Error> {
    let mut client = stand.connect()?;
    // At each server, and at last at the first one.
    let mut quiet = [1, 2, 0].map(|server| (server, Vec::new()));
    for (server, times) in &mut quiet {
        let timed;
        (client, timed) = stand.walk(client, vec![*server; effort.quiet + 1], counts)?;
        times.extend(timed.iter().filter(|timed| timed.servers.0 == timed.servers.1).map(|timed| timed.us));
    }
    let median_at = |server: usize| {
        let times = quiet.iter().find(|(at, _)| *at == server).map(|(_, times)| times.clone());
        Distribution::of(times.unwrap_or_default()).p50
    };
    let without = median_at(0) + median_at(1);
    let _ = stand.site.take_steps()?; // those of the way to each server
    let (mut all, mut requests) = (Vec::new(), Vec::new());
    let (mut cycles, mut cycles_at_client) = (Vec::new(), Vec::new());
    for (tour, count) in [(&[1, 2, 0][..], effort.tours), (&[1, 0][..], effort.cycles)] {
        let is_cycle = tour.len() == 2;
        let at_once = TOGETHER / tour.len();
        for begun in (0..count).step_by(at_once) {
            let repeated = at_once.min(count - begun);
            let timed;
            (client, timed) = stand.walk(client, tour.repeat(repeated), counts)?;
            let hand_offs = take_hand_offs(stand, &timed, counts)?;
            if is_cycle {
                cycles.extend(steps::cycles_us(&hand_offs));
                let pairs = timed.chunks_exact(2).filter(|pair| pair[0].servers == (0, 1));
                cycles_at_client.extend(pairs.map(|pair| pair[0].us + pair[1].us - without));
            }
            all.extend(hand_offs);
            requests.extend(timed);
        }
    }
    drop(client);
    stand.site.wait_until_empty()?;
    Ok(Latency {
        kinds: KINDS.map(|kind| Kind::of(&all, &requests, kind.servers)),
        cycle: Distribution::of(cycles),
        cycle_at_client: Distribution::of(cycles_at_client),
        quiet: Distribution::of(quiet.into_iter().flat_map(|(_, times)| times).collect()),
    })
}

/// The hand-offs of requests that were just answered.
fn take_hand_offs(stand: &mut Stand, timed: &[Timed], counts: &mut Counts) -> Result<Vec<HandOff>, Error> {
    stand.site.check()?;
    std::thread::sleep(SETTLE);
    let ends = stand.site.take_steps()?;
    let hand_offs = steps::hand_offs(&ends);
    counts.traced += timed.iter().filter(|timed| timed.servers.0 != timed.servers.1).count() as u64;
    counts.joined += hand_offs.len() as u64;
    Ok(hand_offs)
}

impl Kind {
    fn of(hand_offs: &[HandOff], requests: &[Timed], servers: (usize, usize)) -> Kind {
        let distribution = |value: &dyn Fn(&HandOff) -> f64| {
            let of_kind = hand_offs.iter().filter(|hand_off| hand_off.servers == servers);
            Distribution::of(of_kind.map(value).collect())
        };
        let median = |interval: Interval| distribution(&|hand_off| hand_off.interval_us(&interval)).p50;
        let requests = requests.iter().filter(|timed| timed.servers == servers).map(|timed| timed.us);
        Kind {
            total: distribution(&HandOff::total_us),
            blackout: distribution(&HandOff::blackout_us),
            lines: LINES.map(median),
            parts_of_block: PARTS_OF_BLOCK.map(median),
            request: Distribution::of(requests.collect()),
        }
    }
}
