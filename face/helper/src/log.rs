//! Decisions become log lines, on a thread of its own: forming them is no work for the network threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use spillway_relay::Notice;
use tracing::{info, warn};

/// Lines that wait to be written; what comes on top is counted and dropped.
const WAITING_MAX: usize = 1024;
/// Lines about single clients: at most one of a kind in this time.
const CLIENT_INTERVAL: Duration = Duration::from_secs(1);
/// Lines about a link that still cannot be opened, for the same reason: at most one in this time.
const LINK_INTERVAL: Duration = Duration::from_secs(30);

/// Lines about memory that becomes scarce, or no longer is.
const MEMORY_INTERVAL: Duration = Duration::from_secs(5);
/// Lines about clients that are sent away, one for each look at most otherwise.
const SHED_INTERVAL: Duration = Duration::from_secs(5);

/// One decision.
#[derive(Debug)]
pub enum Entry {
    /// Of a thread's relay.
    Relay { thread: usize, notice: Notice },
    /// Of a thread's sockets.
    Net { thread: usize, notice: spillway_net::Notice },
}

/// Where network threads put their decisions.
#[derive(Clone, Debug)]
pub struct Log {
    sender: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

impl Log {
    /// A log, and the thread's end of it: give it to [`write`].
    pub fn new() -> (Log, Lines) {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        (Log { sender, dropped: Arc::clone(&dropped) }, Lines { receiver, dropped })
    }

