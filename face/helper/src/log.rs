//! The helper's log: a separate thread forms the lines, to keep that work off the network threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use spillway_relay::Notice;
use tracing::{info, warn};

/// Bound on entries that wait to be written; further ones are dropped and counted.
const WAITING_MAX: usize = 1024;

// Minimum times between two lines of one kind.
const CLIENT_INTERVAL: Duration = Duration::from_secs(1);
const LINK_INTERVAL: Duration = Duration::from_secs(30);
const MEMORY_INTERVAL: Duration = Duration::from_secs(5);
const SHED_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub enum Entry {
    Relay {
        thread: usize,
        notice: Notice,
    },
    Net {
        thread: usize,
        notice: spillway_net::Notice,
    },
    Xdp {
        thread: usize,
        notice: spillway_xdp::Notice,
    },
    /// A listener could not be added.
    Listener {
        error: String,
    },
}

/// The network threads' end of the log.
#[derive(Clone, Debug)]
pub struct Log {
    sender: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

impl Log {
    /// Creates a log. The writing thread calls [`write`] with the [`Entries`].
    pub fn new() -> (Log, Entries) {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        (Log { sender, dropped: Arc::clone(&dropped) }, Entries { receiver, dropped })
    }

    /// Queues an entry, and never blocks. Returns false if the queue is full and the entry is dropped.
    pub fn put(&self, entry: Entry) -> bool {
        let is_full = matches!(self.sender.try_send(entry), Err(TrySendError::Full(_)));
        if is_full {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        !is_full
    }
}

/// The writing thread's end of the log.
#[derive(Debug)]
pub struct Entries {
    receiver: Receiver<Entry>,
    dropped: Arc<AtomicU64>,
}

/// Names of services by their numbers in relays: a new service gets the next number, and numbers are not reused.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<RwLock<Vec<String>>>);

impl Names {
    /// Numbers services as relays do: a name that has a number keeps it.
    pub fn add<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if !known.iter().any(|other| other == name) {
                known.push(name.to_owned());
            }
        }
    }

    fn of(&self, service: u16) -> String {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(usize::from(service)).map_or("?", String::as_str).to_owned()
    }
}

/// Writes entries until every [`Log`] is dropped.
pub fn write(entries: &Entries, services: &Names) {
    let mut limiter = RateLimiter::default();
    for entry in &entries.receiver {
        let dropped = entries.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            warn!(
                dropped,
                "{dropped} log lines dropped: network threads logged faster than lines could be written"
            );
        }
        match entry {
            Entry::Relay { thread, notice } => write_relay(thread, &notice, services, &mut limiter),
            Entry::Net { thread, notice } => warn!(thread, "{notice}"),
            Entry::Xdp { thread, notice } if notice.is_problem() => warn!(thread, "{notice}"),
            Entry::Xdp { thread, notice } => info!(thread, "{notice}"),
            Entry::Listener { error } => warn!("a new listener is left out: {error}"),
        }
    }
}

