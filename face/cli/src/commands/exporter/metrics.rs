//! What the exporter exposes: each metric with its samples, one for each server.

use std::collections::HashSet;

use spillway_metrics::{Declared, Exposition, Family};
use spillway_shim_core::status::{Counter, ServerPage, ServerStatus, State, Traffic, Unreadable};

use crate::commands::servers::{connections, established, of, refusals};

/// The server's program, its ordinary port, and its process id: programs and ports repeat in other network namespaces. Where
/// the exporter does not see the process, its PID namespace follows the id: containers' first processes all have id 1.
const SERVER: &[&str] = &["program", "port", "pid"];
const REFUSED: &[&str] = &["program", "port", "pid", "reason"];

/// The servers of this host, as one scrape finds them.
pub(super) struct Servers {
    seen: Vec<Seen>,
    unreadable: usize,
}

struct Seen {
    /// Values of the labels [`SERVER`].
    labels: [String; 3],
    status: ServerStatus,
}

impl From<(Vec<ServerPage>, Vec<Unreadable>)> for Servers {
    fn from((pages, unreadable): (Vec<ServerPage>, Vec<Unreadable>)) -> Servers {
        // A process that the exporter does not see may claim to be any other.
        let mut known = HashSet::new();
        let seen = |page: &ServerPage| {
            let status = page.status().ok()?;
            let pid = process_label(page.pid, page.is_visible, page.pid_namespace);
            let labels = [page.program(), status.helped_port.to_string(), pid];
            known.insert(labels.clone()).then_some(Seen { labels, status })
        };
        let all: Vec<Seen> = pages.iter().filter_map(seen).collect();
        Servers { unreadable: unreadable.len() + pages.len() - all.len(), seen: all }
    }
}

fn process_label(pid: u32, is_visible: bool, namespace: Option<u64>) -> String {
    if is_visible { pid.to_string() } else { format!("{pid}@{}", namespace.unwrap_or(0)) }
}

impl Servers {
    /// One sample for each server.
    fn each(&self, family: &mut Family<'_>, value: impl Fn(&ServerStatus) -> u64) {
        for seen in &self.seen {
            let [program, port, pid] = &seen.labels;
            family.count(&[program, port, pid], value(&seen.status));
        }
    }

    fn counter(&self, family: &mut Family<'_>, counter: Counter) {
        self.each(family, |status| of(&status.counters, counter));
    }

    fn traffic(&self, family: &mut Family<'_>, traffic: Traffic) {
        self.each(family, |status| of(&status.traffic, traffic));
    }
}

/// Writes all metrics but those of the exporter's own process.
pub(super) fn expose(servers: &Servers, out: &mut Exposition) {
    Declared::tell(&ALL, servers, out);
}

const ALL: [Declared<Servers>; 15] = [
    Declared::gauge(
        "spillway_server_helped",
        SERVER,
        "Whether the server's link port is open: 0 while switched off, or while it cannot be opened.",
        |servers, family| servers.each(family, |status| u64::from(status.state == State::On)),
    ),
    Declared::gauge(
        "spillway_server_pages_unreadable",
        &[],
        "Status pages of this host that the exporter cannot read: run it as root or as the servers' user.",
        |servers, family| family.count(&[], servers.unreadable as u64),
    ),
    Declared::gauge("spillway_server_links", SERVER, "Authenticated links now.", |servers, family| {
        servers.each(family, |status| established(status) as u64)
    }),
    Declared::gauge("spillway_server_connections", SERVER, "Virtual connections now.", |servers, family| {
        servers.each(family, connections)
    }),
    Declared::counter(
        "spillway_server_links_accepted_total",
        SERVER,
        "Links that authenticated.",
        |servers, family| servers.counter(family, Counter::LinksTaken),
    ),
    Declared::counter(
        "spillway_server_connections_accepted_total",
        SERVER,
        "Virtual connections that the application was given.",
        |servers, family| servers.counter(family, Counter::ConnectionsTaken),
    ),
    Declared::counter(
        "spillway_server_refused_total",
        REFUSED,
        "Links, virtual connections and sessions that were refused, by reason.",
        |servers, family| {
            for seen in &servers.seen {
                let [program, port, pid] = &seen.labels;
                for (reason, count) in refusals(&seen.status) {
                    family.count(&[program, port, pid, reason], count);
                }
            }
        },
    ),
    Declared::counter(
        "spillway_server_sessions_resumed_total",
        SERVER,
        "Sessions that continued on another carrier.",
        |servers, family| servers.counter(family, Counter::SessionsResumed),
    ),
    Declared::counter(
        "spillway_server_sessions_released_total",
        SERVER,
        "Helped sessions sent back because the load was low.",
        |servers, family| servers.counter(family, Counter::SessionsReleased),
    ),
    Declared::counter(
        "spillway_server_log_lines_dropped_total",
        SERVER,
        "Log lines of the preload library that could not be written.",
        |servers, family| servers.counter(family, Counter::LogLinesDropped),
    ),
    Declared::counter(
        "spillway_server_batches_received_total",
        SERVER,
        "Batches received on links.",
        |servers, family| servers.traffic(family, Traffic::BatchesReceived),
    ),
    Declared::counter(
        "spillway_server_batches_sent_total",
        SERVER,
        "Batches sent on links.",
        |servers, family| servers.traffic(family, Traffic::BatchesSent),
    ),
    Declared::counter(
        "spillway_server_messages_received_total",
        SERVER,
        "Messages received on links.",
        |servers, family| servers.traffic(family, Traffic::MessagesReceived),
    ),
    Declared::counter(
        "spillway_server_messages_sent_total",
        SERVER,
        "Messages sent on links.",
        |servers, family| servers.traffic(family, Traffic::MessagesSent),
    ),
    Declared::counter(
        "spillway_server_stalls_total",
        SERVER,
        "Replies that waited for credit, or for room on the link.",
        |servers, family| servers.traffic(family, Traffic::Stalls),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let page = include_str!("../../../../../docs/server-metrics.md");
        for metric in Declared::metrics(&ALL) {
            let row =
                format!("| `{}` | {} | {} |", metric.name, metric.kind.name(), metric.labels.join(", "));
            assert!(
                page.contains(&row),
                "docs/server-metrics.md has no row for this:\n{row} {} |",
                metric.help
            );
        }
    }

    #[test]
    fn processes_of_other_pid_namespaces_are_told_apart() {
        assert_eq!(process_label(812, true, Some(4_026_532_201)), "812");
        assert_eq!(process_label(1, false, Some(4_026_532_201)), "1@4026532201");
        assert_eq!(process_label(1, false, None), "1@0");
    }

    #[test]
    fn a_host_without_servers_exposes_that() {
        let mut out = Exposition::new();
        expose(&Servers { seen: Vec::new(), unreadable: 2 }, &mut out);
        assert!(out.into_text().contains("spillway_server_pages_unreadable 2\n"));
    }
}
