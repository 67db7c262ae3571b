//! The metrics of a helper, for Prometheus.

mod scrape;
mod xdp;

use spillway_metrics::{Declared, Metric};

pub(crate) use self::scrape::Scrape;
use self::scrape::flag;
use crate::status::{LINK_STATES, state_name};

const NONE: &[&str] = &[];
const THREAD: &[&str] = &["thread"];
const SERVICE: &[&str] = &["service"];
const BOTH: &[&str] = &["service", "thread"];
const CLIENT: &[&str] = &["service", "thread", "client"];
const REASON: &[&str] = &["service", "thread", "reason"];
const STATE: &[&str] = &["service", "thread", "state"];

/// All metrics but [those of the process](spillway_metrics::process::METRICS).
pub const METRICS: &[Metric] = &Declared::metrics(&ALL);

pub(crate) const ALL: [Declared<Scrape>; 56] = [
    Declared::gauge(
        "spillway_helper_build_info",
        &["version"],
        "Always 1; the label is the program's version.",
        |scrape, family| family.sample(&[&scrape.status.version], 1.0),
    ),
    Declared::gauge(
        "spillway_helper_draining",
        NONE,
        "Whether the helper is draining: it refuses new clients, and present ones may finish.",
        |scrape, family| family.sample(&[], flag(scrape.status.draining)),
    ),
    Declared::gauge("spillway_helper_threads", NONE, "Network threads.", |scrape, family| {
        family.count(&[], scrape.status.threads as u64)
    }),
    Declared::gauge(
        "spillway_helper_threads_silent",
        NONE,
        "Network threads that did not answer; all other metrics are without them.",
        |scrape, family| family.count(&[], scrape.status.threads_silent as u64),
    ),
    Declared::gauge(
        "spillway_helper_connections_max",
        NONE,
        "Maximum number of clients at one time.",
        |scrape, family| family.count(&[], scrape.status.max_connections.into()),
    ),
    Declared::counter(
        "spillway_helper_thread_cpu_seconds_total",
        THREAD,
        "CPU time of a network thread.",
        |scrape, family| scrape.each_thread(family, |thread| thread.cpu.as_secs_f64()),
    ),
    Declared::gauge(
        "spillway_helper_buffered_bytes",
        THREAD,
        "Bytes of memory for data from and to clients.",
        |scrape, family| scrape.each_thread(family, |thread| thread.status.buffered_bytes as f64),
    ),
    Declared::gauge(
        "spillway_helper_memory_scarce",
        THREAD,
        "Whether memory is scarce: clients that do not read are paused.",
        |scrape, family| scrape.each_thread(family, |thread| flag(thread.status.memory_is_scarce)),
    ),
    Declared::counter(
        "spillway_helper_clients_paused_total",
        THREAD,
        "Clients whose requests were not read because memory was scarce and they did not read their replies.",
        |scrape, family| scrape.each_thread(family, |thread| thread.status.paused as f64),
    ),
    Declared::counter(
        "spillway_helper_notices_dropped_total",
        THREAD,
        "Log entries of network threads that were dropped because too many came at once.",
        |scrape, family| scrape.each_thread(family, |thread| thread.status.notices_dropped as f64),
    ),
    Declared::counter(
        "spillway_helper_log_lines_dropped_total",
        NONE,
        "Log lines dropped because writing failed or was too slow.",
        |scrape, family| family.count(&[], scrape.status.log_lines_dropped),
    ),
    Declared::gauge(
        "spillway_helper_load_ratio",
        &["thread", "resource"],
        "Load of a network thread, as answered to clients: cpu, network (0: no bound known), connections, memory, and \
         all (the largest of them, with clients that have just come).",
        |scrape, family| scrape.each_load(family),
    ),
    Declared::gauge(
        "spillway_helper_full",
        THREAD,
        "Whether a network thread answers load queries with full.",
        |scrape, family| scrape.each_thread(family, |thread| flag(thread.status.load.full)),
    ),
    Declared::gauge(
        "spillway_helper_listening",
        BOTH,
        "Whether clients of a service are accepted; otherwise the host refuses them.",
        |scrape, family| scrape.each_service(family, |s| s.listening.into()),
    ),
    Declared::gauge(
        "spillway_helper_links",
        STATE,
        "Links to a service's server by state: waiting, connecting, up, draining, closed.",
        |scrape, family| {
            scrape.by_label(family, |s| {
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
        "Virtual connections on links, until both ends have ended them.",
        |scrape, family| {
            scrape.each_service(family, |s| s.links.iter().map(|link| u64::from(link.connections)).sum())
        },
    ),
    Declared::gauge(
        "spillway_helper_link_pending_bytes",
        BOTH,
        "Bytes for a server that the host's sockets have not taken yet.",
        |scrape, family| {
            scrape.each_service(family, |s| s.links.iter().map(|link| link.pending_bytes as u64).sum())
        },
    ),
    Declared::counter(
        "spillway_helper_links_established_total",
        BOTH,
        "Links that came up, including again after a loss.",
        |scrape, family| scrape.each_service(family, |s| s.counters.links_up),
    ),
    Declared::counter(
        "spillway_helper_links_lost_total",
        BOTH,
        "Links that were lost after they had come up; their plain clients were reset.",
        |scrape, family| scrape.each_service(family, |s| s.counters.links_lost),
    ),
    Declared::counter(
        "spillway_helper_link_failures_total",
        REASON,
        "Links that were lost or did not come up: lost, closed_by_server, connect_timeout, host_full, protocol.",
        |scrape, family| {
            scrape.by_label(family, |s| {
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
        "Whether the helper is registered for clients to find it; only for services with a registration.",
        |scrape, family| scrape.each_registration(family, |r| r.registered_ms.is_some().into()),
    ),
    Declared::counter(
        "spillway_helper_registrations_total",
        SERVICE,
        "Times that the registration was written, including again after a loss.",
        |scrape, family| scrape.each_registration(family, |r| r.registrations),
    ),
    Declared::counter(
        "spillway_helper_registration_failures_total",
        SERVICE,
        "Attempts to register, or to keep the registration alive, that failed.",
        |scrape, family| scrape.each_registration(family, |r| r.failures),
    ),
    Declared::gauge(
        "spillway_helper_clients",
        CLIENT,
        "Clients connected now: plain or library.",
        |scrape, family| {
            scrape.by_label(family, |s| {
                [("plain", s.plain_clients.into()), ("library", s.library_clients.into())]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_clients_accepted_total",
        CLIENT,
        "Plain clients accepted, and virtual connections of library clients forwarded.",
        |scrape, family| {
            scrape.by_label(family, |s| {
                [("plain", s.counters.plain_clients), ("library", s.counters.library_connections)]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_clients_announced_total",
        BOTH,
        "Plain clients announced by a load balancer (PROXY protocol).",
        |scrape, family| scrape.each_service(family, |s| s.counters.announced),
    ),
    Declared::counter(
        "spillway_helper_clients_refused_total",
        REASON,
        "Clients refused.",
        |scrape, family| scrape.by_label(family, |s| s.counters.refused.by_reason()),
    ),
    Declared::counter(
        "spillway_helper_clients_reset_total",
        REASON,
        "Clients reset: buffer, memory (they do not read), protocol, link_lost.",
        |scrape, family| {
            scrape.by_label(family, |s| {
                let resets = s.counters.reset;
                [
                    ("buffer", resets.buffer),
                    ("memory", resets.memory),
                    ("protocol", resets.protocol),
                    ("link_lost", s.counters.lost_with_link),
                ]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_load_queries_total",
        BOTH,
        "Load queries answered.",
        |scrape, family| scrape.each_service(family, |s| s.counters.load_queries.answered),
    ),
    Declared::counter(
        "spillway_helper_load_queries_refused_total",
        REASON,
        "Load queries that were not answered: off, address, malformed, key, proof.",
        |scrape, family| scrape.by_label(family, |s| s.counters.load_queries.refused_by_reason()),
    ),
    Declared::counter(
        "spillway_helper_clients_shed_total",
        BOTH,
        "Library clients sent to other helpers because the load was too high.",
        |scrape, family| scrape.each_service(family, |s| s.counters.shed),
    ),
    Declared::counter(
        "spillway_helper_request_bytes_total",
        BOTH,
        "Bytes of clients' requests.",
        |scrape, family| scrape.each_service(family, |s| s.counters.requests.bytes),
    ),
    Declared::counter(
        "spillway_helper_request_segments_total",
        BOTH,
        "Segments of requests received from clients: about one for each small request.",
        |scrape, family| scrape.each_service(family, |s| s.counters.requests.segments),
    ),
    Declared::counter(
        "spillway_helper_reply_bytes_total",
        BOTH,
        "Bytes of replies to clients.",
        |scrape, family| scrape.each_service(family, |s| s.counters.replies.bytes),
    ),
    Declared::counter(
        "spillway_helper_reply_segments_total",
        BOTH,
        "Segments of replies received from the server: about one for each small reply.",
        |scrape, family| scrape.each_service(family, |s| s.counters.replies.segments),
    ),
    Declared::counter(
        "spillway_helper_batches_sent_total",
        BOTH,
        "Batches sent to the server.",
        |scrape, family| scrape.each_service(family, |s| s.traffic.batches_sent),
    ),
    Declared::counter(
        "spillway_helper_messages_sent_total",
        BOTH,
        "Data messages sent to the server; consecutive ones of one client count as one.",
        |scrape, family| scrape.each_service(family, |s| s.traffic.messages_sent),
    ),
    Declared::counter(
        "spillway_helper_link_sent_bytes_total",
        BOTH,
        "Bytes sent to the server, headers and control included.",
        |scrape, family| scrape.each_service(family, |s| s.traffic.bytes_sent),
    ),
    Declared::counter(
        "spillway_helper_messages_received_total",
        BOTH,
        "Data messages received from the server.",
        |scrape, family| scrape.each_service(family, |s| s.traffic.messages_received),
    ),
    Declared::counter(
        "spillway_helper_link_received_bytes_total",
        BOTH,
        "Bytes of data received from the server.",
        |scrape, family| scrape.each_service(family, |s| s.traffic.bytes_received),
    ),
    Declared::histogram(
        "spillway_helper_batch_messages",
        SERVICE,
        "Data messages in each batch to the server.",
        |scrape, family| scrape.distributions(family, |s| &s.batch_messages, 1.0),
    ),
    Declared::histogram(
        "spillway_helper_batch_size_bytes",
        SERVICE,
        "Bytes of each batch to the server.",
        |scrape, family| scrape.distributions(family, |s| &s.batch_bytes, 1.0),
    ),
    Declared::histogram(
        "spillway_helper_batch_delay_seconds",
        SERVICE,
        "Time for which the first message of each batch waited for the batch to leave.",
        |scrape, family| scrape.distributions(family, |s| &s.batch_delay_us, 1e6),
    ),
    Declared::histogram(
        "spillway_helper_request_latency_seconds",
        SERVICE,
        "Time from the last byte of a request to the last byte of its reply at the helper, of the measured plain \
         clients; the delay of batching is part of it.",
        |scrape, family| scrape.distributions(family, |s| &s.request_latency_us, 1e6),
    ),
    Declared::counter(
        "spillway_helper_replies_unmeasured_total",
        BOTH,
        "Replies to measured clients whose latency says nothing about the server: blocking commands, or the client did \
         not read.",
        |scrape, family| scrape.each_service(family, |s| s.counters.measured.unmeasured),
    ),
    Declared::counter(
        "spillway_helper_measuring_given_up_total",
        REASON,
        "Measured clients whose requests could not be followed any more.",
        |scrape, family| scrape.by_label(family, |s| s.counters.measured.given_up_by_reason()),
    ),
    Declared::counter(
        "spillway_helper_client_stalls_total",
        REASON,
        "Times that a plain client could not send: credit (the server does not read), link (its buffer is full).",
        |scrape, family| {
            scrape.by_label(family, |s| {
                [("credit", s.counters.stalls.credit), ("link", s.counters.stalls.link)]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_client_stall_seconds_total",
        REASON,
        "Duration of stalls that have ended, all clients together.",
        |scrape, family| {
            scrape.fractions_by_label(family, |s| {
                let stalls = s.counters.stalls;
                [("credit", stalls.credit_ns as f64 / 1e9), ("link", stalls.link_ns as f64 / 1e9)]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_protocol_errors_total",
        REASON,
        "Protocol errors of a server on its link (link), of a library client (client), on a connection (connection).",
        |scrape, family| {
            scrape.by_label(family, |s| {
                [
                    ("link", s.counters.link_failures.protocol),
                    ("client", s.counters.reset.protocol),
                    ("connection", s.counters.connections_broken),
                ]
            })
        },
    ),
    Declared::counter(
        "spillway_helper_stray_frames_total",
        BOTH,
        "Frames of connections that have ended, which are ignored.",
        |scrape, family| scrape.each_service(family, |s| s.traffic.unknown_frames),
    ),
    Declared::gauge(
        "spillway_helper_engine_info",
        &["engine", "interface", "mode"],
        "Always 1; the labels are what carries the connections: sockets, or xdp with its interface and where its program \
         runs (native, generic).",
        |scrape, family| {
            let engine = &scrape.status.engine;
            let text = |label: &Option<String>| label.clone().unwrap_or_default();
            family.sample(&[&engine.name, &text(&engine.interface), &text(&engine.mode)], 1.0);
        },
    ),
    Declared::gauge(
        "spillway_helper_interrupts_deferred",
        &["thread"],
        "1 while the load of the thread defers the interrupts of the engine xdp's interface (helper.xdp.defer_interrupts).",
        |scrape, family| scrape.deferring_threads(family),
    ),
    Declared::counter(
        "spillway_helper_frames_total",
        &["thread", "direction"],
        "Ethernet frames of the engine xdp: received, sent, lost (the interface did not accept them), crossed (received for a \
         connection of another thread, and passed to that thread).",
        |scrape, family| scrape.each_xdp(family, xdp::frames),
    ),
    Declared::counter(
        "spillway_helper_frames_dropped_total",
        &["thread", "reason"],
        "Frames received and dropped by the engine xdp, or on the way to it: receive_ring_full and fill_ring_empty (the \
         thread does not keep up: more frames in helper.xdp.frames, or more threads), thread_busy (the frame's thread is \
         another one, and does not keep up), too_long, malformed, partial_checksum (also malformed: the other end of a \
         veth leaves checksums to its hardware), ignored, unacceptable.",
        |scrape, family| scrape.each_xdp(family, xdp::drops),
    ),
    Declared::counter(
        "spillway_helper_tcp_events_total",
        &["thread", "event"],
        "Events of the engine's own TCP: retransmitted_segment, retransmission_timeout, given_up, reset_sent, \
         reset_received, port_changed (a link's packets arrived at another thread's queue), connection_refused (a table was \
         full), cookie_sent, unknown_segment.",
        |scrape, family| scrape.each_xdp(family, xdp::events),
    ),
    Declared::counter(
        "spillway_helper_steered_packets_total",
        &["verdict"],
        "Packets at the interface of the engine xdp by what its program did with them: pass_ (to the kernel), to_ (to the \
         engine), drop_.",
        |scrape, family| scrape.verdicts(family),
    ),
];
