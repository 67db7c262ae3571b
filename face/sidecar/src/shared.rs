//! The state that a sidecar's network threads share with the admin socket and the metrics port.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_daemon::{ThreadWatch, deprecated};
use spillway_policy::Override;
use spillway_requests::Protocol;

use crate::carriers::CarrierHealth;
use crate::counters::{ByReason, Counters};
use crate::latency::histogram;
use crate::mailbox::{Mailbox, Message};
use crate::settings::{Listen, Settings};
use crate::status::{LatencyStatus, SidecarStatus};
use crate::thread_state::ThreadState;

pub(crate) struct Shared {
    settings: Arc<Settings>,
    listen: Vec<Listen>,
    thread_states: Vec<Arc<ThreadState>>,
    mailboxes: Vec<Arc<Mailbox>>,
    started: Instant,
    is_draining: AtomicBool,
    watch: ThreadWatch,
    carrier_health: CarrierHealth,
}

impl Shared {
    pub(crate) fn new(
        settings: Arc<Settings>,
        listen: Vec<Listen>,
        thread_states: Vec<Arc<ThreadState>>,
        mailboxes: Vec<Arc<Mailbox>>,
        watch: ThreadWatch,
    ) -> Shared {
        Shared {
            settings,
            listen,
            thread_states,
            mailboxes,
            started: Instant::now(),
            is_draining: AtomicBool::new(false),
            watch,
            carrier_health: CarrierHealth::default(),
        }
    }

    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(crate) fn listen(&self) -> &[Listen] {
        &self.listen
    }

    pub(crate) fn mailboxes(&self) -> &[Arc<Mailbox>] {
        &self.mailboxes
    }

    pub(crate) fn watch(&self) -> &ThreadWatch {
        &self.watch
    }

