//! The demo's terminal output, and its figures as results.

use crate::demo::Demo;
use crate::generator::Engine;
use crate::results::{Check, Row};
use crate::scenario::{BurstRun, Plan, Second};
use crate::scene::Setting;
use crate::table::{Table, grouped, milliseconds, number};

pub(super) fn placement(setting: &Setting) -> String {
    let mut text = setting.placement.description();
    if setting.placement.server == setting.placement.helper {
        text.push_str(
            " (sharing a core makes the server's wake-ups a little cheaper than on a machine of its own)",
        );
    }
    if setting.engine == Engine::Xdp {
        text.push_str("; helper and clients on Spillway's own TCP stack (AF_XDP)");
    }
    text
}

pub(super) fn live_head(setting: &Setting, server: &str, sla_us: u64) -> String {
    let quota = setting.quota.map_or("a memcached host without quota".into(), |quota| {
        format!("a small memcached host: {} % of one core", quota.percent_of_core)
    });
    format!(
        "{server} · {} clients · 32 B keys, 64 B values · open loop · SLA p99 ≤ {:.1} ms\n\
         {quota:<56}{:>30}\n{}",
        setting.connections,
        sla_us as f64 / 1000.0,
        "CPU in % of one core",
        line("t/s", "what happens", "offered/s", "on time", "p99", "server", "helper")
    )
}

pub(super) fn live_line(plan: &Plan, second: &Second) -> String {
    let at_ms = second.at_s * 1000;
    let is_now = |event_ms: u64| (at_ms..at_ms + 1000).contains(&event_ms);
    let mut event = match () {
        () if second.at_s == 0 => "light load".to_owned(),
        () if is_now(plan.burst_ms) => "burst".to_owned(),
        () if is_now(plan.decision_ms) => format!("relief on, {} moved", second.helped),
        () if is_now(plan.over_ms) => "burst over".to_owned(),
        () if is_now(plan.back_ms) => format!("back, {} still helped", second.helped),
        () => String::new(),
    };
    if let (true, Some(messages)) = (event.is_empty() && second.helped > 0, second.messages_per_batch) {
        event = format!("  {messages:.0} messages a batch");
    }
    line(
        &second.at_s.to_string(),
        &event,
        &grouped(second.offered as f64),
        &percent(second.on_time_share),
        &milliseconds(second.p99_us, "> 250 ms"),
        &format!("{:.0} %", second.server_percent),
        &format!("{:.0} %", second.helper_percent),
    )
}

fn line(
    time: &str,
    event: &str,
    offered: &str,
    on_time: &str,
    p99: &str,
    server: &str,
    helper: &str,
) -> String {
    format!("{time:>4}  {event:<32} {offered:>9} {on_time:>8} {p99:>10} {server:>8} {helper:>7}")
}

/// Formats a share; rounds 99.x % down, so that `100 %` means that nothing was late.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 99.0 && percent < 100.0 {
        return format!("{:.1} %", (percent * 10.0).floor() / 10.0);
    }
    format!("{percent:.0} %")
}

/// A phase of the run: one row of the final table.
struct Phase {
    name: String,
    from_ms: u64,
    to_ms: u64,
}

/// The phases of the run; relief is a phase of its own.
fn phases(run: &BurstRun) -> Vec<Phase> {
    let Plan { burst_ms, decision_ms, over_ms, back_ms, end_ms, .. } = run.plan;
    let phase = |name: &str, from_ms: u64, to_ms: u64| Phase { name: name.into(), from_ms, to_ms };
    let moved = match (run.moved(), run.moved_ms()) {
        (Some(moved), Some(ms)) => format!("relief on, {} moved in {ms:.0} ms", moved.connections),
        (Some(moved), None) => {
            format!("relief on, {} of {} moved", moved.first_replies_us.len(), moved.connections)
        }
        (None, _) => "relief on, 0 moved".into(),
    };
    let relieved_ms = run.relief_ms().map_or(over_ms, |ms| decision_ms + ms);
    let mut phases = vec![
        phase("light load", 0, burst_ms),
        phase("burst", burst_ms, decision_ms),
        phase(&moved, decision_ms, relieved_ms.max(decision_ms + 100)),
    ];
    if relieved_ms < over_ms {
        phases.push(phase("relieved", relieved_ms, over_ms));
    }
    phases.push(phase("burst over", over_ms, back_ms));
    phases.push(phase("clients direct again", back_ms, end_ms));
    phases
}

