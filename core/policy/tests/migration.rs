//! For any reports to a server's migration policy in any order: no panic, and each decision within the limits. Some
//! courses are worked out by hand.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use spillway_policy::Override;
use spillway_policy::migration::{
    ConnectionId, Decision, LoadSample, Migration, MigrationSettings, MoveLimits, MovePolicy, PeerReport,
    ProactiveSettings, ReactiveSettings, Reason, Target,
};
use spillway_transport::Time;
use spillway_wire::switch::ServerId;

const MS: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
enum Report {
    Join(u64, Option<u8>),
    Leave(u64),
    Requests(u64, u32),
    Heartbeat(u8, u32, u32),
    RemovePeer(u8),
    Sample(u32, u64, u32),
    SetOverride(u8, Option<u64>),
    Advance(u64),
    EndMoves(bool),
}

fn report() -> impl Strategy<Value = Report> {
    let connection = 0..12_u64;
    let server = 2..6_u8;
    let load = prop_oneof![0..1_000_000_u32, Just(u32::MAX)];
    let places = prop_oneof![0..12_u32, Just(u32::MAX)];
    let queueing_us = prop_oneof![0..3_000_u64, Just(u64::MAX / 2_000)];
    let requests = prop_oneof![0..200_u32, Just(u32::MAX)];
    prop_oneof![
        4 => (connection.clone(), proptest::option::of(server.clone())).prop_map(|(c, from)| Report::Join(c, from)),
        1 => connection.clone().prop_map(Report::Leave),
        6 => (connection, requests.clone()).prop_map(|(c, requests)| Report::Requests(c, requests)),
        6 => (server.clone(), load.clone(), places).prop_map(|(s, load, free)| Report::Heartbeat(s, load, free)),
        1 => server.prop_map(Report::RemovePeer),
        8 => (load, queueing_us, requests).prop_map(|(cpu, us, served)| Report::Sample(cpu, us, served)),
        1 => (0..3_u8, proptest::option::of(0..500_u64)).prop_map(|(choice, ms)| Report::SetOverride(choice, ms)),
        8 => prop_oneof![0..15_u64, 15..300_u64].prop_map(Report::Advance),
        3 => any::<bool>().prop_map(Report::EndMoves),
    ]
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    stays_until: Time,
    came_from: Option<(u8, Time)>,
    is_leaving: bool,
}

#[derive(Clone, Copy, Debug)]
struct KnownPeer {
    heard_at: Time,
    free_places: u32,
    sent: u32,
}

/// The policy, and the state that its reports imply.
struct Model {
    migration: Migration,
    limits: MoveLimits,
    now: Time,
    connections: HashMap<u64, Known>,
    peers: HashMap<u8, KnownPeer>,
    moved_at: Vec<Time>,
    forbidden_until: Option<Option<Time>>,
}

impl Model {
    fn new(policy: MovePolicy, limits: MoveLimits) -> Model {
        let settings = MigrationSettings { policy, limits, ..MigrationSettings::default() };
        Model {
            migration: Migration::new(settings, 1).unwrap(),
            limits,
            now: Time(1_000_000_000),
            connections: HashMap::new(),
            peers: HashMap::new(),
            moved_at: Vec::new(),
            forbidden_until: None,
        }
    }

    fn apply(&mut self, report: Report) {
        let now = self.now;
        match report {
            Report::Join(connection, from) => {
                assert!(self.migration.join(now, ConnectionId(connection), from.map(ServerId)));
                let stays_until = if from.is_some() { now + self.limits.stay_min } else { now };
                let came_from = from.map(|server| (server, now));
                self.connections.insert(connection, Known { stays_until, came_from, is_leaving: false });
            }
            Report::Leave(connection) => self.leave(connection),
            Report::Requests(connection, requests) => {
                self.migration.record_requests(ConnectionId(connection), requests);
            }
            Report::Heartbeat(server, load, free_places) => {
                self.migration.heartbeat(now, ServerId(server), PeerReport { load, free_places });
                self.peers.insert(server, KnownPeer { heard_at: now, free_places, sent: 0 });
            }
            Report::RemovePeer(server) => {
                self.migration.remove_peer(ServerId(server));
                self.peers.remove(&server);
            }
            Report::Sample(cpu, queueing_us, served) => {
                let queueing = Duration::from_micros(queueing_us);
                self.migration.sample(now, LoadSample { cpu, queueing, served });
            }
            Report::SetOverride(choice, ms) => {
                let manual_override = [Override::Auto, Override::On, Override::Off][usize::from(choice)];
                self.migration.set_override(now, manual_override, ms.map(Duration::from_millis));
                let until = ms.map(|ms| now + Duration::from_millis(ms));
                self.forbidden_until = (manual_override == Override::Off).then_some(until);
            }
            Report::Advance(ms) => self.now = now + Duration::from_millis(ms),
            Report::EndMoves(is_moved) => self.end_moves(is_moved),
        }
        while let Some(decision) = self.migration.poll(self.now) {
            self.check(decision);
        }
        assert!(
            self.migration.poll_timeout().is_none_or(|at| at > self.now),
            "a timeout should be in the future"
        );
        assert_eq!(self.migration.connections(), self.connections.len());
    }

