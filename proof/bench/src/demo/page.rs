//! The demo's HTML report, for readers who do not know Spillway.

use crate::demo::{Demo, summary};
use crate::measure::Used;
use crate::relief::Span;
use crate::report::{Chart, Page, Series};
use crate::scenario::Sample;
use crate::table::{grouped, milliseconds};

/// Time covered by one point of a latency curve: long enough for a p99.
const POINT_MS: u64 = 500;
/// Samples averaged for one point of CPU and reply curves: the kernel accounts CPU time in ticks of some ms.
const SAMPLES_PER_POINT: usize = 2;

pub(super) fn page(demo: &Demo) -> Page {
    let run = &demo.run;
    Page {
        title: "A burst hits one memcached, and is relieved".into(),
        introduction: introduction(demo),
        outcome: outcome(demo),
        warnings: summary::warnings(demo),
        is_spoilt: !demo.spoilt().is_empty(),
        phases: run.plan.phases(),
        end_s: run.plan.end_ms as f64 / 1000.0,
        charts: vec![latency(demo), rates(demo), cpu(demo), batches(demo)],
        tables: vec![
            ("Phase by phase".into(), summary::table(demo)),
            ("Every figure".into(), figures(demo)),
            ("Checks".into(), checks(demo)),
        ],
        definitions: definitions(),
        setting: setting(demo),
    }
}

fn introduction(demo: &Demo) -> Vec<String> {
    let plan = &demo.run.plan;
    let quota = demo
        .setting
        .quota
        .map_or("all of a core".into(), |quota| format!("{} % of a core", quota.percent_of_core));
    vec![
        "Every small packet costs a server CPU time, whatever its size. Spillway's helpers, on other machines, \
         gather many clients' small requests into large batches for a hot server and take its replies apart again. \
         The server program is unchanged; its data stays where it is."
            .into(),
        format!(
            "Here an unmodified memcached may use {quota}, its network receive work included. {} clients request \
             values of 64 bytes, each with at most one request outstanding, at times that do not depend on the \
             replies. After {:.0} s they send three times as many requests as the server can answer in time; at {:.0} s \
             relief is switched on and they move to a helper; at {:.0} s the burst is over, and they move back.",
            demo.setting.connections,
            plan.burst_ms as f64 / 1000.0,
            plan.decision_ms as f64 / 1000.0,
            plan.over_ms as f64 / 1000.0
        ),
    ]
}

fn outcome(demo: &Demo) -> Vec<(String, String)> {
    let run = &demo.run;
    let p99 = |window| milliseconds(run.span(window).p99_us(), "unanswered");
    let tally = &demo.tally;
    vec![
        (p99(run.overloaded()), "p99 in the burst, direct".into()),
        (p99(run.relieved()), "p99 in the same burst, once relieved".into()),
        (
            run.relief_ms().map_or("not reached".into(), |ms| format!("{ms} ms")),
            "from relief on until the SLA is kept again".into(),
        ),
        (
            run.moved_ms().map_or("not all".into(), |ms| format!("{ms:.0} ms")),
            format!("to move all {} connections", demo.setting.connections),
        ),
        (
            format!("{} · {} · {}", tally.wrong, tally.lost, tally.resets),
            format!("wrong, lost, reset of {} replies", grouped(tally.replies as f64)),
        ),
    ]
}

fn latency(demo: &Demo) -> Chart {
    let run = &demo.run;
    let curve = |quantile: f64| {
        let point = |from_ms: u64| {
            let span = Span::of(&run.report.bins, from_ms, from_ms + POINT_MS);
            let ms = span.quantile_us(quantile).map_or(f64::NAN, |us| us as f64 / 1000.0);
            ((from_ms + POINT_MS / 2) as f64 / 1000.0, ms)
        };
        (0..run.plan.end_ms).step_by(POINT_MS as usize).map(point).collect()
    };
    Chart {
        title: "Latency".into(),
        caption: "From the moment a client meant to send, so waiting in the client counts. 99 of 100 requests are \
                  faster than p99. The scale is logarithmic: each line is ten times the one below. A gap means that \
                  the percentile falls among requests that were never answered."
            .into(),
        axis: "latency, in ms".into(),
        log: true,
        lines: vec![(format!("SLA {:.1} ms", run.sla_us as f64 / 1000.0), run.sla_us as f64 / 1000.0)],
        series: vec![
            Series { name: "p99".into(), points: curve(0.99), dashed: false },
            Series { name: "median".into(), points: curve(0.5), dashed: true },
        ],
    }
}

