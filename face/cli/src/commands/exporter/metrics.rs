//! The exporter's metrics, each with one sample for each server.

use std::collections::HashSet;

use spillway_metrics::{Declared, Exposition, Family};
use spillway_shim_core::status::{Counter, ServerPage, ServerStatus, State, Traffic, UnreadablePage};

use crate::commands::servers::{connections, count_of, established, refusals};

/// Labels of a server. The process id is needed because programs and ports repeat in other network
/// namespaces. If the exporter does not see the process, the label is `ID@NAMESPACE` with the server's PID
/// namespace, because ids repeat in other PID namespaces: the first process of each container has id 1.
const SERVER: &[&str] = &["program", "port", "pid"];
const REFUSED: &[&str] = &["program", "port", "pid", "reason"];

pub(super) struct Servers {
    samples: Vec<ServerSample>,
    /// Number of pages that cannot be read.
    unreadable: usize,
    /// Number of pages without samples because an earlier page has the same labels. That is possible only if the
    /// exporter does not see the servers' processes.
    same_labels: usize,
}

struct ServerSample {
    /// Values of the labels [`SERVER`].
    labels: [String; 3],
    /// Authenticated links.
    links: u64,
    /// Virtual connections on all links.
    connections: u64,
    /// The status without links: a page may have thousands of links, and a host many pages.
    status: ServerStatus,
}

impl ServerSample {
    fn new(labels: [String; 3], mut status: ServerStatus) -> ServerSample {
        let (links, connections) = (established(&status) as u64, connections(&status));
        status.links = Vec::new();
        ServerSample { labels, links, connections, status }
    }
}

impl From<(Vec<ServerPage>, Vec<UnreadablePage>)> for Servers {
    fn from((pages, unreadable): (Vec<ServerPage>, Vec<UnreadablePage>)) -> Servers {
        let labelled = |page: &ServerPage| {
            let status = page.status().ok()?;
            let pid = process_label(page.pid, page.is_visible, page.pid_namespace);
            Some(([page.program(), status.helped_port.to_string(), pid], status))
        };
        let mut servers = Servers { samples: Vec::new(), unreadable: unreadable.len(), same_labels: 0 };
        let mut known_labels = HashSet::new();
        for page in pages.iter().map(labelled) {
            servers.add(page, &mut known_labels);
        }
        servers
    }
}

fn process_label(pid: u32, is_visible: bool, namespace: Option<u64>) -> String {
    if is_visible { pid.to_string() } else { format!("{pid}@{}", namespace.unwrap_or(0)) }
}

impl Servers {
    /// Adds a server with its labels and status; `None`: the status cannot be read.
    fn add(&mut self, page: Option<([String; 3], ServerStatus)>, known_labels: &mut HashSet<[String; 3]>) {
        match page {
            None => self.unreadable += 1,
            Some((labels, status)) if known_labels.insert(labels.clone()) => {
                self.samples.push(ServerSample::new(labels, status));
            }
            Some(_) => self.same_labels += 1,
        }
    }

    /// Number of pages without samples because another page has the same labels.
    pub(super) fn same_labels(&self) -> usize {
        self.same_labels
    }

    fn each(&self, family: &mut Family<'_>, value: impl Fn(&ServerSample) -> u64) {
        for sample in &self.samples {
            let [program, port, pid] = &sample.labels;
            family.count(&[program, port, pid], value(sample));
        }
    }

    fn counter(&self, family: &mut Family<'_>, counter: Counter) {
        self.each(family, |sample| count_of(&sample.status.counters, counter));
    }

    fn traffic(&self, family: &mut Family<'_>, traffic: Traffic) {
        self.each(family, |sample| count_of(&sample.status.traffic, traffic));
    }
}

/// Writes all metrics except those of the exporter's own process.
pub(super) fn expose(servers: &Servers, exposition: &mut Exposition) {
    Declared::write(&ALL, servers, exposition);
}

