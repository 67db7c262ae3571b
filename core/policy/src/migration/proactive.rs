//! Moves few connections early: those with the largest demand that fits between a server and the mean of all servers.

use alloc::vec::Vec;

use super::connections::Movable;
use super::decision::{Reason, Target};
use super::load::{millionths, share};
use super::peers::Candidate;
use super::settings::ProactiveSettings;
use super::view::{PLANNED_MAX, Planned, View};

/// Source and target may deviate from the level by this share of the capacity, because one move is better than two smaller
/// ones.
const SLACK: f64 = 0.1;

#[derive(Clone, Debug)]
pub(crate) struct Proactive {
    settings: ProactiveSettings,
    is_moving: bool,
}

impl Proactive {
    pub(crate) fn new(settings: ProactiveSettings) -> Proactive {
        Proactive { settings, is_moving: false }
    }

    /// Plans all moves that bring the demand down to its level, the largest first.
    pub(crate) fn plan(&mut self, view: &View<'_>) -> Vec<Planned> {
        let planned = if self.is_due(view) { self.choose(view) } else { Vec::new() };
        self.is_moving = !planned.is_empty();
        planned
    }

    fn is_due(&self, view: &View<'_>) -> bool {
        let ProactiveSettings { excess_start, excess_stop, load_start, load_stop } = self.settings;
        let (excess, load) =
            if self.is_moving { (excess_stop, load_stop) } else { (excess_start, load_start) };
        let is_above = view.demand - view.mean >= share(excess) && view.demand.max(view.load) >= share(load);
        view.is_forced || is_above
    }

    fn choose(&self, view: &View<'_>) -> Vec<Planned> {
        let level = if view.is_forced { view.mean } else { view.mean.max(share(self.settings.load_stop)) };
        if view.demand < level + SLACK {
            return Vec::new();
        }
        let mut movable = (view.movable)();
        movable.sort_by(|a, b| b.rate_per_s.total_cmp(&a.rate_per_s).then(a.connection.cmp(&b.connection)));
        let (mut candidates, mut demand) = (view.candidates.clone(), view.demand);
        let mut planned = Vec::new();
        for Movable { connection, rate_per_s, not_to } in movable {
            if demand < level + SLACK || planned.len() >= PLANNED_MAX {
                break;
            }
            let cost = rate_per_s * view.cost_s;
            if cost <= 0.0 || demand - cost < level - SLACK {
                continue;
            }
            let fits = |candidate: &&mut Candidate| {
                let has_room = candidate.room > 0 && Some(candidate.server) != not_to;
                has_room && candidate.expected_load + cost <= level + SLACK
            };
            let least =
                candidates.iter_mut().filter(fits).min_by(|a, b| a.expected_load.total_cmp(&b.expected_load));
            let Some(target) = least else { continue };
            let reason = Self::reason(view, demand, cost);
            planned.push(Planned { connection, target: Target::Server(target.server), reason });
            target.expected_load += cost;
            target.room -= 1;
            demand -= cost;
        }
        planned
    }

