//! Moves of a connection from one carrier to another.

use std::time::Instant;

use crate::LinkTarget;
use crate::connection::{CarrierMut, Connection};
use crate::direct::Direct;
use crate::error::MoveError;
use crate::event::{Carrier, Event};
use crate::link::{Ended, Link};
use crate::network::Network;
use crate::settings::Route;
use crate::stage::{Moving, Stage};
use crate::watch::Slot;

impl<N: Network> Connection<N> {
    /// Moves the connection. Call it after the last expected reply. `send` accepts no bytes until [`Event::Moved`] or
    /// [`Event::MoveFailed`], which may follow at once.
    pub fn begin_move(&mut self, now: Instant, route: Route<'_>) -> Result<(), MoveError> {
        self.check_no_bytes_pending()?;
        self.start(now, route, true)
    }

    /// Establishes a carrier while the old one stays in use. [`Event::Prepared`] or [`Event::MoveFailed`] follows.
    /// After `Prepared`, call [`complete_move`](Self::complete_move) as soon as no reply is pending.
    pub fn prepare_move(&mut self, now: Instant, route: Route<'_>) -> Result<(), MoveError> {
        self.start(now, route, false)
    }

    /// Switches to the prepared carrier at once. Refused while bytes are unsent or unread.
    pub fn complete_move(&mut self) -> Result<(), MoveError> {
        if self.moving.as_ref().is_none_or(|moving| moving.stage != Stage::Prepared) {
            return Err(MoveError::NotPrepared);
        }
        self.check_may_leave()?;
        self.switch();
        Ok(())
    }

    /// Cancels a move. The carrier in use does not change.
    pub fn cancel_move(&mut self) {
        if let Some(moving) = self.moving.take() {
            self.discard(moving.to);
        }
    }

    /// Gives up a carrier that is lost or does not answer. Pending replies are lost, and the outcome of their requests
    /// is unknown. Then call [`begin_move`](Self::begin_move): to another helper at once, to the server after a
    /// [wait](spillway_session::Pace::wait), because many clients lose a helper at the same time.
    pub fn discard_carrier(&mut self) {
        if let Some(slot) = self.active.take() {
            self.discard(slot);
        }
    }

    /// Whether a move is in progress or prepared.
    pub fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// Closes an idle direct connection.
    pub fn close_idle_direct(&mut self) {
        let in_use = self.active == Some(Slot::Direct)
            || self.moving.as_ref().is_some_and(|moving| moving.to == Slot::Direct);
        if !in_use {
            self.direct = None;
        }
    }

    /// A stream that has ended on its carrier would begin again on another one.
    fn check_not_finished(&mut self) -> Result<(), MoveError> {
        let has_finished = match self.active.map(|slot| self.carrier_mut(slot)) {
            Some(CarrierMut::Direct(direct)) => direct.has_finished(),
            Some(CarrierMut::Link(link)) => link.has_finished(),
            Some(CarrierMut::None) | None => false,
        };
        if has_finished { Err(MoveError::Finished) } else { Ok(()) }
    }

    /// Whether the connection may leave its carrier now.
    fn check_may_leave(&mut self) -> Result<(), MoveError> {
        self.check_not_finished()?;
        self.check_no_bytes_pending()
    }

    fn check_no_bytes_pending(&mut self) -> Result<(), MoveError> {
        match self.active.map(|slot| self.carrier_mut(slot)) {
            Some(CarrierMut::Direct(direct)) if direct.has_unread() => Err(MoveError::Unread),
            Some(CarrierMut::Link(link)) => {
                let (unsent, unread) = (link.unsent(), link.has_unread());
                if unread {
                    self.events.set_readable();
                    Err(MoveError::Unread)
                } else if unsent > 0 && link.poll_ended().is_none() {
                    Err(MoveError::Unsent(unsent))
                } else {
                    Ok(())
                }
            }
            _ => Ok(()),
        }
    }

    fn start(&mut self, now: Instant, route: Route<'_>, switches_when_ready: bool) -> Result<(), MoveError> {
        if self.moving.is_some() {
            return Err(MoveError::Moving);
        }
        self.check_not_finished()?;
        let (to, target) = match route {
            Route::Direct => self.start_direct()?,
            Route::Link(target) => self.start_link(now, target)?,
        };
        let stage = Stage::Connecting { deadline: now + self.settings.connect_timeout };
        self.moving = Some(Moving { to, target, switches_when_ready, stage });
        // On loopback, or with a kept direct connection, the carrier may be ready at once.
        self.advance_move(now);
        Ok(())
    }

    fn start_direct(&mut self) -> Result<(Slot, Carrier), MoveError> {
        let server = self.server.ok_or(MoveError::NoServer)?;
        if self.active == Some(Slot::Direct) && self.direct.as_ref().is_some_and(Direct::is_usable) {
            return Err(MoveError::SameCarrier);
        }
        let is_reusable = self.active != Some(Slot::Direct)
            && self.direct.as_ref().is_some_and(|direct| direct.check_idle().is_ok());
        if !is_reusable {
            self.direct = Some(Direct::start(&self.network, server)?);
            if self.active == Some(Slot::Direct) {
                self.active = None;
            }
        }
        Ok((Slot::Direct, Carrier::Direct(server)))
    }

