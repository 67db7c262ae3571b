//! Charts over time as inline SVG. Colours come from the page's style sheet, for light and dark mode.

use std::fmt::Write;

/// Size of the drawing, in SVG units; the page scales it.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
/// Longer lines are thinned: more points than pixels are not visible.
const POINTS_MAX: usize = 4_000;

/// A chart over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The heading above the chart.
    pub title: String,
    /// One or two sentences on how to read the chart.
    pub caption: String,
    /// Label of the vertical axis, with its unit.
    pub axis: String,
    /// Whether the vertical axis is logarithmic.
    pub log: bool,
    /// Horizontal lines with a name, such as the SLA.
    pub lines: Vec<(String, f64)>,
    /// The lines of the chart.
    pub series: Vec<Series>,
}

/// A phase of the run, shaded in every chart.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Phase {
    /// Label of the phase.
    pub name: String,
    /// Start, in seconds.
    pub from_s: f64,
    /// End, in seconds.
    pub to_s: f64,
}

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Seconds and values, in ascending order of seconds. A value that is not finite interrupts the line.
    pub points: Vec<(f64, f64)>,
    /// Drawn with dashes.
    pub dashed: bool,
}

struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    fn new(chart: &Chart) -> Scale {
        let values = chart
            .series
            .iter()
            .flat_map(|s| s.points.iter().map(|p| p.1))
            .chain(chart.lines.iter().map(|l| l.1));
        let values: Vec<f64> = values.filter(|v| v.is_finite() && (!chart.log || *v > 0.0)).collect();
        let high = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        if chart.log {
            let low = values.iter().copied().fold(high, f64::min);
            let power = |v: f64, up: bool| 10f64.powf(if up { v.log10().ceil() } else { v.log10().floor() });
            let (low, high) = (power(low, false), power(high, true));
            return Scale { low, high: if high > low { high } else { low * 10.0 }, log: true };
        }
        Scale { low: 0.0, high: if high <= f64::MIN_POSITIVE { 1.0 } else { high * 1.08 }, log: false }
    }

    fn y(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low).log10() - self.low.log10()) / (self.high.log10() - self.low.log10())
        } else {
            value / self.high
        };
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share.clamp(0.0, 1.0))
    }

    fn marks(&self) -> Vec<f64> {
        if self.log {
            let (first, last) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
            return (first..=last).map(|power| 10f64.powi(power)).collect();
        }
        let step = nice_step(self.high / 6.0);
        (0..=(self.high / step) as usize).map(|n| n as f64 * step).collect()
    }
}

