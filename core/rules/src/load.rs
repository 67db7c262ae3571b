//! The table of owners: terms, liveness, load, and the choice of a target.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::switch::ServerId;

use crate::config::{SENDERS_MAX, ServiceId};
use crate::replay::ReplayWindow;
use crate::times::GAP_MAX;

/// Load of an owner that has not sent a heartbeat yet.
const LOAD_UNKNOWN: u32 = u32::MAX;

/// A server as an owner of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The generation that the last hello was answered with; 0: no owner.
    term: u64,
    /// The UDP port to which control messages are sent.
    control_port: u16,
    /// The service of the last heartbeat.
    service: Option<ServiceId>,
    report: Report,
    /// Time of the last heartbeat or hello, for operators.
    last_heartbeat: Time,
    /// The clock of silence at the last heartbeat or hello, for the timeout.
    silence_clock: Duration,
    window: ReplayWindow,
}

/// The clock of silence: an owner is silent if this clock has advanced by more than the timeout since its last
/// heartbeat. The clock advances by at most [`GAP_MAX`] from one heartbeat of any server to the next, so a pause of the
/// switch makes no owner silent.
#[derive(Clone, Copy, Debug, Default)]
struct SilenceClock {
    /// The clock at the last heartbeat, or hello, of any owner.
    running: Duration,
    last_heartbeat: Option<Time>,
}

impl SilenceClock {
    /// A heartbeat or a hello has arrived.
    fn advance(&mut self, now: Time) {
        self.running = self.at(now);
        self.last_heartbeat = self.last_heartbeat.max(Some(now));
    }

    fn at(&self, now: Time) -> Duration {
        let gap = self.last_heartbeat.map_or(Duration::ZERO, |last| now - last);
        self.running.saturating_add(gap.min(GAP_MAX))
    }
}

/// What a heartbeat states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) load: u32,
    /// Connections that the owner can still import.
    pub(crate) free_places: u32,
    /// The capacity by which load is divided.
    pub(crate) weight: u16,
}

/// The server is no owner: it must say hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoOwner;

/// An owner as the table shows it to operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerView {
    /// The server.
    pub server: ServerId,
    /// The generation that its last hello was answered with.
    pub term: u64,
    /// The UDP port to which the switch sends control messages for the server.
    pub control_port: u16,
    /// The service of its last heartbeat.
    pub service: Option<ServiceId>,
    /// Its load, in a unit that the servers of a service agree on.
    pub load: u32,
    /// Connections that it can still import.
    pub free_places: u32,
    /// The capacity by which load is divided.
    pub weight: u16,
    /// Time since its last heartbeat.
    pub age: Duration,
    /// Whether it has sent no heartbeat for too long.
    pub is_silent: bool,
}

/// All owners.
#[derive(Clone, Debug)]
pub(crate) struct Owners {
    /// The element of a server is at the index of its id.
    owners: Vec<Owner>,
    clock: SilenceClock,
    /// Number of targets chosen by load: the search for the next one begins at another id, so that ties rotate.
    rotation: u32,
    timeout: Duration,
}

impl Owners {
    pub(crate) fn new(timeout: Duration) -> Owners {
        Owners {
            owners: alloc::vec![Owner::default(); SENDERS_MAX],
            clock: SilenceClock::default(),
            rotation: 0,
            timeout,
        }
    }

    /// Changes the time after which an owner is silent.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Forgets the term and the sequence numbers of a server that is no longer configured, or has another key.
    pub(crate) fn forget(&mut self, server: ServerId) {
        *self.owner_mut(server) = Owner::default();
    }

    /// The term of a server; 0: no owner.
    pub(crate) fn term(&self, server: ServerId) -> u64 {
        self.owner(server).term
    }

    /// The UDP port to which control messages for a server are sent.
    pub(crate) fn control_port(&self, server: ServerId) -> u16 {
        self.owner(server).control_port
    }

    /// Whether a server has a term and is not silent.
    pub(crate) fn is_live(&self, server: ServerId, now: Time) -> bool {
        self.term(server) != 0 && !self.is_silent(server, now)
    }

    /// Whether a server is alive in this term. Ends the term of a server that is silent: the caller takes a flow from the
    /// server, and the answer to its next heartbeat (*no owner*) must show that.
    pub(crate) fn alive_or_end_term(&mut self, server: ServerId, term: u64, now: Time) -> bool {
        if term == 0 || self.term(server) != term {
            return false;
        }
        let is_silent = self.is_silent(server, now);
        if is_silent {
            self.owner_mut(server).term = 0;
        }
        !is_silent
    }