pub(super) fn table(demo: &Demo) -> Table {
    let run = &demo.run;
    let head = [
        "t/s",
        "what happens",
        "offered/s",
        "on time",
        "p99",
        "server CPU",
        "helper CPU",
        "messages a batch",
    ];
    let mut table = Table::new(head).first_right().left(1);
    for Phase { name, from_ms, to_ms } in phases(run) {
        let span = run.span((from_ms, to_ms));
        let (used, _) = run.between(from_ms, to_ms);
        let seconds = (to_ms - from_ms) as f64 / 1000.0;
        let percent_of_core = |seconds: f64| {
            if used.seconds > 0.0 { format!("{:.0} %", used.percent(seconds)) } else { "–".into() }
        };
        table.row([
            format!("{:.1}", from_ms as f64 / 1000.0),
            name,
            grouped(span.offered as f64 / seconds),
            percent(span.on_time_share(run.sla_us)),
            milliseconds(span.p99_us(), "unanswered"),
            percent_of_core(used.server_s()),
            percent_of_core(used.helper_s),
            used.messages_per_batch().map_or("–".into(), number),
        ]);
    }
    table
}

/// The text after the run: table, relief time, failures, costs and notes.
pub(super) fn text(demo: &Demo) -> String {
    let run = &demo.run;
    let mut lines = vec![table(demo).to_string()];
    lines.push(relief_line(demo));
    let tally = &demo.tally;
    lines.push(format!(
        "{} wrong, {} lost, {} resets of {} replies",
        tally.wrong,
        tally.lost,
        tally.resets,
        grouped(tally.replies as f64)
    ));
    lines.push(costs(run));
    for warning in warnings(demo) {
        lines.push(format!("NOTE: {warning}"));
    }
    lines.join("\n")
}

/// The relief time, and the time that the backlog alone takes to drain.
pub(super) fn relief_line(demo: &Demo) -> String {
    let floor = demo.run.drain_floor_ms(demo.helped_per_s);
    let floor = floor.map_or("the backlog does not drain even with a helper".into(), |ms| {
        format!("the backlog alone takes {ms:.0} ms to drain")
    });
    match demo.run.relief_ms() {
        Some(ms) => format!("under the SLA {ms} ms after relief is switched on ({floor})"),
        None => format!("NOT under the SLA for three seconds before the burst was over ({floor})"),
    }
}

/// CPU time of each host for a request, direct and helped.
fn costs(run: &BurstRun) -> String {
    let cpu_us = |(from_ms, to_ms): (u64, u64)| {
        let (used, replies) = run.between(from_ms, to_ms);
        used.us_per_request(replies).map(|(host, us)| format!("{host} {us:.1}")).join(", ")
    };
    format!(
        "CPU µs a request: direct at light load {}; helped in the burst {}",
        cpu_us(run.light()),
        cpu_us(run.relieved())
    )
}

pub(super) fn warnings(demo: &Demo) -> Vec<String> {
    let mut warnings: Vec<String> = demo
        .run
        .spoilt(demo.setting.quota)
        .into_iter()
        .map(|why| format!("this run is spoilt, and its times should not be cited: {why}"))
        .collect();
    warnings.extend(demo.calibration.notes.iter().map(|note| format!("during calibration: {note}")));
    warnings
}

