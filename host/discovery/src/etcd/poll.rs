//! Follows the registered helpers: reads all keys under the prefix periodically.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::json;

use super::client::{Client, Failure};
use super::helper_list::{Full, HelperList};
use super::messages::{KeyValue, Range, Registered, encoded};
use crate::settings::Settings;
use crate::stop::{Stop, spread};
use crate::updates::Sender;
use crate::{Entry, EtcdPrefix, HELPERS_MAX, Notice, is_connectable};

const NAME_BYTES_MAX: usize = 128;
const VALUE_BYTES_MAX: usize = 1024;

pub(crate) fn poll(place: &EtcdPrefix, client: Client, settings: &Settings, stop: &Stop, sender: &Sender) {
    let mut poller = Poller::new(place, client, settings, sender);
    let source = place.to_string();
    loop {
        let result = poller.look_up();
        if stop.must_end() {
            return;
        }
        match result {
            Ok(()) => sender.report_success(&source),
            Err(failed) => {
                poller.revision = None;
                sender.report_failure(&source, failed.to_string());
            }
        }
        if poller.cluster.is_some() {
            sender.set_list(poller.helpers.list(Instant::now()));
        }
        if stop.wait(spread(settings.etcd_interval)) {
            return;
        }
    }
}

struct Poller<'a> {
    prefix: String,
    client: Client,
    helpers: HelperList,
    /// The cluster that answered last.
    cluster: Option<u64>,
    /// The revision of the last answer; `None` after a failure.
    revision: Option<u64>,
    /// Keys whose entries were reported as invalid.
    skipped: BTreeSet<String>,
    /// Whether more than [`HELPERS_MAX`] helpers were reported.
    is_too_many: bool,
    sender: &'a Sender,
}

impl<'a> Poller<'a> {
    fn new(place: &EtcdPrefix, client: Client, settings: &Settings, sender: &'a Sender) -> Poller<'a> {
        Poller {
            prefix: place.prefix.clone(),
            client,
            helpers: HelperList::new(settings.grace),
            cluster: None,
            revision: None,
            skipped: BTreeSet::new(),
            is_too_many: false,
            sender,
        }
    }

    fn look_up(&mut self) -> Result<(), Failure> {
        let request = json!({
            "key": encoded(self.prefix.as_bytes()),
            "range_end": encoded(&range_end(&self.prefix)),
            "limit": HELPERS_MAX.to_string(),
        });
        let range: Range = self.client.request("/v3/kv/range", &request)?;
        let (cluster, revision) = (range.header.cluster_id, range.header.revision);
        let is_same = self.cluster.replace(cluster).is_none_or(|before| before == cluster);
        if !is_same {
            self.sender.add_notice(Notice::OtherCluster);
        }
        // In one history of revisions a key disappears only because it was removed, or because the answer is truncated.
        let is_complete = range.count <= range.kvs.len() as u64;
        let removals_seen = is_same && is_complete && self.revision.is_some_and(|before| before <= revision);
        self.revision = Some(revision);
        let names: BTreeSet<String> = range.kvs.iter().filter_map(|kv| self.name(kv)).collect();
        let missing = self.helpers.update_names(Instant::now(), &names, removals_seen);
        if missing > 0 {
            self.sender.add_notice(Notice::Missing { helpers: missing });
        }
        self.put_all(&range);
        Ok(())
    }

    /// Puts the valid entries of an answer into the list, and reports new problems.
    fn put_all(&mut self, range: &Range) {
        let mut is_too_many = range.count > HELPERS_MAX as u64;
        let mut skipped = BTreeSet::new();
        let mut new_problems: Option<(usize, String, &'static str)> = None;
        for kv in &range.kvs {
            match self.entry(kv) {
                Ok(entry) => is_too_many |= self.helpers.put(entry) == Err(Full),
                Err(why) => {
                    if !self.skipped.contains(kv.raw_key()) {
                        let key = || kv.key().unwrap_or_else(|| "a key that is not UTF-8".to_owned());
                        let shortened =
                            || key().chars().take(NAME_BYTES_MAX).flat_map(char::escape_default).collect();
                        new_problems.get_or_insert_with(|| (0, shortened(), why)).0 += 1;
                    }
                    skipped.insert(kv.raw_key().to_owned());
                }
            }
        }
        self.skipped = skipped;
        if let Some((entries, first, why)) = new_problems {
            self.sender.add_notice(Notice::Skipped { entries, first, why });
        }
        if is_too_many && !self.is_too_many {
            self.sender.add_notice(Notice::TooMany);
        }
        self.is_too_many = is_too_many;
    }

    fn entry(&self, kv: &KeyValue) -> Result<Entry, &'static str> {
        let name =
            self.name(kv).ok_or("its name is empty, longer than 128 bytes, or has control characters")?;
        let value = kv.value(VALUE_BYTES_MAX).ok_or("its value is longer than 1024 bytes, or not UTF-8")?;
        let value: Registered =
            serde_json::from_str(&value).map_err(|_| "its value is not {\"link\": \"ADDRESS:PORT\", …}")?;
        let link = value.link.parse().map_err(|_| "its link is not ADDRESS:PORT")?;
        if !is_connectable(link) {
            return Err("clients cannot connect to its link");
        }
        Ok(Entry { link, name: Some(name) })
    }

    fn name(&self, kv: &KeyValue) -> Option<String> {
        let key = kv.key()?;
        let name = key.strip_prefix(&self.prefix)?;
        let is_valid = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(|c: char| c.is_control());
        is_valid.then(|| name.to_owned())
    }
}

/// The end of the range of keys that begin with this prefix: the smallest key after all of them.
fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // The prefix ends with a slash, so the last byte cannot overflow.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