    /// Records the sequence number of a message. Returns false if the message is a replay.
    #[must_use]
    pub(crate) fn accept(&mut self, server: ServerId, sequence: u64) -> bool {
        self.owner_mut(server).window.accept(sequence)
    }

    /// The highest sequence number of a server's messages. A hello must have a higher one.
    pub(crate) fn highest_sequence(&self, server: ServerId) -> u64 {
        self.owner(server).window.highest()
    }

    /// Begins a term. The hello must be new.
    pub(crate) fn hello(&mut self, server: ServerId, now: Time, sequence: u64, term: u64, control_port: u16) {
        self.clock.advance(now);
        *self.owner_mut(server) = Owner {
            term,
            control_port,
            service: None,
            report: Report { load: LOAD_UNKNOWN, free_places: 0, weight: 0 },
            last_heartbeat: now,
            silence_clock: self.clock.running,
            window: ReplayWindow::after(sequence),
        };
    }

    /// Stores an owner's report.
    ///
    /// # Errors
    /// The server is no owner, or was silent: its term ends.
    pub(crate) fn heartbeat(
        &mut self,
        server: ServerId,
        now: Time,
        service: ServiceId,
        report: Report,
    ) -> Result<(), NoOwner> {
        self.clock.advance(now);
        let (is_live, silence_clock) = (self.is_live(server, now), self.clock.running);
        let owner = self.owner_mut(server);
        if !is_live {
            owner.term = 0;
            return Err(NoOwner);
        }
        (owner.service, owner.report) = (Some(service), report);
        (owner.last_heartbeat, owner.silence_clock) = (now, silence_clock);
        Ok(())
    }

    /// The least loaded live owner of a service with room that is a candidate: the lowest load divided by weight
    /// (Capybara §3.2). [`take_turn`](Self::take_turn) confirms the choice, so that the next tie has another result.
    pub(crate) fn least_loaded(
        &self,
        service: ServiceId,
        now: Time,
        is_candidate: impl Fn(ServerId) -> bool,
    ) -> Option<ServerId> {
        let servers = u32::from(u8::MAX);
        let mut best: Option<(ServerId, Report)> = None;
        for step in 0..servers {
            // Ids 1 to 255, beginning at another one for each choice.
            let id = (self.rotation % servers + step) % servers + 1;
            let Ok(server) = ServerId::try_from(id) else { continue };
            let Owner { service: served, report, .. } = *self.owner(server);
            let has_room = report.free_places > 0 && report.weight > 0;
            let is_suitable = served == Some(service) && has_room && self.is_live(server, now);
            if !is_suitable || !is_candidate(server) {
                continue;
            }
            if best.is_none_or(|(_, least)| report.is_less_loaded_than(&least)) {
                best = Some((server, report));
            }
        }
        best.map(|(server, _)| server)
    }

    /// Records that a target was chosen by load.
    pub(crate) fn take_turn(&mut self) {
        self.rotation = self.rotation.wrapping_add(1);
    }

    /// Takes a free place of a target, until its next heartbeat states how many there are.
    pub(crate) fn take_place(&mut self, server: ServerId) {
        let report = &mut self.owner_mut(server).report;
        report.free_places = report.free_places.saturating_sub(1);
    }

    /// The n-th owner of a service, in the order of server ids, counted from 0.
    pub(crate) fn nth(&self, service: ServiceId, n: u64, now: Time) -> Option<OwnerView> {
        let n = usize::try_from(n).ok()?;
        self.views(now).filter(|owner| owner.service == Some(service)).nth(n)
    }

    /// All servers that have a term.
    pub(crate) fn views(&self, now: Time) -> impl Iterator<Item = OwnerView> + '_ {
        let ids = (0..=u8::MAX).map(ServerId);
        ids.zip(&self.owners).filter(|(_, owner)| owner.term != 0).map(move |(server, owner)| OwnerView {
            server,
            term: owner.term,
            control_port: owner.control_port,
            service: owner.service,
            load: owner.report.load,
            free_places: owner.report.free_places,
            weight: owner.report.weight,
            age: now - owner.last_heartbeat,
            is_silent: self.is_silent(server, now),
        })
    }

    fn is_silent(&self, server: ServerId, now: Time) -> bool {
        self.clock.at(now).saturating_sub(self.owner(server).silence_clock) > self.timeout
    }

    fn owner(&self, server: ServerId) -> &Owner {
        &self.owners[usize::from(server.0)]
    }

    fn owner_mut(&mut self, server: ServerId) -> &mut Owner {
        &mut self.owners[usize::from(server.0)]
    }
}

