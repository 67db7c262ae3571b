//! Crossings of two curves, and the range in which one is below the other.

/// Highest useful p99, in µs. A latency curve ends at the first rate whose p99 exceeds it.
pub(crate) const USEFUL_LIMIT_US: u64 = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Point {
    P99(u64),
    /// The p99 is above [`USEFUL_LIMIT_US`], or more than 1 % stayed unanswered. The same is assumed for higher rates.
    Over,
    /// The measurement was disturbed, with the reason.
    Spoilt(String),
    /// Another host than the server ran out of CPU time, with the reason: higher rates cannot be measured.
    Limit(String),
}

impl Point {
    /// The p99 for comparisons, in µs; [`USEFUL_LIMIT_US`] as a lower bound for [`Point::Over`]. `None` if unknown.
    fn latency_us(&self) -> Option<f64> {
        match self {
            Point::P99(us) => Some((*us).max(1) as f64),
            Point::Over => Some(USEFUL_LIMIT_US as f64),
            Point::Spoilt(_) | Point::Limit(_) => None,
        }
    }
}

/// A range of rates in which help lowers the latency: the helped latency is below the direct one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HelpfulRange {
    /// The interpolated crossing; the lowest measured rate if the helped latency is lower from the start.
    pub from: f64,
    /// The highest measured rate of the range.
    pub until: f64,
}

/// The last range in which `helped` is below `direct`. It ends at the highest rate at which the helped
/// latency is below both the direct one and [`USEFUL_LIMIT_US`], and begins at the last crossing before that
/// rate (interpolated on logarithmic scales). Both slices have a point for each rate.
pub(crate) fn helpful_range(rates: &[f64], direct: &[Point], helped: &[Point]) -> Option<HelpfulRange> {
    let known: Vec<(f64, f64, bool)> = rates
        .iter()
        .zip(direct.iter().zip(helped))
        .filter_map(|(&rate, (direct, helped))| {
            let ratio = helped.latency_us()? / direct.latency_us()?;
            Some((rate, ratio, matches!(helped, Point::P99(_)) && ratio < 1.0))
        })
        .collect();
    let last = known.iter().rposition(|&(_, _, better)| better)?;
    let first = known[..last].iter().rposition(|&(_, _, better)| !better).map_or(0, |worse| worse + 1);
    let from = match first.checked_sub(1) {
        Some(before) => log_crossing((known[before].0, known[before].1), (known[first].0, known[first].1)),
        None => known[first].0,
    };
    Some(HelpfulRange { from, until: known[last].0 })
}

/// The position at which a falling ratio passes 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Crossing {
    /// The ratio is below 1 at the first point.
    Before(f64),
    /// The ratio passes 1 between two points.
    At(f64),
    /// The ratio is at least 1 at the last point.
    Beyond(f64),
}

impl Crossing {
    /// The position; the first or last measured one if the crossing is outside the measured range.
    pub fn position(self) -> f64 {
        let (Crossing::Before(position) | Crossing::At(position) | Crossing::Beyond(position)) = self;
        position
    }
}

/// Where the ratio first falls below 1. Points are (position, ratio), sorted by position. `None` without points.
pub(crate) fn crossing(points: &[(f64, f64)]) -> Option<Crossing> {
    let (first, last) = (points.first()?, points.last()?);
    Some(match points.iter().position(|&(_, ratio)| ratio < 1.0) {
        Some(0) => Crossing::Before(first.0),
        Some(below) => Crossing::At(log_crossing(points[below - 1], points[below])),
        None => Crossing::Beyond(last.0),
    })
}

