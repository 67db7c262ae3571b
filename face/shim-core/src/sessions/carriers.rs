//! Messages between sessions and the links that carry them. Called with the link's lock held.

use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use spillway_auth::KeyRing;
use spillway_batch::{CloseReason, Control, RefuseReason, Role};
use spillway_session::{
    Carrier, ControlEffects, Opened, OpeningMessage, SessionHandle, StreamEvent, TableLimits,
};
use spillway_transport::Time;

use super::{SESSION_LINK_BASE, SHARDS, Shard, expiry, shard, table_of};
use crate::carrier_name::{CarrierName, SessionName};
use crate::connections::{self, Connection};
use crate::listeners::{self, Offer};
use crate::lock_deadline::LockDeadline;
use crate::status::{self, Counter};
use crate::sys;
use crate::wakes::Wakes;

/// The outcome of a session's first message on a carrier, besides the answer.
pub(crate) struct OpeningOutcome {
    /// The session that the carrier carries from now on.
    pub(crate) name: Option<SessionName>,
    pub(crate) is_new: bool,
    /// For a resumed session: the application's connection.
    pub(crate) connection: Option<&'static Connection>,
    /// For a resumed session: the connection that has room again, whose sets must be notified.
    pub(crate) raised: Option<u32>,
}

impl OpeningOutcome {
    const NO_SESSION: OpeningOutcome =
        OpeningOutcome { name: None, is_new: false, connection: None, raised: None };
}

/// What to do on the link after a message of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Nothing,
    /// The session may have output for the link.
    Carry,
    /// The link no longer carries the session: its virtual connection must be closed.
    Leave,
}

/// Handles a session's first message on a link of this role, whose socket has the address `local`.
pub(crate) fn open(
    ring: &KeyRing,
    limits: TableLimits,
    (message, role): (&OpeningMessage<CarrierName>, Role),
    local: Option<SocketAddr>,
    wakes: &mut Wakes,
) -> (OpeningOutcome, Opened<CarrierName>) {
    let shards = limits.sessions_max.min(SHARDS);
    if shards == 0 {
        return (OpeningOutcome::NO_SESSION, Opened::Refused(RefuseReason::Unavailable));
    }
    let (sessions_max, memory_bytes_max) = (limits.sessions_max / shards, limits.memory_bytes_max / shards);
    let limits = TableLimits { sessions_max, memory_bytes_max, ..limits };
    let index = (usize::from(message.opening.session.0[0]) % shards) as u8;
    let mut guard = shard(index);
    let shard = guard.get_or_insert_with(|| Shard::new(limits));
    let now = sys::now();
    let opened = shard.port.open(now, ring, message, role);
    let outcome = match opened {
        Opened::New { session, .. } => match shard.begin(index, session, message, local, wakes) {
            Ok(()) => {
                let name = Some(SessionName { shard: index, slot: session.slot() });
                OpeningOutcome { name, is_new: true, ..OpeningOutcome::NO_SESSION }
            }
            Err(reason) => {
                // Forget the session, because the client may try again when there is room or a listener.
                shard.port.withdraw(session);
                return (OpeningOutcome::NO_SESSION, Opened::Refused(reason));
            }
        },
        Opened::Resumed { session, room, replaced, .. } => {
            status::count(Counter::SessionsResumed);
            let name = SessionName { shard: index, slot: session.slot() };
            if let Some(replaced) = replaced {
                wakes.push_left_carrier(replaced, name);
            }
            let connection = shard.connection(session.slot());
            if let Some(connection) = connection {
                status::connection_moved(connection, message.carrier);
            }
            let raised = if room { shard.apply_event(now, session.slot(), StreamEvent::Room) } else { None };
            OpeningOutcome { name: Some(name), is_new: false, connection, raised }
        }
        Opened::AlreadyClosed { .. } | Opened::Refused(_) => OpeningOutcome::NO_SESSION,
    };
    (outcome, opened)
}

impl Shard {
    /// Queues a new session's connection to be accepted.
    fn begin(
        &mut self,
        index: u8,
        session: SessionHandle,
        message: &OpeningMessage<CarrierName>,
        local: Option<SocketAddr>,
        wakes: &mut Wakes,
    ) -> Result<(), RefuseReason> {
        let connection = connections::take().ok_or(RefuseReason::Full)?;
        connection.link.store(SESSION_LINK_BASE + u32::from(index), Ordering::Relaxed);
        connection.id.store(session.slot(), Ordering::Relaxed);
        {
            let mut inner = connection.lock();
            (inner.client, inner.local) = (Some(message.client), local);
        }
        match listeners::offer(connection, message.client, wakes) {
            Offer::Queued => {
                self.assign_connection(session, connection);
                status::connection_began(connection, message.client, message.carrier);
                Ok(())
            }
            Offer::Refused(reason) => {
                connections::give_back(connection);
                Err(reason)
            }
        }
    }
}

