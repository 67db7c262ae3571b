//! Follows what helpers have registered: a range, then a watch from its revision on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Client, streamed};
use super::members::{Full, Members};
use super::messages::{Event, KeyValue, Range, Registered, Watched, encoded};
use super::range_end;
use crate::backoff::{Backoff, spread};
use crate::http::Line;
use crate::stream::Failed;
use crate::watcher::{Sender, Settings};
use crate::{Entry, EtcdPlace, HELPERS_MAX, Notice, is_target};

const NAME_BYTES_MAX: usize = 128;
const VALUE_BYTES_MAX: usize = 1024;
/// A watch that has lasted for so long works: when it ends, the next one begins soon. Sooner, whatever has ended it may do
/// so again.
const LASTED: Duration = Duration::from_secs(1);

/// Follows until told to end.
pub(crate) fn watch(place: &EtcdPlace, settings: Settings, sender: &Sender) {
    let mut follower = Follower::new(place, settings, sender);
    let mut backoff = Backoff::new(Duration::from_millis(100), settings.retry_max);
    loop {
        let ended = follower.follow();
        if follower.watching_since.take().is_some_and(|since| since.elapsed() >= LASTED) {
            backoff.succeeded();
        }
        match ended {
            Ok(()) => {}
            Err(Failed::Stopped) => return,
            Err(failed) => follower.failed(&failed),
        }
        if sender.stop().wait(backoff.failed()) {
            return;
        }
    }
}

struct Follower<'a> {
    prefix: String,
    source: String,
    client: Client,
    members: Members,
    check_interval: Duration,
    cluster: Option<u64>,
    /// Under the prefix, helpers or not.
    keys: u64,
    /// Since the last member that answered.
    failures: usize,
    watching_since: Option<Instant>,
    sender: &'a Sender,
}

impl<'a> Follower<'a> {
    fn new(place: &EtcdPlace, settings: Settings, sender: &'a Sender) -> Follower<'a> {
        Follower {
            prefix: place.prefix.clone(),
            source: place.to_string(),
            client: Client::new(place, settings.request_timeout),
            members: Members::new(settings.grace),
            check_interval: settings.check_interval,
            cluster: None,
            keys: 0,
            failures: 0,
            watching_since: None,
            sender,
        }
    }

    /// Looks up, then watches. Ends without an error when it is time to look up again.
    fn follow(&mut self) -> Result<(), Failed> {
        let revision = self.look_up()?;
        self.watch_from(revision + 1)
    }

    fn watch_from(&mut self, revision: u64) -> Result<(), Failed> {
        let request = json!({ "create_request": {
            "key": encoded(self.prefix.as_bytes()),
            "range_end": encoded(&range_end(&self.prefix)),
            "start_revision": revision.to_string(),
        } });
        let sender = self.sender;
        let mut watch = self.client.open("/v3/watch", &request, sender.stop())?;
        sender.fine(&self.source);
        self.failures = 0;
        self.watching_since = Some(Instant::now());
        let mut check_at = Instant::now() + spread(self.check_interval);
        loop {
            let until = self.members.poll_timeout().map_or(check_at, |at| at.min(check_at));
            match watch.line(until)? {
                Line::Text(line) => {
                    let watched: Watched = streamed(&line)?;
                    // What it should begin with was compacted away, or it ends for another reason.
                    if watched.canceled {
                        return Ok(());
                    }
                    self.happened(&watched.events);
                }
                Line::NotYet => {}
                Line::End => return Ok(()),
            }
            self.tell();
            if Instant::now() >= check_at {
                // A member that stands still, or is cut off from the others, says nothing, for ever.
                let now: Range = self.range(json!({ "count_only": true }))?;
                if now.count != self.keys || Some(now.header.cluster_id) != self.cluster {
                    return Ok(());
                }
                check_at = Instant::now() + spread(self.check_interval);
            }
        }
    }

    /// The revision that the answer is of.
    fn look_up(&mut self) -> Result<u64, Failed> {
        let range: Range = self.range(json!({ "limit": HELPERS_MAX.to_string() }))?;
        let cluster = range.header.cluster_id;
        if self.cluster.replace(cluster).is_some_and(|before| before != cluster) {
            self.sender.notice(Notice::OtherCluster);
        }
        self.keys = range.count;
        let names: BTreeSet<String> = range.kvs.iter().filter_map(|kv| self.name(kv)).collect();
        let missing = self.members.looked_up(Instant::now(), &names);
        if missing > 0 {
            self.sender.notice(Notice::Missing { helpers: missing });
        }
        let too_many = range.count > HELPERS_MAX as u64;
        self.put_all(range.kvs.iter(), too_many);
        self.tell();
        Ok(range.header.revision)
    }

    fn range<T: serde::de::DeserializeOwned>(&self, mut request: Value) -> Result<T, Failed> {
        request["key"] = encoded(self.prefix.as_bytes()).into();
        request["range_end"] = encoded(&range_end(&self.prefix)).into();
        self.client.ask("/v3/kv/range", &request, self.sender.stop())
    }

    fn happened(&mut self, events: &[Event]) {
        for event in events {
            if event.is_removal() {
                self.keys = self.keys.saturating_sub(1);
                if let Some(name) = self.name(&event.kv) {
                    self.members.remove(&name);
                }
            } else {
                self.keys += u64::from(event.is_new());
                self.put_all(std::iter::once(&event.kv), false);
            }
        }
    }

    fn put_all<'k>(&mut self, kvs: impl Iterator<Item = &'k KeyValue>, mut too_many: bool) {
        let mut skipped: Option<(usize, String, &'static str)> = None;
        for kv in kvs {
            match self.entry(kv) {
                Ok(entry) => too_many |= self.members.put(entry) == Err(Full),
                Err(why) => {
                    let key = || kv.key().unwrap_or_else(|| "a key that is no text".to_owned());
                    let short =
                        || key().chars().take(NAME_BYTES_MAX).flat_map(char::escape_default).collect();
                    skipped.get_or_insert_with(|| (0, short(), why)).0 += 1;
                }
            }
        }
        if let Some((entries, first, why)) = skipped {
            self.sender.notice(Notice::Skipped { entries, first, why });
        }
        if too_many {
            self.sender.notice(Notice::TooMany);
        }
    }

    fn entry(&self, kv: &KeyValue) -> Result<Entry, &'static str> {
        let name = self.name(kv).ok_or("its name is none")?;
        let value = kv.value(VALUE_BYTES_MAX).ok_or("its value is too long, or no text")?;
        let value: Registered =
            serde_json::from_str(&value).map_err(|_| "its value is not {\"link\": \"ADDRESS:PORT\", …}")?;
        let link = value.link.parse().map_err(|_| "its link is no ADDRESS:PORT")?;
        if !is_target(link) {
            return Err("nobody can connect to its link");
        }
        Ok(Entry { link, name: Some(name) })
    }