fn rates(demo: &Demo) -> Chart {
    let run = &demo.run;
    let by_bins = |count: &dyn Fn(&Span) -> f64| {
        let point = |from_ms: u64| {
            let span = Span::of(&run.report.bins, from_ms, from_ms + POINT_MS);
            ((from_ms + POINT_MS / 2) as f64 / 1000.0, count(&span) * 1000.0 / POINT_MS as f64)
        };
        (0..run.plan.end_ms).step_by(POINT_MS as usize).map(point).collect()
    };
    Chart {
        title: "Requests and replies".into(),
        caption: "Offered requests count when they are due, replies when they arrive: while a backlog drains, there are \
                  more replies than offered requests. On time is the part of the offered requests that was answered within \
                  the SLA."
            .into(),
        axis: "requests a second".into(),
        log: false,
        lines: vec![("direct capacity".into(), demo.calibration.direct_per_s)],
        series: vec![
            Series { name: "offered".into(), points: by_bins(&|span| span.offered as f64), dashed: true },
            Series {
                name: "replies".into(),
                points: by_samples(&run.samples, |used, replies| replies as f64 / used.seconds),
                dashed: false,
            },
            Series {
                name: "on time".into(),
                points: by_bins(&|span| span.on_time_share(run.sla_us) * span.offered as f64),
                dashed: false,
            },
        ],
    }
}

fn cpu(demo: &Demo) -> Chart {
    type CpuSeconds = fn(&Used) -> f64;
    let hosts: [(&str, CpuSeconds); 5] = [
        ("server (program and interface)", |used| used.server_s()),
        ("of that, its interface", |used| used.server_interface_s),
        ("helper", |used| used.helper_s),
        ("clients", |used| used.clients_s),
        ("bridge", |used| used.bridge_s),
    ];
    let series = hosts.map(|(name, cpu_s)| Series {
        name: name.into(),
        points: by_samples(&demo.run.samples, |used, _| used.percent(cpu_s(used))),
        dashed: name.starts_with("of that"),
    });
    let quota =
        demo.setting.quota.map(|quota| (format!("quota {} %", quota.percent_of_core), quota.percent_of_core));
    Chart {
        title: "CPU of each host".into(),
        caption:
            "A helper takes work from the server, but the work remains. Each host's figure includes the \
                  receive work of its network interface; the bridge stands for the switch between the hosts."
                .into(),
        axis: "percent of one core".into(),
        log: false,
        lines: quota.into_iter().collect(),
        series: series.into(),
    }
}

fn batches(demo: &Demo) -> Chart {
    Chart {
        title: "Messages in each batch".into(),
        caption: "Mean number of clients' requests in one batch from the helper to the server. The more requests a batch \
                  contains, the less CPU time each one costs the server."
            .into(),
        axis: "messages a batch".into(),
        log: false,
        lines: Vec::new(),
        series: vec![Series {
            name: "messages a batch".into(),
            points: by_samples(&demo.run.samples, |used, _| used.messages_per_batch().unwrap_or(f64::NAN)),
            dashed: false,
        }],
    }
}

/// A curve with one point for each [`SAMPLES_PER_POINT`] samples; an incomplete last group is dropped.
fn by_samples(samples: &[Sample], value: impl Fn(&Used, u64) -> f64) -> Vec<(f64, f64)> {
    let point = |group: &[Sample]| {
        let mut sum = (Used::default(), 0);
        for sample in group {
            sum.0.add(&sample.used);
            sum.1 += sample.replies;
        }
        let middle_ms = (group[0].from_ms + group[group.len() - 1].to_ms) as f64 / 2.0;
        (middle_ms / 1000.0, value(&sum.0, sum.1))
    };
    samples.chunks(SAMPLES_PER_POINT).filter(|group| group.len() == SAMPLES_PER_POINT).map(point).collect()
}