/// Each line also has its values as fields, for JSON logs. `left_out` counts the suppressed lines of its kind.
fn write_relay(thread: usize, notice: &Notice, services: &Names, limiter: &mut RateLimiter) {
    let now = Instant::now();
    match notice {
        Notice::LinkUp { service, link, connections_max } => {
            limiter.forget_link(*service, thread, *link);
            let service = services.of(*service);
            info!(%service, thread, link, connections_max, "link up: accepting clients");
        }
        Notice::LinkDown { service, link, why, clients, retry_in } => {
            let reason = why.label();
            let interval = if *clients > 0 { Duration::ZERO } else { LINK_INTERVAL };
            if let Some(suppressed) =
                limiter.count((*service, "link", thread, *link, reason.into()), now, interval)
            {
                let (service, left_out) = (services.of(*service), nonzero(suppressed));
                let retry_ms = retry_in.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
                let replaced = retry_in.is_none().then_some(true);
                warn!(
                    %service, thread, link, reason, clients_reset = clients, retry_ms, replaced, left_out,
                    "link down: {why}"
                );
            }
        }
        Notice::ClientRefused { service, client, why } => {
            let reason = why.label();
            if let Some(suppressed) =
                limiter.count((*service, "refused", 0, 0, reason.into()), now, CLIENT_INTERVAL)
            {
                let (service, left_out) = (services.of(*service), nonzero(suppressed));
                warn!(%service, thread, %client, reason, left_out, "client refused: {why}");
            }
        }
        Notice::ClientReset { service, client, why } => {
            let reason = why.label();
            if let Some(suppressed) =
                limiter.count((*service, "cut", 0, 0, reason.into()), now, CLIENT_INTERVAL)
            {
                let (service, left_out) = (services.of(*service), nonzero(suppressed));
                warn!(%service, thread, %client, reason, left_out, "client reset: {why}");
            }
        }
        Notice::ServerDrains { service, link, deadline_ms } => {
            let service = services.of(*service);
            info!(%service, thread, link, deadline_ms, "the server drains: library clients move away");
        }
        Notice::KeyRefused { service, link, key } => {
            let kind = (*service, "key", thread, *link, key.to_string());
            if let Some(suppressed) = limiter.count(kind, now, LINK_INTERVAL) {
                let (service, left_out) = (services.of(*service), nonzero(suppressed));
                warn!(
                    %service, thread, link, %key, left_out,
                    "the server does not accept key {key}: trying an older one"
                );
            }
        }
        Notice::LinkRetired { service, link, clients: 0 } => {
            let service = services.of(*service);
            info!(%service, thread, link, "replaced link closed: its last client has left");
        }
        Notice::LinkRetired { service, link, clients } => {
            let service = services.of(*service);
            warn!(
                %service, thread, link, clients_reset = clients,
                "replaced link closed at its deadline: {clients} clients reset"
            );
        }
        Notice::Shed { clients, load_percent } => {
            if let Some(suppressed) = limiter.count((0, "shed", thread, 0, String::new()), now, SHED_INTERVAL)
            {
                let left_out = nonzero(suppressed);
                warn!(
                    thread,
                    clients,
                    load_percent,
                    left_out,
                    "load {load_percent} %: {clients} library clients were sent to other helpers (shed_above)"
                );
            }
        }
        Notice::MemoryScarce { held, limit, clients } => {
            let kind = (0, "memory", thread, 0, String::new());
            if let Some(suppressed) = limiter.count(kind, now, MEMORY_INTERVAL) {
                let left_out = nonzero(suppressed);
                warn!(
                    thread,
                    buffered_bytes = held,
                    limit_bytes = limit,
                    clients,
                    left_out,
                    "memory is scarce: clients that do not read are paused, and closed at the limit, largest first \
                     (raise max_memory if they should not be; spillway connections lists them)"
                );
            }
        }
        Notice::MemoryEnough { held, limit, paused, closed } => {
            let kind = (0, "memory again", thread, 0, String::new());
            if let Some(suppressed) = limiter.count(kind, now, MEMORY_INTERVAL) {
                let left_out = nonzero(suppressed);
                info!(
                    thread,
                    buffered_bytes = held,
                    limit_bytes = limit,
                    paused,
                    closed,
                    left_out,
                    "memory is no longer scarce: {paused} clients were paused, {closed} closed"
                );
            }
        }
        Notice::DrainDeadline { service, clients } => {
            let service = services.of(*service);
            warn!(%service, thread, clients_reset = clients, "the drain deadline has passed: {clients} clients reset");
        }
    }
}

/// The field `left_out`, which is absent for 0.
fn nonzero(left_out: u64) -> Option<u64> {
    (left_out > 0).then_some(left_out)
}

