//! A link whose connection is open: its batches, and which client each of its ids belongs to.

use alloc::vec::Vec;

use spillway_batch::{
    CloseReason, ConsumedTooMuch, Control, Fresh, Id, KeyId, LinkError, OpenError, OpenerConfig, OpenerEvent,
    OpenerLink, PolicyKind, Scratch,
};
use spillway_transport::{Chunk, Conn, Time, Transport};

use crate::counters::{Past, Stalls};
use crate::memory::Memory;
use crate::reasons::Refusal;

/// Bytes that a server may have under way to us. What it sends is handled at once, so this bounds nothing here
/// but keeps its batches flowing.
pub(crate) const LINK_GRANT_BYTES: u32 = 1 << 20;

/// A batch that has reached this size within a turn goes before the turn's end. Smaller ones wait for it: what
/// a turn sends leaves at its end anyway, and *S* can only grow when batches may exceed it.
pub(crate) const BATCH_BYTES: usize = 64 * 1024;

/// Whose an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Nobody,
    Client(Conn),
    /// Of a library client that has gone, while the server has not closed yet.
    Orphan,
}

/// A link whose connection is open.
#[derive(Debug)]
pub(crate) struct Linked {
    conn: Conn,
    opener: OpenerLink,
    /// The largest window of one of its plain clients.
    window_bytes_max: u32,
    /// The key that it was opened with.
    key: KeyId,
    /// Connections of library clients that have not ended on both sides.
    relayed: u32,
    /// Both ends have authenticated.
    is_up: bool,
    /// The server wants no more clients here.
    is_draining: bool,
    /// What the transport had no room for.
    unsent: Option<Chunk>,
    /// By id.
    members: Vec<Member>,
    /// Clients that get no grant until the link has drained.
    starved: Vec<Conn>,
    /// Of its plain clients.
    stalls: Stalls,
    /// Of its batches' memory, what the relay's counts.
    counted: usize,
}

/// How a client learns that a link could not take its connection.
fn refusal_of(error: OpenError) -> Refusal {
    match error {
        OpenError::NotEstablished => Refusal::LinkDown,
        OpenError::Full => Refusal::LinkFull,
        OpenError::Sessions => Refusal::OldServer,
    }
}

/// The link as a whole.
impl Linked {
    pub(crate) fn new(now: Time, conn: Conn, config: &OpenerConfig, fresh: Fresh) -> Linked {
        Linked {
            conn,
            opener: OpenerLink::new(config, now, fresh),
            window_bytes_max: config.limits.window_bytes,
            key: config.key.id(),
            relayed: 0,
            is_up: false,
            is_draining: false,
            unsent: None,
            members: Vec::new(),
            starved: Vec::new(),
            stalls: Stalls::default(),
            counted: 0,
        }
    }

    pub(crate) fn conn(&self) -> Conn {
        self.conn
    }

    pub(crate) fn key(&self) -> KeyId {
        self.key
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    pub(crate) fn came_up(&mut self) {
        self.is_up = true;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The server wants no more clients here.
    pub(crate) fn server_drains(&mut self) {
        self.is_draining = true;
    }

    pub(crate) fn takes_clients(&self) -> bool {
        self.is_up && !self.is_draining
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.opener.is_encrypted()
    }

    /// What each connection may send at first.
    pub(crate) fn initial_credit(&self) -> u32 {
        self.opener.initial_credit()
    }

    /// The largest window of one of its plain clients.
    pub(crate) fn window_bytes_max(&self) -> u32 {
        self.window_bytes_max
    }

    pub(crate) fn set_policy(&mut self, policy: PolicyKind) {
        self.opener.set_policy(policy);
    }

    /// Connections that have not ended on both sides.
    pub(crate) fn connections(&self) -> usize {
        self.opener.connections() + self.relayed as usize
    }

    /// Adds what it has done since its connection was opened.
    pub(crate) fn add_to(&self, done: &mut Past) {
        done.add(self.opener.counters(), &self.opener.batches(), self.stalls);
    }

    /// Opens the records in what the server has sent.
    pub(crate) fn unseal<'a>(&mut self, now: Time, bytes: &'a [u8], scratch: &'a mut Scratch) -> &'a [u8] {
        self.opener.unseal(now, bytes, scratch)
    }

    /// The next event in what the server has sent.
    pub(crate) fn decompose<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<OpenerEvent<'a>>, LinkError> {
        self.opener.decompose(now, input)
    }

    /// When something is due. While the transport has no room, its `Room` comes and not the time.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.unsent.is_some() { self.opener.poll_record_timeout() } else { self.opener.poll_timeout() }
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) -> Result<(), LinkError> {
        self.opener.handle_timeout(now)
    }

