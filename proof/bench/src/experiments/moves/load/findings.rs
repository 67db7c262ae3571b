//! Rows and ratios of the experiment.

use std::time::Duration;

use spillway_load::config::ProtocolKind;

use super::courses::{Course, Pattern};
use super::generators::Figures;
use super::{Measured, Policy};
use crate::experiments::common::rounds::Rounds;
use crate::results::{Ratio, Results, Row};

/// The knee is the last delay at which p99 is at most this multiple of that without delay.
const KNEE: f64 = 2.0;

/// Adds all rows and ratios.
pub(super) fn add(measured: &Measured, results: &mut Results) {
    for (course, rounds) in &measured.courses {
        let finish = |row: Row| {
            row.param("protocol", course.protocol.to_string())
                .param("servers", course.servers)
                .param("load", course.pattern.name())
                .param("policy", course.policy.name())
        };
        add_rows(rounds, finish, results);
    }
    add_ratios(measured, results);
    for (forced, rounds) in &measured.forced {
        let finish =
            |row: Row| row.param("requests_per_s", forced.rate_per_s).param("delay_us", us(forced.delay));
        add_rows(rounds, finish, results);
    }
    add_knees(measured, results);
}

fn add_rows(rounds: &Rounds<Figures>, finish: impl Fn(Row) -> Row, results: &mut Results) {
    type Column = (&'static str, &'static str, fn(&Figures) -> f64);
    let figures: [Column; 3] = [
        ("p99_us", "µs", |figures| figures.p99_us),
        ("p50_us", "µs", |figures| figures.p50_us),
        ("moves", "moves", |figures| figures.moves as f64),
    ];
    for (metric, unit, figure) in figures {
        let values: Vec<f64> = rounds.valid().map(figure).collect();
        let row = Row::new("spillway", metric, unit, &values).note(rounds.left_out());
        results.rows.push(finish(row));
    }
}

fn add_ratios(measured: &Measured, results: &mut Results) {
    let of = |course: Course| {
        measured.courses.iter().find(|(other, _)| *other == course).map(|(_, rounds)| rounds)
    };
    let scenes = measured.courses.iter().map(|(course, _)| (course.protocol, course.servers));
    let mut scenes: Vec<(ProtocolKind, usize)> = scenes.collect();
    scenes.dedup();
    for (protocol, servers) in scenes {
        for pattern in Pattern::ALL {
            let rounds = |policy| of(Course { protocol, servers, pattern, policy });
            let (Some(none), Some(reactive), Some(proactive)) =
                (rounds(Policy::None), rounds(Policy::Reactive), rounds(Policy::Proactive))
            else {
                continue;
            };
            let suffix = format!("{protocol}_{}_{servers}_servers", pattern.name());
            let p99 = |rounds: &Rounds<Figures>| rounds.each(|figures| figures.p99_us);
            let moves = |rounds: &Rounds<Figures>| rounds.each(|figures| figures.moves as f64);
            let name = format!("p99_proactive_over_none_{suffix}");
            results.ratios.push(Ratio::paired(&name, &p99(proactive), &p99(none)).note("expected ≤ 0.5"));
            let name = format!("p99_reactive_over_none_{suffix}");
            results.ratios.push(Ratio::paired(&name, &p99(reactive), &p99(none)));
            let name = format!("moves_proactive_over_reactive_{suffix}");
            results.ratios.push(
                Ratio::paired(&name, &moves(proactive), &moves(reactive))
                    .note("expected ≤ 1/3; '26: 4 moves instead of 20"),
            );
        }
    }
}

