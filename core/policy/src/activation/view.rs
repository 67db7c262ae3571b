//! What a group looks like now.

use core::time::Duration;

use spillway_transport::Time;

use super::comparison::carried_by;
use super::member::{Carrier, Members};
use super::notice::Figures;
use super::settings::ActivationSettings;
use crate::histogram::bucket;
use crate::window::Window;

/// What a look finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// p99 is over the SLA, and lately too.
    Late,
    /// It was, but what came lately is in time.
    Easing,
    /// It was, and nothing came since.
    Silent,
    /// Within the SLA, and nothing waits for long.
    Calm,
    /// Too few requests to say.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub verdict: Verdict,
    pub figures: Figures,
    /// The highest quantile that so many samples carry.
    pub high: Option<Duration>,
}

impl View {
    /// One in a hundred requests or more is late.
    pub fn is_late(&self) -> bool {
        matches!(self.verdict, Verdict::Late | Verdict::Silent)
    }

    /// Something is late, or may be.
    pub fn has_late(&self) -> bool {
        self.figures.late + self.figures.waiting > 0
    }

    /// Nothing is late, as far as there is anything.
    pub fn is_calm(&self) -> bool {
        matches!(self.verdict, Verdict::Calm | Verdict::Unknown) && self.figures.waiting == 0
    }

    /// Nothing asked, nothing awaited.
    pub fn is_idle(&self) -> bool {
        self.figures.replies == 0 && self.figures.waiting == 0
    }
}

/// The windows of a group: direct and helped requests told apart, for help is called when *direct* ones are late.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    direct: Window,
    helped: Window,
}

impl Windows {
    pub fn new(settings: &ActivationSettings) -> Windows {
        let window = Window::new(settings.sla, settings.window, settings.slice);
        Windows { direct: window.clone(), helped: window }
    }

    pub fn of(&self, side: Carrier) -> &Window {
        match side {
            Carrier::Direct => &self.direct,
            Carrier::Helped => &self.helped,
        }
    }

    pub fn record(&mut self, now: Time, latency: Duration, side: Carrier) {
        match side {
            Carrier::Direct => self.direct.record(now, latency),
            Carrier::Helped => self.helped.record(now, latency),
        }
    }

    pub fn advance(&mut self, now: Time) {
        self.direct.advance(now);
        self.helped.advance(now);
    }

    pub fn clear(&mut self) {
        self.direct.clear();
        self.helped.clear();
    }

    /// Replies on both sides.
    pub fn count(&self) -> u64 {
        self.direct.count() + self.helped.count()
    }

    pub fn length(&self) -> Duration {
        self.direct.length()
    }
}

/// Looks at replies and at what still waits: a window in which little is answered while much waits is not calm.
pub(super) fn view(
    now: Time,
    windows: &Windows,
    side: Carrier,
    members: &Members,
    settings: &ActivationSettings,
) -> View {
    let window = windows.of(side);
    if window.count() == 0 && members.waiting() == 0 {
        let figures = Figures { within: windows.length(), ..Figures::default() };
        return View { verdict: Verdict::Unknown, figures, high: None };
    }
    let mut all = window.merged().clone();
    let mut waiting = 0;
    let waits = members.iter().filter(|(_, standing)| standing.carrier == side);
    let waits = waits.filter_map(|(_, standing)| standing.waits(now));
    for waits in waits.filter(|waits| *waits > settings.sla) {
        // One that has waited for the whole window stands for those that could not be asked meanwhile.
        let weight = if waits >= window.length() { settings.samples_min } else { 1 };
        waiting += u64::from(weight);
        all.add(bucket(waits), weight);
    }
    let (replies, late) = (window.count(), window.late());
    let is_over =
        late + waiting >= u64::from(settings.late_min) && (late + waiting) * 100 > replies + waiting;
    let (recent, recent_late) = window.recent(1);
    let verdict = if all.count() < u64::from(settings.samples_min) {
        Verdict::Unknown
    } else if !is_over {
        if waiting == 0 { Verdict::Calm } else { Verdict::Unknown }
    } else if waiting > 0 || recent_late * 100 > recent {
        Verdict::Late
    } else if recent == 0 {
        Verdict::Silent
    } else {
        Verdict::Easing
    };
    let (p99, p50) = (all.quantile(990), all.quantile(500));
    let figures = Figures { p99, p50, replies, late, waiting, within: window.length() };
    View { verdict, figures, high: all.quantile(carried_by(all.count())) }
}