fn figures(demo: &Demo) -> crate::table::Table {
    let mut table = crate::table::Table::new(["system", "figure", "value", "unit", "with", "valid"]);
    for row in &demo.results.rows {
        let with: Vec<String> = row
            .params
            .iter()
            .filter(|(name, _)| *name != "connections")
            .map(|(name, value)| {
                format!("{name} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            })
            .collect();
        let valid = if row.valid { row.why.clone() } else { format!("no: {}", row.why) };
        table.row([
            row.system.clone(),
            row.metric.clone(),
            row.median.map_or("–".into(), crate::table::number),
            row.unit.clone(),
            with.join(", "),
            if valid.is_empty() { "yes".into() } else { valid },
        ]);
    }
    table
}

fn checks(demo: &Demo) -> crate::table::Table {
    let mut table = crate::table::Table::new(["what must hold", "held", "seen"]);
    for check in &demo.results.checks {
        table.row([check.name.as_str(), if check.ok { "yes" } else { "NO" }, check.detail.as_str()]);
    }
    table
}

fn definitions() -> Vec<(String, String)> {
    let entry = |term: &str, text: &str| (term.to_owned(), text.to_owned());
    vec![
        entry(
            "SLA",
            "p99 of all requests within this time; fixed before the run as the larger of 1 ms and three times \
               the p99 at a fifth of the direct capacity. An unanswered request counts as late.",
        ),
        entry(
            "direct capacity",
            "the highest rate of a ramp in steps of 5 %, 1.5 s each, at which the SLA is \
               kept without preload library and helper",
        ),
        entry(
            "moved",
            "from relief on to the last connection's first reply through the helper; each waits for its \
               pending reply before it moves",
        ),
        entry(
            "relief",
            "from relief on to the earliest moment (on a grid of 100 ms, by intended send time) from which \
               three seconds in a row each keep the SLA",
        ),
        entry(
            "drain floor",
            "the least time that the backlog of the burst takes to drain: the requests above capacity before \
               relief, divided by the helped server's spare throughput during the burst",
        ),
        entry(
            "wrong, lost, reset",
            "replies of which any byte differs from what was stored; requests sent and never \
               answered; connections that broke",
        ),
    ]
}

fn setting(demo: &Demo) -> Vec<(String, String)> {
    let machine = &demo.results.machine;
    let mut setting = vec![
        ("machine".to_owned(), format!("{} cores, {}, {}", machine.cores, machine.cpu, machine.kernel)),
        ("server".to_owned(), machine.server.clone()),
        ("interfaces".to_owned(), machine.offloads.clone()),
        ("commit".to_owned(), demo.results.commit.clone()),
    ];
    setting.extend(machine.lab.iter().map(|(name, value)| (name.clone(), value.clone())));
    setting
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::tests::example;

    #[test]
    fn the_page_contains_the_results_and_four_charts() {
        let html = page(&example()).html();
        for expected in [
            "<b>310 ms</b>p99 in the burst, direct",
            "<b>0.4 ms</b>p99 in the same burst, once relieved",
            "<b>143 ms</b>to move all 660 connections",
            "<b>400 ms</b>from relief on",
            "SLA 1.0 ms",
            "quota 10 %",
            "percent of one core",
            "messages a batch",
            "wrong, lost, reset",
            "relief on, 660 moved in 143 ms",
        ] {
            assert!(html.contains(expected), "{expected}");
        }
        assert!(!html.contains("NaN"));
        assert_eq!(html.matches("<svg").count(), 4);
    }

    #[test]
    fn curves_cover_the_whole_run() {
        let demo = example();
        let chart = latency(&demo);
        let points = &chart.series[0].points;
        assert_eq!(points.len() as u64, demo.run.plan.end_ms / POINT_MS);
        assert!(points.iter().any(|point| point.1 > 300.0) && points.iter().any(|point| point.1 < 0.5));
        assert!(cpu(&demo).series.iter().all(|series| series.points.len() == 64));
    }
}
