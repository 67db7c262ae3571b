use spillway_batch::{Batches, LinkCounters};
use spillway_transport::HostLimit;

use crate::measurement::RequestMetrics;
use crate::reasons::{LinkDown, Refusal, ResetReason};

/// Counters of a service since the relay's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounters {
    /// Plain clients accepted.
    pub plain_clients: u64,
    /// Virtual connections of library clients opened at the server.
    pub library_connections: u64,
    /// Links that were authenticated.
    pub links_up: u64,
    /// Links that were lost after authentication.
    pub links_lost: u64,
    /// Clients reset because their link was lost.
    pub lost_with_link: u64,
    /// Clients rejected, by reason.
    pub refused: Refusals,
    /// Clients reset by the relay, by reason.
    pub reset: Resets,
    /// Bytes and segments of requests.
    pub requests: Flow,
    /// Bytes and segments of replies.
    pub replies: Flow,
    /// Number and duration of plain clients' stalls.
    pub stalls: Stalls,
    /// Links that were lost or could not be opened, by reason.
    pub link_failures: LinkFailures,
    /// Virtual connections that ended because of a protocol error of one end.
    pub connections_broken: u64,
    /// Clients accepted with the address of a PROXY header.
    pub announced: u64,
    /// Load queries, by outcome.
    pub load_queries: LoadQueries,
    /// Library clients sent to other helpers because the load was too high.
    pub shed: u64,
    /// Latency of the requests of sampled plain clients.
    pub measured: RequestMetrics,
}

/// Load queries, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadQueries {
    /// Queries with a reply.
    pub answered: u64,
    /// Queries while answers are switched off.
    pub off: u64,
    /// Queries from addresses outside the ranges of clients.
    pub address: u64,
    /// Datagrams that are not load queries.
    pub malformed: u64,
    /// Queries with a key that is not accepted from clients.
    pub key: u64,
    /// Queries with a wrong proof.
    pub proof: u64,
}

impl LoadQueries {
    /// Rejected queries, with the reason's name in status and metrics.
    pub fn refused_by_reason(&self) -> [(&'static str, u64); 5] {
        [
            ("off", self.off),
            ("address", self.address),
            ("malformed", self.malformed),
            ("key", self.key),
            ("proof", self.proof),
        ]
    }
}

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes without headers.
    pub bytes: u64,
    /// Number of reads from the transport (requests of plain clients) or of frames: about one per small message.
    pub segments: u64,
}

impl Flow {
    pub(crate) fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.segments += 1;
    }
}

/// Stalls: periods in which a plain client was granted nothing to send. A stall is counted when it begins,
/// and its duration is added when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Stalls because the server gave no credit, for example because its application does not read.
    pub credit: u64,
    /// Duration of stalls for credit, in nanoseconds.
    pub credit_ns: u64,
    /// Stalls because the link was congested.
    pub link: u64,
    /// Duration of stalls of the link, in nanoseconds.
    pub link_ns: u64,
}

impl Stalls {
    pub(crate) fn add(&mut self, other: Stalls) {
        self.credit += other.credit;
        self.credit_ns += other.credit_ns;
        self.link += other.link;
        self.link_ns += other.link_ns;
    }
}

/// Links that were lost or could not be opened, by reason; see [`LinkDown`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is a reason of `LinkDown`")]
pub struct LinkFailures {
    pub lost: u64,
    pub closed_by_server: u64,
    pub connect_timeout: u64,
    pub host_full: u64,
    pub protocol: u64,
}

impl LinkFailures {
    pub(crate) fn count(&mut self, why: LinkDown) {
        match why {
            LinkDown::Lost(_) => self.lost += 1,
            LinkDown::ClosedByServer => self.closed_by_server += 1,
            LinkDown::ConnectTimeout => self.connect_timeout += 1,
            LinkDown::HostFull => self.host_full += 1,
            LinkDown::Link(_) => self.protocol += 1,
        }
    }
}

