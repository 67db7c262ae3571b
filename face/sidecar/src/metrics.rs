//! What a sidecar tells Prometheus.

use spillway_metrics::{Exposition, Metric};

use crate::counters::Counters;
use crate::latency::{BOUNDS_US, Total};
use crate::shared::Shared;
use crate::status::SidecarStatus;

const NONE: &[&str] = &[];
const REASON: &[&str] = &["reason"];
const CARRIER: &[&str] = &["carrier"];

const BUILD: Metric = Metric::gauge(
    "spillway_sidecar_build_info",
    &["version"],
    "Always 1; the label says which version of the program runs.",
);
const DRAINING: Metric =
    Metric::gauge("spillway_sidecar_draining", NONE, "Whether the sidecar has been told to go.");
const CONNECTIONS: Metric = Metric::gauge(
    "spillway_sidecar_connections",
    CARRIER,
    "Local connections now by what carries them: helper, direct, none.",
);
const CONNECTIONS_MAX: Metric = Metric::gauge(
    "spillway_sidecar_connections_max",
    NONE,
    "Local connections that the sidecar may have at one time.",
);
const HELPERS: Metric = Metric::gauge("spillway_sidecar_helpers", NONE, "Helpers that are known.");
const SLA: Metric = Metric::gauge("spillway_sidecar_sla_seconds", NONE, "The p99 of replies that is wanted.");
const BUFFERED: Metric = Metric::gauge(
    "spillway_sidecar_buffered_bytes",
    NONE,
    "Bytes of memory that hold what waits, of all connections.",
);
const SCARCE: Metric = Metric::gauge(
    "spillway_sidecar_threads_scarce",
    NONE,
    "Threads on which memory is scarce: clients that do not read are paused.",
);
const PAUSED: Metric = Metric::counter(
    "spillway_sidecar_connections_paused_total",
    NONE,
    "Local connections whose requests were not read because memory was scarce and they did not read their replies.",
);
const TAKEN: Metric =
    Metric::counter("spillway_sidecar_connections_accepted_total", NONE, "Local connections taken.");
const ANNOUNCED: Metric = Metric::counter(
    "spillway_sidecar_connections_announced_total",
    NONE,
    "Local connections taken on the word of a load balancer (PROXY protocol).",
);
const REFUSED: Metric = Metric::counter(
    "spillway_sidecar_connections_refused_total",
    REASON,
    "Local connections refused: full, memory, address, proxy, descriptors.",
);
const ENDED: Metric = Metric::counter(
    "spillway_sidecar_connections_ended_total",
    REASON,
    "How local connections ended: in_order, client_reset, server_reset, refused, gone, no_carrier, shutdown, \
     memory.",
);
const MOVES: Metric = Metric::counter(
    "spillway_sidecar_moves_total",
    REASON,
    "How often sessions went on elsewhere: lost, drain, sent_away, relief.",
);
const LOST: Metric = Metric::counter(
    "spillway_sidecar_carriers_lost_total",
    REASON,
    "Carriers lost, or that did not take a session: socket, closed, silent, link, refused, drain, asked.",
);
const REQUEST_BYTES: Metric =
    Metric::counter("spillway_sidecar_request_bytes_total", NONE, "Bytes from local clients.");
const REPLY_BYTES: Metric =
    Metric::counter("spillway_sidecar_reply_bytes_total", NONE, "Bytes to local clients.");
const REPLIES: Metric = Metric::counter(
    "spillway_sidecar_replies_total",
    NONE,
    "Replies, as the configured protocol tells them apart.",
);
const UNMEASURED: Metric = Metric::counter(
    "spillway_sidecar_replies_unmeasured_total",
    NONE,
    "Replies whose time says nothing about the server: the command may block, or the client did not read.",
);
const GAVE_UP: Metric = Metric::counter(
    "spillway_sidecar_measuring_given_up_total",
    REASON,
    "Connections whose requests could not be followed any more; their bytes go on as before.",
);
const LATENCY: Metric = Metric::histogram(
    "spillway_sidecar_reply_latency_seconds",
    CARRIER,
    "From a request's last byte to its reply's last byte, by what carried the reply: helper, direct.",
);
const P99: Metric = Metric::gauge(
    "spillway_sidecar_reply_latency_p99_seconds",
    CARRIER,
    "The p99 of the last 10 to 20 seconds; 0 without replies.",
);
const DECISIONS: Metric = Metric::counter(
    "spillway_sidecar_relief_decisions_total",
    &["kind"],
    "What relief has decided: activations, canaries, back_offs, cures, releases, words, orders_to_helpers, \
     orders_to_server, orders_failed.",
);
const CPU: Metric =
    Metric::counter("spillway_sidecar_cpu_seconds_total", NONE, "CPU time of the network threads.");
