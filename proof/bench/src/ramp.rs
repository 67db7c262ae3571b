//! Goodput: the highest rate of a ramp at which the SLA is kept. This module plans the ramp, and
//! [`crate::goodput`] runs it.
//!
//! Short probes find the rate of the first step: each has 1.5 times the rate of the one before until one
//! fails; the last probe has a rate between the highest kept one and the failed one. Then steps of at most 5
//! %, two seconds or more each, follow until the first failure. A spoilt step (the machine stalled, the
//! generator lagged) is not a failure: it is repeated a few times.

use std::fmt;

const PROBE_FACTOR: f64 = 1.5;
/// Rate of the last probe as a multiple of the highest kept one: about the square root of [`PROBE_FACTOR`].
const BETWEEN_FACTOR: f64 = 1.22;
const STEP_FACTOR: f64 = 1.05;
/// Factor of the rate when the first step fails.
const BACK_FACTOR: f64 = 0.85;
/// Maximum number of restarts at a lower rate.
const RESTARTS_MAX: u32 = 8;
/// Maximum number of repetitions of a spoilt step.
const SPOILT_MAX: u32 = 5;
/// Maximum number of probes and steps of a ramp, so that every ramp ends.
const STEPS_MAX: u32 = 80;

/// The next action of a ramp. Rates are in requests a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Offer this rate for a short time.
    Probe(f64),
    /// Offer this rate for the length of a step.
    Step(f64),
    /// The ramp is over.
    Done,
}

/// The result of a probe or step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The SLA was kept.
    Kept,
    /// The SLA was not kept.
    Failed,
    /// The measurement was disturbed, with the reason.
    Spoilt(String),
}

/// The result of a ramp.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Goodput {
    /// The highest rate that kept the SLA before the first failure.
    pub kept_per_s: Option<f64>,
    /// The rate of the first failure; `None` if the ramp ended without one.
    pub failed_per_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Probing,
    Stepping,
    Over,
}

/// The plan of one ramp.
#[derive(Clone, Debug)]
pub struct Ramp {
    phase: Phase,
    rate: f64,
    floor: f64,
    limit: f64,
    /// The highest probe that kept the SLA.
    kept_probe: Option<f64>,
    /// Whether a probe has failed; the next kept probe is then the last.
    probe_failed: bool,
    goodput: Goodput,
    restarts: u32,
    steps: u32,
    spoilt_at_rate: u32,
    spoilt: u32,
    trouble: Option<String>,
}

impl Ramp {
    /// A ramp that probes from `start` on. Rates stay within `floor..=limit`, in requests a second.
    pub fn searching(start: f64, floor: f64, limit: f64) -> Ramp {
        Ramp { phase: Phase::Probing, ..Ramp::stepping(start, floor, limit) }
    }

    /// A ramp without probes, whose steps begin at `start`, a rate that should keep the SLA.
    pub fn stepping(start: f64, floor: f64, limit: f64) -> Ramp {
        Ramp {
            phase: Phase::Stepping,
            rate: start.clamp(floor, limit),
            floor,
            limit,
            kept_probe: None,
            probe_failed: false,
            goodput: Goodput::default(),
            restarts: 0,
            steps: 0,
            spoilt_at_rate: 0,
            spoilt: 0,
            trouble: None,
        }
    }

    /// The next action; unchanged until [`Ramp::record`].
    pub fn next(&self) -> Next {
        match self.phase {
            Phase::Probing => Next::Probe(self.rate),
            Phase::Stepping => Next::Step(self.rate),
            Phase::Over => Next::Done,
        }
    }

