//! The application's calls on connections of sessions. Called with no lock held.

use core::sync::atomic::Ordering;

use libc::{c_int, iovec};
use spillway_batch::{CloseReason, Info, RefuseReason, Role};
use spillway_session::SessionHandle;

use super::{Shard, TABLES, expiry, shard, shard_of};
use crate::carrier_name::SessionName;
use crate::connections::{self, Connection};
use crate::io_vectors::put;
use crate::sys::{self, Errno};
use crate::wakes::Wakes;
use crate::{links, lock, status};

/// Calls `act` on a connection's session, then sends the session's output on its carrier. `None`: the session is over.
fn with<T>(
    connection: &Connection,
    wakes: &mut Wakes,
    act: impl FnOnce(&mut Shard, SessionHandle) -> T,
) -> Option<T> {
    let name = name_of(connection)?;
    let (outcome, carrier) = {
        let mut guard = shard(name.shard);
        let shard = guard.as_mut()?;
        let session = shard.session_of(connection)?;
        let outcome = act(shard, session);
        (outcome, shard.port.carrier(session))
    };
    if let Some(carrier) = carrier {
        links::carry(carrier, name, wakes);
    }
    Some(outcome)
}

fn name_of(connection: &Connection) -> Option<SessionName> {
    Some(SessionName { shard: shard_of(connection)?, slot: connection.id.load(Ordering::Relaxed) })
}

/// Sends on a connection. Returns the number of bytes accepted, or EAGAIN.
///
/// # Safety
/// `parts` describe readable memory.
pub(crate) unsafe fn send(
    fd: c_int,
    connection: &Connection,
    parts: &[iovec],
    wakes: &mut Wakes,
) -> Result<usize, Errno> {
    let mut overflows = false;
    let write = |shard: &mut Shard, session| {
        if !connection.has_descriptor(fd) {
            return Err(libc::EBADF); // closed by another thread; another client may use the slot
        }
        // SAFETY: the caller vouches for the parts.
        let (accepted, wanted) = unsafe { put(parts, |bytes| shard.port.write(session, bytes)) };
        if accepted < wanted {
            connection.readiness.set_can_send(false);
        }
        overflows = shard.port.is_overflowing();
        if accepted == 0 && wanted > 0 { Err(libc::EAGAIN) } else { Ok(accepted) }
    };
    let sent = with(connection, wakes, write).unwrap_or(Err(libc::EPIPE));
    if overflows {
        end_overflowing(connection, wakes);
    }
    sent
}

/// The shard's sessions exceed their memory: ends those that hold the most and do not read.
#[cold]
fn end_overflowing(connection: &Connection, wakes: &mut Wakes) {
    let Some(index) = shard_of(connection) else { return };
    if let Some(shard) = shard(index).as_mut() {
        shard.end_overflowing(index, wakes);
    }
}

/// The application has read bytes.
pub(crate) fn consumed(connection: &Connection, bytes: usize, wakes: &mut Wakes) {
    with(connection, wakes, |shard, session| {
        let outcome = shard.port.consumed(session, bytes);
        debug_assert_eq!(outcome, Ok(()), "the application should read only received bytes");
    });
}

/// The application sends no more.
pub(crate) fn finish(connection: &Connection, wakes: &mut Wakes) {
    with(connection, wakes, |shard, session| shard.port.finish(session));
}

/// The application has accepted the connection.
pub(crate) fn accept(connection: &Connection, wakes: &mut Wakes) {
    let accepted = with(connection, wakes, |shard, session| shard.port.accept(session));
    if let (Some(Some(carrier)), Some(name)) = (accepted, name_of(connection)) {
        links::accept_carrier(carrier, name, wakes);
    }
}

/// Refuses a connection that was removed from the accept queue.
pub(crate) fn refuse(connection: &Connection, wakes: &mut Wakes) {
    let refuse = |shard: &mut Shard, session: SessionHandle| {
        let carrier = shard.port.refuse(session);
        shard.vacate_if_over(session.slot(), session);
        status::connection_ended(connection);
        carrier
    };
    if let (Some(Some(carrier)), Some(name)) = (with(connection, wakes, refuse), name_of(connection)) {
        links::refuse_carrier(carrier, name, RefuseReason::Unavailable, wakes);
    }
}

/// The application has closed the connection, which receives nothing after this. The session lingers.
pub(crate) fn close(connection: &Connection, abort: bool, wakes: &mut Wakes) {
    let reason = if abort { CloseReason::Reset } else { CloseReason::Normal };
    with(connection, wakes, |shard, session| {
        shard.port.close(sys::now(), session, reason);
        if let Some(entry) = shard.entry(session.slot()) {
            entry.connection = None;
        }
        status::connection_ended(connection);
        expiry::schedule(shard.port.poll_timeout());
    });
}

/// The link that carries a connection now.
pub(crate) fn link_of(connection: &Connection) -> Option<u32> {
    let guard = shard(shard_of(connection)?);
    let shard = guard.as_ref()?;
    shard.port.carrier(shard.session_of(connection)?).map(|(link, _)| link)
}

/// Calls `report` with the traffic of each session that the application has not closed.
pub(crate) fn each_connection(report: &mut impl FnMut(u32, Info)) {
    for table in &TABLES {
        let guard = lock(table);
        let Some(shard) = guard.as_ref() else { continue };
        for entry in &shard.entries {
            let info = entry.session.and_then(|session| shard.port.info(session));
            if let (Some(connection), Some(info)) = (entry.connection, info)
                && let Some(client) =
                    connections::get(connection).and_then(|connection| connection.lock().client)
            {
                let (bytes_received, bytes_sent) = (info.bytes_received, info.bytes_sent);
                report(connection, Info { client, role: Role::Client, bytes_received, bytes_sent });
            }
        }
    }
}