/// Service, event, thread, link and reason; 0 or empty if the event's limit does not depend on the value.
type Kind = (u16, &'static str, usize, u16, String);

/// Bound on remembered kinds. Reloads add services and keys, whose kinds would otherwise be remembered for ever.
const KINDS_MAX: usize = 4096;

/// Limits the rate of lines of each kind, and remembers at most [`KINDS_MAX`] kinds.
#[derive(Debug, Default)]
struct RateLimiter {
    /// When the last line of a kind was written, and the number of lines suppressed since then.
    kinds: BTreeMap<Kind, (Instant, u64)>,
}

impl RateLimiter {
    /// Counts a line. If it may be written, returns the number of lines suppressed since the last one.
    fn count(&mut self, kind: Kind, now: Instant, interval: Duration) -> Option<u64> {
        let Some((last, left_out)) = self.kinds.get_mut(&kind) else {
            self.make_room(now);
            self.kinds.insert(kind, (now, 0));
            return Some(0);
        };
        if now.saturating_duration_since(*last) < interval {
            *left_out += 1;
            return None;
        }
        *last = now;
        Some(std::mem::take(left_out))
    }

    /// Forgets old kinds if there are [`KINDS_MAX`]: those whose interval has ended, or else the oldest one.
    fn make_room(&mut self, now: Instant) {
        if self.kinds.len() < KINDS_MAX {
            return;
        }
        self.kinds.retain(|_, (last, _)| now.saturating_duration_since(*last) < LINK_INTERVAL);
        if self.kinds.len() == KINDS_MAX {
            let oldest = self.kinds.iter().min_by_key(|(_, (last, _))| *last).map(|(kind, _)| kind.clone());
            oldest.and_then(|kind| self.kinds.remove(&kind));
        }
    }

    /// Resets the limits of a link that has come up, so that its next failure is logged at once.
    fn forget_link(&mut self, service: u16, thread: usize, link: u16) {
        let is_of_link = |kind: &Kind| (kind.0, kind.1, kind.2, kind.3) == (service, "link", thread, link);
        self.kinds.retain(|kind, _| !is_of_link(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_of_each_kind_is_written_in_an_interval() {
        let mut limiter = RateLimiter::default();
        let start = Instant::now();
        let mut count = |name: &str, millis| {
            let now = start + Duration::from_millis(millis);
            limiter.count((0, "refused", 0, 0, name.to_owned()), now, CLIENT_INTERVAL)
        };
        assert_eq!(count("Address", 0), Some(0));
        assert_eq!(count("Address", 0), None);
        assert_eq!(count("Memory", 0), Some(0));
        assert_eq!(count("Address", 999), None);
        assert_eq!(count("Address", 1000), Some(2));
    }

    #[test]
    fn failure_of_a_link_that_was_up_is_logged_at_once() {
        let mut limiter = RateLimiter::default();
        let now = Instant::now();
        let kind = |link| (0, "link", 1, link, "Lost".to_owned());
        assert_eq!(limiter.count(kind(0), now, LINK_INTERVAL), Some(0));
        assert_eq!(limiter.count(kind(1), now, LINK_INTERVAL), Some(0));
        limiter.forget_link(0, 1, 0);
        assert_eq!(limiter.count(kind(0), now, LINK_INTERVAL), Some(0));
        assert_eq!(limiter.count(kind(1), now, LINK_INTERVAL), None);
    }

    #[test]
    fn remembered_kinds_are_bounded_and_the_oldest_is_forgotten() {
        let mut limiter = RateLimiter::default();
        let start = Instant::now();
        let mut count = |key: u64, millis| {
            let now = start + Duration::from_millis(millis);
            let logged = limiter.count((0, "key", 0, 0, key.to_string()), now, LINK_INTERVAL).is_some();
            (logged, limiter.kinds.len())
        };
        let kinds_max = KINDS_MAX as u64;
        for key in 0..kinds_max + 10 {
            assert!(count(key, key).0);
        }
        assert_eq!(count(10, kinds_max + 10), (false, KINDS_MAX));
        assert_eq!(count(9, kinds_max + 10), (true, KINDS_MAX), "the oldest kinds should be forgotten");
        assert_eq!(count(kinds_max + 20, 100_000), (true, 1), "expired kinds should be forgotten");
    }

    #[test]
    fn entries_beyond_the_bound_are_dropped_and_counted() {
        let (log, entries) = Log::new();
        for clients in 0..WAITING_MAX + 5 {
            let notice = Notice::DrainDeadline { service: 0, clients: clients as u32 };
            assert_eq!(log.put(Entry::Relay { thread: 0, notice }), clients < WAITING_MAX);
        }
        assert_eq!(entries.dropped.load(Ordering::Relaxed), 5);
        drop(log);
        write(&entries, &Names::default());
    }
}
