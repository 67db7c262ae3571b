//! The newest list of a source, for a loop that waits for other things, too.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::etcd::{self, Client, EtcdAccess};
use crate::stop::{Running, running};
use crate::{Entry, Notice, Source, dns, tidy};

/// Notices that wait to be polled; when more come, the oldest go.
const NOTICES_MAX: usize = 64;

/// How a source is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a name is looked up, spread by a quarter.
    pub dns_interval: Duration,
    /// How long a member of etcd may take to answer.
    pub request_timeout: Duration,
    /// How often etcd is asked, spread by a quarter.
    pub etcd_interval: Duration,
    /// Which etcd is trusted, and as whom it is asked.
    pub etcd_access: EtcdAccess,
    /// How long helpers stay that are missing from etcd without having been removed, and the last of a list that has
    /// become empty. Longer than helpers take to register again.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            dns_interval: Duration::from_secs(10),
            request_timeout: Duration::from_secs(3),
            etcd_interval: Duration::from_secs(2),
            etcd_access: EtcdAccess::default(),
            grace: Duration::from_secs(15),
        }
    }
}

/// Watches a source, on a thread of its own where it has to wait for somebody. The thread ends soon after this is
/// dropped, at once unless it looks up a name or opens a connection; nothing waits for it.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    _running: Option<Running>,
}

impl Watcher {
    /// Begins to watch. A list comes as soon as there is one, which may be never.
    ///
    /// # Errors
    /// The host has no descriptors or threads left.
    pub fn start(source: Source, settings: Settings) -> io::Result<Watcher> {
        let shared = Arc::new(Shared {
            news: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            waiting: Mutex::default(),
        });
        let sender = Sender { shared: Arc::clone(&shared) };
        let running = match source {
            Source::Static(all) => {
                sender.list(all.into_iter().map(Entry::at).collect());
                None
            }
            Source::Dns { host, port } => {
                let (running, stop) = running(None);
                start_thread(move || dns::watch(&host, port, settings.dns_interval, &stop, &sender))?;
                Some(running)
            }
            Source::Etcd(place) => {
                let client = Client::new(&place, &settings.etcd_access, settings.request_timeout);
                let (running, stop) = running(Some(client.agent()));
                start_thread(move || etcd::poll(&place, client, &settings, &stop, &sender))?;
                Some(running)
            }
        };
        Ok(Watcher { shared, _running: running })
    }

    /// The whole list, if it is another than the last that this has given: sorted by address, each address once, at
    /// most [`HELPERS_MAX`](crate::HELPERS_MAX).
    #[must_use]
    pub fn poll_list(&mut self) -> Option<Vec<Entry>> {
        let mut waiting = self.shared.waiting();
        let list = waiting.list.take();
        self.shared.calm(&waiting);
        list
    }

    /// What an operator may want to know.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        let mut waiting = self.shared.waiting();
        let notice = waiting.notices.pop_front();
        self.shared.calm(&waiting);
        notice
    }

    /// Why the source is not to be had now, if it is not.
    pub fn trouble(&self) -> Option<String> {
        self.shared.waiting().trouble.clone()
    }
}

/// Readable as long as there is a list or a notice.
impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.news.as_fd()
    }
}

pub(crate) fn start_thread(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("discovery".into()).spawn(run).map(drop)
}

#[derive(Debug)]
struct Shared {
    news: OwnedFd,
    waiting: Mutex<Waiting>,
}

/// What has not been polled yet.
#[derive(Debug, Default)]
struct Waiting {
    list: Option<Vec<Entry>>,
    /// The list before, given or not.
    last: Option<Vec<Entry>>,
    notices: VecDeque<Notice>,
    trouble: Option<String>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It fails only where it is readable since 2^64 - 2 times.
        let _ = rustix::io::write(&self.news, &1_u64.to_ne_bytes());
    }

    /// Takes the signal back when nothing waits. With the lock held, so that none is lost.
    fn calm(&self, waiting: &Waiting) {
        if waiting.list.is_none() && waiting.notices.is_empty() {
            // Nothing to take back is an error, too.
            let _ = rustix::io::read(&self.news, &mut [0; 8]);
        }
    }
}