    /// Clients may go on in the next turn, although nothing has to happen before.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.opener.has_room() || (!self.is_congested() && !self.starved.is_empty())
    }

    /// Whether a turn without new events would do nothing.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_unfinished() && self.counted == self.to_count()
    }
}

/// Its clients and their virtual connections.
impl Linked {
    fn member(&self, id: Id) -> Member {
        self.members.get(id.0 as usize).copied().unwrap_or(Member::Nobody)
    }

    /// The client's connection that an id belongs to.
    pub(crate) fn client(&self, id: Id) -> Option<Conn> {
        match self.member(id) {
            Member::Client(conn) => Some(conn),
            Member::Nobody | Member::Orphan => None,
        }
    }

    /// Whether an id is this client's: it may be another's by now.
    pub(crate) fn is_of(&self, id: Id, conn: Conn) -> bool {
        self.member(id) == Member::Client(conn)
    }

    /// Whether an id is that of a library client that has gone, while the server has not closed yet.
    pub(crate) fn is_orphan(&self, id: Id) -> bool {
        self.member(id) == Member::Orphan
    }

    fn set_member(&mut self, id: Id, member: Member) {
        let index = id.0 as usize;
        if self.members.len() <= index {
            self.members.resize(index + 1, Member::Nobody);
        }
        self.members[index] = member;
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = Conn> + '_ {
        self.members.iter().filter_map(|member| match member {
            Member::Client(conn) => Some(*conn),
            Member::Nobody | Member::Orphan => None,
        })
    }

    /// A virtual connection for a plain client. `keeps`: the server is asked to keep its replies.
    pub(crate) fn open_plain(
        &mut self,
        conn: Conn,
        peer: core::net::SocketAddr,
        window: u32,
        keeps: bool,
    ) -> Result<Id, Refusal> {
        let id = self.opener.open_narrow(peer, window, keeps).map_err(refusal_of)?;
        self.set_member(id, Member::Client(conn));
        Ok(id)
    }

    /// A virtual connection for a library client, whose *connect* or *reconnect* this is.
    pub(crate) fn open_relayed(&mut self, conn: Conn, first_words: Control) -> Result<Id, Refusal> {
        let id = self.opener.open_relayed(first_words).map_err(refusal_of)?;
        self.relayed += 1;
        self.set_member(id, Member::Client(conn));
        Ok(id)
    }

    /// Ends a plain client's connection on this side.
    pub(crate) fn close_plain(&mut self, id: Id, reason: CloseReason) {
        self.opener.close(id, reason);
        self.set_member(id, Member::Nobody);
    }

    /// The server has refused a plain client's connection: there is nothing to close.
    pub(crate) fn plain_refused(&mut self, id: Id) {
        self.set_member(id, Member::Nobody);
    }

    /// A library client's connection has ended on both sides: the id is free.
    pub(crate) fn release_relayed(&mut self, id: Id) {
        self.set_member(id, Member::Nobody);
        self.opener.release_relayed(id);
        self.relayed -= 1;
    }

    /// A library client has left a connection that the server has not closed yet.
    pub(crate) fn orphan(&mut self, id: Id) {
        self.set_member(id, Member::Orphan);
    }

    /// Whether replies are kept by the server until they are acknowledged.
    pub(crate) fn carries_sessions(&self) -> bool {
        self.opener.carries_sessions()
    }

    /// Whether the server says which requests it has taken.
    pub(crate) fn hears_what_is_taken(&self) -> bool {
        self.opener.hears_what_is_taken()
    }

    pub(crate) fn relay_data(&mut self, id: Id, bytes: &[u8], last: bool) {
        self.opener.relay_data(id, bytes, last);
    }

    pub(crate) fn relay_control(&mut self, id: Id, control: Control) {
        self.opener.relay_control(id, control);
    }

    /// Takes a prefix of a plain client's request and returns its length.
    pub(crate) fn compose(&mut self, id: Id, request: &[u8]) -> usize {
        self.opener.compose(id, request)
    }

    /// What a plain client may still send.
    pub(crate) fn credit(&self, id: Id) -> usize {
        self.opener.credit(id)
    }

