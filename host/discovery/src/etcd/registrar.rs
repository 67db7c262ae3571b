//! Keeps a helper registered: writes a key with a lease, and keeps the lease alive while the helper runs.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::access::EtcdAccess;
use super::client::{Client, Failure};
use super::messages::{Lease, Registered, Transaction, encoded};
use crate::EtcdPrefix;
use crate::stop::{RunningThread, Stop, spread, start_thread, stop_pair};

/// Timeout of each member's answer when the helper ends and its key is removed. If no member answers, the key expires
/// with its lease.
const WITHDRAW_TIMEOUT: Duration = Duration::from_millis(500);
const TTL_MIN: Duration = Duration::from_secs(3);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after a failed attempt, randomized by up to a quarter.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A helper's registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The cluster and the prefix.
    pub prefix: EtcdPrefix,
    /// Credentials for etcd.
    pub access: EtcdAccess,
    /// The helper's name: the key's last part. An existing key of this name is overwritten.
    pub name: String,
    /// The address that clients connect to.
    pub link: SocketAddr,
    /// Version of the program, for information only.
    pub version: String,
    /// Time for which the key outlives a killed helper; at least 3 s. etcd may grant more.
    pub ttl: Duration,
}

impl Registration {
    /// A registration with a `ttl` of 10 s and this program's version.
    pub fn new(
        prefix: EtcdPrefix,
        access: EtcdAccess,
        name: impl Into<String>,
        link: SocketAddr,
    ) -> Registration {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Registration { prefix, access, name: name.into(), link, version, ttl: Duration::from_secs(10) }
    }
}

/// State of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrarStatus {
    /// Time since which the key exists, according to the last answers of etcd.
    pub since: Option<SystemTime>,
    /// Error of the last attempt, if it failed.
    pub error: Option<String>,
    /// Number of times that the key was written.
    pub registrations: u64,
    /// Number of failed attempts.
    pub failures: u64,
}

/// A change of a registration. Its text is a line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrarNotice {
    /// The key exists.
    Registered,
    /// The key was removed or overwritten, and was written again.
    Restored {
        /// The cause.
        why: &'static str,
    },
    /// An attempt has failed and will be repeated. Reported again only if the error changes.
    Failed {
        /// The error.
        why: String,
    },
    /// The key was removed.
    Withdrawn,
    /// The key could not be removed: it expires with its lease.
    NotWithdrawn {
        /// The error.
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
            RegistrarNotice::NotWithdrawn { why } => {
                write!(f, "cannot remove the registration ({why}): it expires with its lease")
            }
        }
    }
}

/// Keeps a helper registered, on its own thread, until [`withdraw`](Self::withdraw) or drop.
#[derive(Debug)]
pub struct Registrar {
    shared: Arc<Shared>,
    running: Mutex<Option<RunningThread>>,
}

impl Registrar {
    /// Begins to register; `on_notice` runs on the registrar's thread. Fails if the host has no threads left.
    pub fn start(
        registration: Registration,
        on_notice: impl FnMut(&RegistrarNotice) + Send + 'static,
    ) -> io::Result<Registrar> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let (shared_with_keeper, end) = (Arc::clone(&shared), EndGuard(Arc::clone(&shared)));
        let ttl = registration.ttl.max(TTL_MIN);
        let client = Client::new(&registration.prefix, &registration.access, REQUEST_TIMEOUT.min(ttl / 3));
        let (running, stop) = stop_pair(Some(client.agent()));
        start_thread(move || {
            Keeper::new(registration, client, ttl, stop, &shared_with_keeper, Box::new(on_notice)).run();
            drop(end);
        })?;
        Ok(Registrar { shared, running: Mutex::new(Some(running)) })
    }

    /// State of the registration.
    pub fn status(&self) -> RegistrarStatus {
        self.shared.state().status.clone()
    }

    /// Begins to remove the key, and ends the registrar.
    pub fn withdraw(&self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits after [`withdraw`](Self::withdraw) until the registrar has ended. Returns false if it has not ended within
    /// `timeout`.
    pub fn wait_withdrawn(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state();
        while !state.has_ended {
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
    has_ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the registrar's thread as ended, also after a panic, and wakes waiters.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.has_ended = true;
        state.status.since = None;
        self.0.changed.notify_all();
    }
}

type OnNotice = Box<dyn FnMut(&RegistrarNotice) + Send>;

struct Keeper<'a> {
    client: Client,
    stop: Stop,
    key: String,
    value: String,
    ttl: Duration,
    lease: Option<u64>,
    /// Whether the key was written with this lease.
    is_written: bool,
    /// Time at which the lease expires unless etcd renews it.
    lease_ends: Instant,
    shared: &'a Shared,
    on_notice: OnNotice,
}