impl Chart {
    /// The chart as an `svg` element, with the run's phases shaded behind it.
    pub fn svg(&self, phases: &[Phase], end_s: f64) -> String {
        let scale = Scale::new(self);
        let end_s = end_s.max(1.0);
        let x = |seconds: f64| LEFT + (WIDTH - LEFT - RIGHT) * (seconds / end_s).clamp(0.0, 1.0);
        let bottom = HEIGHT - BOTTOM;
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.title)
        );
        for (n, phase) in phases.iter().enumerate() {
            let (from, to) = (x(phase.from_s), x(phase.to_s));
            let _ = writeln!(
                svg,
                "<rect class=\"phase p{}\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"/>\
                 <text class=\"phase\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                n % 2,
                to - from,
                bottom - TOP,
                from + 4.0,
                TOP - 6.0,
                escape(&phase.name)
            );
        }
        for mark in scale.marks() {
            let y = scale.y(mark);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"mark\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                label(mark)
            );
        }
        let step = nice_step(end_s / 10.0).max(1.0);
        for n in 0..=(end_s / step) as usize {
            let seconds = n as f64 * step;
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x(seconds),
                bottom + 16.0,
                label(seconds)
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\">time since the start, in s</text>\
             <text class=\"axis\" transform=\"translate(14 {:.1}) rotate(-90)\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            (TOP + bottom) / 2.0,
            escape(&self.axis)
        );
        for (name, value) in &self.lines {
            let y = scale.y(*value);
            let _ = writeln!(
                svg,
                "<line class=\"limit\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"limit\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                WIDTH - RIGHT - 4.0,
                y - 4.0,
                escape(name)
            );
        }
        for (n, series) in self.series.iter().enumerate() {
            let dashes = if series.dashed { " dashed" } else { "" };
            let _ = writeln!(
                svg,
                "<path class=\"series s{n}{dashes}\" d=\"{}\"><title>{}</title></path>",
                path(&series.points, x, &scale),
                escape(&series.name)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// The legend as HTML; empty for a single line.
    pub fn legend(&self) -> String {
        if self.series.len() < 2 {
            return String::new();
        }
        let entry = |(n, series): (usize, &Series)| {
            let dashes = if series.dashed { " dashed" } else { "" };
            format!("<span class=\"key\"><i class=\"s{n}{dashes}\"></i>{}</span>", escape(&series.name))
        };
        let entries: String = self.series.iter().enumerate().map(entry).collect();
        format!("<p class=\"legend\">{entries}</p>\n")
    }
}

fn path(points: &[(f64, f64)], x: impl Fn(f64) -> f64, scale: &Scale) -> String {
    let stride = points.len().div_ceil(POINTS_MAX).max(1);
    let mut text = String::new();
    let mut pen_down = false;
    for (seconds, value) in points.iter().step_by(stride) {
        if !value.is_finite() {
            pen_down = false;
            continue;
        }
        let verb = if pen_down { 'L' } else { 'M' };
        let _ = write!(text, "{verb}{:.1} {:.1}", x(*seconds), scale.y(*value));
        pen_down = true;
    }
    text
}

/// The smallest 1, 2 or 5 times a power of ten that is at least `min`.
fn nice_step(min: f64) -> f64 {
    let power = 10f64.powf(min.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= min * 0.999)
        .unwrap_or(power * 10.0)
}

fn label(value: f64) -> String {
    if value >= 1000.0 {
        return crate::table::grouped(value);
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Makes text safe inside elements and attributes.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(log: bool, points: &[(f64, f64)]) -> Chart {
        Chart {
            title: "p99 <latency>".into(),
            caption: String::new(),
            axis: "ms".into(),
            log,
            lines: vec![("SLA".into(), 1.0)],
            series: vec![Series { name: "p99".into(), points: points.to_vec(), dashed: false }],
        }
    }

    #[test]
    fn scales_cover_all_values() {
        let scale = Scale::new(&chart(true, &[(0.0, 0.4), (1.0, 310.0)]));
        assert_eq!((scale.low, scale.high), (0.1, 1000.0));
        assert_eq!(scale.marks(), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert!(scale.y(310.0) < scale.y(0.4));
        assert_eq!(scale.y(0.0), scale.y(0.1), "0 has no logarithm and is drawn at the bottom");
        let scale = Scale::new(&chart(false, &[(0.0, 0.0), (1.0, 9_600.0)]));
        assert_eq!(scale.marks(), [0.0, 2_000.0, 4_000.0, 6_000.0, 8_000.0, 10_000.0]);
        let empty = Scale::new(&Chart { lines: Vec::new(), ..chart(false, &[]) });
        assert!(empty.high > 0.0);
    }

    #[test]
    fn a_value_that_is_not_finite_interrupts_the_line() {
        let chart = chart(true, &[(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 2.0)]);
        let svg = chart.svg(&[], 4.0);
        let path = svg.split("d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 1));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn names_are_escaped_and_phases_drawn() {
        let phases = [Phase { name: "burst & relief".into(), from_s: 1.0, to_s: 2.0 }];
        let svg = chart(true, &[(0.0, 1.0)]).svg(&phases, 4.0);
        assert!(svg.contains("p99 &lt;latency&gt;") && svg.contains("burst &amp; relief"));
        assert!(!svg.contains("<latency>"));
    }

    #[test]
    fn thousands_of_points_are_thinned() {
        let many: Vec<_> = (0..50_000).map(|n| (f64::from(n), 1.0)).collect();
        let chart = chart(false, &many);
        assert!(chart.svg(&[], 50_000.0).matches('L').count() <= POINTS_MAX);
    }
}
