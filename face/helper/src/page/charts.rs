//! Charts of the last two minutes, as SVG in the page.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};

use super::{Figure, Text};
use crate::history::{INTERVAL, SAMPLES_MAX};
use crate::rates::{Rates, ServiceRates};
use crate::status::HelperStatus;

/// Maximum number of services with charts. Those with the most requests are chosen; the table lists all services.
const SERVICES_MAX: usize = 8;
/// Size of a chart in SVG units; the page stretches the chart.
const WIDTH: f64 = 120.0;
const HEIGHT: f64 = 40.0;

/// A figure of a service over time.
struct Series {
    name: &'static str,
    value: fn(&ServiceRates) -> Option<f64>,
}

const SERIES: [Series; 4] = [
    Series { name: "requests/s", value: |rates| Some(rates.requests_per_second) },
    Series { name: "messages per batch", value: |rates| rates.messages_per_batch },
    Series { name: "batch delay p99 µs", value: |rates| rates.delay_p99_us },
    Series { name: "latency p99 µs", value: |rates| rates.latency_p99_us },
];

/// Writes the charts of the busiest services, and of the threads' CPU.
pub(super) fn write(page: &mut String, status: &HelperStatus, history: &[Rates]) -> fmt::Result {
    let Some(last) = history.last() else { return Ok(()) };
    let minutes = INTERVAL.as_secs() * SAMPLES_MAX as u64 / 60;
    write!(page, "<h2>The last {minutes} minutes</h2>\n<div class=\"charts\">\n")?;
    for name in busiest(last) {
        for series in &SERIES {
            let of_service = |rates: &Rates| {
                rates.services.iter().find(|service| service.name == name).and_then(series.value)
            };
            let samples: Vec<_> = history.iter().map(of_service).collect();
            // A figure without values has no chart: without a configured protocol, for example, latency is not measured.
            if samples.iter().any(Option::is_some) {
                write_chart(page, name, series.name, &samples)?;
            }
        }
    }
    let cpu = |rates: &Rates| Some(rates.thread_cpu_percent.iter().sum());
    let threads = format!("{} threads", status.per_thread.len());
    write_chart(page, &threads, "CPU %", &history.iter().map(cpu).collect::<Vec<_>>())?;
    page.write_str("</div>\n")
}

/// The services with the most requests in the last interval.
fn busiest(last: &Rates) -> Vec<&str> {
    let mut services: Vec<&ServiceRates> = last.services.iter().collect();
    services.sort_by_key(|service| Reverse(service.requests_per_second as u64));
    services.iter().take(SERVICES_MAX).map(|service| service.name.as_str()).collect()
}

fn write_chart(page: &mut String, subject: &str, figure: &str, samples: &[Option<f64>]) -> fmt::Result {
    let max = samples.iter().flatten().fold(0.0, |max: f64, value| max.max(*value));
    let last = samples.last().copied().flatten();
    let last = last.map_or_else(|| "–".to_owned(), |value| Figure(value).to_string());
    let (subject, max_text) = (Text(subject), Figure(max));
    write!(
        page,
        "<figure><figcaption><b>{subject}</b> {figure}: {last} now, {max_text} maximum</figcaption>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{subject}: {figure}, {last} now, {max_text} maximum\">"
    )?;
    for line in lines(samples, max) {
        page.write_str("<polyline points=\"")?;
        line.iter().try_for_each(|(x, y)| write!(page, "{x:.1},{y:.1} "))?;
        page.write_str("\"/>")?;
    }
    page.write_str("</svg></figure>\n")
}

/// The lines of a chart whose right edge is the present. An interval without a value separates two lines. A
/// single value is a line of half an interval, because SVG does not draw a polyline of one point.
fn lines(samples: &[Option<f64>], max: f64) -> Vec<Vec<(f64, f64)>> {
    let step = WIDTH / (SAMPLES_MAX - 1) as f64;
    let empty = SAMPLES_MAX.saturating_sub(samples.len());
    let scale = if max > 0.0 { (HEIGHT - 2.0) / max } else { 0.0 };
    let point = |(index, value): (usize, &Option<f64>)| {
        value.map(|value| ((empty + index) as f64 * step, HEIGHT - 1.0 - value * scale))
    };
    let points: Vec<Option<(f64, f64)>> = samples.iter().enumerate().map(point).collect();
    let parts = points.split(Option::is_none).filter(|part| !part.is_empty());
    let line = |part: &[Option<(f64, f64)>]| {
        let mut line: Vec<(f64, f64)> = part.iter().copied().flatten().collect();
        if let [(x, y)] = line[..] {
            line.insert(0, (x - step / 2.0, y));
        }
        if let [(left, _), (right, _)] = &mut line[..]
            && *left < 0.0
        {
            (*left, *right) = (0.0, step / 2.0);
        }
        line
    };
    parts.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_the_right_edge_and_break_at_missing_values() {
        let samples = [Some(0.0), None, Some(5.0), Some(10.0)];
        let lines = lines(&samples, 10.0);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0][0].1, HEIGHT - 1.0);
        let (x, y) = lines[1][1];
        assert!((x - WIDTH).abs() < 1e-9 && (y - 1.0).abs() < 1e-9, "{x}, {y}");
        assert!(super::lines(&[], 0.0).is_empty());
    }

    #[test]
    fn a_single_value_is_a_visible_line_inside_the_chart() {
        let mut full = [None; SAMPLES_MAX];
        full[0] = Some(1.0);
        full[SAMPLES_MAX - 2] = Some(1.0);
        for samples in [&full[..], &[Some(1.0)]] {
            for line in lines(samples, 1.0) {
                assert!(line.len() == 2 && line[1].0 - line[0].0 > 0.1, "{line:?}");
                assert!(line.iter().all(|(x, _)| (0.0..=WIDTH + 1e-9).contains(x)), "{line:?}");
            }
        }
    }

    #[test]
    fn busiest_services_have_charts() {
        let service = |number: usize| ServiceRates {
            name: format!("s{number}<"),
            requests_per_second: number as f64,
            messages_per_batch: Some(1.0),
            delay_p99_us: Some(10.0),
            latency_p99_us: Some(300.0),
            ..ServiceRates::default()
        };
        let services = (0..SERVICES_MAX + 3).map(service).collect();
        let rates = Rates { seconds: 2.0, thread_cpu_percent: vec![10.0, 20.0], services };
        let mut page = String::new();
        write(&mut page, &HelperStatus::default(), &[rates]).unwrap();
        assert_eq!(page.matches("<figure>").count(), SERVICES_MAX * SERIES.len() + 1);
        assert!(page.contains("s10&lt;") && !page.contains("s2&lt;") && !page.contains("s10<"), "{page}");
        assert!(page.contains("CPU %: 30.0 now, 30.0 maximum"), "{page}");
    }
}