    fn leave(&mut self, connection: u64) {
        self.migration.leave(ConnectionId(connection));
        self.connections.remove(&connection);
    }

    fn end_moves(&mut self, is_moved: bool) {
        let leaving = self.connections.iter().filter(|(_, known)| known.is_leaving);
        for connection in leaving.map(|(connection, _)| *connection).collect::<Vec<_>>() {
            if is_moved {
                self.leave(connection);
            } else {
                self.migration.not_moved(self.now, ConnectionId(connection));
                let known = self.connections.get_mut(&connection).unwrap();
                (known.is_leaving, known.stays_until) = (false, self.now + self.limits.stay_min);
            }
        }
    }

    fn check(&mut self, decision: Decision) {
        let now = self.now;
        let is_forbidden = self.forbidden_until.is_some_and(|until| until.is_none_or(|until| now < until));
        assert!(!is_forbidden, "override off: {decision}");
        let target = decision.target.expected();
        let known = self.connections.get_mut(&decision.connection.0).expect("a known connection should move");
        assert!(!known.is_leaving && known.stays_until <= now, "{decision}");
        let is_return = known.came_from.is_some_and(|(server, at)| {
            now.since(at) < self.limits.return_min
                && (server == target.0 || matches!(decision.target, Target::LeastLoaded(_)))
        });
        assert!(!is_return, "the connection came from there: {decision}");
        known.is_leaving = true;
        let peer = self.peers.get_mut(&target.0).expect("the target should be a peer");
        assert!(now.since(peer.heard_at) < self.limits.silent_after, "the target should not be silent");
        peer.sent += 1;
        let room = u64::from(peer.free_places) * u64::from(self.limits.room_percent) / 100;
        assert!(u64::from(peer.sent) <= room.max(u64::from(peer.free_places.min(1))), "{decision}");
        self.moved_at.push(now);
        let recent = self.moved_at.iter().filter(|at| now.since(**at) < Duration::from_secs(1)).count();
        assert!(recent <= self.limits.moves_per_s_max as usize, "{recent} moves within a second");
        assert!(decision.to_string().starts_with(&format!("connection {} moves to ", decision.connection.0)));
    }
}

