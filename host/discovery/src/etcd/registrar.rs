//! Keeps a helper registered: a key that lives as long as its lease, which lives as long as the helper says so.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::access::EtcdAccess;
use super::client::{Client, Failed};
use super::messages::{Lease, Registered, Transaction, encoded};
use crate::EtcdPlace;
use crate::stop::start_thread;
use crate::stop::{Running, Stop, running, spread};

/// How long a member of etcd may take to take the key away, when the helper goes. If all fail, the key goes with its lease.
const WITHDRAW: Duration = Duration::from_millis(500);
const TTL_MIN: Duration = Duration::from_secs(3);
const REQUEST: Duration = Duration::from_secs(3);
/// The pause after an attempt that has failed, spread by a quarter.
const RETRY: Duration = Duration::from_secs(1);

/// What is registered, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Under which prefix.
    pub place: EtcdPlace,
    /// As whom.
    pub access: EtcdAccess,
    /// The helper's name: the key's last part. One that is there already is taken over.
    pub name: String,
    /// The address that clients connect to.
    pub link: SocketAddr,
    /// Of the program, for whoever reads it.
    pub version: String,
    /// How long the key outlives a helper that was killed. etcd may make it longer; at least 3 s.
    pub ttl: Duration,
}

impl Registration {
    /// With the default time of 10 s.
    pub fn new(
        place: EtcdPlace,
        access: EtcdAccess,
        name: impl Into<String>,
        link: SocketAddr,
    ) -> Registration {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Registration { place, access, name: name.into(), link, version, ttl: Duration::from_secs(10) }
    }
}

/// How a registration stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrarStatus {
    /// Since when the key is there, as far as is known.
    pub since: Option<SystemTime>,
    /// Why the last attempt failed, if it did.
    pub trouble: Option<String>,
    /// How often the key was written.
    pub registrations: u64,
    /// Attempts that failed.
    pub failures: u64,
}

/// What an operator may want to know of a registration. Its text is a line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrarNotice {
    /// The key is there.
    Registered,
    /// It was gone, or another's, and was written again.
    Restored {
        /// Why.
        why: &'static str,
    },
    /// An attempt has failed, and is made again. Told again only when the reason is another.
    Failed {
        /// What happened.
        why: String,
    },
    /// The key was taken away.
    Withdrawn,
    /// The key could not be taken away: it goes with its lease.
    Left {
        /// What happened.
        why: String,
    },
}

impl std::fmt::Display for RegistrarNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RegistrarNotice::Registered => f.write_str("registered"),
            RegistrarNotice::Restored { why } => write!(f, "registered again: {why}"),
            RegistrarNotice::Failed { why } => write!(f, "cannot be registered ({why}): trying again"),
            RegistrarNotice::Withdrawn => f.write_str("no longer registered"),
            RegistrarNotice::Left { why } => {
                write!(f, "the registration could not be taken away ({why}): it goes when its time is over")
            }
        }
    }
}

/// Keeps a helper registered, on a thread of its own, until it is withdrawn or dropped.
#[derive(Debug)]
pub struct Registrar {
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
}