impl Report {
    /// Compares load divided by weight without a division.
    fn is_less_loaded_than(&self, other: &Report) -> bool {
        u64::from(self.load) * u64::from(other.weight) < u64::from(other.load) * u64::from(self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: ServiceId = ServiceId(7);
    const ONE: ServerId = ServerId(1);
    const OTHER: ServerId = ServerId(2);

    fn at(ms: u64) -> Time {
        Time(1_000_000_000 + ms * 1_000_000)
    }

    fn owners() -> Owners {
        let mut owners = Owners::new(Duration::from_millis(1000));
        for (server, term) in [(ONE, 11), (OTHER, 12)] {
            owners.hello(server, at(0), 1, term, 7000);
        }
        owners
    }

    fn beat(owners: &mut Owners, server: ServerId, ms: u64) -> Result<(), NoOwner> {
        owners.heartbeat(server, at(ms), SERVICE, Report { load: 1, free_places: 1, weight: 1 })
    }

    #[test]
    fn a_gap_counts_for_at_most_100_ms() {
        for (gap, gaps) in [(10, 101), (100, 11), (101, 11), (60_000, 11)] {
            let mut owners = owners();
            for number in 1..gaps {
                assert!(owners.is_live(OTHER, at(gap * number)), "after {number} gaps of {gap} ms");
                beat(&mut owners, ONE, gap * number).unwrap();
            }
            assert!(owners.is_live(OTHER, at(gap * (gaps - 1))), "exactly the timeout");
            beat(&mut owners, ONE, gap * gaps).unwrap();
            assert!(!owners.is_live(OTHER, at(gap * gaps)));
            assert_eq!(beat(&mut owners, OTHER, gap * gaps), Err(NoOwner));
            assert_eq!(owners.term(OTHER), 0);
        }
    }

    #[test]
    fn a_server_that_loses_a_flow_loses_its_term() {
        let mut owners = owners();
        assert!(owners.alive_or_end_term(OTHER, 12, at(0)));
        assert!(!owners.alive_or_end_term(OTHER, 11, at(0)), "another term");
        assert!(!owners.alive_or_end_term(ServerId(3), 0, at(0)), "no term");
        (1..=101).for_each(|number| beat(&mut owners, ONE, 10 * number).unwrap());
        assert!(!owners.alive_or_end_term(OTHER, 11, at(1010)));
        assert_eq!(owners.term(OTHER), 12, "nothing was taken from this term");
        assert!(!owners.alive_or_end_term(OTHER, 12, at(1010)));
        assert_eq!(owners.term(OTHER), 0);
    }

    #[test]
    fn times_of_another_cpu_may_be_older() {
        let mut owners = owners();
        beat(&mut owners, ONE, 500).unwrap();
        beat(&mut owners, OTHER, 400).unwrap();
        assert!(owners.is_live(ONE, at(300)) && owners.is_live(OTHER, at(300)));
    }

    #[test]
    fn the_last_id_takes_part_and_the_daemon_does_not() {
        let mut owners = Owners::new(Duration::from_millis(1000));
        for server in [ServerId::DAEMON, ServerId(255)] {
            owners.hello(server, at(0), 1, 9, 7000);
            beat(&mut owners, server, 1).unwrap();
        }
        assert_eq!(owners.least_loaded(SERVICE, at(1), |_| true), Some(ServerId(255)));
        assert_eq!(owners.least_loaded(SERVICE, at(1), |server| server != ServerId(255)), None);
        assert_eq!(owners.least_loaded(ServiceId(8), at(1), |_| true), None);
    }

    #[test]
    fn choices_rotate_over_all_ids() {
        let mut owners = Owners::new(Duration::from_millis(1000));
        for id in 1..=255 {
            owners.hello(ServerId(id), at(0), 1, 9, 7000);
            beat(&mut owners, ServerId(id), 1).unwrap();
        }
        for expected in (1..=255).chain(1..=3) {
            assert_eq!(owners.least_loaded(SERVICE, at(1), |_| true), Some(ServerId(expected)));
            owners.take_turn();
        }
    }

    #[test]
    fn loads_of_any_size_are_compared() {
        let report = |load, weight| Report { load, free_places: 1, weight };
        assert!(report(u32::MAX, u16::MAX).is_less_loaded_than(&report(u32::MAX, u16::MAX - 1)));
        assert!(!report(2, 4).is_less_loaded_than(&report(1, 2)), "equal");
        assert!(report(0, 1).is_less_loaded_than(&report(1, u16::MAX)));
    }
}
