//! What a helper tells Prometheus.

use spillway_metrics::{Exposition, Family, Metric};
use spillway_relay::ServiceStatus;

use crate::distribution::Distribution;
use crate::registering::RegistrationStatus;
use crate::status::{HelperStatus, LINK_STATES, Part, state_name};

const NONE: &[&str] = &[];
const CONTEXT: &[&str] = &["context"];
const SERVICE: &[&str] = &["service"];
const BOTH: &[&str] = &["service", "context"];
const KIND: &[&str] = &["service", "context", "kind"];
const REASON: &[&str] = &["service", "context", "reason"];
const STATE: &[&str] = &["service", "context", "state"];

const BUILD: Metric = Metric::gauge(
    "spillway_helper_build_info",
    &["version"],
    "Always 1; the label says which version of the program runs.",
);
const DRAINING: Metric = Metric::gauge(
    "spillway_helper_draining",
    NONE,
    "Whether the helper has been told to go and lets its clients finish.",
);
const CONTEXTS: Metric = Metric::gauge("spillway_helper_contexts", NONE, "Network threads.");
const SILENT: Metric = Metric::gauge(
    "spillway_helper_contexts_silent",
    NONE,
    "Network threads that did not answer; what they do is missing in all other figures.",
);
const CONNECTIONS_MAX: Metric =
    Metric::gauge("spillway_helper_connections_max", NONE, "Clients that the helper may have at one time.");
const CPU: Metric =
    Metric::counter("spillway_helper_context_cpu_seconds_total", CONTEXT, "CPU time of a network thread.");
const BUFFERED: Metric = Metric::gauge(
    "spillway_helper_buffered_bytes",
    CONTEXT,
    "Bytes of memory that hold what waits for and from clients.",
);
const SCARCE: Metric = Metric::gauge(
    "spillway_helper_memory_scarce",
    CONTEXT,
    "Whether memory is scarce: clients that do not read are paused.",
);
const PAUSED: Metric = Metric::counter(
    "spillway_helper_clients_paused_total",
    CONTEXT,
    "Clients whose requests were not read because memory was scarce and they did not read their replies.",
);
const NOTICES: Metric = Metric::counter(
    "spillway_helper_notices_dropped_total",
    CONTEXT,
    "Decisions that were not logged because too many came at once.",
);
const LOG_DROPPED: Metric = Metric::counter(
    "spillway_helper_log_lines_dropped_total",
    NONE,
    "Log lines that could not be written, or not as fast as they came.",
);

const LOAD: Metric = Metric::gauge(
    "spillway_helper_load_ratio",
    &["context", "resource"],
    "Load of a network thread, as clients that ask are told: cpu, network (0: no bound known), connections, memory, and \
     all: the scarcest, with clients that have just come.",
);
const FULL: Metric = Metric::gauge(
    "spillway_helper_full",
    CONTEXT,
    "Whether clients that ask a network thread are told to go elsewhere because of its load.",
);

const LISTENING: Metric = Metric::gauge(
    "spillway_helper_listening",
    BOTH,
    "Whether clients of a service are taken; otherwise the host refuses them.",
);
const LINKS: Metric = Metric::gauge(
    "spillway_helper_links",
    STATE,
    "Links to a service's server by state: waiting, connecting, up, draining, closed.",
);
const LINK_CONNECTIONS: Metric = Metric::gauge(
    "spillway_helper_link_connections",
    BOTH,
    "Virtual connections on links that have not ended on both sides.",
);
const LINK_PENDING: Metric = Metric::gauge(
    "spillway_helper_link_pending_bytes",
    BOTH,
    "Bytes gathered for a server that the host's sockets have not taken.",
);
const LINKS_UP: Metric = Metric::counter(
    "spillway_helper_links_established_total",
    BOTH,
    "Links that came up, again after a loss included.",
);
const LINKS_LOST: Metric = Metric::counter(
    "spillway_helper_links_lost_total",
    BOTH,
    "Links that were lost after they had come up; their plain clients were reset.",
);
const LINK_FAILURES: Metric = Metric::counter(
    "spillway_helper_link_failures_total",
    REASON,
    "Links that were lost or did not come up: lost, closed_by_server, connect_timeout, host_full, protocol.",
);

const REGISTERED: Metric = Metric::gauge(
    "spillway_helper_registered",
    SERVICE,
    "Whether the helper is registered for clients to find it; only where it is to be.",
);
const REGISTRATIONS: Metric = Metric::counter(
    "spillway_helper_registrations_total",
    SERVICE,
    "How often the registration was written, again after a loss included.",
);
const REGISTRATION_FAILURES: Metric = Metric::counter(
    "spillway_helper_registration_failures_total",
    SERVICE,
    "Attempts to register, or to keep the registration alive, that failed.",
);

