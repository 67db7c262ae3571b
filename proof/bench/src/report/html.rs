//! The page around the charts: introduction, outcome, tables, definitions.

use std::fmt::Write;

use super::svg::{Chart, Phase, escape};
use crate::table::Table;

/// The contents of the page, from top to bottom.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// Paragraphs that explain the run to a reader who does not know Spillway.
    pub introduction: Vec<String>,
    /// The outcome: a figure and its meaning, most important first.
    pub outcome: Vec<(String, String)>,
    /// Reservations about the figures, such as a spoilt run.
    pub warnings: Vec<String>,
    /// Whether the figures of the outcome must not be cited; they are then grey and struck out.
    pub is_spoilt: bool,
    /// The phases of the run.
    pub phases: Vec<Phase>,
    /// The length of the run, in seconds.
    pub end_s: f64,
    /// The charts.
    pub charts: Vec<Chart>,
    /// Tables with a heading.
    pub tables: Vec<(String, Table)>,
    /// Terms and their definitions.
    pub definitions: Vec<(String, String)>,
    /// Machine and settings of the run.
    pub setting: Vec<(String, String)>,
}

/// The style sheet. Every colour is a variable with a value for light and one for dark mode.
const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5a6675; --paper: #ffffff; --card: #f4f6f9; --grid: #dde3ea;
  --p0: #eef2f7; --p1: #e2e9f2; --limit: #b42318; --s0: #1769aa; --s1: #c2570c; --s2: #2c7a3f; --s3: #7a3fa0; --s4: #6b7280;
  --warn: #fff1d6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --soft: #9aa7b8; --paper: #12161c; --card: #1b212a; --grid: #2d3642;
    --p0: #1a212b; --p1: #222c39; --limit: #ff8a7a; --s0: #6cb6f5; --s1: #f5a05a; --s2: #74cf8a; --s3: #c796ea; --s4: #a3adba;
    --warn: #3d3216; }
}
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.2rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .6rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .3rem; }
p { max-width: 46rem; } .soft, figcaption, dt { color: var(--soft); }
.outcome { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem; margin: 1.4rem 0; padding: 0; }
.outcome li { list-style: none; background: var(--card); border-radius: .5rem; padding: .8rem 1rem; }
.outcome b { display: block; font-size: 1.45rem; line-height: 1.3; }
.outcome.spoilt b { color: var(--soft); text-decoration: line-through; }
.warning { background: var(--warn); border-radius: .5rem; padding: .7rem 1rem; } .warning ul { margin: .3rem 0 0; padding-left: 1.2rem; }
figure { margin: .6rem 0 0; } figcaption { font-size: .92rem; }
svg { display: block; width: 100%; min-width: 50rem; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg text.mark { text-anchor: end; } svg text.tick, svg text.axis { text-anchor: middle; }
svg text.phase { fill: var(--ink); font-size: 11.5px; }
.phase.p0 { fill: var(--p0); } .phase.p1 { fill: var(--p1); }
.grid { stroke: var(--grid); stroke-width: 1; } .limit { stroke: var(--limit); stroke-width: 1.2; stroke-dasharray: 5 4; }
svg text.limit { stroke: none; fill: var(--limit); text-anchor: end; }
.series { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .series.dashed { stroke-dasharray: 6 4; }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); } .s4 { stroke: var(--s4); }
.legend { margin: .3rem 0 0; font-size: .92rem; } .key { margin-right: 1.4rem; white-space: nowrap; }
.key i { display: inline-block; width: 1.6rem; margin-right: .4rem; vertical-align: middle; border-top: 3px solid; }
.key i.dashed { border-top-style: dashed; }
i.s0 { border-color: var(--s0); } i.s1 { border-color: var(--s1); } i.s2 { border-color: var(--s2); }
i.s3 { border-color: var(--s3); } i.s4 { border-color: var(--s4); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); }
th { color: var(--soft); font-weight: 600; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .3rem 1.2rem; font-size: .92rem; }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { display: block; } dt { margin-top: .5rem; } .key { white-space: normal; } }
";