    pub(crate) fn put_all(&self, message: impl Fn() -> Message) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.put(message()));
    }

    pub(crate) fn begin_drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn thread_states(&self) -> &[Arc<ThreadState>] {
        &self.thread_states
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Checks whether new clients are accepted and find a carrier. A probe of link ports blocks for up to 500 ms.
    ///
    /// # Errors
    /// Why new clients are not accepted, or would find no carrier.
    pub(crate) fn check_health(&self) -> Result<(), String> {
        if let Some(failure) = self.watch.failure() {
            return Err(failure.to_owned());
        }
        let connections = self.sum(|counters| counters.connections.value());
        if self.is_draining() {
            return Err(format!("draining: no new clients; {connections} connected"));
        }
        let max = self.settings.max_connections;
        // Admission also counts connections that await their PROXY header or their session.
        let admitted = self.thread_states.first().map_or(0, |thread| thread.connections_of_all_threads());
        if admitted >= u64::from(max) {
            return Err(format!("full: no new clients; {admitted} connected, --max-connections {max}"));
        }
        // All threads have the same list of helpers.
        let helpers = self.thread_states.first().map(|thread| thread.relief().helpers).unwrap_or_default();
        let is_carrying = connections > self.sum(|counters| counters.waiting.value());
        let histories = self.thread_states.iter().map(|thread| &thread.carrier_history);
        self.carrier_health.check(histories, is_carrying, self.settings.server, &helpers)
    }

    pub(crate) fn sum(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        self.thread_states.iter().map(|thread| of(&thread.counters)).sum()
    }

    fn sums<const N: usize>(&self, of: impl Fn(&Counters) -> &ByReason<N>) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (name, count) in self.thread_states.iter().flat_map(|thread| of(&thread.counters).iter()) {
            *sums.entry(name.to_owned()).or_default() += count;
        }
        sums
    }

    /// Sends the operator's override to all threads. False if `service` names another service.
    pub(crate) fn set_override(&self, service: &str, new: Override, lasts: Option<Duration>) -> bool {
        let is_this_service = service == self.settings.name || service == self.settings.server.to_string();
        if is_this_service {
            self.put_all(|| Message::Override(new, lasts));
        }
        is_this_service
    }

    pub(crate) fn name(&self) -> &str {
        &self.settings.name
    }

    fn decisions(&self) -> BTreeMap<String, u64> {
        let all = self.thread_states.iter().map(|thread| thread.relief().counters);
        let mut sums = BTreeMap::new();
        for counters in all {
            for (name, count) in [
                ("activations", counters.activations),
                ("canaries", counters.canaries),
                ("back_offs", counters.back_offs),
                ("cures", counters.cures),
                ("releases", counters.releases),
                ("overrides", counters.overrides),
                ("orders_to_helpers", counters.orders_to_helpers),
                ("orders_to_server", counters.orders_to_server),
                ("orders_failed", counters.orders_failed),
            ] {
                *sums.entry(name.to_owned()).or_default() += count;
            }
        }
        deprecated::add_old_decision(&mut sums);
        sums
    }

    pub(crate) fn status(&self) -> SidecarStatus {
        let settings = &self.settings;
        let (mut direct, mut helped) = (histogram(), histogram());
        for thread in &self.thread_states {
            thread.latencies.add_recent(Instant::now(), [&mut direct, &mut helped]);
        }
        let connections = self.sum(|counters| counters.connections.value());
        let waiting = self.sum(|counters| counters.waiting.value());
        let by_helpers = self.sum(|counters| counters.helped.value());
        // Each thread decides for its own connections; the override and the helpers are the same for all threads.
        let first = self.thread_states.first().map(|thread| thread.relief()).unwrap_or_default();
        SidecarStatus {
            kind: "sidecar".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            draining: self.is_draining(),
            name: settings.name.clone(),
            server: settings.server.to_string(),
            helpers: first.helpers.iter().map(ToString::to_string).collect(),
            listen: self.listen.iter().map(ToString::to_string).collect(),
            protocol: match settings.protocol {
                Protocol::Memcached => "memcached",
                Protocol::Redis => "redis",
                Protocol::Tcp => "tcp",
            }
            .into(),
            relief_override: first.relief_override.name().into(),
            relief_stage: first.stage.into(),
            decisions: self.decisions(),
            sla_us: u64::try_from(settings.sla.as_micros()).unwrap_or(u64::MAX),
            threads: self.thread_states.len(),
            thread_failure: self.watch.failure().map(str::to_owned),
            log_lines_dropped: spillway_daemon::log_lines_dropped(),
            cpu_us: self.sum(|counters| counters.cpu_ns.value()) / 1000,
            connections,
            max_connections: settings.max_connections,
            helped: by_helpers,
            // Saturating: the counters change while they are read one after the other.
            direct: connections.saturating_sub(waiting).saturating_sub(by_helpers),
            waiting,
            buffered_bytes: self.sum(|counters| counters.buffered_bytes.value()),
            threads_short_of_memory: self.sum(|counters| counters.is_scarce.value()),
            connections_paused: self.sum(|counters| counters.paused.value()),
            max_memory_bytes: settings.max_memory,
            accepted: self.sum(|counters| counters.accepted.value()),
            with_proxy_header: self.sum(|counters| counters.with_proxy_header.value()),
            refused: self.sums(|counters| &counters.refused),
            ended: self.sums(|counters| &counters.ended),
            moves: self.sums(|counters| &counters.moves),
            carriers_lost: self.sums(|counters| &counters.losses),
            request_bytes: self.sum(|counters| counters.request_bytes.value()),
            reply_bytes: self.sum(|counters| counters.reply_bytes.value()),
            replies: self.sum(|counters| counters.replies.value()),
            replies_unmeasured: self.sum(|counters| counters.unmeasured.value()),
            measuring_given_up: self.sums(|counters| &counters.measuring_given_up),
            latency_direct: LatencyStatus::of(&direct),
            latency_helped: LatencyStatus::of(&helped),
        }
    }
}
