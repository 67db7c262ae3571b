//! What links bring to sessions, and get from them. Called with the link's lock held.

use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use spillway_auth::KeyRing;
use spillway_batch::{CloseReason, Control, RefuseReason, Role};
use spillway_session::{Carrier, Heard, Opened, OpeningMessage, SessionHandle, StreamEvent, TableLimits};
use spillway_transport::Time;

use super::{BY_SESSION, SHARDS, Shard, expiry, shard, table_of};
use crate::carrier_name::{CarrierName, Name};
use crate::connections::{self, Connection};
use crate::listeners::{self, Offer};
use crate::patience::Patience;
use crate::status::{self, Counter};
use crate::sys;
use crate::wakes::Wakes;

/// The outcome of a session's first message on a carrier, besides the answer.
pub(crate) struct Words {
    /// The session that the carrier has from now on.
    pub(crate) name: Option<Name>,
    pub(crate) is_new: bool,
    /// The application's connection of a resumed session.
    pub(crate) connection: Option<&'static Connection>,
    /// The connection that has room again, whose sets must be informed.
    pub(crate) raised: Option<u32>,
}

impl Words {
    const NOTHING: Words = Words { name: None, is_new: false, connection: None, raised: None };
}

/// What to do on the link after a message of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Nothing,
    /// The session may have something to send.
    Carry,
    /// The link no longer carries the session: its virtual connection must be closed.
    Leave,
}

/// Handles a session's first message on a link of this role, whose socket has the address `local`.
pub(crate) fn open(
    ring: &KeyRing,
    limits: TableLimits,
    (words, role): (&OpeningMessage<CarrierName>, Role),
    local: Option<SocketAddr>,
    wakes: &mut Wakes,
) -> (Words, Opened<CarrierName>) {
    let shards = limits.sessions_max.min(SHARDS);
    if shards == 0 {
        return (Words::NOTHING, Opened::Refused(RefuseReason::Unavailable));
    }
    let (sessions_max, memory_bytes_max) = (limits.sessions_max / shards, limits.memory_bytes_max / shards);
    let limits = TableLimits { sessions_max, memory_bytes_max, ..limits };
    let index = (usize::from(words.opening.session.0[0]) % shards) as u8;
    let mut guard = shard(index);
    let shard = guard.get_or_insert_with(|| Shard::new(limits));
    let now = sys::now();
    let opened = shard.port.open(now, ring, words, role);
    let noted = match opened {
        Opened::New { session, .. } => match shard.begin(index, session, words, local, wakes) {
            Ok(()) => {
                let name = Some(Name { shard: index, slot: session.slot() });
                Words { name, is_new: true, ..Words::NOTHING }
            }
            Err(reason) => {
                // There may be room, or a listener, when the client tries again.
                shard.port.take_back(session);
                return (Words::NOTHING, Opened::Refused(reason));
            }
        },
        Opened::Resumed { session, room, replaced, .. } => {
            status::count(Counter::SessionsResumed);
            let name = Name { shard: index, slot: session.slot() };
            if let Some(replaced) = replaced {
                wakes.leave(replaced, name);
            }
            let connection = shard.connection(session.slot());
            if let Some(connection) = connection {
                status::connection_moved(connection, words.carrier);
            }
            let raised = if room { shard.tell(now, session.slot(), StreamEvent::Room) } else { None };
            Words { name: Some(name), is_new: false, connection, raised }
        }
        Opened::Over { .. } | Opened::Refused(_) => Words::NOTHING,
    };
    (noted, opened)
}

impl Shard {
    /// Queues a new session's connection to be accepted.
    fn begin(
        &mut self,
        index: u8,
        session: SessionHandle,
        words: &OpeningMessage<CarrierName>,
        local: Option<SocketAddr>,
        wakes: &mut Wakes,
    ) -> Result<(), RefuseReason> {
        let connection = connections::take().ok_or(RefuseReason::Full)?;
        connection.link.store(BY_SESSION + u32::from(index), Ordering::Relaxed);
        connection.id.store(session.slot(), Ordering::Relaxed);
        {
            let mut inner = connection.lock();
            (inner.client, inner.local) = (Some(words.client), local);
        }
        match listeners::offer(connection, words.client, wakes) {
            Offer::Queued => {
                self.settle(session, connection);
                status::connection_began(connection, words.client, words.carrier);
                Ok(())
            }
            Offer::Refused(reason) => {
                connections::give_back(connection);
                Err(reason)
            }
        }
    }
}