/// The knee of each rate.
fn add_knees(measured: &Measured, results: &mut Results) {
    let mut rates: Vec<f64> = measured.forced.iter().map(|(forced, _)| forced.rate_per_s).collect();
    rates.dedup();
    for rate in rates {
        let of_rate = measured.forced.iter().filter(|(forced, _)| forced.rate_per_s == rate);
        let curves: Vec<(Duration, Vec<Option<f64>>)> =
            of_rate.map(|(forced, rounds)| (forced.delay, rounds.each(|figures| figures.p99_us))).collect();
        let count = curves.first().map_or(0, |(_, values)| values.len());
        let of_round = |round: usize| {
            let curve: Option<Vec<(Duration, f64)>> =
                curves.iter().map(|(delay, values)| Some((*delay, (*values.get(round)?)?))).collect();
            curve.and_then(|curve| knee(&curve))
        };
        let values: Vec<f64> = (0..count).filter_map(of_round).map(|delay| us(delay) as f64).collect();
        results.rows.push(
            Row::new("spillway", "knee_us", "µs", &values).param("requests_per_s", rate).note(
                "the last delay up to which p99 is at most twice that without delay, of the delays that were measured; \
                 Capybara: 200 µs",
            ),
        );
    }
}

/// The last of the delays, in their order, up to which p99 stays below [`KNEE`] times the first one.
fn knee(curve: &[(Duration, f64)]) -> Option<Duration> {
    let (_, first) = curve.first()?;
    let flat = curve.iter().take_while(|(_, p99)| *p99 <= KNEE * first);
    flat.last().map(|(delay, _)| *delay)
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{Forced, Measured};
    use super::*;
    use crate::machine::Machine;

    fn rounds(values: &[(f64, u64)]) -> Rounds<Figures> {
        let mut rounds = Rounds::default();
        for (p99_us, moves) in values {
            rounds.push((Figures { p99_us: *p99_us, moves: *moves, ..Figures::default() }, None));
        }
        rounds
    }

    #[test]
    fn ratios_compare_policies_of_the_same_course() {
        let protocol = ProtocolKind::Http;
        let course = |policy| Course { protocol, servers: 2, pattern: Pattern::Skew, policy };
        let measured = Measured {
            courses: vec![
                (course(Policy::None), rounds(&[(1_000.0, 0); 5])),
                (course(Policy::Reactive), rounds(&[(500.0, 20); 5])),
                (course(Policy::Proactive), rounds(&[(250.0, 5); 5])),
            ],
            ..Measured::default()
        };
        let mut results = Results::new("migration-load", Machine::default());
        add(&measured, &mut results);
        let ratio = |name: &str| results.ratios.iter().find(|ratio| ratio.name == name).unwrap().median;
        assert_eq!(ratio("p99_proactive_over_none_http_skew_2_servers"), Some(0.25));
        assert_eq!(ratio("moves_proactive_over_reactive_http_skew_2_servers"), Some(0.25));
        assert_eq!(results.ratios.len(), 3, "no steps were measured");
        assert!(results.ratios.iter().all(|ratio| ratio.valid));
    }

    #[test]
    fn the_knee_is_the_last_delay_of_the_flat_part() {
        let curve = |p99: [f64; 4]| {
            [0, 50, 100, 200].map(Duration::from_micros).into_iter().zip(p99).collect::<Vec<_>>()
        };
        let knee_us = |p99| knee(&curve(p99)).map(us);
        assert_eq!(knee_us([1.0, 1.5, 3.0, 1.0]), Some(50));
        assert_eq!(knee_us([1.0, 3.0, 3.0, 9.0]), Some(0));
        assert_eq!(knee_us([1.0; 4]), Some(200));
        let forced = |delay_us| Forced { rate_per_s: 7_500.0, delay: Duration::from_micros(delay_us) };
        let measured = Measured {
            forced: vec![(forced(0), rounds(&[(100.0, 9)])), (forced(50), rounds(&[(150.0, 9)]))],
            ..Measured::default()
        };
        let mut results = Results::new("migration-load", Machine::default());
        add(&measured, &mut results);
        let row = results.rows.iter().find(|row| row.metric == "knee_us").unwrap();
        assert_eq!(row.median, Some(50.0));
    }
}
