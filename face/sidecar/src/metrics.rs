//! A sidecar's metrics for Prometheus: each metric with its samples.

use std::collections::BTreeMap;

use spillway_metrics::{Declared, Exposition, Family, Metric};

use crate::counters::Counters;
use crate::latency::{BOUNDS_US, Total};
use crate::shared::Shared;
use crate::status::SidecarStatus;

const NONE: &[&str] = &[];
const REASON: &[&str] = &["reason"];
const CARRIER: &[&str] = &["carrier"];

/// The state of a sidecar at one scrape.
#[derive(Debug)]
struct Snapshot {
    status: SidecarStatus,
    direct: Total,
    helped: Total,
    cpu_ns: u64,
}

/// All metrics except those of the process.
pub const METRICS: &[Metric] = &Declared::metrics(&ALL);

const ALL: [Declared<Snapshot>; 25] = [
    Declared::gauge(
        "spillway_sidecar_build_info",
        &["version"],
        "Always 1; the label is the program's version.",
        |_, family| family.sample(&[env!("CARGO_PKG_VERSION")], 1.0),
    ),
    Declared::gauge(
        "spillway_sidecar_draining",
        NONE,
        "Whether the sidecar is draining.",
        |snapshot, family| family.count(&[], snapshot.status.draining.into()),
    ),
    Declared::gauge(
        "spillway_sidecar_connections",
        CARRIER,
        "Local connections now by what carries them: helper, direct, none.",
        |snapshot, family| {
            family.count(&["helper"], snapshot.status.helped);
            family.count(&["direct"], snapshot.status.direct);
            family.count(&["none"], snapshot.status.waiting);
        },
    ),
    Declared::gauge(
        "spillway_sidecar_connections_max",
        NONE,
        "Local connections that the sidecar may have at one time.",
        |snapshot, family| family.count(&[], snapshot.status.max_connections.into()),
    ),
    Declared::gauge(
        "spillway_sidecar_helpers",
        NONE,
        "Helpers in the present list of --helpers.",
        |snapshot, family| family.count(&[], snapshot.status.helpers.len() as u64),
    ),
    Declared::gauge(
        "spillway_sidecar_sla_seconds",
        NONE,
        "The SLA: the latency that 99 of 100 replies should stay below.",
        |snapshot, family| family.sample(&[], snapshot.status.sla_us as f64 / 1e6),
    ),
    Declared::gauge(
        "spillway_sidecar_buffered_bytes",
        NONE,
        "Memory for buffered data of all connections.",
        |snapshot, family| family.count(&[], snapshot.status.buffered_bytes),
    ),
    Declared::gauge(
        "spillway_sidecar_threads_scarce",
        NONE,
        "Threads on which memory is scarce: clients that do not read are paused.",
        |snapshot, family| family.count(&[], snapshot.status.threads_short_of_memory),
    ),
    Declared::counter(
        "spillway_sidecar_connections_paused_total",
        NONE,
        "Local connections whose requests were not read because memory was scarce and they did not read their replies.",
        |snapshot, family| family.count(&[], snapshot.status.connections_paused),
    ),
    Declared::counter(
        "spillway_sidecar_connections_accepted_total",
        NONE,
        "Local connections accepted.",
        |snapshot, family| family.count(&[], snapshot.status.accepted),
    ),
    Declared::counter(
        "spillway_sidecar_connections_announced_total",
        NONE,
        "Local connections accepted with a load balancer's PROXY header.",
        |snapshot, family| family.count(&[], snapshot.status.with_proxy_header),
    ),
    Declared::counter(
        "spillway_sidecar_connections_refused_total",
        REASON,
        "Local connections refused: full, memory, address, proxy, descriptors.",
        |snapshot, family| by_reason(family, &snapshot.status.refused),
    ),
    Declared::counter(
        "spillway_sidecar_connections_ended_total",
        REASON,
        "How local connections ended: in_order, client_reset, server_reset, refused, gone, no_carrier, shutdown, \
     memory.",
        |snapshot, family| by_reason(family, &snapshot.status.ended),
    ),
    Declared::counter(
        "spillway_sidecar_moves_total",
        REASON,
        "Moves of sessions to another carrier: lost, drain, sent_away, relief.",
        |snapshot, family| by_reason(family, &snapshot.status.moves),
    ),
    Declared::counter(
        "spillway_sidecar_carriers_lost_total",
        REASON,
        "Carriers that were lost or rejected a session: socket, closed, silent, link, refused, drain, asked.",
        |snapshot, family| by_reason(family, &snapshot.status.carriers_lost),
    ),
    Declared::counter(
        "spillway_sidecar_request_bytes_total",
        NONE,
        "Bytes from local clients.",
        |snapshot, family| family.count(&[], snapshot.status.request_bytes),
    ),
    Declared::counter(
        "spillway_sidecar_reply_bytes_total",
        NONE,
        "Bytes to local clients.",
        |snapshot, family| family.count(&[], snapshot.status.reply_bytes),
    ),
    Declared::counter(
        "spillway_sidecar_replies_total",
        NONE,
        "Replies, as counted by the configured protocol.",
        |snapshot, family| family.count(&[], snapshot.status.replies),
    ),
    Declared::counter(
        "spillway_sidecar_replies_unmeasured_total",
        NONE,
        "Replies whose latency says nothing about the server: the command may block, or the client did not read.",
        |snapshot, family| family.count(&[], snapshot.status.replies_unmeasured),
    ),
    Declared::counter(
        "spillway_sidecar_measuring_given_up_total",
        REASON,
        "Connections whose requests could not be parsed any more; their bytes are still forwarded.",
        |snapshot, family| by_reason(family, &snapshot.status.measuring_given_up),
    ),
    Declared::histogram(
        "spillway_sidecar_reply_latency_seconds",
        CARRIER,
        "From a request's last byte to its reply's last byte, by what carried the reply: helper, direct.",
        |snapshot, family| {
            for (carrier, total) in [("direct", &snapshot.direct), ("helper", &snapshot.helped)] {
                let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
                family.histogram(&[carrier], bounds, &total.counts, total.sum_us as f64 / 1e6);
            }
        },
    ),
    Declared::gauge(
        "spillway_sidecar_reply_latency_p99_seconds",
        CARRIER,
        "The p99 of the last 10 to 20 seconds; 0 without replies.",
        |snapshot, family| {
            for (carrier, recent) in
                [("direct", snapshot.status.latency_direct), ("helper", snapshot.status.latency_helped)]
            {
                family.sample(&[carrier], recent.p99_us as f64 / 1e6);
            }
        },
    ),
    Declared::counter(
        "spillway_sidecar_relief_decisions_total",
        &["kind"],
        "Relief decisions: activations, canaries, back_offs, cures, releases, overrides, orders_to_helpers, \
     orders_to_server, orders_failed.",
        |snapshot, family| by_reason(family, &snapshot.status.decisions),
    ),
    Declared::counter(
        "spillway_sidecar_cpu_seconds_total",
        NONE,
        "CPU time of the network threads.",
        |snapshot, family| family.sample(&[], snapshot.cpu_ns as f64 / 1e9),
    ),
    Declared::counter(
        "spillway_sidecar_log_lines_dropped_total",
        NONE,
        "Log lines that were lost because they could not be written, or not fast enough.",
        |snapshot, family| family.count(&[], snapshot.status.log_lines_dropped),
    ),
];

pub(crate) fn write(shared: &Shared, out: &mut Exposition) {
    let status = shared.status();
    let (mut direct, mut helped) = (Total::default(), Total::default());
    shared.thread_states().iter().for_each(|thread| thread.latencies.add_totals([&mut direct, &mut helped]));
    let cpu_ns = shared.sum(|counters: &Counters| counters.cpu_ns.value());
    Declared::write(&ALL, &Snapshot { status, direct, helped, cpu_ns }, out);
}

fn by_reason(family: &mut Family<'_>, counts: &BTreeMap<String, u64>) {
    counts.iter().for_each(|(reason, count)| family.count(&[reason], *count));
}
