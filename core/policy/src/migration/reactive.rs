//! Capybara's rule (§3.3): above a threshold of its own load, a server moves connections to the least loaded server.

use spillway_parts::Random;

use super::connections::Movable;
use super::decision::{Reason, Target};
use super::load::{millionths, share};
use super::settings::ReactiveSettings;
use super::view::{Planned, View};

#[derive(Clone, Debug)]
pub(crate) struct Reactive {
    settings: ReactiveSettings,
    is_moving: bool,
}

impl Reactive {
    pub(crate) fn new(settings: ReactiveSettings) -> Reactive {
        Reactive { settings, is_moving: false }
    }

    /// Plans at most one move. The paper does not say which connection moves: here a connection is chosen with a
    /// probability proportional to its rate, as if it were the one whose request is served at this moment.
    pub(crate) fn plan(&mut self, view: &View<'_>, random: &mut Random) -> Option<Planned> {
        let limit = if self.is_moving { self.settings.load_stop } else { self.settings.load_start };
        let planned = (view.is_forced || view.load >= share(limit))
            .then(|| Self::choose(view, limit, random))
            .flatten();
        self.is_moving = planned.is_some();
        planned
    }

    fn choose(view: &View<'_>, limit: u32, random: &mut Random) -> Option<Planned> {
        let least = view.candidates.iter().min_by(|a, b| a.expected_load.total_cmp(&b.expected_load))?;
        if least.room == 0 || least.expected_load >= view.load {
            return None;
        }
        // The switch chooses the target, so connections stay for which any server is forbidden.
        let mut movable = (view.movable)();
        movable.retain(|movable| movable.not_to.is_none());
        let load = millionths(view.load);
        let reason = if view.is_forced { Reason::Override { load } } else { Reason::Load { load, limit } };
        let connection = by_rate(&movable, random.unit())?.connection;
        Some(Planned { connection, target: Target::LeastLoaded(least.server), reason })
    }
}

/// The connection at this share of the sum of all rates.
fn by_rate(movable: &[Movable], at: f64) -> Option<Movable> {
    let mut left = movable.iter().map(|movable| movable.rate_per_s).sum::<f64>() * at;
    let at_share = movable.iter().find(|movable| {
        left -= movable.rate_per_s;
        left < 0.0
    });
    at_share.or(movable.last()).copied()
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use spillway_wire::switch::ServerId;

    use super::super::connections::ConnectionId;
    use super::super::peers::Candidate;
    use super::*;

    fn movable(number: u64, rate_per_s: f64, not_to: Option<ServerId>) -> Movable {
        Movable { connection: ConnectionId(number), rate_per_s, not_to }
    }

    fn candidate(server: u8, expected_load: f64, room: u32) -> Candidate {
        Candidate { server: ServerId(server), expected_load, room }
    }

    fn plan(
        reactive: &mut Reactive,
        load: f64,
        candidates: &[Candidate],
        connections: &[Movable],
    ) -> Option<Planned> {
        let movable = || connections.to_vec();
        let view = View {
            load,
            demand: load,
            mean: 0.5,
            others: 1,
            cost_s: 1e-5,
            is_forced: false,
            candidates: candidates.to_vec(),
            movable: &movable,
        };
        reactive.plan(&view, &mut Random::new(1))
    }

    #[test]
    fn moves_begin_at_the_threshold_and_end_below_the_lower_one() {
        let mut reactive = Reactive::new(ReactiveSettings::default());
        let (candidates, connections) = ([candidate(2, 0.4, 9)], [movable(1, 100.0, None)]);
        let loads = [0.80, 0.84, 0.85, 0.80, 0.75, 0.74, 0.80, 0.90];
        let planned: Vec<bool> = loads
            .iter()
            .map(|load| plan(&mut reactive, *load, &candidates, &connections).is_some())
            .collect();
        assert_eq!(planned, [false, false, true, true, true, false, false, true]);
    }

    #[test]
    fn least_loaded_server_is_the_target_if_it_has_room_and_less_load() {
        let connections = [movable(1, 100.0, None)];
        let target = |candidates: &[Candidate]| {
            let planned =
                plan(&mut Reactive::new(ReactiveSettings::default()), 0.9, candidates, &connections);
            planned.map(|planned| planned.target)
        };
        let least = Some(Target::LeastLoaded(ServerId(3)));
        assert_eq!(target(&[candidate(2, 0.5, 9), candidate(3, 0.4, 1), candidate(4, 0.6, 9)]), least);
        assert_eq!(
            target(&[candidate(2, 0.5, 9), candidate(3, 0.4, 0)]),
            None,
            "the switch would choose server 3"
        );
        assert_eq!(target(&[candidate(2, 0.9, 9)]), None);
        assert_eq!(target(&[]), None);
    }

    #[test]
    fn connection_that_must_not_return_stays() {
        let mut reactive = Reactive::new(ReactiveSettings::default());
        let connections = [movable(1, 900.0, Some(ServerId(4))), movable(2, 1.0, None)];
        let planned = plan(&mut reactive, 0.9, &[candidate(2, 0.1, 9)], &connections).unwrap();
        assert_eq!(planned.connection, ConnectionId(2));
        assert_eq!(plan(&mut reactive, 0.9, &[candidate(2, 0.1, 9)], &connections[..1]), None);
    }

    #[test]
    fn connections_are_chosen_in_proportion_to_their_rates() {
        let connections = [movable(1, 10.0, None), movable(2, 30.0, None), movable(3, 60.0, None)];
        let at = |share| by_rate(&connections, share).unwrap().connection.0;
        assert_eq!([0.0, 0.09, 0.11, 0.39, 0.41, 0.999, 1.0].map(at), [1, 1, 2, 2, 3, 3, 3]);
        assert_eq!(by_rate(&[], 0.5), None);
    }
}
