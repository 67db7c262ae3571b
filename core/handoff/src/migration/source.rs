//! One move as its source sees it.
//!
//! ```text
//! Asking --prepared--> Exporting --state--> Sending --owned--> moved
//!    |                     |                   | refused, or no answer in time
//!    | no answer in time   | nothing to export v
//!    v                     v                InDoubt --own: ok--> returned
//! Settling --own: ok--> kept                   | otherwise: moved, or let go
//!
//! Sending, InDoubt --the switch has lost its entries--> Stranded --refused--> returned
//!                                                          | accepted: moved. No answer in time: let go
//! ```
//!
//! The entry decides: a source in doubt continues the connection only after *own* was confirmed. Without entries the target
//! decides: one that has refused will never own the flow.

use spillway_transport::Time;
use spillway_wire::Chunks;
use spillway_wire::handoff::{Body, Reason, Received};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Flow, FlowState, Import, Request, Site, Status};

use super::{ATTEMPTS, MoveTimes, Seen};
use crate::buffer::HeldFrames;
use crate::event::Obstacle;
use crate::transfer::{Due, Parts, Sending, Window};

/// How a move ended for its source, or what the source waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The target is ready: export the connection, then call [`Source::exported`] or [`Source::not_exported`].
    Export,
    /// The connection stays, and is not exported. The generation is the entry's; 0: no entry.
    Kept { generation: u64 },
    /// The exported connection comes back: the source owns the flow.
    Returned { generation: u64 },
    /// The target has the connection.
    Moved,
    /// The entry does not confirm that the source owns the flow: its copy must not be continued.
    LetGo,
}

/// Where the exported state goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The generation of the flow's entry, which is held for the target.
    pub(crate) generation: u64,
    pub(crate) target: Site,
}

#[derive(Debug)]
enum Phase {
    Asking {
        attempts: u32,
    },
    /// The move has failed before the export. The entry may still be asked or held: `own` names its generation.
    Settling {
        own: Option<u64>,
    },
    Exporting(Destination),
    Sending(Destination, Sending),
    InDoubt(Destination, Chunks),
    /// The switch has lost the entry. Until this time the source asks the target whether it has the connection.
    Stranded(Destination, Parts, Time),
}

/// A move on its source.
#[derive(Debug)]
pub(crate) struct Source {
    flow: Flow,
    /// The generation that *prepare* replaces.
    replaces: u64,
    site: Option<Site>,
    times: MoveTimes,
    phase: Phase,
    next_at: Time,
    /// The target that was ready, with the generation of the entry held for it.
    destination: Option<Destination>,
    /// Why the target has refused the connection.
    refusal: Option<Reason>,
    /// What has prevented the export.
    obstacle: Option<Obstacle>,
    /// The target has begun a new run since the export: it no longer knows whether it had the connection.
    is_target_new: bool,
    /// Frames that the target has returned after the export.
    pub(crate) held: HeldFrames,
}

impl Source {
    /// Begins a move. `site`: the target's; `None` lets the switch choose the least loaded target. `replaces`: the entry's
    /// generation, or 0 without an entry.
    pub(crate) fn new(
        now: Time,
        flow: Flow,
        replaces: u64,
        site: Option<Site>,
        (times, held): (MoveTimes, HeldFrames),
    ) -> Source {
        let phase = Phase::Asking { attempts: 0 };
        Source {
            flow,
            replaces,
            site,
            times,
            phase,
            next_at: now,
            destination: None,
            refusal: None,
            obstacle: None,
            is_target_new: false,
            held,
        }
    }

    /// Takes a flow back whose entry is held for a target by a move that the source has given up.
    pub(crate) fn settle(now: Time, flow: Flow, to: Destination, parts: (MoveTimes, HeldFrames)) -> Source {
        let (phase, destination) = (Phase::Settling { own: Some(to.generation) }, Some(to));
        Source { phase, destination, ..Source::new(now, flow, to.generation, None, parts) }
    }

