//! What a helper tells Prometheus: each metric with its samples.

mod told;

use spillway_metrics::{Declared, Metric};

pub(crate) use self::told::Told;
use self::told::flag;
use crate::status::{LINK_STATES, state_name};

const NONE: &[&str] = &[];
const CONTEXT: &[&str] = &["context"];
const SERVICE: &[&str] = &["service"];
const BOTH: &[&str] = &["service", "context"];
const KIND: &[&str] = &["service", "context", "kind"];
const REASON: &[&str] = &["service", "context", "reason"];
const STATE: &[&str] = &["service", "context", "state"];

/// Everything that is told, besides [those of the process](spillway_metrics::process::METRICS).
pub const METRICS: &[Metric] = &Declared::metrics(&ALL);

pub(crate) const ALL: [Declared<Told>; 47] = [
    Declared::gauge(
        "spillway_helper_build_info",
        &["version"],
        "Always 1; the label says which version of the program runs.",
        |told, family| family.sample(&[&told.status.version], 1.0),
    ),
    Declared::gauge(
        "spillway_helper_draining",
        NONE,
        "Whether the helper is draining: it refuses new clients, and present ones may finish.",
        |told, family| family.sample(&[], flag(told.status.draining)),
    ),
    Declared::gauge("spillway_helper_contexts", NONE, "Network threads.", |told, family| {
        family.count(&[], told.status.threads as u64)
    }),
    Declared::gauge(
        "spillway_helper_contexts_silent",
        NONE,
        "Network threads that did not answer; what they do is missing in all other figures.",
        |told, family| family.count(&[], told.status.threads_silent as u64),
    ),
    Declared::gauge(
        "spillway_helper_connections_max",
        NONE,
        "Clients that the helper may have at one time.",
        |told, family| family.count(&[], told.status.max_connections.into()),
    ),
    Declared::counter(
        "spillway_helper_context_cpu_seconds_total",
        CONTEXT,
        "CPU time of a network thread.",
        |told, family| told.each_context(family, |part| part.cpu.as_secs_f64()),
    ),
    Declared::gauge(
        "spillway_helper_buffered_bytes",
        CONTEXT,
        "Bytes of memory that hold what waits for and from clients.",
        |told, family| told.each_context(family, |part| part.status.buffered_bytes as f64),
    ),
    Declared::gauge(
        "spillway_helper_memory_scarce",
        CONTEXT,
        "Whether memory is scarce: clients that do not read are paused.",
        |told, family| told.each_context(family, |part| flag(part.status.memory_is_scarce)),
    ),
    Declared::counter(
        "spillway_helper_clients_paused_total",
        CONTEXT,
        "Clients whose requests were not read because memory was scarce and they did not read their replies.",
        |told, family| told.each_context(family, |part| part.status.paused as f64),
    ),
    Declared::counter(
        "spillway_helper_notices_dropped_total",
        CONTEXT,
        "Decisions that were not logged because too many came at once.",
        |told, family| told.each_context(family, |part| part.status.notices_dropped as f64),
    ),
    Declared::counter(
        "spillway_helper_log_lines_dropped_total",
        NONE,
        "Log lines that could not be written, or not as fast as they came.",
        |told, family| family.count(&[], told.status.log_lines_dropped),
    ),
    Declared::gauge(
        "spillway_helper_load_ratio",
        &["context", "resource"],
        "Load of a network thread, as clients that ask are told: cpu, network (0: no bound known), connections, memory, and \
         all: the scarcest, with clients that have just come.",
        |told, family| told.each_load(family),
    ),
    Declared::gauge(
        "spillway_helper_full",
        CONTEXT,
        "Whether a network thread answers clients that ask for its load that it is full.",
        |told, family| told.each_context(family, |part| flag(part.status.load.full)),
    ),
    Declared::gauge(
        "spillway_helper_listening",
        BOTH,
        "Whether clients of a service are taken; otherwise the host refuses them.",
        |told, family| told.each(family, |s| s.listening.into()),
    ),
    Declared::gauge(
        "spillway_helper_links",
        STATE,
        "Links to a service's server by state: waiting, connecting, up, draining, closed.",
        |told, family| {
            told.split(family, |s| {
                LINK_STATES.map(|state| {
                    let links = s.links.iter().filter(|link| link.state == state).count();
                    (state_name(state), links as u64)
                })
            })
        },
    ),
    Declared::gauge(
        "spillway_helper_link_connections",
        BOTH,
        "Virtual connections on links that have not ended on both sides.",
        |told, family| told.each(family, |s| s.links.iter().map(|link| u64::from(link.connections)).sum()),
    ),
    Declared::gauge(
        "spillway_helper_link_pending_bytes",
        BOTH,
        "Bytes gathered for a server that the host's sockets have not taken.",
        |told, family| told.each(family, |s| s.links.iter().map(|link| link.pending_bytes as u64).sum()),
    ),
    Declared::counter(
        "spillway_helper_links_established_total",
        BOTH,
        "Links that came up, again after a loss included.",
        |told, family| told.each(family, |s| s.counters.links_up),
    ),
    Declared::counter(
        "spillway_helper_links_lost_total",
        BOTH,
        "Links that were lost after they had come up; their plain clients were reset.",
        |told, family| told.each(family, |s| s.counters.links_lost),
    ),
    Declared::counter(
        "spillway_helper_link_failures_total",
        REASON,
        "Links that were lost or did not come up: lost, closed_by_server, connect_timeout, host_full, protocol.",
        |told, family| {
            told.split(family, |s| {
                let failures = s.counters.link_failures;
                [
                    ("lost", failures.lost),
                    ("closed_by_server", failures.closed_by_server),
                    ("connect_timeout", failures.connect_timeout),
                    ("host_full", failures.host_full),
                    ("protocol", failures.protocol),
                ]
            })
        },
    ),
    Declared::gauge(
        "spillway_helper_registered",
        SERVICE,
        "Whether the helper is registered for clients to find it; only where it is to be.",
        |told, family| told.each_registration(family, |r| r.registered_ms.is_some().into()),
    ),
    Declared::counter(
        "spillway_helper_registrations_total",
        SERVICE,
        "How often the registration was written, again after a loss included.",
        |told, family| told.each_registration(family, |r| r.registrations),
    ),
    Declared::counter(
        "spillway_helper_registration_failures_total",
        SERVICE,
        "Attempts to register, or to keep the registration alive, that failed.",
        |told, family| told.each_registration(family, |r| r.failures),
    ),
    Declared::gauge(
        "spillway_helper_clients",
        KIND,
        "Clients connected now: raw (plain) or library.",
        |told, family| {
            told.split(family, |s| [("raw", s.raw_clients.into()), ("library", s.library_clients.into())])
        },
    ),
    Declared::counter(
        "spillway_helper_clients_accepted_total",
        KIND,
        "Plain clients taken (raw), and virtual connections of library clients passed on (library).",
        |told, family| {
            told.split(family, |s| {
                [("raw", s.counters.raw_clients), ("library", s.counters.library_connections)]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_clients_announced_total",
        BOTH,
        "Plain clients taken on the word of a load balancer (PROXY protocol).",
        |told, family| told.each(family, |s| s.counters.announced),
    ),
    Declared::counter("spillway_helper_clients_refused_total", REASON, "Clients refused.", |told, family| {
        told.split(family, |s| s.counters.refused.by_reason())
    }),
    Declared::counter(
        "spillway_helper_clients_reset_total",
        REASON,
        "Clients reset: buffer, memory (they do not read), protocol, link_lost.",
        |told, family| {
            told.split(family, |s| {
                let cut = s.counters.cut;
                [
                    ("buffer", cut.buffer),
                    ("memory", cut.memory),
                    ("protocol", cut.protocol),
                    ("link_lost", s.counters.lost_with_link),
                ]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_load_questions_total",
        BOTH,
        "Questions of load answered.",
        |told, family| told.each(family, |s| s.counters.questions.answered),
    ),
    Declared::counter(
        "spillway_helper_load_questions_refused_total",
        REASON,
        "Questions of load that were not answered: off, address, malformed, key, proof.",
        |told, family| told.split(family, |s| s.counters.questions.refused_by_reason()),
    ),
    Declared::counter(
        "spillway_helper_clients_shed_total",
        BOTH,
        "Library clients sent to other helpers because the load was too high.",
        |told, family| told.each(family, |s| s.counters.shed),
    ),
    Declared::counter(
        "spillway_helper_request_bytes_total",
        BOTH,
        "Bytes of clients' requests.",
        |told, family| told.each(family, |s| s.counters.requests.bytes),
    ),
    Declared::counter(
        "spillway_helper_request_segments_total",
        BOTH,
        "Pieces in which requests came: about one for each small request.",
        |told, family| told.each(family, |s| s.counters.requests.segments),
    ),
    Declared::counter(
        "spillway_helper_reply_bytes_total",
        BOTH,
        "Bytes of replies to clients.",
        |told, family| told.each(family, |s| s.counters.replies.bytes),
    ),
    Declared::counter(
        "spillway_helper_reply_segments_total",
        BOTH,
        "Pieces in which replies came from the server: about one for each small reply.",
        |told, family| told.each(family, |s| s.counters.replies.segments),
    ),
    Declared::counter(
        "spillway_helper_batches_sent_total",
        BOTH,
        "Batches sent to the server.",
        |told, family| told.each(family, |s| s.traffic.batches_sent),
    ),
    Declared::counter(
        "spillway_helper_messages_sent_total",
        BOTH,
        "Data messages sent to the server; those of one client that follow each other count as one.",
        |told, family| told.each(family, |s| s.traffic.messages_sent),
    ),
    Declared::counter(
        "spillway_helper_link_sent_bytes_total",
        BOTH,
        "Bytes sent to the server, headers and control included.",
        |told, family| told.each(family, |s| s.traffic.bytes_sent),
    ),
    Declared::counter(
        "spillway_helper_messages_received_total",
        BOTH,
        "Data messages received from the server.",
        |told, family| told.each(family, |s| s.traffic.messages_received),
    ),
    Declared::counter(
        "spillway_helper_link_received_bytes_total",
        BOTH,
        "Bytes of data received from the server.",
        |told, family| told.each(family, |s| s.traffic.bytes_received),
    ),
    Declared::histogram(
        "spillway_helper_batch_messages",
        SERVICE,
        "Data messages in each batch to the server.",
        |told, family| told.distributions(family, |s| &s.batch_messages, 1.0),
    ),
    Declared::histogram(
        "spillway_helper_batch_size_bytes",
        SERVICE,
        "Bytes of each batch to the server.",
        |told, family| told.distributions(family, |s| &s.batch_bytes, 1.0),
    ),
    Declared::histogram(
        "spillway_helper_batch_delay_seconds",
        SERVICE,
        "How long the first message of each batch has waited for it to go.",
        |told, family| told.distributions(family, |s| &s.batch_delay_us, 1e6),
    ),
    Declared::counter(
        "spillway_helper_client_stalls_total",
        REASON,
        "How often a plain client could send nothing: credit (the server does not read), link (it takes no more).",
        |told, family| {
            told.split(family, |s| [("credit", s.counters.stalls.credit), ("link", s.counters.stalls.link)])
        },
    ),
    Declared::counter(
        "spillway_helper_client_stall_seconds_total",
        REASON,
        "How long, all clients together; of stalls that have ended.",
        |told, family| {
            told.split_exactly(family, |s| {
                let stalls = s.counters.stalls;
                [("credit", stalls.credit_ns as f64 / 1e9), ("link", stalls.link_ns as f64 / 1e9)]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_protocol_errors_total",
        REASON,
        "Rules broken: by a server on its link (link), by a library client (client), on one connection (connection).",
        |told, family| {
            told.split(family, |s| {
                [
                    ("link", s.counters.link_failures.protocol),
                    ("client", s.counters.cut.protocol),
                    ("connection", s.counters.connections_broken),
                ]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_stray_frames_total",
        BOTH,
        "Frames of connections that are not known any more, passed over.",
        |told, family| told.each(family, |s| s.traffic.strays),
    ),
];
