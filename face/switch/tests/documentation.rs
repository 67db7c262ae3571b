//! The documentation lists every metric and explains only existing verdicts.

use spillway_rules::Verdict;
use spillway_switch::METRICS;

#[test]
fn every_metric_is_documented() {
    let text = include_str!("../../../docs/switch-metrics.md");
    for metric in METRICS {
        let (name, kind, labels, help) =
            (metric.name, metric.kind.name(), metric.labels.join(", "), metric.help);
        let row = format!("| `{name}` | {kind} | {labels} | {help} |");
        assert!(text.contains(&row), "docs/switch-metrics.md must have:\n{row}");
    }
    let rows = text.lines().filter(|line| line.starts_with("| `spillway_")).count();
    assert_eq!(rows, METRICS.len(), "docs/switch-metrics.md should list no other metrics");
}

#[test]
fn every_drop_is_explained_to_operators() {
    let text = include_str!("../../../docs/howto/switch.md");
    for verdict in Verdict::ALL.into_iter().filter(|verdict| *verdict >= Verdict::DropUnknownPort) {
        assert!(
            text.contains(&format!("`{}`", verdict.name())),
            "docs/howto/switch.md must explain {}",
            verdict.name()
        );
    }
    let drops = text.split('`').filter(|word| word.starts_with("drop_"));
    for word in drops {
        assert!(Verdict::ALL.iter().any(|verdict| verdict.name() == word), "{word} is no verdict");
    }
}