/// Clients rejected, by reason; see [`Refusal`], and [`HostLimit`] for clients that the host itself rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is a reason of `Refusal`, or a `HostLimit`")]
pub struct Refusals {
    pub address: u64,
    pub clients_max: u64,
    pub memory: u64,
    pub link_down: u64,
    pub link_full: u64,
    pub draining: u64,
    pub off: u64,
    pub handshake: u64,
    pub evicted: u64,
    pub foreign_address: u64,
    pub other_server: u64,
    pub old_server: u64,
    pub proxy_header: u64,
    pub server: u64,
    pub connection_table: u64,
    pub descriptors: u64,
    pub host_memory: u64,
}

impl Refusals {
    pub(crate) fn count(&mut self, why: Refusal) {
        let counter = match why {
            Refusal::Address => &mut self.address,
            Refusal::ClientsMax => &mut self.clients_max,
            Refusal::Memory => &mut self.memory,
            Refusal::LinkDown => &mut self.link_down,
            Refusal::LinkFull => &mut self.link_full,
            Refusal::Draining => &mut self.draining,
            Refusal::Off => &mut self.off,
            Refusal::Handshake(_) => &mut self.handshake,
            Refusal::Evicted => &mut self.evicted,
            Refusal::ForeignAddress => &mut self.foreign_address,
            Refusal::OtherServer => &mut self.other_server,
            Refusal::OldServer => &mut self.old_server,
            Refusal::ProxyHeader(_) => &mut self.proxy_header,
            Refusal::Server(_) => &mut self.server,
        };
        *counter += 1;
    }

    pub(crate) fn count_at_host(&mut self, limit: HostLimit, peers: u64) {
        let counter = match limit {
            HostLimit::Connections => &mut self.connection_table,
            HostLimit::Descriptors => &mut self.descriptors,
            HostLimit::Memory => &mut self.host_memory,
        };
        *counter += peers;
    }

    /// Rejected clients, with the reason's name in logs and metrics.
    pub fn by_reason(&self) -> [(&'static str, u64); 17] {
        [
            ("address", self.address),
            ("clients_max", self.clients_max),
            ("memory", self.memory),
            ("link_down", self.link_down),
            ("link_full", self.link_full),
            ("draining", self.draining),
            ("off", self.off),
            ("handshake", self.handshake),
            ("crowded", self.evicted),
            ("not_its_own_address", self.foreign_address),
            ("other_server", self.other_server),
            ("old_server", self.old_server),
            ("proxy_header", self.proxy_header),
            ("server", self.server),
            ("connection_table", self.connection_table),
            ("descriptors", self.descriptors),
            ("host_memory", self.host_memory),
        ]
    }

    /// Rejected clients, for all reasons together.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|(_, clients)| clients).sum()
    }
}

/// Clients reset, by reason; see [`ResetReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is a reason of `ResetReason`")]
pub struct Resets {
    pub buffer: u64,
    pub memory: u64,
    pub protocol: u64,
}

impl Resets {
    pub(crate) fn count(&mut self, why: ResetReason) {
        match why {
            ResetReason::Buffer => self.buffer += 1,
            ResetReason::Memory(_) => self.memory += 1,
            ResetReason::Protocol(_) => self.protocol += 1,
        }
    }
}

fn add_traffic(total: &mut LinkCounters, link: LinkCounters) {
    total.batches_sent += link.batches_sent;
    total.messages_sent += link.messages_sent;
    total.bytes_sent += link.bytes_sent;
    total.messages_received += link.messages_received;
    total.bytes_received += link.bytes_received;
    total.unknown_frames += link.unknown_frames;
    total.stalls += link.stalls;
}

/// Totals of one or several links.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkTotals {
    traffic: LinkCounters,
    batches: Batches,
    stalls: Stalls,
}

impl LinkTotals {
    pub(crate) fn merge(&mut self, other: &LinkTotals) {
        self.add(other.traffic, &other.batches, other.stalls);
    }

    pub(crate) fn add(&mut self, traffic: LinkCounters, batches: &Batches, stalls: Stalls) {
        add_traffic(&mut self.traffic, traffic);
        self.batches.add(batches);
        self.stalls.add(stalls);
    }

    pub(crate) fn parts(self) -> (LinkCounters, Batches, Stalls) {
        (self.traffic, self.batches, self.stalls)
    }
}