impl Registrar {
    /// Begins to register; `tell` is called on the registrar's thread.
    ///
    /// # Errors
    /// The host has no threads left.
    pub fn start(
        registration: Registration,
        tell: impl FnMut(&RegistrarNotice) + Send + 'static,
    ) -> io::Result<Registrar> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let (keeping, end) = (Arc::clone(&shared), End(Arc::clone(&shared)));
        let ttl = registration.ttl.max(TTL_MIN);
        let client = Client::new(&registration.place, &registration.access, REQUEST.min(ttl / 3));
        let (running, stop) = running(Some(client.agent()));
        start_thread(move || {
            Keeper::new(registration, client, ttl, stop, &keeping, Box::new(tell)).run();
            drop(end);
        })?;
        Ok(Registrar { shared, running: Mutex::new(Some(running)) })
    }

    /// How it stands.
    pub fn status(&self) -> RegistrarStatus {
        self.shared.state().status.clone()
    }

    /// Begins to take the key away. Nothing is registered again.
    pub fn withdraw(&self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits until the key was taken away, after [`withdraw`](Self::withdraw); false when it takes longer than this.
    pub fn wait_withdrawn(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.state();
        while !state.over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Withdraws, without waiting for it.
impl Drop for Registrar {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    status: RegistrarStatus,
    over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever waits for the thread is told of its end, however it ends.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.over = true;
        state.status.since = None;
        self.0.changed.notify_all();
    }
}

type Tell = Box<dyn FnMut(&RegistrarNotice) + Send>;

struct Keeper<'a> {
    client: Client,
    stop: Stop,
    key: String,
    value: String,
    ttl: Duration,
    lease: Option<u64>,
    /// The key has been written with this lease.
    is_written: bool,
    /// When the lease has run out, should nobody be heard until then.
    lease_ends: Instant,
    shared: &'a Shared,
    tell: Tell,
}