const CLIENTS: Metric =
    Metric::gauge("spillway_helper_clients", KIND, "Clients connected now: raw (plain) or library.");
const ACCEPTED: Metric = Metric::counter(
    "spillway_helper_clients_accepted_total",
    KIND,
    "Plain clients taken (raw), and virtual connections of library clients passed on (library).",
);
const ANNOUNCED: Metric = Metric::counter(
    "spillway_helper_clients_announced_total",
    BOTH,
    "Plain clients taken on the word of a load balancer (PROXY protocol).",
);
const REFUSED: Metric = Metric::counter("spillway_helper_clients_refused_total", REASON, "Clients refused.");
const RESET: Metric = Metric::counter(
    "spillway_helper_clients_reset_total",
    REASON,
    "Clients reset: buffer, memory (they do not read), protocol, link_lost.",
);

const QUESTIONS: Metric =
    Metric::counter("spillway_helper_load_questions_total", BOTH, "Questions of load answered.");
const QUESTIONS_REFUSED: Metric = Metric::counter(
    "spillway_helper_load_questions_refused_total",
    REASON,
    "Questions of load that were not answered: off, address, malformed, key, proof.",
);
const SHED: Metric = Metric::counter(
    "spillway_helper_clients_shed_total",
    BOTH,
    "Library clients sent to other helpers because the load was too high.",
);

const REQUEST_BYTES: Metric =
    Metric::counter("spillway_helper_request_bytes_total", BOTH, "Bytes of clients' requests.");
const REQUEST_SEGMENTS: Metric = Metric::counter(
    "spillway_helper_request_segments_total",
    BOTH,
    "Pieces in which requests came: about one for each small request.",
);
const REPLY_BYTES: Metric =
    Metric::counter("spillway_helper_reply_bytes_total", BOTH, "Bytes of replies to clients.");
const REPLY_SEGMENTS: Metric = Metric::counter(
    "spillway_helper_reply_segments_total",
    BOTH,
    "Pieces in which replies came from the server: about one for each small reply.",
);
const BATCHES: Metric =
    Metric::counter("spillway_helper_batches_sent_total", BOTH, "Batches sent to the server.");
const MESSAGES_SENT: Metric = Metric::counter(
    "spillway_helper_messages_sent_total",
    BOTH,
    "Data messages sent to the server; those of one client that follow each other count as one.",
);
const BYTES_SENT: Metric = Metric::counter(
    "spillway_helper_link_sent_bytes_total",
    BOTH,
    "Bytes sent to the server, headers and control included.",
);
const MESSAGES_RECEIVED: Metric = Metric::counter(
    "spillway_helper_messages_received_total",
    BOTH,
    "Data messages received from the server.",
);
const BYTES_RECEIVED: Metric = Metric::counter(
    "spillway_helper_link_received_bytes_total",
    BOTH,
    "Bytes of data received from the server.",
);
const BATCH_MESSAGES: Metric = Metric::histogram(
    "spillway_helper_batch_messages",
    SERVICE,
    "Data messages in each batch to the server.",
);
const BATCH_BYTES: Metric =
    Metric::histogram("spillway_helper_batch_size_bytes", SERVICE, "Bytes of each batch to the server.");
const BATCH_DELAY: Metric = Metric::histogram(
    "spillway_helper_batch_delay_seconds",
    SERVICE,
    "How long the first message of each batch has waited for it to go.",
);

const STALLS: Metric = Metric::counter(
    "spillway_helper_client_stalls_total",
    REASON,
    "How often a plain client could send nothing: credit (the server does not read), link (it takes no more).",
);
const STALL_TIME: Metric = Metric::counter(
    "spillway_helper_client_stall_seconds_total",
    REASON,
    "How long, all clients together; of stalls that have ended.",
);
const PROTOCOL: Metric = Metric::counter(
    "spillway_helper_protocol_errors_total",
    REASON,
    "Rules broken: by a server on its link (link), by a library client (client), on one connection (connection).",
);
const STRAYS: Metric = Metric::counter(
    "spillway_helper_stray_frames_total",
    BOTH,
    "Frames of connections that are not known any more, passed over.",
);

