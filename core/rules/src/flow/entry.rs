//! One flow's entry: its owner, and the move that is under way.

use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{self, Endpoint, FlowState, ServerId};

use super::Generations;
use crate::config::ServiceId;
use crate::load::Owners;
use crate::parse::Segment;
use crate::times::Activity;

/// Value of [`Entry::repeat_generation`] that no message can name: after *hold*, and after a return to the original owner.
pub(crate) const REPEAT_NONE: u64 = u64::MAX;

/// Identifies a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FlowKey {
    pub(crate) client: Endpoint,
    pub(crate) service: Endpoint,
}

/// Where a server has the connection of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) at: Endpoint,
    pub(crate) mac: Mac,
    pub(crate) server: ServerId,
    /// The server's term. In a later term it has no connections of this one.
    pub(crate) term: u64,
}

/// Whether a site is a server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// The site is the server's.
    Same,
    /// The site was the server's in an earlier term.
    Earlier,
    /// The site is another server's.
    Other,
}

impl Site {
    /// Whether the site's server is alive in the site's term. See [`Owners::alive_or_end_term`].
    fn alive_or_end_term(&self, owners: &mut Owners, now: Time) -> bool {
        owners.alive_or_end_term(self.server, self.term, now)
    }

    fn relation_to(&self, server: ServerId, is_same_term: bool) -> Relation {
        match (self.server == server, is_same_term) {
            (false, _) => Relation::Other,
            (true, false) => Relation::Earlier,
            (true, true) => Relation::Same,
        }
    }

    /// The site as control messages state it.
    pub(crate) fn in_message(&self) -> Option<switch::Site> {
        switch::Site::new(self.at, self.mac)
    }
}

/// A move to another server that is not confirmed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) target: Site,
    /// Deadline after which the flow returns to its owner, unless the target has sent *own* before.
    pub(crate) deadline: Time,
}

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No move is under way.
    Owned,
    /// A target was asked; packets still go to the owner.
    Asked(Move),
    /// Packets go to the target, which buffers them.
    Held(Move),
}

/// The FIN of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    None,
    /// A packet of the end had a FIN; the acknowledgement number that covers it. Only the other end knows whether it is
    /// the connection's: a host that does not know the sequence number can forge a FIN of the client.
    Claimed(u32),
    /// The other end has acknowledged the FIN.
    Acknowledged,
}

impl Fin {
    /// Records a packet of this end.
    fn send(&mut self, segment: &Segment) {
        if segment.flags.has_fin() && *self != Fin::Acknowledged {
            *self = Fin::Claimed(segment.end);
        }
    }

    /// Records a packet of the other end, which may acknowledge the FIN.
    fn acknowledge(&mut self, segment: &Segment) {
        if segment.flags.has_ack() && *self == Fin::Claimed(segment.acknowledgement) {
            *self = Fin::Acknowledged;
        }
    }

    /// The acknowledgement number that would confirm the FIN; `None` if there is no unconfirmed FIN.
    fn claim(self) -> Option<u32> {
        match self {
            Fin::Claimed(end) => Some(end),
            Fin::None | Fin::Acknowledged => None,
        }
    }
}

/// The entry of a flow. Its owner stays the source of a move until the target owns the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    service: ServiceId,
    stage: Stage,
    generation: u64,
    /// Recognizes the repetition of a message whose answer was lost: the generation that the message names. See
    /// [`Entry::repeat_generation()`].
    repeat_generation: u64,
    owner: Site,
    original: Site,
    last_packet: Time,
    client_fin: Fin,
    owner_fin: Fin,
    owner_rst: Option<Time>,
}

impl Entry {
    /// The entry of a flow whose original owner begins a move.
    pub(crate) fn asked(
        service: ServiceId,
        original: Site,
        pending_move: Move,
        generation: u64,
        now: Time,
    ) -> Entry {
        Entry {
            service,
            stage: Stage::Asked(pending_move),
            generation,
            repeat_generation: 0,
            owner: original,
            // The original owner's term does not matter: its flow could only return to the original owner itself.
            original: Site { term: 0, ..original },
            last_packet: now,
            client_fin: Fin::None,
            owner_fin: Fin::None,
            owner_rst: None,
        }
    }

