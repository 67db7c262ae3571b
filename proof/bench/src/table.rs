//! Tables for a terminal.

use std::time::Duration;

use crate::results::{Results, Row};

/// Rows of cells under a head. The first column and those set by [`Table::left`] are flush left, the others flush
/// right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    head: Vec<String>,
    left: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Table {
        Table { head: head.into_iter().map(Into::into).collect(), left: vec![0], rows: Vec::new() }
    }

    /// Sets a column flush left.
    pub fn left(mut self, column: usize) -> Table {
        self.left.push(column);
        self
    }

    /// Sets the first column flush right.
    pub fn first_right(mut self) -> Table {
        self.left.retain(|&column| column != 0);
        self
    }

    /// Adds a row; cells beyond the head are dropped.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).take(self.head.len()).collect();
        cells.resize(self.head.len(), String::new());
        self.rows.push(cells);
    }

    /// Titles of the columns.
    pub fn head(&self) -> &[String] {
        &self.head
    }

    /// All rows, each with a cell for every column.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for line in lines() {
            let mut text = String::new();
            for (column, cell) in line.iter().enumerate() {
                let pad = " ".repeat(widths[column] - cell.chars().count());
                let (before, after) = if self.left.contains(&column) { ("", &*pad) } else { (&*pad, "") };
                text.push_str(&format!("{before}{cell}{after}  "));
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Formats a number with about three significant digits, and groups of thousands.
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 100.0 {
        return grouped(value.round());
    }
    let digits = if magnitude >= 10.0 { 1 } else { 2 };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a whole number in groups of thousands.
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// Formats µs as milliseconds; `missing` for `None`.
pub fn milliseconds(us: Option<u64>, missing: &str) -> String {
    match us {
        Some(us) if us < 10_000 => format!("{:.1} ms", us as f64 / 1000.0),
        Some(us) => format!("{} ms", grouped(us as f64 / 1000.0)),
        None => missing.to_owned(),
    }
}

/// All rows, ratios and checks as text for the terminal.
pub fn results(results: &Results) -> String {
    let text_of = |value: Option<f64>| value.map_or("–".into(), number);
    let mut rows = Table::new(["system", "metric", "median", "min", "max", "unit", "runs", "valid", "with"])
        .left(1)
        .left(5)
        .left(8);
    for row in &results.rows {
        let valid = if row.valid { "yes" } else { "NO" };
        rows.row([
            row.system.clone(),
            row.metric.clone(),
            text_of(row.median),
            text_of(row.min),
            text_of(row.max),
            row.unit.clone(),
            row.runs.to_string(),
            valid.into(),
            conditions(row),
        ]);
    }
    let mut text = rows.to_string();
    if !results.ratios.is_empty() {
        let mut ratios =
            Table::new(["ratio", "median", "min", "max", "upper95", "rounds", "valid", "why"]).left(7);
        for ratio in &results.ratios {
            ratios.row([
                ratio.name.clone(),
                text_of(ratio.median),
                text_of(ratio.min),
                text_of(ratio.max),
                text_of(ratio.upper95),
                ratio.runs.to_string(),
                if ratio.valid { "yes" } else { "NO" }.into(),
                ratio.why.clone(),
            ]);
        }
        text.push_str(&format!("\n{ratios}"));
    }
    let mut checks = Table::new(["check", "", "detail"]).left(2);
    for check in &results.checks {
        checks.row([check.name.as_str(), if check.ok { "ok" } else { "FAILED" }, check.detail.as_str()]);
    }
    text.push_str(&format!("\n{checks}"));
    text
}

fn conditions(row: &Row) -> String {
    let value = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Number(n) => n.as_f64().map_or_else(|| n.to_string(), number),
        other => other.to_string(),
    };
    let mut texts: Vec<String> = row.params.iter().map(|(name, v)| format!("{name} {}", value(v))).collect();
    if !row.why.is_empty() {
        texts.push(format!("({})", row.why));
    }
    texts.join(", ")
}

/// Converts µs to ms, for JSON and tables.
pub(crate) fn us_to_ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

/// A duration in ms, for JSON and tables.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::{Check, Ratio};

    #[test]
    fn columns_are_aligned_with_non_ascii_letters() {
        let mut table = Table::new(["what", "µs", "note"]).left(2);
        table.row(["a", "1", "x"]);
        table.row(["ä long one", "1 000"]);
        assert_eq!(table.to_string(), "what           µs  note\na               1  x\nä long one  1 000\n");
    }

    #[test]
    fn numbers_have_about_three_digits_and_grouped_thousands() {
        for (value, text) in [
            (0.0, "0"),
            (0.456, "0.46"),
            (5.5, "5.5"),
            (33.25, "33.2"),
            (100.0, "100"),
            (9_600.4, "9 600"),
            (1_234_567.0, "1 234 567"),
            (-1_500.0, "-1 500"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(milliseconds(Some(412), "–"), "0.4 ms");
        assert_eq!(milliseconds(Some(310_000), "–"), "310 ms");
        assert_eq!(milliseconds(None, "> 200 ms"), "> 200 ms");
    }

    #[test]
    fn results_show_void_rows_and_failed_checks() {
        let mut results = Results::new("burst", Machine::default());
        results
            .rows
            .push(Row::new("direct", "goodput", "1/s", &[3000.0]).param("sla_ms", 1.0).void_if(["lag"]));
        results.ratios.push(Ratio::new("goodput_helped_over_direct", &[5.4]));
        results.checks.push(Check::none("wrong", 2, "10 replies"));
        let text = super::results(&results);
        for expected in ["3 000", "NO", "sla_ms 1, (lag)", "5.4", "FAILED", "2 of 10 replies"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }
}
