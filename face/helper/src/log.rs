//! Decisions become log lines, on a thread of its own: a log that stands still must not stop the network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use spillway_relay::Notice;
use tracing::{info, warn};

/// Lines that wait to be written; what comes on top is counted and dropped.
const WAITING_MAX: usize = 1024;
/// Lines about single clients: at most one of a kind in this time.
const CLIENT_INTERVAL: Duration = Duration::from_secs(1);

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

    /// Never blocks.
    pub fn put(&self, entry: Entry) {
        if let Err(TrySendError::Full(_)) = self.sender.try_send(entry) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Lines {
    receiver: Receiver<Entry>,
    dropped: Arc<AtomicU64>,
}

/// Writes until every [`Log`] is gone.
pub fn write(lines: &Lines, services: &[String]) {
    let mut limiter = ByKind::default();
    for entry in &lines.receiver {
        let dropped = lines.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            warn!("{dropped} log lines were dropped: more was decided than could be written");
        }
        match entry {
            Entry::Relay { thread, notice } => write_relay(thread, &notice, services, &mut limiter),
            Entry::Net { thread, notice } => warn!(thread, "{notice}"),
        }
    }
}

fn write_relay(thread: usize, notice: &Notice, services: &[String], limiter: &mut ByKind) {
    let name = |service: u16| services.get(usize::from(service)).map_or("?", String::as_str);
    match notice {
        Notice::LinkUp { service, link, connections_max } => {
            info!(thread, link, "{}: link up, for {connections_max} clients; taking clients", name(*service));
        }
        Notice::LinkDown { service, link, why, clients, retry_in } => {
            let (service, retry_ms) = (name(*service), retry_in.as_millis());
            warn!(
                thread,
                link, "{service}: link down: {why}; {clients} clients reset, retry in {retry_ms} ms"
            );
        }
        Notice::ClientRefused { service, client, why } => {
            let kind = (*service, "refused", discriminant_name(why));
            if let Some(more) = limiter.count(kind, Instant::now()) {
                warn!(thread, "{}: client {client} refused: {why}{}", name(*service), Also(more));
            }
        }
        Notice::ClientCut { service, client, why } => {
            let kind = (*service, "cut", discriminant_name(why));
            if let Some(more) = limiter.count(kind, Instant::now()) {
                warn!(thread, "{}: client {client} reset: {why}{}", name(*service), Also(more));
            }
        }
        Notice::ServerDrains { service, link, deadline_ms } => {
            let service = name(*service);
            info!(thread, link, "{service}: the server wants its clients moved away within {deadline_ms} ms");
        }
        Notice::DrainDeadline { clients } => {
            warn!(thread, "the drain deadline has passed: {clients} clients reset");
        }
    }
}

/// The name of a reason without what it says about one client: `Server(Full)` and `Server(Forbidden)` are one.
fn discriminant_name(reason: &impl std::fmt::Debug) -> String {
    let text = format!("{reason:?}");
    text.split(['(', '{', ' ']).next().unwrap_or_default().to_owned()
}

/// How many lines were left out.
struct Also(u64);

impl std::fmt::Display for Also {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " ({} more like this since the last line)", self.0) }
    }
}

type Kind = (u16, &'static str, String);

/// Limits lines by kind. Kinds are few: reasons times services.
#[derive(Debug, Default)]
struct ByKind {
    kinds: BTreeMap<Kind, (Instant, u64)>,
}

impl ByKind {
    /// Some when it is time for a line: how many were left out since the last one.
    fn count(&mut self, kind: Kind, now: Instant) -> Option<u64> {
        let Some((last, left_out)) = self.kinds.get_mut(&kind) else {
            self.kinds.insert(kind, (now, 0));
            return Some(0);
        };
        if now.saturating_duration_since(*last) < CLIENT_INTERVAL {
            *left_out += 1;
            return None;
        }
        *last = now;
        Some(std::mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_of_a_kind_in_a_second() {
        let mut limiter = ByKind::default();
        let start = Instant::now();
        let kind = |name: &str| (0, "refused", name.to_owned());
        assert_eq!(limiter.count(kind("Address"), start), Some(0));
        assert_eq!(limiter.count(kind("Address"), start), None);
        assert_eq!(limiter.count(kind("Memory"), start), Some(0));
        assert_eq!(limiter.count(kind("Address"), start + Duration::from_millis(999)), None);
        assert_eq!(limiter.count(kind("Address"), start + CLIENT_INTERVAL), Some(2));
    }

    #[test]
    fn a_full_log_drops_and_counts() {
        let (log, lines) = Log::new();
        for clients in 0..WAITING_MAX + 5 {
            let notice = Notice::DrainDeadline { clients: clients as u32 };
            log.put(Entry::Relay { thread: 0, notice });
        }
        assert_eq!(lines.dropped.load(Ordering::Relaxed), 5);
        drop(log);
        write(&lines, &[]);
    }

    #[test]
    fn kinds_are_named_without_their_details() {
        assert_eq!(discriminant_name(&Some(3)), "Some");
        assert_eq!(discriminant_name(&Option::<u8>::None), "None");
    }
}