const ALL: [Declared<Servers>; 15] = [
    Declared::gauge(
        "spillway_server_helped",
        SERVER,
        "Whether the server's link port is open: 0 while switched off, or while it cannot be opened.",
        |servers, family| servers.each(family, |sample| u64::from(sample.status.state == State::On)),
    ),
    Declared::gauge(
        "spillway_server_pages_unreadable",
        &[],
        "Status pages without samples: unreadable (run the exporter as root or as the servers' user), or with the labels \
         of another page (run it in the host's PID namespace).",
        |servers, family| family.count(&[], (servers.unreadable + servers.same_labels) as u64),
    ),
    Declared::gauge("spillway_server_links", SERVER, "Authenticated links now.", |servers, family| {
        servers.each(family, |sample| sample.links)
    }),
    Declared::gauge("spillway_server_connections", SERVER, "Virtual connections now.", |servers, family| {
        servers.each(family, |sample| sample.connections)
    }),
    Declared::counter(
        "spillway_server_links_accepted_total",
        SERVER,
        "Links that authenticated.",
        |servers, family| servers.counter(family, Counter::LinksAccepted),
    ),
    Declared::counter(
        "spillway_server_connections_accepted_total",
        SERVER,
        "Virtual connections that the application was given.",
        |servers, family| servers.counter(family, Counter::ConnectionsAccepted),
    ),
    Declared::counter(
        "spillway_server_refused_total",
        REFUSED,
        "Links, virtual connections and sessions that were refused, by reason.",
        |servers, family| {
            for sample in &servers.samples {
                let [program, port, pid] = &sample.labels;
                for (reason, count) in refusals(&sample.status) {
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
    use std::time::Duration;

    use spillway_policy::Override;
    use spillway_shim_core::status::LinkStatus;

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

    fn status() -> ServerStatus {
        ServerStatus {
            state: State::On,
            relief: Override::Auto,
            relief_left: None,
            age: Duration::ZERO,
            link_address: None,
            link_port: 11_411,
            helped_port: 11_211,
            counters: Vec::new(),
            traffic: Vec::new(),
            links: Vec::new(),
        }
    }

    fn labels(pid: &str) -> [String; 3] {
        ["memcached", "11211", pid].map(str::to_owned)
    }

    #[test]
    fn sample_has_counts_of_links_instead_of_links() {
        let link = |index: u32| LinkStatus {
            index,
            state: if index == 0 { "authenticating" } else { "helper" },
            peer: ([10, 0, 0, 1], 1).into(),
            key: 0,
            age: Duration::ZERO,
            encrypted: true,
            connections: u64::from(index) * 10,
            sessions: None,
            traffic: Vec::new(),
        };
        let status = ServerStatus { links: (0..3).map(link).collect(), ..status() };
        let sample = ServerSample::new(labels("812"), status);
        assert_eq!((sample.links, sample.connections, sample.status.links.capacity()), (2, 30, 0));
    }

    #[test]
    fn label_of_a_process_in_another_pid_namespace_has_the_namespace() {
        assert_eq!(process_label(812, true, Some(4_026_532_201)), "812");
        assert_eq!(process_label(1, false, Some(4_026_532_201)), "1@4026532201");
        assert_eq!(process_label(1, false, None), "1@0");
    }

    #[test]
    fn unreadable_pages_are_exposed_without_servers() {
        let mut exposition = Exposition::new();
        expose(&Servers { samples: Vec::new(), unreadable: 2, same_labels: 0 }, &mut exposition);
        assert!(exposition.into_text().contains("spillway_server_pages_unreadable 2\n"));
    }

    #[test]
    fn pages_with_equal_labels_are_counted_apart_from_unreadable_ones() {
        let mut servers = Servers { samples: Vec::new(), unreadable: 1, same_labels: 0 };
        let mut known_labels = HashSet::new();
        for page in [Some("1@7"), Some("1@7"), None, Some("1@8"), Some("1@7")] {
            servers.add(page.map(|pid| (labels(pid), status())), &mut known_labels);
        }
        assert_eq!((servers.samples.len(), servers.unreadable, servers.same_labels()), (2, 2, 2));
        let mut exposition = Exposition::new();
        expose(&servers, &mut exposition);
        assert!(exposition.into_text().contains("spillway_server_pages_unreadable 4\n"));
    }
}
