use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::etcd::{self, Client};
use crate::settings::Settings;
use crate::stop::{RunningThread, start_thread, stop_pair};
use crate::updates::{Updates, channel};
use crate::{Entry, Notice, Source, dns};

/// Watches a source, on a separate thread unless the addresses are fixed. Dropping it ends the thread at once, or after
/// the look-up or connect in progress; the drop does not wait for the thread.
#[derive(Debug)]
pub struct Watcher {
    updates: Updates,
    _running: Option<RunningThread>,
}

impl Watcher {
    /// Begins to watch; the first list comes with the source's first answer. Fails if the host has no descriptors or
    /// threads left.
    pub fn start(source: Source, settings: Settings) -> io::Result<Watcher> {
        let (sender, updates) = channel()?;
        let running = match source {
            Source::Static(all) => {
                sender.set_list(all.into_iter().map(Entry::at).collect());
                None
            }
            Source::Dns { host, port } => {
                let (running, stop) = stop_pair(None);
                start_thread(move || dns::watch(&host, port, settings.dns_interval, &stop, &sender))?;
                Some(running)
            }
            Source::Etcd(place) => {
                let client = Client::new(&place, &settings.etcd_access, settings.request_timeout);
                let (running, stop) = stop_pair(Some(client.agent()));
                start_thread(move || etcd::poll(&place, client, &settings, &stop, &sender))?;
                Some(running)
            }
        };
        Ok(Watcher { updates, _running: running })
    }

    /// The whole list, if it has changed: sorted, without repetitions, at most [`HELPERS_MAX`](crate::HELPERS_MAX).
    #[must_use]
    pub fn poll_list(&mut self) -> Option<Vec<Entry>> {
        self.updates.poll_list()
    }

    /// The next notice for operators, oldest first.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.updates.poll_notice()
    }

    /// The source's present error; `None` if it does not fail.
    pub fn error(&self) -> Option<String> {
        self.updates.error()
    }
}

/// Readable while a list or a notice waits.
impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.updates.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::updates::{NOTICES_MAX, Sender};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(watcher: &Watcher) -> bool {
        let mut waited = [PollFd::new(watcher, PollFlags::IN)];
        poll(&mut waited, Some(&Timespec::default())).unwrap() == 1
    }

    fn watcher_and_sender() -> (Watcher, Sender) {
        let watcher = Watcher::start("10.0.0.1:1".parse().unwrap(), Settings::default()).unwrap();
        let sender = watcher.updates.sender();
        (watcher, sender)
    }

    fn entries(ports: &[u16]) -> Vec<Entry> {
        ports.iter().map(|port| Entry::at(([10, 0, 0, 1], *port).into())).collect()
    }

    #[test]
    fn fixed_addresses_are_returned_once() {
        let (mut watcher, _) = watcher_and_sender();
        assert!(is_readable(&watcher));
        assert_eq!(watcher.poll_list(), Some(entries(&[1])));
        assert!(!is_readable(&watcher));
        assert_eq!(watcher.poll_list(), None);
    }

    #[test]
    fn newest_list_is_returned_sorted_and_without_repetitions() {
        let (mut watcher, sender) = watcher_and_sender();
        sender.set_list(entries(&[5]));
        sender.set_list(entries(&[3, 2, 3]));
        assert_eq!(watcher.poll_list(), Some(entries(&[2, 3])));
        sender.set_list(entries(&[3, 2]));
        assert!(
            !is_readable(&watcher) && watcher.poll_list().is_none(),
            "an equal list should not be returned again"
        );
        sender.set_list(entries(&[]));
        assert_eq!(watcher.poll_list(), Some(Vec::new()));
    }

    #[test]
    fn descriptor_is_readable_while_a_list_or_a_notice_waits() {
        let (mut watcher, sender) = watcher_and_sender();
        sender.report_failure("dns:x:1", "why".into());
        sender.report_failure("dns:x:1", "why".into());
        assert_eq!(watcher.error().as_deref(), Some("why"));
        assert!(watcher.poll_list().is_some() && is_readable(&watcher));
        assert!(matches!(watcher.poll_notice(), Some(Notice::Failed { .. })));
        assert!(!is_readable(&watcher) && watcher.poll_notice().is_none());
        sender.report_success("dns:x:1");
        sender.report_success("dns:x:1");
        assert!(is_readable(&watcher));
        assert_eq!(watcher.poll_notice(), Some(Notice::Recovered { source: "dns:x:1".into() }));
        assert!(watcher.poll_notice().is_none() && watcher.error().is_none());
    }

    #[test]
    fn excess_notices_displace_the_oldest_and_excess_helpers_are_reported() {
        let (mut watcher, sender) = watcher_and_sender();
        (0..NOTICES_MAX + 5).for_each(|helpers| sender.add_notice(Notice::Missing { helpers }));
        assert_eq!(watcher.poll_notice(), Some(Notice::Missing { helpers: 5 }));
        let too_many: Vec<u16> = (1..=5000).collect();
        sender.set_list(entries(&too_many));
        sender.set_list(entries(&too_many));
        assert_eq!(watcher.poll_list().map(|list| list.len()), Some(crate::HELPERS_MAX));
        let notices = std::iter::from_fn(|| watcher.poll_notice());
        assert_eq!(notices.filter(|notice| *notice == Notice::TooMany).count(), 1);
        // The first helpers of a list that is too long may change without another report.
        let mut count_after = |helpers: &[u16]| {
            sender.set_list(entries(helpers));
            std::iter::from_fn(|| watcher.poll_notice()).filter(|notice| *notice == Notice::TooMany).count()
        };
        assert_eq!(count_after(&too_many[1..]), 0);
        assert_eq!(count_after(&too_many[..10]), 0);
        assert_eq!(count_after(&too_many), 1);
    }
}