impl<'a> Keeper<'a> {
    fn new(
        registration: Registration,
        client: Client,
        ttl: Duration,
        stop: Stop,
        shared: &'a Shared,
        on_notice: OnNotice,
    ) -> Keeper<'a> {
        let Registration { prefix, name, link, version, .. } = registration;
        let value = json!(Registered { link: link.to_string(), version }).to_string();
        Keeper {
            client,
            stop,
            key: encoded(prefix.key(&name).as_bytes()),
            value: encoded(value.as_bytes()),
            ttl,
            lease: None,
            is_written: false,
            lease_ends: Instant::now(),
            shared,
            on_notice,
        }
    }

    fn run(mut self) {
        loop {
            let result = match self.lease {
                None => self.register(),
                Some(lease) => self.renew(lease),
            };
            // Do not report a request that failed because of the withdrawal.
            if self.stop.must_end() {
                break;
            }
            let pause = match result {
                Ok(()) => {
                    self.shared.state().status.error = None;
                    self.ttl / 3
                }
                Err(failure) => {
                    self.record_failure(&failure);
                    spread(RETRY_PAUSE)
                }
            };
            if self.stop.wait(pause) {
                break;
            }
        }
        self.withdraw();
    }

    /// Duration of a lease: etcd may grant more than was requested.
    fn granted_ttl(&self, lease: &Lease) -> Duration {
        self.ttl.max(Duration::from_secs(lease.ttl))
    }

    fn register(&mut self) -> Result<(), Failure> {
        let requested_at = Instant::now();
        let grant = json!({ "TTL": self.ttl.as_secs().to_string() });
        let lease: Lease = self.client.request("/v3/lease/grant", &grant)?;
        if lease.id == 0 {
            // A key without a lease would never expire.
            return Err(Failure::because("grants no lease"));
        }
        // Set before the key is written, so that `withdraw` revokes the lease if writing fails.
        (self.lease, self.is_written) = (Some(lease.id), false);
        self.lease_ends = requested_at + self.granted_ttl(&lease);
        let _: Value = self.client.request("/v3/kv/put", &self.put_request(lease.id))?;
        self.record_registered(RegistrarNotice::Registered);
        Ok(())
    }

    /// Renews the lease, and writes the key again if it is missing or has another lease.
    fn renew(&mut self, id: u64) -> Result<(), Failure> {
        let requested_at = Instant::now();
        let keep_alive = json!({ "ID": id.to_string() });
        let lease: Lease = self.client.request_streamed("/v3/lease/keepalive", &keep_alive)?;
        if lease.ttl == 0 {
            self.lease = None;
            self.shared.state().status.since = None;
            return self.register();
        }
        self.lease_ends = requested_at + self.granted_ttl(&lease);
        let transaction = json!({
            "compare": [{ "key": self.key, "target": "LEASE", "result": "EQUAL", "lease": id.to_string() }],
            "failure": [{ "request_range": { "key": self.key } }, { "request_put": self.put_request(id) }],
        });
        let checked: Transaction = self.client.request("/v3/kv/txn", &transaction)?;
        if !self.is_written {
            // `register` had failed to write the key, or its answer was lost.
            self.record_registered(RegistrarNotice::Registered);
        } else if !checked.succeeded {
            let previous = checked.responses.first().and_then(|response| response.response_range.as_ref());
            let why = match previous {
                Some(range) if range.count > 0 => "another helper has registered under the same name",
                _ => "the key had been removed",
            };
            self.record_registered(RegistrarNotice::Restored { why });
        } else if self.shared.state().status.since.is_none() {
            // The lease's time had passed without an answer, but etcd still has the lease and the key.
            self.shared.state().status.since = Some(SystemTime::now());
            (self.on_notice)(&RegistrarNotice::Registered);
        }
        Ok(())
    }

    fn put_request(&self, lease: u64) -> Value {
        json!({ "key": self.key, "value": self.value, "lease": lease.to_string() })
    }

    fn record_registered(&mut self, notice: RegistrarNotice) {
        self.is_written = true;
        {
            let status = &mut self.shared.state().status;
            status.registrations += 1;
            status.since.get_or_insert_with(SystemTime::now);
        }
        (self.on_notice)(&notice);
    }

    fn record_failure(&mut self, failure: &Failure) {
        // The lease has expired between two requests.
        if failure.is_not_found() {
            self.lease = None;
        }
        let why = failure.to_string();
        let is_new_reason = {
            let status = &mut self.shared.state().status;
            status.failures += 1;
            if Instant::now() >= self.lease_ends {
                status.since = None;
            }
            status.error.replace(why.clone()).as_ref() != Some(&why)
        };
        if is_new_reason {
            (self.on_notice)(&RegistrarNotice::Failed { why });
        }
    }

    fn withdraw(mut self) {
        let Some(lease) = self.lease else { return };
        self.client.replace_agent(WITHDRAW_TIMEOUT);
        match self.client.request::<Value>("/v3/lease/revoke", &json!({ "ID": lease.to_string() })) {
            Err(failed) if !failed.is_not_found() => {
                (self.on_notice)(&RegistrarNotice::NotWithdrawn { why: failed.to_string() });
            }
            _ => (self.on_notice)(&RegistrarNotice::Withdrawn),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::support::answer;
    use super::*;

    #[test]
    fn key_written_after_a_failed_first_write_is_reported_as_registered() {
        // The key is missing or has another lease, so the transaction writes it.
        first_write_fails_and_the_transaction_answers("{}");
    }

    #[test]
    fn key_whose_first_write_had_a_lost_answer_is_reported_as_registered() {
        first_write_fails_and_the_transaction_answers(r#"{"succeeded":true}"#);
    }

    fn first_write_fails_and_the_transaction_answers(transaction: &'static str) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let prefix = format!("etcd:http://{}/spillway/a/", listener.local_addr().unwrap()).parse().unwrap();
        let registration =
            Registration::new(prefix, EtcdAccess::default(), "one", "10.0.0.1:1".parse().unwrap());
        let (sender, notices) = std::sync::mpsc::channel();
        let registrar =
            Registrar::start(registration, move |notice| drop(sender.send(notice.clone()))).unwrap();
        let reply = |path: &str| match path {
            "/v3/lease/grant" => r#"{"ID":"7","TTL":"10"}"#,
            "/v3/lease/keepalive" => "{\"result\":{\"ID\":\"7\",\"TTL\":\"10\"}}\n",
            // Not an answer of etcd: writing fails.
            "/v3/kv/put" => "nonsense",
            _ => transaction,
        };
        for path in ["/v3/lease/grant", "/v3/kv/put", "/v3/lease/keepalive", "/v3/kv/txn"] {
            assert_eq!(answer(&listener, reply), path);
        }
        let next =
            || notices.recv_timeout(Duration::from_secs(30)).expect("a notice should arrive within 30 s");
        assert!(matches!(next(), RegistrarNotice::Failed { .. }));
        assert_eq!(next(), RegistrarNotice::Registered);
        let RegistrarStatus { registrations, failures, .. } = registrar.status();
        assert_eq!((registrations, failures), (1, 1));
    }

    #[test]
    fn key_is_not_written_without_a_lease() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let prefix = format!("etcd:http://{}/spillway/a/", listener.local_addr().unwrap()).parse().unwrap();
        let registration =
            Registration::new(prefix, EtcdAccess::default(), "one", "10.0.0.1:1".parse().unwrap());
        let registrar = Registrar::start(registration, |_| ()).unwrap();
        for _ in 0..2 {
            assert_eq!(answer(&listener, |_| "{}"), "/v3/lease/grant");
        }
        assert!(registrar.status().error.is_some_and(|why| why.contains("grants no lease")));
    }
}
