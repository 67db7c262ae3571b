//! A look at a group: latencies of replies and of outstanding requests.

use core::time::Duration;

use spillway_transport::Time;

use super::comparison::highest_permille;
use super::member::{Carrier, Members};
use super::notice::Figures;
use super::settings::ActivationSettings;
use crate::histogram::bucket;
use crate::window::Window;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// p99 is over the SLA in the window, and either in the window's latest slices or because of outstanding requests.
    Late,
    /// p99 is over the SLA in the window, but not in the window's latest slices.
    Easing,
    /// p99 is over the SLA in the window, and the window's latest slices have no replies.
    Silent,
    /// p99 is within the SLA, and no request has waited for longer than the SLA.
    Calm,
    /// Too few requests for a verdict; or p99 is within the SLA, but a request has waited for longer than the SLA.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub verdict: Verdict,
    pub figures: Figures,
    /// The latency at the highest quantile for which there are enough samples.
    pub high: Option<Duration>,
}

impl View {
    /// Whether p99 is over the SLA and does not ease.
    pub fn is_late(&self) -> bool {
        matches!(self.verdict, Verdict::Late | Verdict::Silent)
    }

    /// Whether any request is late.
    pub fn has_late(&self) -> bool {
        self.figures.late + self.figures.waiting > 0
    }

    /// Whether p99 is within the SLA or unknown, and no request has waited for longer than the SLA.
    pub fn is_calm(&self) -> bool {
        matches!(self.verdict, Verdict::Calm | Verdict::Unknown) && self.figures.waiting == 0
    }

    /// Whether there are neither replies nor late outstanding requests.
    pub fn is_idle(&self) -> bool {
        self.figures.replies == 0 && self.figures.waiting == 0
    }
}

/// One window for direct and one for helped members, because only late requests of direct members lead to a move to
/// helpers.
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

    pub fn on(&self, side: Carrier) -> &Window {
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

    /// Replies in both windows.
    pub fn count(&self) -> u64 {
        self.direct.count() + self.helped.count()
    }

    pub fn length(&self) -> Duration {
        self.direct.length()
    }
}

/// Judges replies and outstanding requests: a window with few replies and many outstanding requests is not calm.
pub(super) fn view(
    now: Time,
    windows: &Windows,
    side: Carrier,
    members: &Members,
    settings: &ActivationSettings,
) -> View {
    let window = windows.on(side);
    if window.count() == 0 && members.waiting() == 0 {
        let figures = Figures { within: windows.length(), ..Figures::default() };
        return View { verdict: Verdict::Unknown, figures, high: None };
    }
    let mut all = window.merged().clone();
    let mut waiting = 0;
    let waits = members.iter().filter(|(_, state)| state.carrier == side);
    let waits = waits.filter_map(|(_, state)| state.waited(now));
    for waited in waits.filter(|waited| *waited > settings.sla) {
        // A request that has waited for the whole window counts as several, because it delays later ones.
        let weight = if waited >= window.length() { settings.samples_min } else { 1 };
        waiting += u64::from(weight);
        all.add(bucket(waited), weight);
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
    View { verdict, figures, high: all.quantile(highest_permille(all.count())) }
}
