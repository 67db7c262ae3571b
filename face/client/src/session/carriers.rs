//! Which carrier a session has: coming to one, looking after it, leaving it for the next.

use std::time::{Duration, Instant};

use spillway_session::Doubt;

use super::way::Way;
use super::{CarrierLoss, Session, SessionEvent};

impl Session {
    /// Another carrier is wanted: the next route is tried.
    pub(super) fn lose(&mut self, now: Instant, why: CarrierLoss) {
        let tried = self.targets.get(self.routes.at()).map(|target| target.address);
        let address = self.way.as_ref().map(|way| way.target).or(tried);
        if address.is_some_and(|address| self.is_own(address)) {
            self.absence.own_lost(now, &why);
        }
        self.leave(now, why);
        if self.machine.is_over() {
            return;
        }
        let (time, jitter) = (self.time(now), &mut self.jitter);
        let next = self.routes.lost(time, || jitter.fraction());
        self.retry_at = Some(self.instant(next.at));
    }

    pub(super) fn leave(&mut self, now: Instant, why: CarrierLoss) {
        if let Some(way) = self.way.take() {
            self.tell(SessionEvent::CarrierLost { address: way.target, why });
        }
        self.departure = None;
        self.machine.detach();
        self.detached_since.get_or_insert(now);
    }

    /// The carrier wants to go away within this time.
    pub(super) fn drained(&mut self, now: Instant, deadline_ms: u32) -> Result<(), CarrierLoss> {
        if self.stays() {
            return Ok(());
        }
        let deadline = Duration::from_millis(deadline_ms.into());
        let time = self.time(now);
        match self.routes.drained(time, deadline, self.jitter.fraction()) {
            Some(until) if self.machine.is_attached() => {
                self.departure = Some((self.instant(until), None));
                Ok(())
            }
            _ => Err(CarrierLoss::Drain),
        }
    }

    /// The server wants the session elsewhere within this time: with a helper, or without.
    pub(super) fn sent_away(&mut self, now: Instant, deadline_ms: u32) {
        if self.stays() {
            return;
        }
        let deadline = Duration::from_millis(deadline_ms.into());
        let (time, chance) = (self.time(now), self.jitter.fraction());
        if let Some(away) = self.routes.sent_away(time, deadline, chance) {
            self.departure = Some((self.instant(away.at), Some(away.route)));
        }
    }

    /// Whether the session ends on this carrier: it has closed, and the server's answer comes here.
    fn stays(&self) -> bool {
        self.machine.is_closed_here() && self.machine.is_attached()
    }

    /// It is time to leave a carrier that is still there.
    pub(super) fn depart(&mut self, now: Instant, route: Option<usize>) {
        let Some(route) = route else { return self.lose(now, CarrierLoss::Drain) };
        self.leave(now, CarrierLoss::SentAway);
        self.routes.choose(route);
        self.retry_at = Some(now);
    }

    /// It is this session's turn to return to the server: no helper has answered meanwhile.
    pub(super) fn take_turn(&mut self, now: Instant) {
        let time = self.time(now);
        if self.machine.is_attached() || self.routes.take_turn(time).is_none() {
            return;
        }
        if let Some(way) = &self.way {
            let silent =
                self.settings.attach_timeout.saturating_sub(way.deadline.saturating_duration_since(now));
            self.leave(now, CarrierLoss::Silent(silent));
        }
        self.retry_at = Some(now);
    }

    pub(super) fn start(&mut self, now: Instant) {
        let (time, local_port) = (self.time(now), self.local_port.take());
        let target = &self.targets[self.routes.at()];
        let started = Way::start((now, time), target, local_port, self.settings.attach_timeout);
        match started {
            Ok(way) => {
                self.way = Some(way);
                // On loopback it may be there already.
                self.handle_ready(now);
            }
            Err(error) => self.lose(now, CarrierLoss::Socket(error)),
        }
    }

    /// Leaves a carrier that is silent for too long.
    pub(super) fn look_after(&mut self, now: Instant) {
        let time = self.time(now);
        let Some(way) = &mut self.way else { return };
        if !self.machine.is_attached() {
            if way.deadline <= now {
                self.lose(now, CarrierLoss::Silent(self.settings.attach_timeout));
            }
            return;
        }
        let silent = self.vigil.timeout();
        match self.vigil.poll(time) {
            Some(Doubt::Ask) => way.ask(&mut self.machine),
            Some(Doubt::Leave) => self.lose(now, CarrierLoss::Silent(silent)),
            None => {}
        }
    }
}
