//! Timed work of sessions: acknowledgements without data, and expiry.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use spillway_session::Expired;
use spillway_transport::Time;

use super::{Shard, TABLES};
use crate::carrier_name::SessionName;
use crate::wakes::Wakes;
use crate::{links, lock, log, sys};

/// When the next work is due, in nanoseconds; `u64::MAX` for never.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Due times are rounded up to multiples of this, to do work together that is not urgent.
const GRANULARITY: Duration = Duration::from_millis(50);

/// Schedules work for this time.
pub(super) fn schedule(at: Option<Time>) {
    if let Some(at) = at {
        let granularity = GRANULARITY.as_nanos() as u64;
        let at = at.as_nanos().div_ceil(granularity).saturating_mul(granularity);
        if at < NEXT.load(Ordering::Relaxed) {
            NEXT.fetch_min(at, Ordering::Relaxed);
        }
    }
}

/// Whether [`run_timed_work`] has something to do.
#[inline]
pub(crate) fn is_due(now: Time) -> bool {
    NEXT.load(Ordering::Relaxed) <= now.as_nanos()
}

/// Time to the next [`run_timed_work`], which bounds every wait.
pub(crate) fn due_within() -> Option<Duration> {
    let at = NEXT.load(Ordering::Relaxed);
    (at != u64::MAX).then(|| Time(at).since(sys::now()))
}

/// Does the work that is due. Call with no lock held.
pub(crate) fn run_timed_work(now: Time, wakes: &mut Wakes) {
    NEXT.store(u64::MAX, Ordering::Relaxed);
    for (index, table) in TABLES.iter().enumerate() {
        let mut with_output = Vec::new();
        if let Some(shard) = lock(table).as_mut() {
            shard.expire(now, index as u8, wakes);
            shard.port.handle_timeout(now);
            while let Some((session, carrier)) = shard.port.poll_dirty() {
                with_output.push((carrier, SessionName { shard: index as u8, slot: session.slot() }));
            }
            schedule(shard.port.poll_timeout());
        }
        for (carrier, name) in with_output {
            links::carry(carrier, name, wakes);
        }
    }
}

impl Shard {
    fn log_overflow(&self, slot: u32) {
        let client = self.connection(slot).and_then(|connection| connection.lock().client);
        let client = client.map_or_else(|| "a client".to_owned(), |client| client.to_string());
        log::line(format_args!(
            "{client}: session ended, because it held most of {} MiB (its table's share of --sessions-memory) and \
             did not read: make the client read its replies, or raise --sessions-memory",
            self.port.memory_bytes_max() >> 20
        ));
    }

    /// Drops unread bytes: an application that does not read may also leave the connection open for a long time.
    fn discard_unread(&self, slot: u32) {
        if let Some(connection) = self.connection(slot) {
            connection.discard();
        }
    }

    /// If the shard's memory is exceeded, ends the sessions that hold the most.
    pub(super) fn end_overflowing(&mut self, shard: u8, wakes: &mut Wakes) {
        if self.port.is_overflowing() {
            self.expire(sys::now(), shard, wakes);
        }
    }

    /// Ends sessions that have waited too long or hold too much memory.
    fn expire(&mut self, now: Time, shard: u8, wakes: &mut Wakes) {
        while let Some(expired) = self.port.poll_expired(now) {
            let (session, carrier) = match expired {
                Expired::Abandoned(session) => (session, None),
                Expired::Lingered(session, carrier) => (session, carrier),
                Expired::Overflowed(session, carrier) => {
                    self.log_overflow(session.slot());
                    self.discard_unread(session.slot());
                    (session, carrier)
                }
            };
            let slot = session.slot();
            self.end_for_application(slot, wakes);
            self.vacate_if_over(slot, session);
            if let Some(carrier) = carrier {
                wakes.push_left_carrier(carrier, SessionName { shard, slot });
            }
        }
    }
}