/// Handles data. Returns the connection whose sets must be notified, and what to do on the link.
pub(crate) fn handle_data(
    now: Time,
    name: SessionName,
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
            expiry::schedule(shard.port.poll_timeout());
            // With the shard's lock held: the session may move, and another link then delivers the following bytes.
            let Some(connection) = shard.connection(name.slot) else { return (None, Next::Nothing) };
            if connection.deliver(bytes) {
                // Checked here, because bytes of many sessions may arrive faster than a timer fires.
                shard.end_overflowing(name.shard, wakes);
                let still_exists = shard.session(name.slot) == Some(session);
                return (still_exists.then_some(connection.index), Next::Nothing);
            }
            let outcome = shard.port.consumed(session, bytes.len());
            debug_assert_eq!(outcome, Ok(()), "bytes that were just received should be consumable");
            (None, Next::Nothing)
        }
        Err(event) => {
            let raised = shard.apply_event(now, name.slot, event);
            let next = if shard.is_withdrawn(name.slot, session) { Next::Carry } else { Next::Nothing };
            expiry::schedule(shard.port.poll_timeout());
            (raised, next)
        }
    }
}

/// Handles a control message. Returns the connection whose sets must be notified, and what to do on the link.
pub(crate) fn handle_control(
    now: Time,
    name: SessionName,
    carrier: CarrierName,
    control: &Control,
) -> (Option<u32>, Next) {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return (None, Next::Nothing) };
    let Some(session) = shard.session(name.slot) else { return (None, Next::Nothing) };
    let ControlEffects { event, is_dirty, closes_carrier } =
        shard.port.handle_control(now, session, carrier, control);
    let raised = event.and_then(|event| shard.apply_event(now, name.slot, event));
    // `apply_event` may have closed the session.
    let is_dirty = is_dirty || (event.is_some() && shard.is_withdrawn(name.slot, session));
    shard.vacate_if_over(name.slot, session);
    if is_dirty {
        expiry::schedule(shard.port.poll_timeout());
    }
    let next = match (closes_carrier, is_dirty) {
        (true, _) => Next::Leave,
        (false, true) => Next::Carry,
        (false, false) => Next::Nothing,
    };
    (raised, next)
}

/// Sends the session's output on the carrier. Returns whether the session is over.
pub(crate) fn transmit(
    now: Time,
    name: SessionName,
    carrier: CarrierName,
    output: &mut impl Carrier,
) -> bool {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return false };
    let Some(session) = shard.session(name.slot) else { return false };
    if shard.port.carrier(session) != Some(carrier) {
        return false;
    }
    shard.port.transmit(now, session, output) && shard.vacate_if_over(name.slot, session)
}

/// Whether this carrier carries the session now.
pub(crate) fn is_carried_by(name: SessionName, carrier: CarrierName) -> bool {
    let guard = shard(name.shard);
    guard.as_ref().is_some_and(|shard| {
        shard.session(name.slot).and_then(|session| shard.port.carrier(session)) == Some(carrier)
    })
}

/// Closes a session because the process ends, or because the link's event loop is closed: the client receives the
/// end after the last byte. With `wakes`, the application is informed. Sessions whose lock another thread holds until
/// the deadline end with the process.
pub(crate) fn end_with_server(
    now: Time,
    (name, carrier): (SessionName, CarrierName),
    output: &mut impl Carrier,
    lock_deadline: &LockDeadline,
    wakes: Option<&mut Wakes>,
) {
    let Some(mut guard) = lock_deadline.lock(table_of(name.shard)) else { return };
    let Some(shard) = guard.as_mut() else { return };
    let Some(session) = shard.session(name.slot) else { return };
    if shard.port.carrier(session) != Some(carrier) {
        return;
    }
    shard.port.close(now, session, CloseReason::Normal);
    shard.port.transmit(now, session, output);
    if let Some(wakes) = wakes {
        shard.end_for_application(name.slot, wakes);
        shard.vacate_if_over(name.slot, session);
        expiry::schedule(shard.port.poll_timeout());
    }
}

/// The link is lost: the session waits for another carrier.
pub(crate) fn detach(now: Time, name: SessionName, carrier: CarrierName) {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return };
    if let Some(session) = shard.session(name.slot) {
        shard.port.detach(now, session, carrier);
        expiry::schedule(shard.port.poll_timeout());
    }
}