/// Writes the run into `demo.results` as rows and checks.
pub(super) fn fill_results(demo: &mut Demo) {
    let run = &demo.run;
    let spoilt = run.spoilt(demo.setting.quota);
    let values = |value: Option<f64>| value.into_iter().collect::<Vec<_>>();
    let mut rows = vec![
        Row::new("direct, without shim", "goodput", "requests/s", &[demo.calibration.direct_per_s])
            .param("sla_ms", demo.calibration.sla_us as f64 / 1000.0)
            .note("one short ramp"),
        Row::new("helped", "throughput", "replies/s", &[demo.helped_per_s]).note("late replies included"),
        Row::new("helped", "moved_ms", "ms", &values(run.moved_ms())).void_if(&spoilt),
        Row::new("helped", "relief_ms", "ms", &values(run.relief_ms().map(|ms| ms as f64))).void_if(&spoilt),
        Row::new("helped", "drain_floor_ms", "ms", &values(run.drain_floor_ms(demo.helped_per_s)))
            .void_if(&spoilt),
    ];
    let (light, overloaded, relieved) = (run.light(), run.overloaded(), run.relieved());
    for (system, phase, window) in
        [("direct", "light load", light), ("direct", "burst", overloaded), ("helped", "burst", relieved)]
    {
        let span = run.span(window);
        let (used, replies) = run.between(window.0, window.1);
        let p99_ms = span.p99_us().map(|us| us as f64 / 1000.0);
        let p99 = Row::new(system, "p99_ms", "ms", &values(p99_ms)).param("phase", phase);
        // A p99 among unanswered requests is a finding: the row has no value, but stays valid with a note.
        rows.push(if p99_ms.is_none() {
            p99.note("the p99 falls among requests without a reply")
        } else {
            p99
        });
        rows.push(
            Row::new(system, "on_time_percent", "%", &[100.0 * span.on_time_share(run.sla_us)])
                .param("phase", phase)
                .void_if(&spoilt),
        );
        for (host, us) in used.us_per_request(replies) {
            rows.push(
                Row::new(system, "total_cpu_us_per_request", "µs", &[us])
                    .param("phase", phase)
                    .param("host", host)
                    .void_if(&spoilt),
            );
        }
        rows.push(
            Row::new(system, "messages_per_batch", "messages", &values(used.messages_per_batch()))
                .param("phase", phase),
        );
    }
    rows.retain(|row| !(row.metric == "messages_per_batch" && row.system == "direct"));
    for row in &mut rows {
        row.params.insert("connections".into(), demo.setting.connections.into());
    }
    let moved_all = run.moved_ms().is_some();
    let moved = run.moved().map_or("no connection was moved".into(), |m| {
        format!("{} of {} had a reply through the helper", m.first_replies_us.len(), m.connections)
    });
    demo.results.rows = rows;
    demo.results.checks = demo.tally.checks();
    demo.results.checks.push(Check::new("all_moved", moved_all, moved));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::tests::example;

    #[test]
    fn the_final_text_has_phases_relief_and_failures() {
        let demo = example();
        let text = text(&demo);
        for expected in [
            "light load",
            "relief on, 660 moved in 143 ms",
            "relieved",
            "clients direct again",
            "under the SLA 400 ms after relief is switched on",
            "the backlog alone takes 533 ms to drain",
            "0 wrong, 0 lost, 0 resets of 288 000 replies",
            "310 ms",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert!(!text.contains("NOTE"), "{text}");
    }

    #[test]
    fn a_spoilt_run_has_a_note() {
        let mut demo = example();
        demo.run.samples.iter_mut().for_each(|sample| sample.used.stolen_s = 0.1);
        fill_results(&mut demo);
        assert!(text(&demo).contains("NOTE: this run is spoilt"));
        let moved = demo.results.rows.iter().find(|row| row.metric == "moved_ms").unwrap();
        assert!(!moved.valid && moved.median == Some(143.0));
        assert!(demo.passed(), "a spoilt run should pass all checks");
    }

    #[test]
    fn live_lines_name_events_and_keep_their_columns() {
        let demo = example();
        let plan = &demo.run.plan;
        let second = |at_s: u64, helped: u32| Second { at_s, helped, offered: 9_000, ..Second::default() };
        for (second, expected) in [
            (second(0, 0), "light load"),
            (second(6, 0), "burst"),
            (second(14, 655), "relief on, 655 moved"),
            (second(26, 660), "burst over"),
            (second(27, 3), "back, 3 still helped"),
        ] {
            assert!(live_line(plan, &second).contains(expected), "{expected}");
        }
        let width = |text: &str| text.chars().count();
        let head = line("t/s", "what happens", "offered/s", "on time", "p99", "server", "helper");
        assert_eq!(width(&live_line(plan, &second(14, 655))), width(&head));
        assert_eq!(
            (percent(0.9999), percent(1.0), percent(0.19)),
            ("99.9 %".into(), "100 %".into(), "19 %".into())
        );
    }

    #[test]
    fn results_contain_the_required_rows() {
        let demo = example();
        for metric in
            ["moved_ms", "relief_ms", "drain_floor_ms", "total_cpu_us_per_request", "messages_per_batch"]
        {
            assert!(demo.results.rows.iter().any(|row| row.metric == metric), "{metric}");
        }
        assert!(demo.results.checks.iter().any(|check| check.name == "all_moved" && check.ok));
    }
}
