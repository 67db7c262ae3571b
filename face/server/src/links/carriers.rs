//! A map from carriers to sessions.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use spillway_session::SessionHandle;

use super::other_threads::RemoteCarrier;
use crate::by_connection::ByConnection;
use crate::threads::CarrierName;

#[derive(Debug)]
pub(super) struct Carriers {
    thread: u32,
    /// Sessions on this thread's links.
    local: ByConnection<SessionHandle>,
    /// Sessions on other threads' links.
    remote: HashMap<CarrierName, (SessionHandle, RemoteCarrier)>,
}

impl Carriers {
    /// An empty map. `thread`: the number of this thread.
    pub(super) fn new(thread: u32) -> Carriers {
        Carriers { thread, local: ByConnection::default(), remote: HashMap::new() }
    }

    /// Records that this connection carries the session. `remote` is set if its link is another thread's.
    pub(super) fn insert(
        &mut self,
        carrier: CarrierName,
        session: SessionHandle,
        remote: Option<RemoteCarrier>,
    ) {
        match remote {
            Some(remote) => drop(self.remote.insert(carrier, (session, remote))),
            None => self.local.insert(carrier.0, carrier.1, session),
        }
    }

    #[inline]
    pub(super) fn session(&self, (link, id): CarrierName) -> Option<SessionHandle> {
        if link.thread == self.thread {
            return self.local.get(link, id).copied();
        }
        self.remote.get(&(link, id)).map(|(session, _)| *session)
    }

    /// This thread's state of a carrier on another thread's link. `None`: the link is this thread's, or the
    /// carrier is not in the map.
    pub(super) fn remote(&mut self, carrier: CarrierName) -> Option<&mut RemoteCarrier> {
        if carrier.0.thread == self.thread {
            return None;
        }
        self.remote.get_mut(&carrier).map(|(_, remote)| remote)
    }

    /// The [`Ledger::serial`](crate::threads::Ledger::serial) of a carrier on another thread's link;
    /// otherwise 0.
    pub(super) fn serial(&mut self, carrier: CarrierName) -> u64 {
        self.remote(carrier).map_or(0, |remote| remote.ledger.serial)
    }

    /// Reports to another link's thread that this thread has processed `bytes` of the bytes that the link's
    /// thread posted to its mailbox. Does nothing for this thread's links.
    pub(super) fn report_handled(&mut self, carrier: CarrierName, bytes: u64) {
        if let Some(remote) = self.remote(carrier) {
            remote.ledger.handled.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn remove(&mut self, (link, id): CarrierName) -> Option<SessionHandle> {
        if link.thread == self.thread {
            return self.local.remove(link, id);
        }
        self.remote.remove(&(link, id)).map(|(session, _)| session)
    }
}