    /// A plain client has taken replies.
    pub(crate) fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.opener.consumed(id, bytes)
    }

    pub(crate) fn widen(&mut self, id: Id, window: u32) {
        self.opener.widen(id, window);
    }

    /// A plain client sends no more.
    pub(crate) fn finish(&mut self, id: Id) {
        self.opener.finish(id);
    }

    /// The server may drop the replies up to here.
    pub(crate) fn acknowledge(&mut self, id: Id, through: u64) {
        self.opener.acknowledge(id, through);
    }

    /// [`poll_room`](Self::poll_room) names this client when the link has room or credit for it.
    pub(crate) fn want_room(&mut self, id: Id) {
        self.opener.want_room(id);
    }

    /// The next plain client that the link has room or credit for. Ask until `None`.
    #[must_use]
    pub(crate) fn poll_room(&mut self) -> Option<Id> {
        self.opener.poll_room()
    }

    /// A plain client stalls: because of the link, or because its server gives no credit.
    pub(crate) fn count_stall(&mut self, by_link: bool) {
        self.stalls.credit += u64::from(!by_link);
        self.stalls.link += u64::from(by_link);
    }

    pub(crate) fn add_stalls(&mut self, stalls: Stalls) {
        self.stalls.add(stalls);
    }

    /// This client goes on when the link has drained.
    pub(crate) fn starve(&mut self, conn: Conn) {
        self.starved.push(conn);
    }

    /// Whether clients wait for the link to drain, and it has.
    pub(crate) fn may_feed(&self) -> bool {
        !self.is_congested() && !self.starved.is_empty()
    }

    /// The clients that wait for the link to drain.
    pub(crate) fn take_starved(&mut self) -> Vec<Conn> {
        core::mem::take(&mut self.starved)
    }

    /// Those of [`take_starved`](Self::take_starved) that still have to wait come before later ones.
    pub(crate) fn put_back_starved(&mut self, rest: impl Iterator<Item = Conn>) {
        let latest = core::mem::replace(&mut self.starved, rest.collect());
        self.starved.extend(latest);
    }
}

/// Its batches.
impl Linked {
    /// The transport takes no more: clients get no new grants.
    pub(crate) fn is_congested(&self) -> bool {
        self.unsent.is_some()
    }

    /// The batch is as large as it may be.
    pub(crate) fn is_full(&self) -> bool {
        self.opener.is_full()
    }

    /// Bytes gathered that the transport has not taken.
    pub(crate) fn pending(&self) -> usize {
        self.opener.pending() + self.unsent.as_ref().map_or(0, Chunk::len)
    }

    /// Brings the relay's memory up to date: a batch of one turn is not counted, what piles up behind it is.
    pub(crate) fn count(&mut self, memory: &mut Memory) {
        let counted = self.to_count();
        memory.link_changed(self.counted, counted);
        self.counted = counted;
    }

    /// The link is over: nothing of it counts any more.
    pub(crate) fn uncount(&self, memory: &mut Memory) {
        memory.link_changed(self.counted, 0);
    }

    fn to_count(&self) -> usize {
        let held = self.opener.held() + self.unsent.as_ref().map_or(0, Chunk::capacity);
        let incomplete = self.opener.held_incomplete();
        let waiting = if self.pending() == 0 { 0 } else { (held - incomplete).saturating_sub(BATCH_BYTES) };
        waiting + incomplete
    }

    /// Sends a batch within a turn if it is a large one.
    pub(crate) fn transmit_large<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.opener.pending() >= BATCH_BYTES {
            self.transmit(now, out);
        }
    }

    /// Sends the batch that is due, if any and if there is room.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, out: &mut T) {
        if let Some(chunk) = self.unsent.take() {
            self.unsent = self.offer(chunk, out);
        }
        if self.unsent.is_some() {
            self.opener.waits(now);
        } else if let Some(batch) = self.opener.poll_transmit(now) {
            if let Some(spent) = out.spent_chunk() {
                self.opener.recycle(spent);
            }
            self.unsent = self.offer(batch, out);
        }
    }

    /// Sends everything, whether due or not, for the last time.
    pub(crate) fn transmit_all<T: Transport>(&mut self, now: Time, out: &mut T) {
        if let Some(chunk) = self.unsent.take() {
            self.unsent = self.offer(chunk, out);
        }
        if self.unsent.is_none()
            && let Some(batch) = self.opener.flush(now)
        {
            self.unsent = self.offer(batch, out);
        }
    }

    /// Returns what the transport did not take. Its `Room` says when there is room again.
    fn offer<T: Transport>(&mut self, chunk: Chunk, out: &mut T) -> Option<Chunk> {
        let mut chunk = match out.send_chunk(self.conn, chunk) {
            Ok(()) => return None,
            Err(chunk) => chunk,
        };
        let taken = out.send(self.conn, chunk.as_slice());
        chunk.advance(taken);
        if chunk.is_empty() {
            self.opener.recycle(chunk);
            return None;
        }
        Some(chunk)
    }
}
