//! What a sidecar tells Prometheus: each metric with its samples.

use std::collections::BTreeMap;

use spillway_metrics::{Declared, Exposition, Family, Metric};

use crate::counters::Counters;
use crate::latency::{BOUNDS_US, Total};
use crate::shared::Shared;
use crate::status::SidecarStatus;

const NONE: &[&str] = &[];
const REASON: &[&str] = &["reason"];
const CARRIER: &[&str] = &["carrier"];

/// What samples are taken from: one look at a sidecar.
#[derive(Debug)]
struct Told {
    status: SidecarStatus,
    /// Of replies that came direct, and by helpers.
    direct: Total,
    helped: Total,
    /// Of all network threads.
    cpu_ns: u64,
}

/// All but those of the process.
pub const METRICS: &[Metric] = &Declared::metrics(&ALL);

const ALL: [Declared<Told>; 25] = [
    Declared::gauge(
        "spillway_sidecar_build_info",
        &["version"],
        "Always 1; the label says which version of the program runs.",
        |_, family| family.sample(&[env!("CARGO_PKG_VERSION")], 1.0),
    ),
    Declared::gauge("spillway_sidecar_draining", NONE, "Whether the sidecar is draining.", |told, family| {
        family.count(&[], told.status.draining.into())
    }),
    Declared::gauge(
        "spillway_sidecar_connections",
        CARRIER,
        "Local connections now by what carries them: helper, direct, none.",
        |told, family| {
            family.count(&["helper"], told.status.helped);
            family.count(&["direct"], told.status.direct);
            family.count(&["none"], told.status.waiting);
        },
    ),
    Declared::gauge(
        "spillway_sidecar_connections_max",
        NONE,
        "Local connections that the sidecar may have at one time.",
        |told, family| family.count(&[], told.status.max_connections.into()),
    ),
    Declared::gauge("spillway_sidecar_helpers", NONE, "Helpers that are known.", |told, family| {
        family.count(&[], told.status.helpers.len() as u64)
    }),
    Declared::gauge(
        "spillway_sidecar_sla_seconds",
        NONE,
        "The p99 of replies that is wanted.",
        |told, family| family.sample(&[], told.status.sla_us as f64 / 1e6),
    ),
    Declared::gauge(
        "spillway_sidecar_buffered_bytes",
        NONE,
        "Bytes of memory that hold what waits, of all connections.",
        |told, family| family.count(&[], told.status.buffered_bytes),
    ),
    Declared::gauge(
        "spillway_sidecar_threads_scarce",
        NONE,
        "Threads on which memory is scarce: clients that do not read are paused.",
        |told, family| family.count(&[], told.status.threads_scarce),
    ),
    Declared::counter(
        "spillway_sidecar_connections_paused_total",
        NONE,
        "Local connections whose requests were not read because memory was scarce and they did not read their replies.",
        |told, family| family.count(&[], told.status.connections_paused),
    ),
    Declared::counter(
        "spillway_sidecar_connections_accepted_total",
        NONE,
        "Local connections taken.",
        |told, family| family.count(&[], told.status.taken),
    ),
    Declared::counter(
        "spillway_sidecar_connections_announced_total",
        NONE,
        "Local connections taken on the word of a load balancer (PROXY protocol).",
        |told, family| family.count(&[], told.status.announced),
    ),
    Declared::counter(
        "spillway_sidecar_connections_refused_total",
        REASON,
        "Local connections refused: full, memory, address, proxy, descriptors.",
        |told, family| by_reason(family, &told.status.refused),
    ),
    Declared::counter(
        "spillway_sidecar_connections_ended_total",
        REASON,
        "How local connections ended: in_order, client_reset, server_reset, refused, gone, no_carrier, shutdown, \
     memory.",
        |told, family| by_reason(family, &told.status.ended),
    ),
    Declared::counter(
        "spillway_sidecar_moves_total",
        REASON,
        "How often sessions went on elsewhere: lost, drain, sent_away, relief.",
        |told, family| by_reason(family, &told.status.moves),
    ),
    Declared::counter(
        "spillway_sidecar_carriers_lost_total",
        REASON,
        "Carriers lost, or that did not take a session: socket, closed, silent, link, refused, drain, asked.",
        |told, family| by_reason(family, &told.status.carriers_lost),
    ),
    Declared::counter(
        "spillway_sidecar_request_bytes_total",
        NONE,
        "Bytes from local clients.",
        |told, family| family.count(&[], told.status.request_bytes),
    ),
    Declared::counter(
        "spillway_sidecar_reply_bytes_total",
        NONE,
        "Bytes to local clients.",
        |told, family| family.count(&[], told.status.reply_bytes),
    ),
    Declared::counter(
        "spillway_sidecar_replies_total",
        NONE,
        "Replies, as the configured protocol tells them apart.",
        |told, family| family.count(&[], told.status.replies),
    ),
    Declared::counter(
        "spillway_sidecar_replies_unmeasured_total",
        NONE,
        "Replies whose time says nothing about the server: the command may block, or the client did not read.",
        |told, family| family.count(&[], told.status.replies_unmeasured),
    ),
    Declared::counter(
        "spillway_sidecar_measuring_given_up_total",
        REASON,
        "Connections whose requests could not be followed any more; their bytes go on as before.",
        |told, family| by_reason(family, &told.status.gave_up),
    ),
    Declared::histogram(
        "spillway_sidecar_reply_latency_seconds",
        CARRIER,
        "From a request's last byte to its reply's last byte, by what carried the reply: helper, direct.",
        |told, family| {
            for (carrier, total) in [("direct", &told.direct), ("helper", &told.helped)] {
                let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
                family.histogram(&[carrier], bounds, &total.counts, total.sum_us as f64 / 1e6);
            }
        },
    ),
    Declared::gauge(
        "spillway_sidecar_reply_latency_p99_seconds",
        CARRIER,
        "The p99 of the last 10 to 20 seconds; 0 without replies.",
        |told, family| {
            for (carrier, recent) in
                [("direct", told.status.latency_direct), ("helper", told.status.latency_helped)]
            {
                family.sample(&[carrier], recent.p99_us as f64 / 1e6);
            }
        },
    ),
    Declared::counter(
        "spillway_sidecar_relief_decisions_total",
        &["kind"],
        "What relief has decided: activations, canaries, back_offs, cures, releases, words, orders_to_helpers, \
     orders_to_server, orders_failed.",
        |told, family| by_reason(family, &told.status.decisions),
    ),
    Declared::counter(
        "spillway_sidecar_cpu_seconds_total",
        NONE,
        "CPU time of the network threads.",
        |told, family| family.sample(&[], told.cpu_ns as f64 / 1e9),
    ),
    Declared::counter(
        "spillway_sidecar_log_lines_dropped_total",
        NONE,
        "Log lines that could not be written, or not as fast as they came.",
        |told, family| family.count(&[], told.status.log_lines_dropped),
    ),
];

pub(crate) fn tell(shared: &Shared, out: &mut Exposition) {
    let status = shared.status();
    let (mut direct, mut helped) = (Total::default(), Total::default());
    shared.parts().iter().for_each(|part| part.latencies.add_totals([&mut direct, &mut helped]));
    let cpu_ns = shared.sum(|counters: &Counters| counters.cpu_ns.value());
    Declared::tell(&ALL, &Told { status, direct, helped, cpu_ns }, out);
}

fn by_reason(family: &mut Family<'_>, counts: &BTreeMap<String, u64>) {
    counts.iter().for_each(|(reason, count)| family.count(&[reason], *count));
}
