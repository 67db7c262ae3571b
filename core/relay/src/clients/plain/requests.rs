//! Requests of a plain client, and grants for them.

use spillway_transport::{Conn, Time, Transport};

use super::{PlainClient, Stalled};
use crate::counters::Stalls;
use crate::links::Linked;
use crate::memory::{CLIENT_GRANT_BYTES, Memory};

impl PlainClient {
    pub(crate) fn request<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        bytes: &[u8],
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        self.bytes_in += bytes.len() as u64;
        self.granted = self.granted.saturating_sub(bytes.len());
        let taken = if self.requests.is_empty() { linked.compose(self.id, bytes) } else { 0 };
        if taken < bytes.len() {
            self.requests.push(&bytes[taken..], memory);
        }
        self.grant(now, conn, linked, memory, out);
    }

    /// Offset in the client's TCP stream after `requests` bytes of requests.
    pub(crate) fn stream_offset(&self, requests: u64) -> u64 {
        u64::from(self.header_bytes) + requests
    }

    /// The client has finished its stream.
    pub(crate) fn handle_client_finished(&mut self, linked: &mut Linked) {
        self.client_finished = true;
        if self.requests.is_empty() {
            linked.finish(self.id);
        }
    }

    /// The link has room or credit for this client.
    pub(crate) fn handle_link_room<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        if !self.requests.is_empty() {
            loop {
                let offered = self.requests.front().len();
                let taken = linked.compose(self.id, self.requests.front());
                self.requests.advance(taken, memory);
                if taken < offered || self.requests.is_empty() {
                    break;
                }
            }
            if self.client_finished && self.requests.is_empty() {
                linked.finish(self.id);
            }
        }
        self.grant(now, conn, linked, memory, out);
    }

    /// The transport has taken the link's batch: the client may be granted bytes again.
    pub(crate) fn handle_link_uncongested<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        self.waits_for_link = false;
        self.grant(now, conn, linked, memory, out);
    }

    /// Grants up to the server's credit, at most `Memory::grant_bytes`, when half of the last grant is used up. Grants
    /// nothing while memory is scarce and replies wait.
    pub(crate) fn grant<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        if memory.is_scarce() && !self.replies.is_empty() {
            if !core::mem::replace(&mut self.is_paused, true) {
                memory.count_pause();
            }
            return;
        }
        self.is_paused = false;
        self.grant_more(conn, memory.grant_bytes(), linked, out);
        let is_stalled = self.granted == 0 && !self.client_finished;
        if is_stalled && self.stalled.is_none() {
            let by_link = linked.is_congested() || linked.credit(self.id) > 0;
            linked.count_stall(by_link);
            self.stalled = Some(Stalled { since: now, by_link });
        } else if !is_stalled {
            linked.add_stalls(self.end_stall(now));
        }
    }

    /// Ends the present stall and returns its duration. Zero if the client is not stalled.
    pub(crate) fn end_stall(&mut self, now: Time) -> Stalls {
        let Some(stalled) = self.stalled.take() else { return Stalls::default() };
        let ns = u64::try_from(now.since(stalled.since).as_nanos()).unwrap_or(u64::MAX);
        if stalled.by_link {
            Stalls { link_ns: ns, ..Stalls::default() }
        } else {
            Stalls { credit_ns: ns, ..Stalls::default() }
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether the client has sent all bytes that it was granted.
    pub(crate) fn is_grant_used_up(&self) -> bool {
        self.granted == 0
    }

    fn grant_more<T: Transport>(&mut self, conn: Conn, grant_max: usize, linked: &mut Linked, out: &mut T) {
        let credit = linked.credit(self.id);
        let allowed = credit.min(grant_max);
        let used = self.granted + self.requests.len();
        if self.client_finished || used * 2 > allowed {
            return;
        }
        if linked.is_congested() {
            if !self.waits_for_link {
                self.waits_for_link = true;
                linked.add_waiter(conn);
            }
            return;
        }
        let additional = allowed - used;
        if additional > 0 {
            self.granted += additional;
            #[expect(clippy::cast_possible_truncation, reason = "at most CLIENT_GRANT_BYTES")]
            out.grant(conn, additional as u32);
        }
        if credit < CLIENT_GRANT_BYTES {
            linked.want_room(self.id);
        }
    }
}