/// Everything that is told, besides [those of the process](spillway_metrics::process::METRICS).
pub const METRICS: &[Metric] = &[
    BUILD,
    DRAINING,
    CONTEXTS,
    SILENT,
    CONNECTIONS_MAX,
    CPU,
    BUFFERED,
    SCARCE,
    PAUSED,
    NOTICES,
    LOG_DROPPED,
    LOAD,
    FULL,
    LISTENING,
    LINKS,
    LINK_CONNECTIONS,
    LINK_PENDING,
    LINKS_UP,
    LINKS_LOST,
    LINK_FAILURES,
    REGISTERED,
    REGISTRATIONS,
    REGISTRATION_FAILURES,
    CLIENTS,
    ACCEPTED,
    ANNOUNCED,
    REFUSED,
    RESET,
    QUESTIONS,
    QUESTIONS_REFUSED,
    SHED,
    REQUEST_BYTES,
    REQUEST_SEGMENTS,
    REPLY_BYTES,
    REPLY_SEGMENTS,
    BATCHES,
    MESSAGES_SENT,
    BYTES_SENT,
    MESSAGES_RECEIVED,
    BYTES_RECEIVED,
    BATCH_MESSAGES,
    BATCH_BYTES,
    BATCH_DELAY,
    STALLS,
    STALL_TIME,
    PROTOCOL,
    STRAYS,
];

/// What each network thread answered, under its number; `status` is the sum of it.
pub(crate) fn render(out: &mut Exposition, status: &HelperStatus, parts: &[(usize, Part)]) {
    out.family(&BUILD).sample(&[&status.version], 1.0);
    out.family(&DRAINING).sample(&[], f64::from(u8::from(status.draining)));
    out.family(&CONTEXTS).count(&[], status.threads as u64);
    out.family(&SILENT).count(&[], status.threads_silent as u64);
    out.family(&CONNECTIONS_MAX).count(&[], u64::from(status.max_connections));
    out.family(&LOG_DROPPED).count(&[], status.log_lines_dropped);
    let contexts: Vec<(String, &Part)> = parts.iter().map(|(n, part)| (n.to_string(), part)).collect();
    let mut each = |metric, value: fn(&Part) -> f64| {
        let mut family = out.family(metric);
        contexts.iter().for_each(|(context, part)| family.sample(&[context], value(part)));
    };
    each(&CPU, |part| part.cpu.as_secs_f64());
    each(&BUFFERED, |part| part.status.buffered_bytes as f64);
    each(&SCARCE, |part| f64::from(u8::from(part.status.memory_is_scarce)));
    each(&PAUSED, |part| part.status.paused as f64);
    each(&NOTICES, |part| part.status.notices_dropped as f64);
    each(&FULL, |part| f64::from(u8::from(part.status.load.full)));
    render_load(out, &contexts);
    let mut services: Vec<(&str, &str, &ServiceStatus)> = Vec::new();
    for (context, part) in &contexts {
        services.extend(part.status.services.iter().map(|service| (&*service.name, &**context, service)));
    }
    // Of one service all contexts follow each other.
    services.sort_by_key(|(name, _, _)| *name);
    render_links(out, &services);
    render_registrations(out, status);
    render_clients(out, &services);
    render_traffic(out, &services);
    render_batches(out, status);
    render_trouble(out, &services);
}

fn render_load(out: &mut Exposition, contexts: &[(String, &Part)]) {
    let mut family = out.family(&LOAD);
    for (context, part) in contexts {
        let load = part.status.load;
        for (resource, share) in [
            ("cpu", load.cpu),
            ("network", load.network),
            ("connections", load.connections),
            ("memory", load.memory),
        ] {
            family.sample(&[context, resource], f64::from(share) / 1e3);
        }
        family.sample(&[context, "all"], f64::from(load.load) / 1e6);
    }
}

type Services<'a> = [(&'a str, &'a str, &'a ServiceStatus)];

/// One figure for each service and context.
fn plain(
    out: &mut Exposition,
    services: &Services<'_>,
    metric: &Metric,
    value: impl Fn(&ServiceStatus) -> u64,
) {
    let mut family = out.family(metric);
    services.iter().for_each(|(name, context, service)| family.count(&[name, context], value(service)));
}

