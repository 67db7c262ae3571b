//! Incidents in the log: each kind at a limited rate, with the number of its events.

use std::collections::BTreeMap;
use std::time::Duration;

use spillway_handoff::{Cause, PeerFault};
use spillway_moves::{Incident, Loss};
use spillway_transport::Time;
use spillway_wire::handoff::Reason;
use spillway_wire::switch::{Endpoint, Flow, ServerId};

/// Interval of two reports of one notice. Faults of peers last until somebody corrects a file.
const INTERVAL: Duration = Duration::from_secs(10);
const PEER_FAULT_INTERVAL: Duration = Duration::from_secs(60);

/// What the operator should know. The number of values is bounded by the numbers of servers, of reasons and of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Notice {
    /// Datagrams that name this server as their sender fail authentication.
    NotAuthentic(ServerId),
    /// Datagrams have an unknown version. Anybody can send them, with any number: one notice for all versions.
    UnknownVersion,
    /// Moves from a server to this one were refused, or ended here; the connections stay at their server.
    Refused(ServerId, Reason),
    /// Connections of this server are lost.
    GivenUp(Cause),
    /// Connections that had come here, or had come back, are lost: the stack could not continue them.
    NotImported,
}

/// A notice, for all of its events since the last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// The kind of event.
    pub(crate) notice: Notice,
    /// Number of such events since the last report.
    pub(crate) count: u64,
    /// The client of the first connection; `None` if the notice is about no connection.
    pub(crate) client: Option<Endpoint>,
}

#[derive(Debug, Default)]
struct Waiting {
    count: u64,
    client: Option<Endpoint>,
    /// No report before this time.
    next_at: Time,
}

/// Notices that wait for the log.
#[derive(Debug, Default)]
pub(crate) struct Notices(BTreeMap<Notice, Waiting>);

impl Notices {
    /// Counts an incident. The results of orders say what became of connections that a source has given up.
    pub(crate) fn add(&mut self, incident: Incident) {
        let (notice, flow) = match incident {
            Incident::PeerFault(PeerFault::NotAuthentic(peer)) => (Notice::NotAuthentic(peer), None),
            Incident::PeerFault(PeerFault::Version(_)) => (Notice::UnknownVersion, None),
            Incident::Refused { flow, source, reason } => (Notice::Refused(source, reason), Some(flow)),
            Incident::Lost(flow, Loss::Dropped(cause)) => (Notice::GivenUp(cause), Some(flow)),
            Incident::Lost(flow, Loss::NotImported) => (Notice::NotImported, Some(flow)),
            Incident::Lost(_, Loss::LastSegments(_) | Loss::GivenUp(_)) => return,
        };
        let waiting = self.0.entry(notice).or_default();
        if waiting.count == 0 {
            waiting.client = flow.as_ref().map(Flow::client);
        }
        waiting.count += 1;
    }

    /// The next report that is due: the first one of a notice at once, later ones after an interval.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Report> {
        let (notice, waiting) =
            self.0.iter_mut().find(|(_, waiting)| waiting.count > 0 && waiting.next_at <= now)?;
        let interval = match notice {
            Notice::NotAuthentic(_) | Notice::UnknownVersion => PEER_FAULT_INTERVAL,
            Notice::Refused(..) | Notice::GivenUp(_) | Notice::NotImported => INTERVAL,
        };
        waiting.next_at = now + interval;
        Some(Report {
            notice: *notice,
            count: std::mem::take(&mut waiting.count),
            client: waiting.client.take(),
        })
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.0.values().filter(|waiting| waiting.count > 0);
        waiting.map(|waiting| waiting.next_at).min()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn flow(port: u16) -> Flow {
        let end = |port| SocketAddr::from(([10, 0, 0, 1], port)).into();
        Flow::new(end(port), end(80)).unwrap()
    }

    #[test]
    fn a_burst_is_one_report_and_the_next_one_waits() {
        let (mut notices, start) = (Notices::default(), Time(5));
        let lost = |port| Incident::Lost(flow(port), Loss::Dropped(Cause::Silence));
        let given_up = Notice::GivenUp(Cause::Silence);
        (1..=3).for_each(|port| notices.add(lost(port)));
        let refused = |source| Incident::Refused { flow: flow(9), source, reason: Reason::NoRoom };
        [2, 3, 2].into_iter().for_each(|source| notices.add(refused(ServerId(source))));
        let report = |notice, count, port| Some(Report { notice, count, client: Some(flow(port).client()) });
        let of_source = |source| Notice::Refused(ServerId(source), Reason::NoRoom);
        assert_eq!(notices.poll(start), report(of_source(2), 2, 9));
        assert_eq!(notices.poll(start), report(of_source(3), 1, 9));
        assert_eq!(notices.poll(start), report(given_up, 3, 1));
        assert_eq!((notices.poll(start), notices.poll_timeout()), (None, None));
        (4..=5).for_each(|port| notices.add(lost(port)));
        assert_eq!((notices.poll(start), notices.poll_timeout()), (None, Some(start + INTERVAL)));
        assert_eq!(notices.poll(start + INTERVAL), report(given_up, 2, 4));
    }

    /// The version of a datagram is not authenticated.
    #[test]
    fn datagrams_of_many_unknown_versions_are_one_report() {
        let (mut notices, start) = (Notices::default(), Time(5));
        (0..=255).for_each(|version| notices.add(Incident::PeerFault(PeerFault::Version(version))));
        let report = Report { notice: Notice::UnknownVersion, count: 256, client: None };
        assert_eq!((notices.poll(start), notices.poll(start)), (Some(report), None));
    }
}
