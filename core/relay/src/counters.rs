//! Counters of a service since the start.

use spillway_batch::{Batches, LinkCounters};
use spillway_transport::HostLimit;

use crate::reasons::{Cut, LinkDown, Refusal};

/// What happened to a service's clients since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounters {
    /// Plain clients taken.
    pub raw_clients: u64,
    /// Virtual connections of library clients passed on.
    pub library_connections: u64,
    /// Links that came up.
    pub links_up: u64,
    /// Links that were lost after they had come up.
    pub links_lost: u64,
    /// Clients reset because their link was lost.
    pub lost_with_link: u64,
    /// Clients refused.
    pub refused: Refusals,
    /// Clients reset because of what they did.
    pub cut: Cuts,
    /// Bytes and segments of requests.
    pub requests: Flow,
    /// Bytes and segments of replies.
    pub replies: Flow,
    /// How often, and how long, clients had to wait before they could send more.
    pub stalls: Stalls,
    /// Links that were lost, or did not come up.
    pub link_failures: LinkFailures,
    /// Virtual connections that ended because one end broke a rule of the protocol.
    pub connections_broken: u64,
    /// PROXY headers believed.
    pub announced: u64,
    /// Questions of load.
    pub questions: Questions,
    /// Library clients sent to other helpers, because the load was too high.
    pub shed: u64,
}

/// Questions of load: answered, or why not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Questions {
    /// Answered.
    pub answered: u64,
    /// Questions are not answered here.
    pub off: u64,
    /// Clients of this address are not served.
    pub address: u64,
    /// Datagrams that are not questions.
    pub malformed: u64,
    /// No client has this key.
    pub key: u64,
    /// Their proof was wrong.
    pub proof: u64,
}

impl Questions {
    /// Those that were not answered, each under its name in status and metrics.
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

/// Bytes, and the pieces they came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes.
    pub bytes: u64,
    /// Pieces as the transport, or a batch, delivered them: about one for each small message.
    pub segments: u64,
}

impl Flow {
    pub(crate) fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.segments += 1;
    }
}

/// Plain clients that could send nothing for a while. Counted when a stall begins, its time when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// The server gave no credit: its application does not read.
    pub credit: u64,
    /// Nanoseconds of such stalls.
    pub credit_ns: u64,
    /// The link took no more.
    pub link: u64,
    /// Nanoseconds of such stalls.
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

/// Links that were lost, or did not come up, by reason; see [`LinkDown`].
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

/// Clients refused, by reason; see [`Refusal`], and [`HostLimit`] for those whom the relay has not even seen.
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
    pub crowded: u64,
    pub not_its_own_address: u64,
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
            Refusal::Crowded => &mut self.crowded,
            Refusal::NotItsOwnAddress => &mut self.not_its_own_address,
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

    /// Each under its name in logs and metrics.
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
            ("crowded", self.crowded),
            ("not_its_own_address", self.not_its_own_address),
            ("other_server", self.other_server),
            ("old_server", self.old_server),
            ("proxy_header", self.proxy_header),
            ("server", self.server),
            ("connection_table", self.connection_table),
            ("descriptors", self.descriptors),
            ("host_memory", self.host_memory),
        ]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|(_, clients)| clients).sum()
    }
}

/// Clients reset, by reason; see [`Cut`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is a reason of `Cut`")]
pub struct Cuts {
    pub buffer: u64,
    pub memory: u64,
    pub protocol: u64,
}

impl Cuts {
    pub(crate) fn count(&mut self, why: Cut) {
        match why {
            Cut::Buffer => self.buffer += 1,
            Cut::Memory(_) => self.memory += 1,
            Cut::Protocol(_) => self.protocol += 1,
        }
    }
}

/// Adds what one link has done to what others did.
fn add(total: &mut LinkCounters, link: LinkCounters) {
    total.batches_sent += link.batches_sent;
    total.messages_sent += link.messages_sent;
    total.bytes_sent += link.bytes_sent;
    total.messages_received += link.messages_received;
    total.bytes_received += link.bytes_received;
    total.strays += link.strays;
    total.stalls += link.stalls;
}

/// What links have done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    traffic: LinkCounters,
    batches: Batches,
    stalls: Stalls,
}

impl Past {
    pub(crate) fn merge(&mut self, other: &Past) {
        self.add(other.traffic, &other.batches, other.stalls);
    }

    pub(crate) fn add(&mut self, traffic: LinkCounters, batches: &Batches, stalls: Stalls) {
        add(&mut self.traffic, traffic);
        self.batches.add(batches);
        self.stalls.add(stalls);
    }

    pub(crate) fn parts(self) -> (LinkCounters, Batches, Stalls) {
        (self.traffic, self.batches, self.stalls)
    }
}
