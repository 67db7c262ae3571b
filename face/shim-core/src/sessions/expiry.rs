//! Timed work of sessions: acknowledgements that go with no data, and ends of waiting.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use spillway_session::Expired;
use spillway_transport::Time;

use super::{Shard, TABLES};
use crate::carrier_name::Name;
use crate::wakes::Wakes;
use crate::{links, lock, log, sys};

/// When the next work is due, in nanoseconds; `u64::MAX` for never.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);

/// None of this work is urgent: what is due within this time is done together.
const TOGETHER: Duration = Duration::from_millis(50);

/// Schedules work for this time.
pub(super) fn note(at: Option<Time>) {
    if let Some(at) = at {
        let together = TOGETHER.as_nanos() as u64;
        let at = at.as_nanos().div_ceil(together).saturating_mul(together);
        if at < NEXT.load(Ordering::Relaxed) {
            NEXT.fetch_min(at, Ordering::Relaxed);
        }
    }
}

/// Whether [`look`] has something to do.
#[inline]
pub(crate) fn is_due(now: Time) -> bool {
    NEXT.load(Ordering::Relaxed) <= now.as_nanos()
}

/// Time to the next [`look`]; no wait may be longer.
pub(crate) fn due_within() -> Option<Duration> {
    let at = NEXT.load(Ordering::Relaxed);
    (at != u64::MAX).then(|| Time(at).since(sys::now()))
}

/// Does the work that is due. Call with no lock held.
pub(crate) fn look(now: Time, wakes: &mut Wakes) {
    NEXT.store(u64::MAX, Ordering::Relaxed);
    for (index, table) in TABLES.iter().enumerate() {
        let mut owing = Vec::new();
        if let Some(shard) = lock(table).as_mut() {
            shard.expire(now, index as u8, wakes);
            shard.port.handle_timeout(now);
            while let Some((session, carrier)) = shard.port.poll_dirty() {
                owing.push((carrier, Name { shard: index as u8, slot: session.slot() }));
            }
            note(shard.port.poll_timeout());
        }
        for (carrier, name) in owing {
            links::carry(carrier, name, wakes);
        }
    }
}

impl Shard {
    fn say_overflow(&self, slot: u32) {
        let client = self.connection(slot).and_then(|connection| connection.lock().client);
        let client = client.map_or_else(|| "a client".to_owned(), |client| client.to_string());
        log::line(format_args!(
            "{client}: session ended, it held most of {} MiB (sixteen tables share --sessions-memory) and did not read: \
             have it read its replies, or raise --sessions-memory",
            self.port.memory_bytes_max() >> 20
        ));
    }

    /// Drops unread bytes: an application that does not read might not close for long, either.
    fn discard_unread(&self, slot: u32) {
        if let Some(connection) = self.connection(slot) {
            connection.discard();
        }
    }

    /// Ends sessions that hold too much, if the memory of all is used up.
    pub(super) fn end_overflowing(&mut self, shard: u8, wakes: &mut Wakes) {
        if self.port.is_overflowing() {
            self.expire(sys::now(), shard, wakes);
        }
    }

    /// Ends sessions that have waited too long, or hold too much.
    fn expire(&mut self, now: Time, shard: u8, wakes: &mut Wakes) {
        while let Some(expired) = self.port.poll_expired(now) {
            let (session, carrier) = match expired {
                Expired::Abandoned(session) => (session, None),
                Expired::Lingered(session, carrier) => (session, carrier),
                Expired::Overflowed(session, carrier) => {
                    self.say_overflow(session.slot());
                    self.discard_unread(session.slot());
                    (session, carrier)
                }
            };
            let slot = session.slot();
            self.tell_end(slot, wakes);
            self.vacate_if_over(slot, session);
            if let Some(carrier) = carrier {
                wakes.leave(carrier, Name { shard, slot });
            }
        }
    }
}