/// Where the ratio passes 1 between two points (position, ratio), on logarithmic scales. Exactly one of the two ratios
/// must be below 1.
fn log_crossing((a, ratio_a): (f64, f64), (b, ratio_b): (f64, f64)) -> f64 {
    let (log_a, log_b) = (ratio_a.ln(), ratio_b.ln());
    let share = if log_a == log_b { 1.0 } else { log_a / (log_a - log_b) };
    (a.ln() + (b.ln() - a.ln()) * share.clamp(0.0, 1.0)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p99(us: &[u64]) -> Vec<Point> {
        us.iter().map(|&us| if us < USEFUL_LIMIT_US { Point::P99(us) } else { Point::Over }).collect()
    }

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-9
    }

    #[test]
    fn helping_pays_from_the_crossing_to_the_end_of_the_helped_curve() {
        let rates = [1_000.0, 2_000.0, 4_000.0, 8_000.0, 16_000.0, 32_000.0];
        let direct = p99(&[200, 300, 1_600, 99_999, 99_999, 99_999]);
        let helped = p99(&[600, 600, 800, 900, 1_500, 99_999]);
        // The ratio is 2 at 2,000/s and 1/2 at 4,000/s: the crossing is half way on a logarithmic scale.
        let helpful_range = super::helpful_range(&rates, &direct, &helped).unwrap();
        assert!(
            close(helpful_range.from, (2_000.0f64 * 4_000.0).sqrt()) && helpful_range.until == 16_000.0,
            "{helpful_range:?}"
        );
    }

    #[test]
    fn unknown_points_are_skipped() {
        let rates = [1_000.0, 2_000.0, 4_000.0, 8_000.0];
        let direct = p99(&[200, 300, 1_200, 99_999]);
        let mut helped = p99(&[400, 0, 600, 700]);
        helped[1] = Point::Spoilt("a stall".into());
        let helpful_range = super::helpful_range(&rates, &direct, &helped).unwrap();
        assert!(close(helpful_range.from, 2_000.0) && helpful_range.until == 8_000.0, "{helpful_range:?}");
        helped[3] = Point::Limit("the helper used 90 % of a core".into());
        assert_eq!(super::helpful_range(&rates, &direct, &helped).unwrap().until, 4_000.0);
    }

    #[test]
    fn helping_can_pay_at_all_rates_or_at_none() {
        let rates = [1_000.0, 2_000.0];
        let (fast, slow) = (p99(&[100, 200]), p99(&[300, 400]));
        assert_eq!(helpful_range(&rates, &slow, &fast), Some(HelpfulRange { from: 1_000.0, until: 2_000.0 }));
        assert_eq!(helpful_range(&rates, &fast, &slow), None);
        assert_eq!(helpful_range(&rates, &fast, &fast), None);
        let over = p99(&[99_999, 99_999]);
        assert_eq!(
            helpful_range(&rates, &over, &over),
            None,
            "two latencies above the useful limit should not be compared"
        );
        assert_eq!(helpful_range(&[], &[], &[]), None);
    }

    #[test]
    fn a_single_better_point_at_a_low_rate_does_not_start_the_range() {
        let rates = [1_000.0, 2_000.0, 4_000.0];
        let helpful_range = helpful_range(&rates, &p99(&[500, 200, 900]), &p99(&[400, 400, 450])).unwrap();
        assert!(helpful_range.from > 2_000.0 && helpful_range.from < 4_000.0, "{helpful_range:?}");
    }

    #[test]
    fn a_crossing_is_interpolated_on_logarithmic_scales() {
        let points = [(64.0, 4.0), (1_024.0, 2.0), (4_096.0, 0.5), (8_192.0, 0.4)];
        let Some(Crossing::At(position)) = crossing(&points) else {
            panic!("the ratio should pass 1 between two points")
        };
        assert!(close(position, 2_048.0), "{position}");
        assert_eq!(crossing(&points[..2]), Some(Crossing::Beyond(1_024.0)));
        assert_eq!(crossing(&points[2..]), Some(Crossing::Before(4_096.0)));
        assert_eq!(crossing(&[]), None);
        assert!(close(crossing(&[(64.0, 1.0), (128.0, 0.5)]).unwrap().position(), 64.0));
        assert_eq!(Crossing::Beyond(7.0).position(), 7.0);
    }
}