    /// When to call [`poll`](Self::poll) and [`poll_part`](Self::poll_part).
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match &self.phase {
            Phase::Exporting(_) => None,
            Phase::Sending(_, sending) if sending.is_complete() => Some(self.next_at),
            Phase::Sending(_, sending) => sending.poll_timeout(),
            Phase::Asking { .. } | Phase::Settling { .. } | Phase::InDoubt(..) | Phase::Stranded(..) => {
                Some(self.next_at)
            }
        }
    }

    /// The exported state, if the source has one.
    pub(crate) fn state(&self) -> Option<&Chunks> {
        match &self.phase {
            Phase::Sending(_, sending) => Some(sending.state()),
            Phase::Stranded(_, parts, _) => Some(parts.state()),
            Phase::InDoubt(_, state) => Some(state),
            Phase::Asking { .. } | Phase::Settling { .. } | Phase::Exporting(_) => None,
        }
    }

    /// The target that was ready; `None` before *prepared*.
    pub(crate) fn destination(&self) -> Option<Destination> {
        self.destination
    }

    /// Why the target has refused the state, if it has.
    pub(crate) fn refusal(&self) -> Option<Reason> {
        self.refusal
    }

    /// What has prevented the export.
    pub(crate) fn obstacle(&self) -> Obstacle {
        match (self.obstacle, self.refusal) {
            (None | Some(Obstacle::Target(_) | Obstacle::Silence), Some(reason)) => {
                Obstacle::Target(Some(reason))
            }
            (obstacle, _) => obstacle.unwrap_or(Obstacle::Silence),
        }
    }

    /// Whether the target has not said in time whether it has the connection, whose entry the switch has lost.
    pub(crate) fn is_expired(&self, now: Time) -> bool {
        matches!(self.phase, Phase::Stranded(_, _, until) if now >= until)
    }

    /// The request to the switch that is due, if any.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Request> {
        if now < self.next_at {
            return None;
        }
        match &mut self.phase {
            Phase::Asking { attempts } if *attempts < ATTEMPTS => {
                self.next_at = now + self.times.interval(*attempts);
                *attempts += 1;
            }
            Phase::Asking { .. } => {
                (self.phase, self.next_at) = (Phase::Settling { own: None }, now + self.times.asking());
            }
            // The target has acknowledged the whole state, and has not answered in time.
            Phase::Sending(_, sending) if sending.is_complete() => self.doubt(now),
            Phase::Sending(..) | Phase::Exporting(_) | Phase::Stranded(..) => return None,
            Phase::Settling { .. } | Phase::InDoubt(..) => {}
        }
        let flow = self.flow;
        Some(match &self.phase {
            Phase::Asking { .. } => Request::Prepare {
                flow,
                replaces: self.replaces,
                target: self.site,
                lifetime_ms: self.times.lifetime_ms(),
            },
            Phase::Settling { own: None } => {
                self.next_at = now + self.times.asking();
                Request::Get { flow }
            }
            Phase::Settling { own: Some(replaces) } => {
                self.next_at = now + self.times.asking();
                Request::Own { flow, replaces: *replaces }
            }
            Phase::InDoubt(to, _) => {
                self.next_at = now + self.times.asking();
                Request::Own { flow, replaces: to.generation }
            }
            Phase::Exporting(_) | Phase::Sending(..) | Phase::Stranded(..) => return None,
        })
    }

    /// The message for the target that is due, if any: a part of the state. The first part is also the question whether the
    /// target has the connection: a target that does not await it answers *accepted* or *refused*.
    pub(crate) fn poll_part(&mut self, now: Time) -> Option<(Destination, Body<'_>)> {
        if let Phase::Stranded(to, ..) = self.phase {
            if now < self.next_at {
                return None;
            }
            self.next_at = now + self.times.asking();
            let Phase::Stranded(_, parts, _) = &mut self.phase else { return None };
            return Some((to, parts.body(0)?));
        }
        let Phase::Sending(_, sending) = &mut self.phase else { return None };
        let number = match sending.poll(now)? {
            Due::Part(number) => number,
            Due::Failed => {
                self.doubt(now);
                return None;
            }
        };
        let Phase::Sending(to, sending) = &mut self.phase else { return None };
        Some((*to, sending.body(number)?))
    }

    /// The source does not know whether the target has the state: from now on only the entry decides.
    pub(crate) fn doubt(&mut self, now: Time) {
        if let Phase::Sending(to, sending) = &self.phase {
            (self.phase, self.next_at) = (Phase::InDoubt(*to, sending.state().clone()), now);
        }
    }

    /// The target has begun a new run: from now on only the entry decides.
    pub(crate) fn handle_new_run(&mut self, now: Time) -> Option<Outcome> {
        // A move that was not exported has nothing that the target could have.
        self.is_target_new |= self.state().is_some();
        self.doubt(now);
        matches!(self.phase, Phase::Stranded(..)).then_some(Outcome::LetGo)
    }

    /// The target has these parts of the state.
    pub(crate) fn handle_received(&mut self, now: Time, of: u64, received: Received) {
        if let Phase::Sending(to, sending) = &mut self.phase
            && to.generation == of
            && !sending.is_complete()
        {
            sending.handle_received(now, received);
            if sending.is_complete() {
                self.next_at = now + self.times.all_attempts();
            }
        }
    }

    /// Handles a relayed *prepared*. A late copy from an earlier move has a generation of at most `replaces`, and is ignored.
    pub(crate) fn handle_prepared(&mut self, now: Time, generation: u64, import: Import) -> Option<Outcome> {
        let is_asking = matches!(self.phase, Phase::Asking { .. });
        if generation <= self.replaces || !is_asking && !matches!(self.phase, Phase::Settling { own: None }) {
            return None;
        }
        let Import::Ready(target) = import else {
            self.obstacle = Some(Obstacle::Target(None));
            return Some(Outcome::Kept { generation });
        };
        let to = Destination { generation, target };
        self.destination = Some(to);
        // That of an earlier move, or of a *prepare* that the target has accepted later.
        self.refusal = None;
        if is_asking {
            self.phase = Phase::Exporting(to);
            return Some(Outcome::Export);
        }
        (self.phase, self.next_at) = (Phase::Settling { own: Some(generation) }, now);
        None
    }

    /// Whether the switch has lost the flow's entry after the export, so that the target is asked.
    pub(crate) fn is_stranded(&self) -> bool {
        matches!(self.phase, Phase::Stranded(..))
    }

    /// Whether the driver is to export the connection.
    pub(crate) fn is_exporting(&self) -> bool {
        matches!(self.phase, Phase::Exporting(_))
    }

    /// The connection was exported. A state with too many parts comes back at once. `window`: that of the target.
    pub(crate) fn exported(&mut self, now: Time, state: Chunks, window: Window) {
        if let Phase::Exporting(to) = self.phase {
            self.next_at = now;
            self.phase = match Sending::new(now, state.clone(), self.times, window) {
                Some(sending) => Phase::Sending(to, sending),
                None => Phase::InDoubt(to, state),
            };
        }
    }

    /// The connection cannot be exported: the flow returns to the source.
    pub(crate) fn not_exported(&mut self, now: Time) {
        if let Phase::Exporting(to) = self.phase {
            self.obstacle = Some(Obstacle::NotExported);
            (self.phase, self.next_at) = (Phase::Settling { own: Some(to.generation) }, now);
        }
    }

    /// Handles *accepted*: the target owns the flow.
    pub(crate) fn handle_accepted(&self, of: u64) -> Option<Outcome> {
        let is_ours = self.state().is_some() && self.destination().is_some_and(|to| to.generation == of);
        is_ours.then_some(Outcome::Moved)
    }

    /// Handles *refused*: the target will not own the flow. Before the export it only states the reason; the message that the
    /// switch relays ends the move.
    pub(crate) fn handle_refused(&mut self, now: Time, of: u64, reason: Reason) -> Option<Outcome> {
        let is_ours = match self.destination {
            Some(to) => to.generation == of,
            None => of > self.replaces,
        };
        if !is_ours {
            return None;
        }
        // A target that has given the flow back answers later parts by *no such move*, which does not say why it has done so.
        if reason != Reason::NoMove || self.refusal.is_none() {
            self.refusal = Some(reason);
        }
        self.doubt(now);
        matches!(self.phase, Phase::Stranded(..)).then_some(Outcome::Returned { generation: 0 })
    }

    /// Whether a message of this server, with this Ethernet address, may be about the move.
    pub(crate) fn is_to(&self, mac: Mac) -> bool {
        match self.destination {
            Some(to) => to.target.mac() == mac,
            None => self.site.is_none_or(|site| site.mac() == mac),
        }
    }

    /// Handles the answer to *prepare*, *get* or *own*.
    pub(crate) fn handle_answer(&mut self, now: Time, seen: Seen) -> Option<Outcome> {
        if seen.status == Status::Replayed {
            return None;
        }
        match self.phase {
            Phase::Asking { .. } | Phase::Settling { .. } => self.handle_before_export(now, seen),
            Phase::InDoubt(..) => match (seen.status, seen.state) {
                (Status::Ok, FlowState::Owned) => Some(Outcome::Returned { generation: seen.generation }),
                // The server has no term at present: the request is repeated until it has one.
                (Status::NoOwner, _) => None,
                (_, FlowState::Owned) if !seen.is_ours => Some(Outcome::Moved),
                _ => Some(Outcome::LetGo),
            },
            Phase::Exporting(_) | Phase::Sending(..) | Phase::Stranded(..) => None,
        }
    }

    /// The switch has lost all entries. Until the time `until` the target is asked whether it has an exported connection:
    /// `None`.
    pub(crate) fn handle_lost_entries(&mut self, now: Time, until: Time) -> Option<Outcome> {
        let Some((to, state)) = self.destination.zip(self.state().cloned()) else {
            self.obstacle = Some(Obstacle::Restart);
            return Some(Outcome::Kept { generation: 0 });
        };
        if self.is_target_new {
            return Some(Outcome::LetGo);
        }
        if self.refusal.is_some() {
            return Some(Outcome::Returned { generation: 0 });
        }
        // A state with too many parts was never sent.
        let Some(parts) = Parts::new(state) else {
            return Some(Outcome::Returned { generation: 0 });
        };
        (self.phase, self.next_at) = (Phase::Stranded(to, parts, until), now);
        None
    }

    fn handle_before_export(&mut self, now: Time, seen: Seen) -> Option<Outcome> {
        if matches!(self.phase, Phase::Asking { .. }) && seen.status != Status::Ok {
            self.obstacle = Some(Obstacle::Switch(seen.status));
        }
        match seen.state {
            // The server, or the target, has no term at present.
            _ if seen.status == Status::NoOwner => None,
            FlowState::None => Some(Outcome::Kept { generation: 0 }),
            // *get* needs no term: the answer to the next heartbeat will state that this server has lost its flows.
            FlowState::Owned if seen.status == Status::Ok && !seen.is_ours => None,
            FlowState::Owned if seen.is_ours => Some(Outcome::Kept { generation: seen.generation }),
            FlowState::Asked | FlowState::Held if seen.is_ours => {
                (self.phase, self.next_at) = (Phase::Settling { own: Some(seen.generation) }, now);
                None
            }
            FlowState::Owned | FlowState::Asked | FlowState::Held => Some(Outcome::LetGo),
        }
    }
}

#[cfg(test)]
mod tests;