/// The watching thread's end.
#[derive(Debug)]
pub(crate) struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    /// The list as it is now. That it is too long is told when it is news.
    pub(crate) fn list(&self, mut list: Vec<Entry>) {
        let too_many = tidy(&mut list);
        let mut waiting = self.shared.waiting();
        if waiting.last.as_ref() == Some(&list) {
            return;
        }
        waiting.last = Some(list.clone());
        waiting.list = Some(list);
        self.shared.wake();
        drop(waiting);
        if too_many {
            self.notice(Notice::TooMany);
        }
    }

    pub(crate) fn notice(&self, notice: Notice) {
        let mut waiting = self.shared.waiting();
        if waiting.notices.len() == NOTICES_MAX {
            waiting.notices.pop_front();
        }
        waiting.notices.push_back(notice);
        self.shared.wake();
    }

    /// Told when it is news.
    pub(crate) fn failed(&self, source: &str, why: String) {
        let before = self.shared.waiting().trouble.replace(why.clone());
        if before.as_ref() != Some(&why) {
            self.notice(Notice::Failed { source: source.to_owned(), why });
        }
    }

    /// Told where it had failed.
    pub(crate) fn fine(&self, source: &str) {
        let had_failed = self.shared.waiting().trouble.take().is_some();
        if had_failed {
            self.notice(Notice::Back { source: source.to_owned() });
        }
    }
}

#[cfg(test)]
impl Watcher {
    pub(crate) fn sender(&self) -> Sender {
        Sender { shared: Arc::clone(&self.shared) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(watcher: &Watcher) -> bool {
        let mut waited = [PollFd::new(watcher, PollFlags::IN)];
        poll(&mut waited, Some(&Timespec::default())).unwrap() == 1
    }

    fn pair() -> (Watcher, Sender) {
        let watcher = Watcher::start("10.0.0.1:1".parse().unwrap(), Settings::default()).unwrap();
        let sender = watcher.sender();
        (watcher, sender)
    }

    fn entries(ports: &[u16]) -> Vec<Entry> {
        ports.iter().map(|port| Entry::at(([10, 0, 0, 1], *port).into())).collect()
    }

    #[test]
    fn a_static_list_is_given_once() {
        let (mut watcher, _) = pair();
        assert!(is_readable(&watcher));
        assert_eq!(watcher.poll_list(), Some(entries(&[1])));
        assert!(!is_readable(&watcher));
        assert_eq!(watcher.poll_list(), None);
    }

    #[test]
    fn only_the_newest_list_is_given_sorted_and_each_address_once() {
        let (mut watcher, sender) = pair();
        sender.list(entries(&[5]));
        sender.list(entries(&[3, 2, 3]));
        assert_eq!(watcher.poll_list(), Some(entries(&[2, 3])));
        sender.list(entries(&[3, 2]));
        assert!(!is_readable(&watcher) && watcher.poll_list().is_none(), "the same again is no news");
        sender.list(entries(&[]));
        assert_eq!(watcher.poll_list(), Some(Vec::new()));
    }

    #[test]
    fn the_descriptor_is_readable_while_anything_waits() {
        let (mut watcher, sender) = pair();
        sender.failed("dns:x:1", "why".into());
        sender.failed("dns:x:1", "why".into());
        assert_eq!(watcher.trouble().as_deref(), Some("why"));
        assert!(watcher.poll_list().is_some() && is_readable(&watcher));
        assert!(matches!(watcher.poll_notice(), Some(Notice::Failed { .. })));
        assert!(!is_readable(&watcher) && watcher.poll_notice().is_none());
        sender.fine("dns:x:1");
        sender.fine("dns:x:1");
        assert!(is_readable(&watcher));
        assert_eq!(watcher.poll_notice(), Some(Notice::Back { source: "dns:x:1".into() }));
        assert!(watcher.poll_notice().is_none() && watcher.trouble().is_none());
    }

    #[test]
    fn notices_and_helpers_are_bounded_and_it_is_told() {
        let (mut watcher, sender) = pair();
        (0..NOTICES_MAX + 5).for_each(|helpers| sender.notice(Notice::Missing { helpers }));
        assert_eq!(watcher.poll_notice(), Some(Notice::Missing { helpers: 5 }));
        let many: Vec<u16> = (1..=5000).collect();
        sender.list(entries(&many));
        sender.list(entries(&many));
        assert_eq!(watcher.poll_list().map(|list| list.len()), Some(crate::HELPERS_MAX));
        let notices = std::iter::from_fn(|| watcher.poll_notice());
        assert_eq!(notices.filter(|notice| *notice == Notice::TooMany).count(), 1);
    }
}