    fn name(&self, kv: &KeyValue) -> Option<String> {
        let key = kv.key()?;
        let name = key.strip_prefix(&self.prefix)?;
        let fine = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(|c: char| c.is_control());
        fine.then(|| name.to_owned())
    }

    fn tell(&mut self) {
        self.sender.list(self.members.list(Instant::now()));
    }

    fn failed(&mut self, failed: &Failed) {
        self.failures += 1;
        // One member of several that is away is none of an operator's troubles here.
        if self.failures >= self.client.members() {
            self.sender.failed(&self.source, self.client.blame(failed));
        }
        self.client.turn();
    }
}

#[cfg(test)]
#[path = "../../tests/support/mod.rs"]
pub(super) mod support;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::support::{Etcd, answer, next};
    use super::*;
    use crate::{Source, Watcher};

    #[test]
    fn watches_that_end_at_once_begin_ever_more_rarely() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let source = format!("etcd:http://{}/spillway/a/", listener.local_addr().unwrap());
        let said = |path: &str| match path {
            "/v3/watch" => r#"{"result":{"header":{"cluster_id":"1","revision":"1"}}}"#,
            _ => r#"{"header":{"cluster_id":"1","revision":"1"}}"#,
        };
        let watcher = Watcher::start(source.parse().unwrap(), Settings::default()).unwrap();
        let began = Instant::now();
        let mut watches = 0;
        while watches < 5 {
            watches += u32::from(answer(&listener, said) == "/v3/watch");
        }
        assert!(watcher.trouble().is_none());
        // Pauses of 100, 200, 400 and 800 ms, a quarter less at the least.
        assert!(began.elapsed() >= Duration::from_millis(1_100), "{:?}", began.elapsed());
    }

    #[test]
    fn a_watch_of_what_was_compacted_away_ends_and_a_look_up_goes_on() {
        let Some(etcd) = Etcd::start() else { return };
        for n in 0..20 {
            etcd.put("/spillway/a/one", &format!("{{\"link\": \"10.0.0.1:{}\"}}", n + 1));
        }
        etcd.compact();
        let Ok(Source::Etcd(place)) = etcd.source("/spillway/a/").parse() else { panic!("a source") };
        let mut watcher = Watcher::start("10.9.9.9:9".parse().unwrap(), Settings::default()).unwrap();
        let sender = watcher.sender();
        let mut follower = Follower::new(&place, Settings::default(), &sender);
        assert_eq!(follower.watch_from(1), Ok(()));
        assert!(follower.look_up().unwrap() > 20);
        let list = next("a list", || watcher.poll_list());
        assert_eq!(list.iter().map(ToString::to_string).collect::<Vec<_>>(), ["one at 10.0.0.1:20"]);
    }
}