    /// The service of which the entry is counted.
    pub(crate) fn service(&self) -> ServiceId {
        self.service
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// The state as control messages state it.
    pub(crate) fn state(&self) -> FlowState {
        match self.stage {
            Stage::Owned => FlowState::Owned,
            Stage::Asked(_) => FlowState::Asked,
            Stage::Held(_) => FlowState::Held,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Asked, or held after that: the generation that *prepare* named, 0 without an entry. Owned: the generation that
    /// the entry had during the last move. After *hold*, or a return to the original owner: [`REPEAT_NONE`].
    pub(crate) fn repeat_generation(&self) -> u64 {
        self.repeat_generation
    }

    pub(crate) fn owner(&self) -> &Site {
        &self.owner
    }

    pub(crate) fn original(&self) -> &Site {
        &self.original
    }

    /// The target of a move that is under way.
    pub(crate) fn target(&self) -> Option<&Site> {
        match &self.stage {
            Stage::Owned => None,
            Stage::Asked(pending_move) | Stage::Held(pending_move) => Some(&pending_move.target),
        }
    }

    /// The site to which the client's packets go.
    pub(crate) fn receiver(&self) -> &Site {
        match &self.stage {
            Stage::Held(pending_move) => &pending_move.target,
            Stage::Owned | Stage::Asked(_) => &self.owner,
        }
    }

    /// Whether the client's packets go to a target.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.stage, Stage::Held(_))
    }

    /// Time of the last packet.
    pub(crate) fn last_packet(&self) -> Time {
        self.last_packet
    }

    /// Whether the client has sent a FIN that the owner has acknowledged.
    pub(crate) fn has_client_fin(&self) -> bool {
        self.client_fin == Fin::Acknowledged
    }

    /// The acknowledgement number that would confirm the client's FIN.
    pub(crate) fn client_fin_claim(&self) -> Option<u32> {
        self.client_fin.claim()
    }

    /// Whether the owner has sent a FIN.
    pub(crate) fn has_owner_fin(&self) -> bool {
        self.owner_fin != Fin::None
    }

    /// The acknowledgement number that would confirm the owner's FIN.
    pub(crate) fn owner_fin_claim(&self) -> Option<u32> {
        self.owner_fin.claim()
    }

    /// Whether both ends have sent their FIN.
    pub(crate) fn has_both_fins(&self) -> bool {
        self.has_client_fin() && self.has_owner_fin()
    }

    /// Whether each end has acknowledged the other one's FIN: neither will repeat a byte.
    pub(crate) fn is_closed(&self) -> bool {
        self.has_client_fin() && self.owner_fin == Fin::Acknowledged
    }

    /// Time of the owner's first RST.
    pub(crate) fn owner_rst(&self) -> Option<Time> {
        self.owner_rst
    }

    /// A target is asked to import the connection.
    pub(crate) fn ask(&mut self, pending_move: Move, generation: u64) {
        debug_assert_eq!(self.stage, Stage::Owned, "a move begins when no other one is under way");
        self.repeat_generation = self.generation;
        (self.stage, self.generation) = (Stage::Asked(pending_move), generation);
    }

    /// The target that was asked is ready to import, at the site `target`, which may differ from the one that was
    /// asked. The generation stays.
    pub(crate) fn hold_asked(&mut self, target: Site) {
        debug_assert!(matches!(self.stage, Stage::Asked(_)), "only a target that was asked becomes ready");
        if let Stage::Asked(pending_move) = self.stage {
            self.stage = Stage::Held(Move { target, ..pending_move });
        }
    }

    /// The owner directs packets to a target without *prepare*.
    pub(crate) fn hold(&mut self, pending_move: Move, generation: u64) {
        debug_assert_eq!(self.stage, Stage::Owned, "a move begins when no other one is under way");
        self.repeat_generation = REPEAT_NONE;
        (self.stage, self.generation) = (Stage::Held(pending_move), generation);
    }

    /// The target owns the flow. An RST of the previous owner no longer ends the entry: the connection has moved.
    pub(crate) fn take_over(&mut self, target: Site, generation: u64) {
        self.own(target, generation);
        self.owner_rst = None;
    }

    /// The move has ended: `owner` owns the flow.
    pub(crate) fn own(&mut self, owner: Site, generation: u64) {
        self.repeat_generation = self.generation;
        (self.stage, self.owner, self.generation) = (Stage::Owned, owner, generation);
    }

    /// Records a packet from the client.
    pub(crate) fn client_packet(&mut self, now: Time, segment: &Segment) {
        self.last_packet = now;
        self.client_fin.send(segment);
        self.owner_fin.acknowledge(segment);
    }

    /// Records a packet from the owner.
    pub(crate) fn owner_packet(&mut self, now: Time, segment: &Segment) {
        self.last_packet = now;
        self.owner_fin.send(segment);
        self.client_fin.acknowledge(segment);
        if segment.flags.has_rst() {
            self.owner_rst.get_or_insert(now);
        }
    }

    /// Step 1 of settling: see [`Activity::has_ended`].
    pub(crate) fn has_ended(&self, now: Time) -> bool {
        let has_returned = self.stage == Stage::Owned
            && self.owner.server == self.original.server
            && self.owner.at == self.original.at;
        let activity = Activity {
            last_packet: self.last_packet,
            owner_rst: self.owner_rst,
            has_both_fins: self.has_both_fins(),
            has_returned,
        };
        activity.has_ended(now)
    }

    /// Whether the owner's site is that of a server in this term. For the original owner every term counts as the same:
    /// the flow could only return to itself.
    pub(crate) fn relation_to_owner(&self, server: ServerId, term: u64) -> Relation {
        let is_same_term = self.owner.term == term || server == self.original.server;
        self.owner.relation_to(server, is_same_term)
    }

    /// Whether the target's site is that of a server in this term.
    pub(crate) fn relation_to_target(&self, server: ServerId, term: u64) -> Relation {
        self.target().map_or(Relation::Other, |target| target.relation_to(server, target.term == term))
    }

    /// Steps 2 and 3 of settling (docs/switch.md, Entries): ends a move whose target is not alive, or whose deadline
    /// has passed, and returns the flow of an owner that is not alive to the original owner.
    pub(crate) fn settle(&mut self, now: Time, owners: &mut Owners, generations: &mut Generations) {
        if let Stage::Asked(pending_move) | Stage::Held(pending_move) = self.stage {
            let is_alive = pending_move.target.alive_or_end_term(owners, now);
            if !is_alive || now >= pending_move.deadline {
                self.own(self.owner, generations.next());
            }
        }
        // Still held here: the target is alive, and takes the flow over before the deadline or loses it then.
        let has_moved = self.owner.server != self.original.server;
        if has_moved && !self.is_held() && !self.owner.alive_or_end_term(owners, now) {
            self.own(self.original, generations.next());
            self.repeat_generation = REPEAT_NONE;
        }
    }
}