    fn reason(view: &View<'_>, demand: f64, cost: f64) -> Reason {
        if view.is_forced {
            return Reason::Override { load: millionths(demand) };
        }
        Reason::AboveMean {
            demand: millionths(demand),
            mean: millionths(view.mean),
            others: view.others,
            connection: millionths(cost),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use spillway_wire::switch::ServerId;

    use super::super::connections::ConnectionId;
    use super::*;

    /// A view with requests of 1 % of the capacity per 1,000/s; connection 1 has the first of these demands in percent.
    fn plan_of(
        proactive: &mut Proactive,
        demand: f64,
        peers: &[(f64, u32)],
        percents: &[f64],
    ) -> Vec<(u64, u8)> {
        let candidate = |(index, (load, room)): (usize, &(f64, u32))| Candidate {
            server: ServerId(index as u8 + 2),
            expected_load: *load,
            room: *room,
        };
        let movable = || {
            let connection = |(index, percent): (usize, &f64)| Movable {
                connection: ConnectionId(index as u64 + 1),
                rate_per_s: percent * 1_000.0,
                not_to: None,
            };
            percents.iter().enumerate().map(connection).collect::<Vec<_>>()
        };
        let sum = demand + peers.iter().map(|(load, _)| load).sum::<f64>();
        let view = View {
            load: demand.min(0.99),
            demand,
            mean: sum / (peers.len() + 1) as f64,
            others: peers.len() as u32,
            cost_s: 1e-5,
            is_forced: false,
            candidates: peers.iter().enumerate().map(candidate).collect(),
            movable: &movable,
        };
        let pair = |planned: &Planned| (planned.connection.0, planned.target.expected().0);
        proactive.plan(&view).iter().map(pair).collect()
    }

    fn plan(demand: f64, peers: &[(f64, u32)], percents: &[f64]) -> Vec<(u64, u8)> {
        plan_of(&mut Proactive::new(ProactiveSettings::default()), demand, peers, percents)
    }

    #[test]
    fn largest_connections_that_fit_move_first() {
        // 120 % and 20 %: 40 % should move, to a level of 80 %, ±10 %. 60 % is too much, 24 % and 8 % leave 88 %.
        assert_eq!(plan(1.2, &[(0.2, 99)], &[3.0, 60.0, 8.0, 24.0, 2.0]), [(4, 2), (3, 2)]);
        assert_eq!(
            plan(1.2, &[(0.2, 99)], &[46.0, 30.0, 20.0]),
            [(1, 2)],
            "one larger move is better than two"
        );
    }

    #[test]
    fn targets_are_filled_up_to_the_level_least_loaded_first() {
        // 40 % should move, as above. 35 % fits to server 3 only, up to 90 %; 12 % fits to server 2, and is not needed.
        assert_eq!(plan(1.2, &[(0.6, 99), (0.5, 99)], &[35.0, 12.0]), [(1, 3)]);
        assert_eq!(plan(1.2, &[(0.6, 99), (0.5, 99)], &[28.0, 12.0]), [(1, 3), (2, 2)]);
    }

    #[test]
    fn room_of_targets_bounds_the_number_of_moves() {
        assert_eq!(plan(1.2, &[(0.2, 2)], &[5.0; 20]).len(), 2);
        assert_eq!(plan(1.2, &[(0.2, 0)], &[5.0; 20]), []);
        assert_eq!(plan(10.0, &[(0.0, 999)], &[0.5; 999]).len(), PLANNED_MAX);
    }

    #[test]
    fn moves_begin_with_a_large_excess_over_the_mean_and_end_with_a_small_one() {
        let settings = ProactiveSettings { load_start: 10_000, load_stop: 0, ..ProactiveSettings::default() };
        let mut proactive = Proactive::new(settings);
        let mut moves =
            |excess: f64| plan_of(&mut proactive, 0.7 + excess, &[(0.7 - excess, 99)], &[5.0; 19]).len();
        assert_eq!(moves(0.24), 0, "the excess should be at least 25 %");
        assert_eq!(moves(0.26), 4, "moves should bring the excess below 10 %");
        assert_eq!(moves(0.12), 1, "moves go on until the excess is below 10 %");
        assert_eq!(moves(0.09), 0);
        assert_eq!(moves(0.12), 0);
    }

    #[test]
    fn servers_with_little_load_keep_their_connections() {
        assert_eq!(plan(0.89, &[(0.1, 99)], &[5.0; 17]), []);
        let moves = plan(0.96, &[(0.0, 99)], &[5.0; 16]);
        assert_eq!(moves.len(), 2, "96 % should fall to about 80 %, not to the mean of 48 %");
    }

    #[test]
    fn override_on_moves_down_to_the_mean_without_thresholds() {
        let candidates = vec![Candidate { server: ServerId(2), expected_load: 0.0, room: 99 }];
        let movable = || vec![Movable { connection: ConnectionId(1), rate_per_s: 5_000.0, not_to: None }];
        let view = View {
            load: 0.4,
            demand: 0.4,
            mean: 0.2,
            others: 1,
            cost_s: 1e-5,
            is_forced: true,
            candidates,
            movable: &movable,
        };
        let planned = Proactive::new(ProactiveSettings::default()).plan(&view);
        assert_eq!(planned.len(), 1);
        assert_eq!(planned[0].reason, Reason::Override { load: 400_000 });
    }
}