    /// Records the result of the probe or step of [`Ramp::next`].
    pub fn record(&mut self, verdict: &Verdict) {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return self.end(Some(format!("no end after {STEPS_MAX} steps")));
        }
        match (verdict, self.phase) {
            (_, Phase::Over) => {}
            (Verdict::Spoilt(why), _) => {
                self.spoilt += 1;
                self.spoilt_at_rate += 1;
                // Before the first kept step, the rate itself may spoil every attempt, if clients cannot offer so high a
                // rate.
                if self.spoilt_at_rate > SPOILT_MAX && !self.restart_lower() {
                    self.end(Some(format!("{why}, {} times at {:.0}/s", self.spoilt_at_rate, self.rate)));
                }
            }
            (_, Phase::Probing) => {
                self.spoilt_at_rate = 0;
                self.record_probe(*verdict == Verdict::Kept);
            }
            (_, Phase::Stepping) => {
                self.spoilt_at_rate = 0;
                self.record_step(*verdict == Verdict::Kept);
            }
        }
    }

    /// Ends the ramp at its present rate, for an external reason.
    pub fn give_up(&mut self, why: &str) {
        if self.phase != Phase::Over {
            self.end(Some(why.to_owned()));
        }
    }

    /// The result so far.
    pub fn goodput(&self) -> Goodput {
        self.goodput
    }

    /// Number of spoilt probes and steps.
    pub fn spoilt(&self) -> u32 {
        self.spoilt
    }

    /// Why the result must not be cited; `None` if it may be.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn record_probe(&mut self, kept: bool) {
        match (kept, self.kept_probe) {
            // Go up until a probe fails.
            (true, _) if !self.probe_failed && self.rate < self.limit => {
                self.kept_probe = Some(self.rate);
                self.rate = (self.rate * PROBE_FACTOR).min(self.limit);
            }
            // A full step may fail where a short probe kept the SLA: begin one step below.
            (true, _) => self.begin_steps(self.rate / STEP_FACTOR),
            (false, Some(kept)) if !self.probe_failed => {
                self.probe_failed = true;
                self.rate = kept * BETWEEN_FACTOR;
            }
            (false, Some(kept)) => self.begin_steps(kept / STEP_FACTOR),
            // The start was too high: go down until a probe is kept.
            (false, None) if self.rate > self.floor => {
                self.probe_failed = true;
                self.rate = (self.rate / PROBE_FACTOR).max(self.floor);
            }
            (false, None) => self.begin_steps(self.floor),
        }
    }

    /// Restarts at a lower rate, if no step was kept yet and the rate is above the floor. Returns whether it restarted.
    fn restart_lower(&mut self) -> bool {
        let is_first_step = self.phase == Phase::Stepping && self.goodput.kept_per_s.is_none();
        let may_restart = is_first_step && self.restarts < RESTARTS_MAX && self.rate > self.floor;
        if may_restart {
            self.restarts += 1;
            self.spoilt_at_rate = 0;
            self.rate = (self.rate * BACK_FACTOR).max(self.floor);
        }
        may_restart
    }

    fn begin_steps(&mut self, rate: f64) {
        self.phase = Phase::Stepping;
        self.rate = rate.max(self.floor);
    }

    fn record_step(&mut self, kept: bool) {
        if !kept {
            // If this was the first step, the ramp began too high.
            if self.restart_lower() {
                return;
            }
            self.goodput.failed_per_s = Some(self.rate);
            return self.end(None);
        }
        self.goodput.kept_per_s = Some(self.rate);
        if self.rate >= self.limit {
            return self
                .end(Some(format!("the SLA is still kept at {:.0}/s, where the ramp ends", self.limit)));
        }
        self.rate = (self.rate * STEP_FACTOR).min(self.limit);
    }

    fn end(&mut self, trouble: Option<String>) {
        self.phase = Phase::Over;
        self.trouble = trouble;
    }
}

impl fmt::Display for Goodput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kept_per_s {
            Some(rate) => write!(f, "{rate:.0}/s"),
            None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a ramp on a server that keeps its SLA up to `capacity`. Returns the ramp and all of its actions.
    fn run_on(mut ramp: Ramp, capacity: f64) -> (Ramp, Vec<Next>) {
        let mut actions = Vec::new();
        loop {
            let next = ramp.next();
            let (Next::Probe(rate) | Next::Step(rate)) = next else { return (ramp, actions) };
            actions.push(next);
            ramp.record(if rate <= capacity { &Verdict::Kept } else { &Verdict::Failed });
        }
    }

    fn steps(actions: &[Next]) -> Vec<f64> {
        actions
            .iter()
            .filter_map(|next| if let Next::Step(rate) = next { Some(*rate) } else { None })
            .collect()
    }

