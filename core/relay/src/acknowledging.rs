//! How far plain clients have acknowledged their replies, for a server that keeps them until then: what their TCP says is
//! passed on, at most once in 20 ms or 64 KB, and after the server's close, too.

use core::time::Duration;

use spillway_batch::{CloseReason, Id};
use spillway_transport::{Conn, Time, Transport};

use crate::relay::Relay;
use crate::slots::Holder;
use crate::upstream::{Linked, Member};

/// The server is told at the latest after this time,
pub(crate) const TELL_AFTER: Duration = Duration::from_millis(20);
/// or after so many bytes, or half of what it keeps if that is less.
const TELL_BYTES: u64 = 64 * 1024;

/// Of one plain client, where its server was asked to keep replies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acknowledging {
    /// By the client's TCP.
    acknowledged: u64,
    /// To the server.
    told: u64,
    /// A timer runs.
    is_due: bool,
}

/// What a server that has closed is owed: the last acknowledgement, and our own close, until which it keeps the last
/// replies.
#[derive(Debug)]
pub(crate) struct Owed {
    upstream: usize,
    id: Id,
    /// Bytes of replies in all.
    replies: u64,
    acknowledging: Acknowledging,
}

impl Acknowledging {
    /// The client's TCP has all bytes up to this offset. True: a timer is to be started.
    fn heard(&mut self, through: u64, id: Id, linked: &mut Linked) -> bool {
        self.acknowledged = self.acknowledged.max(through);
        let step = TELL_BYTES.min(u64::from(linked.opener.initial_credit()) / 2).max(1);
        if self.acknowledged - self.told >= step {
            self.tell(id, linked);
            return false;
        }
        self.acknowledged > self.told && !core::mem::replace(&mut self.is_due, true)
    }

    fn tell(&mut self, id: Id, linked: &mut Linked) {
        if self.acknowledged > self.told {
            linked.opener.acknowledge(id, self.acknowledged);
            self.told = self.acknowledged;
        }
    }
}

impl Owed {
    /// After the server has closed. Nothing is owed where replies are not kept, or where the client has them all.
    pub(crate) fn new(
        (upstream, id): (usize, Id),
        replies: u64,
        acknowledging: Option<Acknowledging>,
        linked: &mut Linked,
    ) -> Option<Owed> {
        let mut acknowledging = acknowledging?;
        if acknowledging.acknowledged >= replies {
            acknowledging.tell(id, linked);
            return None;
        }
        Some(Owed { upstream, id, replies, acknowledging })
    }

    /// Of what its client's TCP has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledging.acknowledged
    }
}

impl Relay {
    /// A client's TCP has our bytes up to this offset.
    pub(crate) fn acknowledged<T: Transport>(&mut self, now: Time, conn: Conn, through: u64, out: &mut T) {
        let starts = match self.slots.get_mut(conn) {
            Some(Holder::Raw(client)) => {
                let (upstream, id) = (client.upstream, client.id);
                match (&mut client.acknowledging, self.upstreams[upstream].linked_mut()) {
                    (Some(acknowledging), Some(linked)) => acknowledging.heard(through, id, linked),
                    _ => false,
                }
            }
            Some(Holder::Leaving(leaving)) => {
                leaving.acknowledged = through;
                match &mut leaving.owed {
                    Some(owed) if through >= owed.replies => {
                        owed.acknowledging.acknowledged = through;
                        self.settle(conn);
                        false
                    }
                    Some(owed) => match self.upstreams[owed.upstream].linked_mut() {
                        Some(linked) if linked.member(owed.id) == Member::Client(conn) => {
                            owed.acknowledging.heard(through, owed.id, linked)
                        }
                        _ => false,
                    },
                    None => false,
                }
            }
            _ => false,
        };
        if starts {
            let slots = &self.slots;
            self.tellings.start(now, conn, |conn| is_due(slots.get(conn)));
        }
        self.reset_if_it_spoke(conn, out);
    }

    /// The server is told what it was not told at once.
    pub(crate) fn telling_timeout(&mut self, conn: Conn) {
        let (upstream, id, acknowledging) = match self.slots.get_mut(conn) {
            Some(Holder::Raw(client)) => {
                let Some(acknowledging) = client.acknowledging.as_deref_mut() else { return };
                (client.upstream, client.id, acknowledging)
            }
            Some(Holder::Leaving(leaving)) => {
                let Some(owed) = &mut leaving.owed else { return };
                (owed.upstream, owed.id, &mut owed.acknowledging)
            }
            _ => return,
        };
        acknowledging.is_due = false;
        if let Some(linked) = self.upstreams[upstream].linked_mut()
            && linked.member(id) == Member::Client(conn)
        {
            acknowledging.tell(id, linked);
        }
    }

    /// A client whose server has closed has everything, or is no more.
    pub(crate) fn settle(&mut self, conn: Conn) {
        let Some(Holder::Leaving(leaving)) = self.slots.get_mut(conn) else { return };
        let Some(mut owed) = leaving.owed.take() else { return };
        // The link may be another by now.
        if let Some(linked) = self.upstreams[owed.upstream].linked_mut()
            && linked.member(owed.id) == Member::Client(conn)
        {
            owed.acknowledging.tell(owed.id, linked);
            linked.opener.close(owed.id, CloseReason::Normal);
            linked.set_member(owed.id, Member::Nobody);
        }
    }
}

fn is_due(holder: Option<&Holder>) -> bool {
    match holder {
        Some(Holder::Raw(client)) => client.acknowledging.as_ref().is_some_and(|acks| acks.is_due),
        Some(Holder::Leaving(leaving)) => leaving.owed.as_ref().is_some_and(|owed| owed.acknowledging.is_due),
        _ => false,
    }
}