/// Handles data. Returns the connection whose sets must be informed, and what to do on the link.
pub(crate) fn data(
    now: Time,
    name: Name,
    carrier: CarrierName,
    bytes: &[u8],
    wakes: &mut Wakes,
) -> (Option<u32>, Next) {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return (None, Next::Nothing) };
    let Some(session) = shard.session(name.slot) else { return (None, Next::Nothing) };
    match shard.port.handle_data(now, session, carrier, bytes.len()) {
        Ok(false) => (None, Next::Nothing),
        Ok(true) => {
            expiry::note(shard.port.poll_timeout());
            // With the shard's lock held: another link may have the session next, and bytes for it.
            let Some(connection) = shard.connection(name.slot) else { return (None, Next::Nothing) };
            if connection.deliver(bytes) {
                // Not by a timer: bytes of many sessions may come faster.
                shard.end_overflowing(name.shard, wakes);
                let is_there = shard.session(name.slot) == Some(session);
                return (is_there.then_some(connection.index), Next::Nothing);
            }
            let outcome = shard.port.consumed(session, bytes.len());
            debug_assert_eq!(outcome, Ok(()), "it was received just now");
            (None, Next::Nothing)
        }
        Err(event) => {
            let raised = shard.tell(now, name.slot, event);
            let next = if shard.is_withdrawn(name.slot, session) { Next::Carry } else { Next::Nothing };
            expiry::note(shard.port.poll_timeout());
            (raised, next)
        }
    }
}

/// Handles a control message. Returns the connection whose sets must be informed, and what to do on the link.
pub(crate) fn control(now: Time, name: Name, carrier: CarrierName, control: &Control) -> (Option<u32>, Next) {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return (None, Next::Nothing) };
    let Some(session) = shard.session(name.slot) else { return (None, Next::Nothing) };
    let Heard { event, gives, leaves } = shard.port.handle_control(now, session, carrier, control);
    let raised = event.and_then(|event| shard.tell(now, name.slot, event));
    // `tell` may have closed the session.
    let gives = gives || (event.is_some() && shard.is_withdrawn(name.slot, session));
    shard.vacate_if_over(name.slot, session);
    if gives {
        expiry::note(shard.port.poll_timeout());
    }
    let next = match (leaves, gives) {
        (true, _) => Next::Leave,
        (false, true) => Next::Carry,
        (false, false) => Next::Nothing,
    };
    (raised, next)
}

/// Gives the carrier what its session has to send. Returns whether the session is over.
pub(crate) fn transmit(now: Time, name: Name, carrier: CarrierName, on: &mut impl Carrier) -> bool {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return false };
    let Some(session) = shard.session(name.slot) else { return false };
    if shard.port.carrier(session) != Some(carrier) {
        return false;
    }
    shard.port.transmit(now, session, on) && shard.vacate_if_over(name.slot, session)
}

/// Whether this carrier carries the session now.
pub(crate) fn is_carried_by(name: Name, carrier: CarrierName) -> bool {
    let guard = shard(name.shard);
    guard.as_ref().is_some_and(|shard| {
        shard.session(name.slot).and_then(|session| shard.port.carrier(session)) == Some(carrier)
    })
}

/// Closes a session because the process ends, or because the event loop that served the link is closed: its client
/// receives the end behind the last byte. The application is informed if `wakes` are given. Sessions whose lock
/// another thread holds for too long end with the process.
pub(crate) fn end_with_server(
    now: Time,
    (name, carrier): (Name, CarrierName),
    on: &mut impl Carrier,
    patience: &Patience,
    wakes: Option<&mut Wakes>,
) {
    let Some(mut guard) = patience.lock(table_of(name.shard)) else { return };
    let Some(shard) = guard.as_mut() else { return };
    let Some(session) = shard.session(name.slot) else { return };
    if shard.port.carrier(session) != Some(carrier) {
        return;
    }
    shard.port.close(now, session, CloseReason::Normal);
    shard.port.transmit(now, session, on);
    if let Some(wakes) = wakes {
        shard.tell_end(name.slot, wakes);
        shard.vacate_if_over(name.slot, session);
        expiry::note(shard.port.poll_timeout());
    }
}

/// The link is lost: the session waits for another carrier.
pub(crate) fn detach(now: Time, name: Name, carrier: CarrierName) {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return };
    if let Some(session) = shard.session(name.slot) {
        shard.port.detach(now, session, carrier);
        expiry::note(shard.port.poll_timeout());
    }
}