impl Page {
    /// The HTML file.
    pub fn html(&self) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{0}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
            escape(&self.title)
        );
        for paragraph in &self.introduction {
            let _ = writeln!(page, "<p>{}</p>", escape(paragraph));
        }
        if !self.warnings.is_empty() {
            page.push_str(
                "<div class=\"warning\" role=\"note\">\n<b>Before you cite these figures</b>\n<ul>\n",
            );
            for warning in &self.warnings {
                let _ = writeln!(page, "<li>{}</li>", escape(&sentence(warning)));
            }
            page.push_str("</ul>\n</div>\n");
        }
        if !self.outcome.is_empty() {
            let _ = writeln!(page, "<ul class=\"outcome{}\">", if self.is_spoilt { " spoilt" } else { "" });
            for (figure, meaning) in &self.outcome {
                let _ = writeln!(page, "<li><b>{}</b>{}</li>", escape(figure), escape(meaning));
            }
            page.push_str("</ul>\n");
        }
        for chart in &self.charts {
            let _ = write!(
                page,
                "<h2>{}</h2>\n<figure><figcaption>{}</figcaption>\n{}<div class=\"wide\">{}</div></figure>\n",
                escape(&chart.title),
                escape(&chart.caption),
                chart.legend(),
                chart.svg(&self.phases, self.end_s)
            );
        }
        for (heading, table) in &self.tables {
            let _ = write!(page, "<h2>{}</h2>\n{}", escape(heading), html_table(table));
        }
        list(&mut page, "Definitions", &self.definitions);
        list(&mut page, "Where this ran", &self.setting);
        page.push_str("</body>\n</html>\n");
        page
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn html_table(table: &Table) -> String {
    let cells = |tag: &str, cells: &[String]| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let mut html = format!("<div class=\"wide\"><table>\n<tr>{}</tr>\n", cells("th", table.head()));
    for row in table.rows() {
        let _ = writeln!(html, "<tr>{}</tr>", cells("td", row));
    }
    html.push_str("</table></div>\n");
    html
}

fn list(page: &mut String, heading: &str, entries: &[(String, String)]) {
    if entries.is_empty() {
        return;
    }
    let _ = writeln!(page, "<h2>{}</h2>\n<dl>", escape(heading));
    for (term, text) in entries {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(term), escape(text));
    }
    page.push_str("</dl>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Series;

    fn page() -> Page {
        let mut table = Table::new(["t/s", "what happens"]);
        table.row(["0", "light load <1 ms"]);
        let chart = Chart {
            title: "Latency".into(),
            caption: "p99".into(),
            axis: "p99, in ms".into(),
            log: true,
            lines: vec![("SLA".into(), 1.0)],
            series: vec![
                Series { name: "direct".into(), points: vec![(0.0, 0.4), (1.0, 310.0)], dashed: false },
                Series { name: "helped".into(), points: vec![(1.0, 0.8)], dashed: true },
            ],
        };
        Page {
            title: "A burst, relieved".into(),
            introduction: vec!["What was done.".into()],
            outcome: vec![("0".into(), "wrong".into())],
            warnings: vec!["spoilt".into(), "late".into()],
            is_spoilt: true,
            phases: vec![Phase { name: "light".into(), from_s: 0.0, to_s: 1.0 }],
            end_s: 2.0,
            charts: vec![chart],
            tables: vec![("Phases".into(), table)],
            definitions: vec![("p99".into(), "a percentile".into())],
            setting: vec![("kernel".into(), "Linux".into())],
        }
    }

    #[test]
    fn the_page_has_no_external_references() {
        let html = page().html();
        for external in
            ["http:", "https:", "//", "src=", "href=", "url(", "@import", "<script", "<link", "<img"]
        {
            assert!(!html.contains(external), "{external}");
        }
        assert!(html.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn warnings_are_in_one_box_and_grey_the_outcome() {
        let html = page().html();
        assert_eq!(html.matches("class=\"warning\"").count(), 1);
        assert!(html.contains("<li>Spoilt</li>") && html.contains("<li>Late</li>"));
        assert!(html.contains("<ul class=\"outcome spoilt\">"));
        let html = Page { is_spoilt: false, warnings: Vec::new(), ..page() }.html();
        assert!(!html.contains("class=\"warning\"") && html.contains("<ul class=\"outcome\">"));
    }

    #[test]
    fn all_contents_are_on_the_page() {
        let html = page().html();
        for expected in [
            "A burst, relieved",
            "What was done.",
            "Spoilt",
            "p99, in ms",
            "light load &lt;1 ms",
            "a percentile",
            "Linux",
            "helped",
        ] {
            assert!(html.contains(expected), "{expected}");
        }
    }

    #[test]
    fn every_element_is_closed() {
        let html = page().html();
        let mut open: Vec<&str> = Vec::new();
        for tag in html.split('<').skip(1) {
            let name =
                tag.split(|c: char| !c.is_ascii_alphanumeric() && c != '/' && c != '!').next().unwrap();
            let body = tag.split('>').next().unwrap();
            if name.starts_with('!') || name == "meta" || body.ends_with('/') {
                continue;
            }
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "at {body}"),
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }
}
