//! A map from carriers to sessions.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use spillway_session::SessionHandle;

use super::other_threads::Far;
use crate::by_connection::ByConnection;
use crate::threads::CarrierName;

#[derive(Debug)]
pub(super) struct Carriers {
    thread: u32,
    /// Sessions on this thread's links.
    near: ByConnection<SessionHandle>,
    /// Sessions on other threads' links.
    far: HashMap<CarrierName, (SessionHandle, Far)>,
}

impl Carriers {
    /// An empty map. `thread`: the number of this thread.
    pub(super) fn new(thread: u32) -> Carriers {
        Carriers { thread, near: ByConnection::default(), far: HashMap::new() }
    }

    /// Records that this connection carries the session. `far` is set if its link is another thread's.
    pub(super) fn insert(&mut self, carrier: CarrierName, session: SessionHandle, far: Option<Far>) {
        match far {
            Some(far) => drop(self.far.insert(carrier, (session, far))),
            None => self.near.insert(carrier.0, carrier.1, session),
        }
    }

    /// The session that this connection carries.
    #[inline]
    pub(super) fn session(&self, (link, id): CarrierName) -> Option<SessionHandle> {
        if link.thread == self.thread {
            return self.near.get(link, id).copied();
        }
        self.far.get(&(link, id)).map(|(session, _)| *session)
    }

    /// This end of a carrier on another thread's link; `None` for this thread's links.
    pub(super) fn far(&mut self, carrier: CarrierName) -> Option<&mut Far> {
        if carrier.0.thread == self.thread {
            return None;
        }
        self.far.get_mut(&carrier).map(|(_, far)| far)
    }

    /// The [`Ledger::serial`](crate::threads::Ledger::serial) of a carrier on another thread's link; 0 for this thread's.
    pub(super) fn serial(&mut self, carrier: CarrierName) -> u64 {
        self.far(carrier).map_or(0, |far| far.ledger.serial)
    }

    /// Tells the link's thread that `bytes` posted bytes have been processed.
    pub(super) fn note_handled(&mut self, carrier: CarrierName, bytes: u64) {
        if let Some(far) = self.far(carrier) {
            far.ledger.handled.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Removes a carrier, and returns its session.
    pub(super) fn remove(&mut self, (link, id): CarrierName) -> Option<SessionHandle> {
        if link.thread == self.thread {
            return self.near.remove(link, id);
        }
        self.far.remove(&(link, id)).map(|(session, _)| session)
    }
}