    fn start_link(&mut self, now: Instant, target: &LinkTarget) -> Result<(Slot, Carrier), MoveError> {
        let to = if self.active == Some(Slot::LinkA) { Slot::LinkB } else { Slot::LinkA };
        let randomness = spillway_keys::fresh_link_randomness()?;
        let link = Link::start(&self.network, self.time(now), target, &self.settings, randomness)?;
        if let Some(index) = to.link() {
            self.links[index] = Some(Box::new(link));
        }
        Ok((to, Carrier::Link(target.address)))
    }

    pub(crate) fn advance_move(&mut self, now: Instant) {
        let time = self.time(now);
        let Some(Moving { to, stage, .. }) = &self.moving else { return };
        let (to, stage) = (*to, *stage);
        if stage == Stage::Prepared {
            return self.check_prepared(to);
        }
        let outcome = match self.carrier_mut(to) {
            CarrierMut::Direct(direct) => direct.advance().map_err(MoveError::from),
            CarrierMut::Link(link) => link.advance(time),
            CarrierMut::None => return,
        };
        match outcome {
            Ok(true) => self.handle_carrier_ready(),
            Ok(false) => self.start_accept_timeout(now, to),
            Err(why) => self.fail_move(why),
        }
    }

    /// Starts the accept timeout if the TCP connection of a link is established.
    fn start_accept_timeout(&mut self, now: Instant, to: Slot) {
        let connected = matches!(self.carrier_mut(to), CarrierMut::Link(link) if link.is_connected());
        let deadline = now + self.settings.accept_timeout;
        if let Some(Moving { stage, .. }) = &mut self.moving
            && matches!(stage, Stage::Connecting { .. })
            && connected
        {
            *stage = Stage::Accepting { deadline };
        }
    }

    fn handle_carrier_ready(&mut self) {
        let Some(moving) = &mut self.moving else { return };
        moving.stage = Stage::Prepared;
        if !moving.switches_when_ready {
            let target = moving.target;
            return self.events.set_move_outcome(Event::Prepared(target));
        }
        match self.check_may_leave() {
            Ok(()) => self.switch(),
            Err(why) => self.fail_move(why),
        }
    }

    /// Handles readiness of a prepared carrier: fails the move if the carrier has ended.
    fn check_prepared(&mut self, to: Slot) {
        let failure = match self.carrier_mut(to) {
            CarrierMut::Direct(direct) => direct.check_prepared().err().map(MoveError::from),
            CarrierMut::Link(link) => {
                // The call also receives and holds early data of the server.
                link.has_unread();
                match link.poll_ended() {
                    Some(Ended::Refused(reason)) => Some(MoveError::Refused(reason)),
                    Some(Ended::Broken(error)) => Some(MoveError::Link(error)),
                    Some(_) => Some(MoveError::Closed),
                    None => None,
                }
            }
            CarrierMut::None => None,
        };
        if let Some(why) = failure {
            self.fail_move(why);
        }
    }

    fn switch(&mut self) {
        let Some(moving) = self.moving.take() else { return };
        match self.active.replace(moving.to) {
            Some(Slot::Direct) if moving.to != Slot::Direct => {
                let keep = self.settings.keep_direct && self.direct.as_ref().is_some_and(Direct::is_usable);
                match &mut self.direct {
                    Some(direct) if keep => direct.set_idle(),
                    direct => *direct = None,
                }
            }
            Some(link) if link != moving.to => self.discard(link),
            _ => {}
        }
        match self.carrier_mut(moving.to) {
            CarrierMut::Direct(direct) => direct.set_in_use(),
            CarrierMut::Link(link) => link.in_use = true,
            CarrierMut::None => {}
        }
        self.events.set_move_outcome(Event::Moved(moving.target));
        self.collect_events(moving.to);
    }

    fn fail_move(&mut self, why: MoveError) {
        if let Some(moving) = self.moving.take() {
            self.discard(moving.to);
            self.events.set_move_outcome(Event::MoveFailed { to: moving.target, why });
        }
    }

    fn discard(&mut self, slot: Slot) {
        match slot.link() {
            None => self.direct = None,
            Some(index) => self.links[index] = None,
        }
    }

    pub(crate) fn move_timeout(&mut self, now: Instant) {
        let why = match self.moving.as_ref().map(|moving| moving.stage) {
            Some(Stage::Connecting { deadline }) if deadline <= now => {
                MoveError::ConnectTimeout(self.settings.connect_timeout)
            }
            Some(Stage::Accepting { deadline }) if deadline <= now => {
                MoveError::AcceptTimeout(self.settings.accept_timeout)
            }
            _ => return,
        };
        self.fail_move(why);
    }
}