const LOG_DROPPED: Metric = Metric::counter(
    "spillway_sidecar_log_lines_dropped_total",
    NONE,
    "Log lines that could not be written, or not as fast as they came.",
);

/// All but those of the process.
pub const METRICS: &[Metric] = &[
    BUILD,
    DRAINING,
    CONNECTIONS,
    CONNECTIONS_MAX,
    HELPERS,
    SLA,
    BUFFERED,
    SCARCE,
    PAUSED,
    TAKEN,
    ANNOUNCED,
    REFUSED,
    ENDED,
    MOVES,
    LOST,
    REQUEST_BYTES,
    REPLY_BYTES,
    REPLIES,
    UNMEASURED,
    GAVE_UP,
    LATENCY,
    P99,
    DECISIONS,
    CPU,
    LOG_DROPPED,
];

pub(crate) fn render(out: &mut Exposition, shared: &Shared) {
    let status = shared.status();
    out.family(&BUILD).sample(&[env!("CARGO_PKG_VERSION")], 1.0);
    out.family(&DRAINING).count(&[], u64::from(status.draining));
    let mut connections = out.family(&CONNECTIONS);
    connections.count(&["helper"], status.helped);
    connections.count(&["direct"], status.direct);
    connections.count(&["none"], status.waiting);
    out.family(&CONNECTIONS_MAX).count(&[], status.max_connections.into());
    out.family(&HELPERS).count(&[], status.helpers.len() as u64);
    out.family(&SLA).sample(&[], status.sla_us as f64 / 1e6);
    out.family(&BUFFERED).count(&[], status.buffered_bytes);
    out.family(&SCARCE).count(&[], status.threads_scarce);
    out.family(&PAUSED).count(&[], status.connections_paused);
    out.family(&TAKEN).count(&[], status.taken);
    out.family(&ANNOUNCED).count(&[], status.announced);
    for (metric, counts) in [
        (&REFUSED, &status.refused),
        (&ENDED, &status.ended),
        (&MOVES, &status.moves),
        (&LOST, &status.carriers_lost),
        (&GAVE_UP, &status.gave_up),
        (&DECISIONS, &status.decisions),
    ] {
        let mut family = out.family(metric);
        counts.iter().for_each(|(reason, count)| family.count(&[reason], *count));
    }
    out.family(&REQUEST_BYTES).count(&[], status.request_bytes);
    out.family(&REPLY_BYTES).count(&[], status.reply_bytes);
    out.family(&REPLIES).count(&[], status.replies);
    out.family(&UNMEASURED).count(&[], status.replies_unmeasured);
    latencies(out, shared, &status);
    out.family(&CPU).sample(&[], shared.sum(|counters: &Counters| counters.cpu_ns.value()) as f64 / 1e9);
    out.family(&LOG_DROPPED).count(&[], status.log_lines_dropped);
}

fn latencies(out: &mut Exposition, shared: &Shared, status: &SidecarStatus) {
    let (mut direct, mut helped) = (Total::default(), Total::default());
    shared.parts().iter().for_each(|part| part.latencies.add_totals([&mut direct, &mut helped]));
    let mut family = out.family(&LATENCY);
    for (carrier, total) in [("direct", &direct), ("helper", &helped)] {
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
        family.histogram(&[carrier], bounds, &total.counts, total.sum_us as f64 / 1e6);
    }
    let mut family = out.family(&P99);
    for (carrier, recent) in [("direct", status.latency_direct), ("helper", status.latency_helped)] {
        family.sample(&[carrier], recent.p99_us as f64 / 1e6);
    }
}