/// Several figures for each service and context, told apart by the third label.
fn split<const N: usize>(
    out: &mut Exposition,
    services: &Services<'_>,
    metric: &Metric,
    values: impl Fn(&ServiceStatus) -> [(&'static str, u64); N],
) {
    let mut family = out.family(metric);
    for (name, context, service) in services {
        values(service).iter().for_each(|(label, value)| family.count(&[name, context, label], *value));
    }
}

fn render_links(out: &mut Exposition, services: &Services<'_>) {
    plain(out, services, &LISTENING, |s| u64::from(s.listening));
    split(out, services, &LINKS, |s| {
        LINK_STATES.map(|state| {
            let links = s.links.iter().filter(|link| link.state == state).count();
            (state_name(state), links as u64)
        })
    });
    plain(out, services, &LINK_CONNECTIONS, |s| s.links.iter().map(|link| u64::from(link.connections)).sum());
    plain(out, services, &LINK_PENDING, |s| s.links.iter().map(|link| link.pending_bytes as u64).sum());
    plain(out, services, &LINKS_UP, |s| s.counters.links_up);
    plain(out, services, &LINKS_LOST, |s| s.counters.links_lost);
    split(out, services, &LINK_FAILURES, |s| {
        let failures = s.counters.link_failures;
        [
            ("lost", failures.lost),
            ("closed_by_server", failures.closed_by_server),
            ("connect_timeout", failures.connect_timeout),
            ("host_full", failures.host_full),
            ("protocol", failures.protocol),
        ]
    });
}

fn render_registrations(out: &mut Exposition, status: &HelperStatus) {
    let each =
        || status.services.iter().filter_map(|service| Some((&service.name, service.registration.as_ref()?)));
    let mut one = |metric, value: fn(&RegistrationStatus) -> u64| {
        let mut family = out.family(metric);
        each().for_each(|(name, registration)| family.count(&[name], value(registration)));
    };
    one(&REGISTERED, |registration| u64::from(registration.registered_ms.is_some()));
    one(&REGISTRATIONS, |registration| registration.registrations);
    one(&REGISTRATION_FAILURES, |registration| registration.failures);
}

fn render_clients(out: &mut Exposition, services: &Services<'_>) {
    split(out, services, &CLIENTS, |s| {
        [("raw", u64::from(s.raw_clients)), ("library", u64::from(s.library_clients))]
    });
    split(out, services, &ACCEPTED, |s| {
        [("raw", s.counters.raw_clients), ("library", s.counters.library_connections)]
    });
    plain(out, services, &ANNOUNCED, |s| s.counters.announced);
    split(out, services, &REFUSED, |s| s.counters.refused.by_reason());
    split(out, services, &RESET, |s| {
        let cut = s.counters.cut;
        [
            ("buffer", cut.buffer),
            ("memory", cut.memory),
            ("protocol", cut.protocol),
            ("link_lost", s.counters.lost_with_link),
        ]
    });
    plain(out, services, &QUESTIONS, |s| s.counters.questions.answered);
    split(out, services, &QUESTIONS_REFUSED, |s| s.counters.questions.refused_by_reason());
    plain(out, services, &SHED, |s| s.counters.shed);
}

fn render_traffic(out: &mut Exposition, services: &Services<'_>) {
    plain(out, services, &REQUEST_BYTES, |s| s.counters.requests.bytes);
    plain(out, services, &REQUEST_SEGMENTS, |s| s.counters.requests.segments);
    plain(out, services, &REPLY_BYTES, |s| s.counters.replies.bytes);
    plain(out, services, &REPLY_SEGMENTS, |s| s.counters.replies.segments);
    plain(out, services, &BATCHES, |s| s.traffic.batches_sent);
    plain(out, services, &MESSAGES_SENT, |s| s.traffic.messages_sent);
    plain(out, services, &BYTES_SENT, |s| s.traffic.bytes_sent);
    plain(out, services, &MESSAGES_RECEIVED, |s| s.traffic.messages_received);
    plain(out, services, &BYTES_RECEIVED, |s| s.traffic.bytes_received);
}

/// All contexts together: with one histogram each, a large host would tell tens of thousands of lines.
fn render_batches(out: &mut Exposition, status: &HelperStatus) {
    let with_batches = || status.services.iter().filter(|service| !service.batch_bytes.bounds.is_empty());
    let mut family = out.family(&BATCH_MESSAGES);
    with_batches().for_each(|s| distribution(&mut family, &s.name, &s.batch_messages, 1.0));
    let mut family = out.family(&BATCH_BYTES);
    with_batches().for_each(|s| distribution(&mut family, &s.name, &s.batch_bytes, 1.0));
    let mut family = out.family(&BATCH_DELAY);
    with_batches().for_each(|s| distribution(&mut family, &s.name, &s.batch_delay_us, 1e6));
}

fn distribution(family: &mut Family<'_>, name: &str, of: &Distribution, unit: f64) {
    let bounds = of.bounds.iter().map(|bound| *bound as f64 / unit);
    family.histogram(&[name], bounds, &of.counts, of.sum as f64 / unit);
}

fn render_trouble(out: &mut Exposition, services: &Services<'_>) {
    split(out, services, &STALLS, |s| {
        [("credit", s.counters.stalls.credit), ("link", s.counters.stalls.link)]
    });
    let mut family = out.family(&STALL_TIME);
    for (name, context, service) in services {
        let stalls = service.counters.stalls;
        family.sample(&[name, context, "credit"], stalls.credit_ns as f64 / 1e9);
        family.sample(&[name, context, "link"], stalls.link_ns as f64 / 1e9);
    }
    split(out, services, &PROTOCOL, |s| {
        [
            ("link", s.counters.link_failures.protocol),
            ("client", s.counters.cut.protocol),
            ("connection", s.counters.connections_broken),
        ]
    });
    plain(out, services, &STRAYS, |s| s.traffic.strays);
}