    /// Never blocks. False where there was no room for it.
    pub fn put(&self, entry: Entry) -> bool {
        let is_full = matches!(self.sender.try_send(entry), Err(TrySendError::Full(_)));
        if is_full {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        !is_full
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Lines {
    receiver: Receiver<Entry>,
    dropped: Arc<AtomicU64>,
}

/// Names of services by the relays' numbers: in the order in which they came, and never taken back.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<RwLock<Vec<String>>>);

impl Names {
    /// As relays do: a name that is known keeps its number.
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

/// Writes until every [`Log`] is gone.
pub fn write(lines: &Lines, services: &Names) {
    let mut limiter = ByKind::default();
    for entry in &lines.receiver {
        let dropped = lines.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            warn!(dropped, "{dropped} log lines dropped: more was decided than could be written");
        }
        match entry {
            Entry::Relay { thread, notice } => write_relay(thread, &notice, services, &mut limiter),
            Entry::Net { thread, notice } => warn!(thread, "{notice}"),
        }
    }
}

/// Each line has its facts as fields, for logs as JSON; `left_out` counts lines like it since the last one.
fn write_relay(thread: usize, notice: &Notice, services: &Names, limiter: &mut ByKind) {
    let now = Instant::now();
    match notice {
        Notice::LinkUp { service, link, connections_max } => {
            limiter.forget_link(*service, thread, *link);
            let service = services.of(*service);
            info!(%service, thread, link, connections_max, "link up: taking clients");
        }
        Notice::LinkDown { service, link, why, clients, retry_in } => {
            let reason = why.label();
            let interval = if *clients > 0 { Duration::ZERO } else { LINK_INTERVAL };
            if let Some(more) = limiter.count((*service, "link", thread, *link, reason.into()), now, interval)
            {
                let (service, left_out) = (services.of(*service), told(more));
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
            if let Some(more) =
                limiter.count((*service, "refused", 0, 0, reason.into()), now, CLIENT_INTERVAL)
            {
                let (service, left_out) = (services.of(*service), told(more));
                warn!(%service, thread, %client, reason, left_out, "client refused: {why}");
            }
        }
        Notice::ClientCut { service, client, why } => {
            let reason = why.label();
            if let Some(more) = limiter.count((*service, "cut", 0, 0, reason.into()), now, CLIENT_INTERVAL) {
                let (service, left_out) = (services.of(*service), told(more));
                warn!(%service, thread, %client, reason, left_out, "client reset: {why}");
            }
        }
        Notice::ServerDrains { service, link, deadline_ms } => {
            let service = services.of(*service);
            info!(%service, thread, link, deadline_ms, "the server wants its clients moved away");
        }
        Notice::KeyRefused { service, link, key } => {
            let kind = (*service, "key", thread, *link, key.to_string());
            if let Some(more) = limiter.count(kind, now, LINK_INTERVAL) {
                let (service, left_out) = (services.of(*service), told(more));
                warn!(%service, thread, link, %key, left_out, "the server does not accept key {key}: trying an older one");
            }
        }
        Notice::LinkRetired { service, link } => {
            let service = services.of(*service);
            info!(%service, thread, link, "the link that was replaced has ended with its clients");
        }
        Notice::Shed { clients, load_percent } => {
            if let Some(more) = limiter.count((0, "shed", thread, 0, String::new()), now, SHED_INTERVAL) {
                let left_out = told(more);
                warn!(
                    thread,
                    clients,
                    load_percent,
                    left_out,
                    "too much to do: library clients were sent to other helpers (shed_above)"
                );
            }
        }
        Notice::MemoryScarce { held, limit, clients } => {
            let kind = (0, "memory", thread, 0, String::new());
            if let Some(more) = limiter.count(kind, now, MEMORY_INTERVAL) {
                let left_out = told(more);
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
            if let Some(more) = limiter.count(kind, now, MEMORY_INTERVAL) {
                let left_out = told(more);
                info!(
                    thread,
                    buffered_bytes = held,
                    limit_bytes = limit,
                    paused,
                    closed,
                    left_out,
                    "there is enough memory again: {paused} clients were paused, {closed} closed"
                );
            }
        }
        Notice::DrainDeadline { service, clients } => {
            let service = services.of(*service);
            warn!(%service, thread, clients_reset = clients, "the drain deadline has passed");
        }
    }
}

/// A field only where lines were left out.
fn told(left_out: u64) -> Option<u64> {
    (left_out > 0).then_some(left_out)
}

/// Service, what happened, thread and link where it is about a link, reason.
type Kind = (u16, &'static str, usize, u16, String);

/// Limits lines by kind. Kinds are few: reasons times services, and times links.
#[derive(Debug, Default)]
struct ByKind {
    kinds: BTreeMap<Kind, (Instant, u64)>,
}

impl ByKind {
    /// Some when it is time for a line: how many were left out since the last one.
    fn count(&mut self, kind: Kind, now: Instant, interval: Duration) -> Option<u64> {
        let Some((last, left_out)) = self.kinds.get_mut(&kind) else {
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

    /// The link is up: whatever is wrong with it next is news.
    fn forget_link(&mut self, service: u16, thread: usize, link: u16) {
        let is_it = |kind: &Kind| (kind.0, kind.1, kind.2, kind.3) == (service, "link", thread, link);
        self.kinds.retain(|kind, _| !is_it(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_of_a_kind_in_an_interval() {
        let mut limiter = ByKind::default();
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
    fn a_link_that_was_up_is_news_again() {
        let mut limiter = ByKind::default();
        let now = Instant::now();
        let kind = |link| (0, "link", 1, link, "Lost".to_owned());
        assert_eq!(limiter.count(kind(0), now, LINK_INTERVAL), Some(0));
        assert_eq!(limiter.count(kind(1), now, LINK_INTERVAL), Some(0));
        limiter.forget_link(0, 1, 0);
        assert_eq!(limiter.count(kind(0), now, LINK_INTERVAL), Some(0));
        assert_eq!(limiter.count(kind(1), now, LINK_INTERVAL), None);
    }

    #[test]
    fn a_full_log_drops_and_counts() {
        let (log, lines) = Log::new();
        for clients in 0..WAITING_MAX + 5 {
            let notice = Notice::DrainDeadline { service: 0, clients: clients as u32 };
            assert_eq!(log.put(Entry::Relay { thread: 0, notice }), clients < WAITING_MAX);
        }
        assert_eq!(lines.dropped.load(Ordering::Relaxed), 5);
        drop(log);
        write(&lines, &Names::default());
    }
}