fn policy() -> impl Strategy<Value = MovePolicy> {
    prop_oneof![
        Just(MovePolicy::Reactive(ReactiveSettings { load_start: 500_000, load_stop: 400_000 })),
        Just(MovePolicy::Proactive(ProactiveSettings {
            excess_start: 50_000,
            excess_stop: 10_000,
            load_start: 100_000,
            load_stop: 50_000,
        })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn every_decision_is_within_the_limits(
        policy in policy(),
        moves_per_s_max in prop_oneof![1..20_u32, Just(1_000)],
        room_percent in 1..=100_u32,
        reports in proptest::collection::vec(report(), 1..200),
    ) {
        let limits = MoveLimits { moves_per_s_max, room_percent, ..MoveLimits::default() };
        let mut model = Model::new(policy, limits);
        for report in reports {
            model.apply(report);
        }
    }
}

/// A server with a sample every 10 ms, requests of 100 µs, and connections 1, 2, … with these demands in percent.
struct Server {
    migration: Migration,
    now: Time,
    percents: Vec<u32>,
    decisions: Vec<Decision>,
}

impl Server {
    fn new(policy: MovePolicy, percents: &[u32]) -> Server {
        let settings = MigrationSettings { policy, ..MigrationSettings::default() };
        let mut migration = Migration::new(settings, 1).unwrap();
        for connection in 1..=percents.len() as u64 {
            assert!(migration.join(Time::ZERO, ConnectionId(connection), None));
        }
        Server { migration, now: Time::ZERO, percents: percents.to_vec(), decisions: Vec::new() }
    }

    /// Looks this many times, with a heartbeat of server 2 before each. Moves take no time.
    fn look(&mut self, looks: u32, peer: PeerReport) {
        for _ in 0..looks {
            self.now = self.now + MS * 10;
            self.migration.heartbeat(self.now, ServerId(2), peer);
            let mut percent = 0;
            for (connection, percents) in (1..).zip(&self.percents) {
                self.migration.record_requests(ConnectionId(connection), *percents);
                percent += percents;
            }
            let cpu = percent.min(100) * 10_000;
            let queueing = if percent > 100 { MS * 2 } else { Duration::ZERO };
            self.migration.sample(self.now, LoadSample { cpu, queueing, served: percent.min(100) });
            while let Some(decision) = self.migration.poll(self.now) {
                self.migration.leave(decision.connection);
                self.percents[decision.connection.0 as usize - 1] = 0;
                self.decisions.push(decision);
            }
        }
    }

    fn moved(&self) -> Vec<u64> {
        self.decisions.iter().map(|decision| decision.connection.0).collect()
    }
}

fn proactive() -> MovePolicy {
    MovePolicy::Proactive(ProactiveSettings::default())
}

const IDLE: PeerReport = PeerReport { load: 200_000, free_places: 100 };

#[test]
fn proactive_moves_the_one_connection_that_makes_up_the_difference() {
    let mut server = Server::new(proactive(), &[45, 25, 10, 10, 8]);
    server.look(20, PeerReport { free_places: 0, ..IDLE }); // until the smoothed rates are those of the requests
    server.look(100, IDLE);
    // 98 % here and 20 % there: 18 % should move, ±10 %. 45 % is too much; 25 % leaves 73 %.
    assert_eq!(server.moved(), [2]);
    assert!(matches!(server.decisions[0].reason, Reason::AboveMean { others: 1, .. }));
    assert_eq!(server.decisions[0].target, Target::Server(ServerId(2)));
}

#[test]
fn reactive_moves_one_connection_per_look_until_its_load_falls() {
    let mut server = Server::new(MovePolicy::Reactive(ReactiveSettings::default()), &[9; 10]);
    server.look(100, IDLE);
    assert_eq!(server.moved().len(), 2, "90 % should fall below 75 %");
    assert!(matches!(server.decisions[0].reason, Reason::Load { load: 900_000, limit: 850_000 }));
    assert!(matches!(server.decisions[1].reason, Reason::Load { load: 810_000, limit: 750_000 }));
}

#[test]
fn nothing_moves_without_peers_with_room_or_to_servers_with_as_much_load() {
    for policy in [proactive(), MovePolicy::Reactive(ReactiveSettings::default())] {
        let mut server = Server::new(policy, &[12; 8]);
        server.look(100, PeerReport { load: 200_000, free_places: 0 });
        server.look(100, PeerReport { load: 960_000, free_places: 100 });
        assert_eq!(server.moved(), [0; 0]);
    }
}

#[test]
fn override_off_forbids_moves_and_on_needs_no_threshold() {
    for policy in [proactive(), MovePolicy::Reactive(ReactiveSettings::default())] {
        let mut server = Server::new(policy, &[12; 8]);
        server.migration.set_override(server.now, Override::Off, Some(MS * 505));
        server.look(50, IDLE);
        assert_eq!(server.moved(), [0; 0]);
        server.look(1, IDLE);
        assert!(!server.moved().is_empty(), "the override should have ended");

        let mut server = Server::new(policy, &[12; 6]);
        server.look(50, PeerReport { load: 100_000, free_places: 100 });
        assert_eq!(server.moved(), [0; 0], "a load of 72 % is no reason to move");
        server.migration.set_override(server.now, Override::On, None);
        server.look(1, PeerReport { load: 100_000, free_places: 100 });
        assert!(!server.moved().is_empty());
        assert!(matches!(server.decisions[0].reason, Reason::Override { load: 700_000..=720_000 }));
    }
}