impl<'a> Keeper<'a> {
    fn new(
        registration: Registration,
        client: Client,
        ttl: Duration,
        stop: Stop,
        shared: &'a Shared,
        tell: Tell,
    ) -> Keeper<'a> {
        let Registration { place, name, link, version, .. } = registration;
        let value = json!(Registered { link: link.to_string(), version }).to_string();
        Keeper {
            client,
            stop,
            key: encoded(place.key(&name).as_bytes()),
            value: encoded(value.as_bytes()),
            ttl,
            lease: None,
            is_written: false,
            lease_ends: Instant::now(),
            shared,
            tell,
        }
    }

    fn run(mut self) {
        loop {
            let done = match self.lease {
                None => self.register(),
                Some(lease) => self.keep(lease),
            };
            // A request that was interrupted is none of an operator's troubles.
            if self.stop.is_told() {
                break;
            }
            let pause = match done {
                Ok(()) => {
                    self.shared.state().status.trouble = None;
                    self.ttl / 3
                }
                Err(failed) => {
                    self.failed(&failed);
                    spread(RETRY)
                }
            };
            if self.stop.wait(pause) {
                break;
            }
        }
        self.withdraw();
    }

    /// A new lease, and the key with it.
    fn register(&mut self) -> Result<(), Failed> {
        let asked = Instant::now();
        let grant = json!({ "TTL": self.ttl.as_secs().to_string() });
        let lease: Lease = self.client.ask("/v3/lease/grant", &grant)?;
        if lease.id == 0 {
            // A key with this one would stay for ever.
            return Err(Failed::because("grants no lease"));
        }
        // Kept from now on, so that it is not left behind.
        (self.lease, self.is_written) = (Some(lease.id), false);
        self.lease_ends = asked + self.ttl;
        let _: Value = self.client.ask("/v3/kv/put", &self.put(lease.id))?;
        self.registered(RegistrarNotice::Registered);
        Ok(())
    }

    /// The lease lives on, and the key is still ours.
    fn keep(&mut self, id: u64) -> Result<(), Failed> {
        let asked = Instant::now();
        let alive = json!({ "ID": id.to_string() });
        let lease: Lease = self.client.ask_streamed("/v3/lease/keepalive", &alive)?;
        if lease.ttl == 0 {
            self.lease = None;
            self.shared.state().status.since = None;
            return self.register();
        }
        self.lease_ends = asked + self.ttl;
        let transaction = json!({
            "compare": [{ "key": self.key, "target": "LEASE", "result": "EQUAL", "lease": id.to_string() }],
            "failure": [{ "request_range": { "key": self.key } }, { "request_put": self.put(id) }],
        });
        let looked: Transaction = self.client.ask("/v3/kv/txn", &transaction)?;
        if !looked.succeeded && !self.is_written {
            // Writing it when the lease was granted had failed.
            self.registered(RegistrarNotice::Registered);
        } else if !looked.succeeded {
            let before = looked.responses.first().and_then(|response| response.response_range.as_ref());
            let why = match before {
                Some(range) if range.count > 0 => "another helper has registered under the same name",
                _ => "the key had been removed",
            };
            self.registered(RegistrarNotice::Restored { why });
        } else if self.shared.state().status.since.is_none() {
            // The lease has outlived a time in which nobody was heard, or the answer to writing the key was lost.
            self.is_written = true;
            self.shared.state().status.since = Some(SystemTime::now());
            (self.tell)(&RegistrarNotice::Registered);
        }
        Ok(())
    }

    fn put(&self, lease: u64) -> Value {
        json!({ "key": self.key, "value": self.value, "lease": lease.to_string() })
    }

    fn registered(&mut self, notice: RegistrarNotice) {
        self.is_written = true;
        {
            let status = &mut self.shared.state().status;
            status.registrations += 1;
            status.since.get_or_insert_with(SystemTime::now);
        }
        (self.tell)(&notice);
    }

    fn failed(&mut self, failed: &Failed) {
        // Between two requests the lease has run out.
        if failed.is_not_found() {
            self.lease = None;
        }
        let why = failed.to_string();
        let is_news = {
            let status = &mut self.shared.state().status;
            status.failures += 1;
            if Instant::now() >= self.lease_ends {
                status.since = None;
            }
            status.trouble.replace(why.clone()).as_ref() != Some(&why)
        };
        if is_news {
            (self.tell)(&RegistrarNotice::Failed { why });
        }
    }

    /// With the lease goes the key.
    fn withdraw(mut self) {
        let Some(lease) = self.lease else { return };
        self.client.revive(WITHDRAW);
        match self.client.ask::<Value>("/v3/lease/revoke", &json!({ "ID": lease.to_string() })) {
            Err(failed) if !failed.is_not_found() => {
                (self.tell)(&RegistrarNotice::Left { why: failed.to_string() });
            }
            _ => (self.tell)(&RegistrarNotice::Withdrawn),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::support::answer;
    use super::*;

    #[test]
    fn a_key_that_could_not_be_written_at_first_is_not_said_to_have_been_removed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = format!("etcd:http://{}/spillway/a/", listener.local_addr().unwrap()).parse().unwrap();
        let registration =
            Registration::new(place, EtcdAccess::default(), "one", "10.0.0.1:1".parse().unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        let registrar =
            Registrar::start(registration, move |notice| drop(tell.send(notice.clone()))).unwrap();
        let said = |path: &str| match path {
            "/v3/lease/grant" => r#"{"ID":"7","TTL":"10"}"#,
            "/v3/lease/keepalive" => "{\"result\":{\"ID\":\"7\",\"TTL\":\"10\"}}\n",
            // No answer of etcd's: writing fails.
            "/v3/kv/put" => "nonsense",
            // The key has another lease, or none: it is written.
            _ => "{}",
        };
        for path in ["/v3/lease/grant", "/v3/kv/put", "/v3/lease/keepalive", "/v3/kv/txn"] {
            assert_eq!(answer(&listener, said), path);
        }
        let next = || told.recv_timeout(Duration::from_secs(30)).expect("it is told");
        assert!(matches!(next(), RegistrarNotice::Failed { .. }));
        assert_eq!(next(), RegistrarNotice::Registered);
        let RegistrarStatus { registrations, failures, .. } = registrar.status();
        assert_eq!((registrations, failures), (1, 1));
    }

    #[test]
    fn nothing_is_written_without_a_lease() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = format!("etcd:http://{}/spillway/a/", listener.local_addr().unwrap()).parse().unwrap();
        let registration =
            Registration::new(place, EtcdAccess::default(), "one", "10.0.0.1:1".parse().unwrap());
        let registrar = Registrar::start(registration, |_| ()).unwrap();
        for _ in 0..2 {
            assert_eq!(answer(&listener, |_| "{}"), "/v3/lease/grant");
        }
        assert!(registrar.status().trouble.is_some_and(|why| why.contains("grants no lease")));
    }
}