    #[test]
    fn a_search_ends_within_five_percent_below_the_capacity() {
        for capacity in [450.0, 1_000.0, 2_960.0, 3_100.0, 15_999.0, 31_000.0] {
            let (ramp, actions) = run_on(Ramp::searching(1_000.0, 100.0, 60_000.0), capacity);
            let goodput = ramp.goodput();
            let kept = goodput.kept_per_s.unwrap();
            assert!(kept <= capacity && kept * 1.0501 > capacity, "{kept} for {capacity}");
            assert!(goodput.failed_per_s.unwrap() > capacity);
            assert!(steps(&actions).windows(2).all(|pair| pair[1] <= pair[0] * 1.0501), "{actions:?}");
            assert!(actions.len() < 20, "{} steps for {capacity}", actions.len());
            assert_eq!(ramp.trouble(), None);
        }
    }

    #[test]
    fn a_ramp_stops_at_the_first_failure() {
        let mut ramp = Ramp::stepping(1_000.0, 100.0, 9_000.0);
        ramp.record(&Verdict::Kept);
        ramp.record(&Verdict::Failed);
        assert_eq!(ramp.next(), Next::Done);
        assert_eq!(ramp.goodput(), Goodput { kept_per_s: Some(1_000.0), failed_per_s: Some(1_050.0) });
    }

    #[test]
    fn a_ramp_that_starts_too_high_restarts_lower() {
        let (ramp, _) = run_on(Ramp::stepping(3_000.0, 100.0, 60_000.0), 2_000.0);
        let kept = ramp.goodput().kept_per_s.unwrap();
        assert!((1_900.0..=2_000.0).contains(&kept), "{kept}");
    }

    #[test]
    fn a_system_that_never_keeps_its_sla_has_no_goodput() {
        let (ramp, actions) = run_on(Ramp::searching(1_000.0, 100.0, 60_000.0), 0.0);
        assert_eq!(ramp.goodput().kept_per_s, None);
        assert!(actions.len() < 20, "{actions:?}");
    }

    #[test]
    fn a_ramp_that_reaches_its_limit_has_trouble() {
        let (ramp, _) = run_on(Ramp::searching(1_000.0, 100.0, 5_000.0), 1e9);
        assert_eq!(ramp.goodput().kept_per_s, Some(5_000.0));
        assert_eq!(ramp.goodput().failed_per_s, None);
        assert!(ramp.trouble().unwrap().contains("still kept"));
    }

    #[test]
    fn a_ramp_that_is_given_up_keeps_the_reason() {
        let mut ramp = Ramp::stepping(1_000.0, 100.0, 9_000.0);
        ramp.record(&Verdict::Kept);
        ramp.give_up("no time left");
        assert_eq!((ramp.next(), ramp.trouble()), (Next::Done, Some("no time left")));
        assert_eq!(ramp.goodput().kept_per_s, Some(1_000.0));
    }

    #[test]
    fn a_ramp_restarts_lower_if_all_attempts_at_its_first_step_are_spoilt() {
        let mut ramp = Ramp::stepping(10_000.0, 100.0, 90_000.0);
        for _ in 0..=SPOILT_MAX {
            assert_eq!(ramp.next(), Next::Step(10_000.0));
            ramp.record(&Verdict::Spoilt("the clients lagged".into()));
        }
        assert_eq!(ramp.next(), Next::Step(8_500.0));
        ramp.record(&Verdict::Kept);
        for _ in 0..=SPOILT_MAX {
            ramp.record(&Verdict::Spoilt("the clients lagged".into()));
        }
        assert_eq!((ramp.next(), ramp.goodput().kept_per_s), (Next::Done, Some(8_500.0)));
    }

    #[test]
    fn a_spoilt_step_is_repeated_at_most_spoilt_max_times() {
        let mut ramp = Ramp::stepping(1_000.0, 100.0, 9_000.0);
        let spoilt = Verdict::Spoilt("the generator lagged".into());
        for _ in 0..SPOILT_MAX {
            ramp.record(&spoilt);
            assert_eq!(ramp.next(), Next::Step(1_000.0));
        }
        ramp.record(&Verdict::Kept);
        assert_eq!(ramp.next(), Next::Step(1_050.0));
        for _ in 0..=SPOILT_MAX {
            ramp.record(&spoilt);
        }
        assert_eq!((ramp.next(), ramp.spoilt()), (Next::Done, 2 * SPOILT_MAX + 1));
        assert_eq!(ramp.trouble(), Some("the generator lagged, 6 times at 1050/s"));
        assert_eq!(ramp.goodput().kept_per_s, Some(1_000.0));
    }
}
