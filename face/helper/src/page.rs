//! The status page: one HTML document without scripts or other resources, which the browser reloads every 2 s.

mod charts;

use std::fmt::{self, Write as _};

use crate::health::{health, refusal_reason};
use crate::rates::{Rates, ServiceRates};
use crate::status::{HelperStatus, ServiceStatus};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#222;background:#fff}\
a{color:#0b57d0}.wide{overflow-x:auto;margin:.5rem 0 2rem}\
table{border-collapse:collapse;width:100%}th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid #ddd;\
font-variant-numeric:tabular-nums;white-space:nowrap}th:first-child,td:first-child{text-align:left}\
.good{color:#176b2c}.bad{color:#b3261e}.note{color:#5f5f5f}p{overflow-wrap:anywhere}\
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:1rem;margin:.5rem 0 2rem}\
figure{margin:0;min-width:0}figcaption{font-size:.85rem;overflow-wrap:anywhere}\
svg{display:block;width:100%;height:4rem;background:#f4f4f4}polyline{fill:none;stroke:#0b57d0;stroke-width:1.5;\
vector-effect:non-scaling-stroke}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td{border-color:#444}a{color:#8ab4f8}\
.good{color:#7bd88f}.bad{color:#ff8a80}.note{color:#a8a8a8}svg{background:#242424}polyline{stroke:#8ab4f8}}";

/// Pages of documentation that the helper serves as text: path, title, text.
const DOCUMENTS: [(&str, &str, &str); 4] = [
    ("/docs/monitoring", "what these figures mean", include_str!("../../../docs/monitoring.md")),
    ("/docs/on-call", "on call", include_str!("../../../docs/howto/on-call.md")),
    ("/docs/limits", "limits", include_str!("../../../docs/limits.md")),
    ("/docs/configuration", "configuration", include_str!("../../../docs/configuration.md")),
];

/// The page of documentation at a path.
pub(crate) fn document(path: &str) -> Option<&'static str> {
    DOCUMENTS.iter().find(|(known, _, _)| *known == path).map(|(_, _, text)| *text)
}

/// The page. `history`: the rates of past intervals, oldest first; the tables show the last interval.
pub(crate) fn html(status: &HelperStatus, history: &[Rates]) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write_page(&mut page, status, history);
    page
}

fn write_page(page: &mut String, status: &HelperStatus, history: &[Rates]) -> fmt::Result {
    let rates = history.last();
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><meta http-equiv=\"refresh\" content=\"2\"><title>spillway helper {pid}\
         </title><style>{STYLE}</style></head><body>\n<h1>Spillway helper</h1>\n",
        pid = status.pid
    )?;
    match health(status) {
        Ok(()) => page.write_str("<p class=\"good\">healthy: accepts new clients</p>\n")?,
        Err(why) => why.lines().try_for_each(|line| writeln!(page, "<p class=\"bad\">{}</p>", Text(line)))?,
    }
    writeln!(
        page,
        "<p>version {}, process {}, up {}; {} clients of {}, {} KiB buffered</p>",
        Text(&status.version),
        status.pid,
        Uptime(status.uptime_ms / 1000),
        status.clients,
        status.max_connections,
        status.buffered_bytes / 1024
    )?;
    write_services(page, status, rates)?;
    charts::write(page, status, history)?;
    write_threads(page, status, rates)?;
    page.write_str(
        "<p class=\"note\">Rates are those of the last two seconds. The same figures as <a href=\"/status\">JSON</a> \
         and for <a href=\"/metrics\">Prometheus</a>. Documentation:",
    )?;
    for (index, (path, title, _)) in DOCUMENTS.iter().enumerate() {
        write!(page, "{} <a href=\"{path}\">{title}</a>", if index == 0 { "" } else { "," })?;
    }
    page.write_str(".</p>\n</body></html>\n")
}

fn write_services(page: &mut String, status: &HelperStatus, rates: Option<&Rates>) -> fmt::Result {
    page.write_str(
        "<div class=\"wide\"><table><tr><th>service</th><th>server</th><th>links up</th><th>plain</th><th>library</th>\
         <th>requests/s</th><th>batches/s</th><th>messages per batch</th><th>batch delay p50 µs</th><th>p99 µs</th>\
         <th>stalls</th><th>refused</th><th>reset</th></tr>\n",
    )?;
    for service in &status.services {
        let rates = rates.and_then(|rates| rates.services.iter().find(|rates| rates.name == service.name));
        write_service(page, service, rates)?;
    }
    page.write_str("</table></div>\n")
}

fn write_service(page: &mut String, service: &ServiceStatus, rates: Option<&ServiceRates>) -> fmt::Result {
    let (up, links) = (service.links_up(), service.links.len());
    // The paragraphs above the table name the reason for each red cell. A removed service refuses clients on purpose: its
    // cell is not red.
    let class = if service.removed || refusal_reason(service).is_none() { "good" } else { "bad" };
    write!(
        page,
        "<tr><td>{}</td><td>{}</td><td class=\"{class}\">{up} of {links}</td><td>{}</td><td>{}</td>",
        Text(&service.name),
        Text(&service.server),
        service.plain_clients,
        service.library_clients
    )?;
    for figure in [
        rates.map(|rates| rates.requests_per_second),
        rates.map(|rates| rates.batches_per_second),
        rates.and_then(|rates| rates.messages_per_batch),
        rates.and_then(|rates| rates.delay_p50_us),
        rates.and_then(|rates| rates.delay_p99_us),
    ] {
        match figure {
            Some(figure) => write!(page, "<td>{}</td>", Figure(figure))?,
            None => page.write_str("<td>–</td>")?,
        }
    }
    let reset = service.reset.total + service.clients_lost_with_link;
    writeln!(page, "<td>{}</td><td>{}</td><td>{reset}</td></tr>", service.stalls, service.refused.total)
}

fn write_threads(page: &mut String, status: &HelperStatus, rates: Option<&Rates>) -> fmt::Result {
    page.write_str(
        "<div class=\"wide\"><table><tr><th>thread</th><th>CPU %</th><th>clients</th><th>KiB buffered</th></tr>\n",
    )?;
    for (index, thread) in status.per_thread.iter().enumerate() {
        let cpu = rates.and_then(|rates| rates.thread_cpu_percent.get(index));
        let cpu = cpu.map_or("–".to_owned(), |percent| format!("{percent:.1}"));
        let (number, clients, kib) = (thread.thread, thread.clients, thread.buffered_bytes / 1024);
        writeln!(page, "<tr><td>{number}</td><td>{cpu}</td><td>{clients}</td><td>{kib}</td></tr>")?;
    }
    page.write_str("</table></div>\n")
}

/// Text with HTML's special characters escaped.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c => f.write_char(c),
        })
    }
}

/// A number, shown with two decimals below 10, one decimal below 100, and none from 100 on.
struct Figure(f64);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.0 >= 100.0 {
            0
        } else if self.0 >= 10.0 {
            1
        } else {
            2
        };
        write!(f, "{:.digits$}", self.0)
    }
}

/// A time in seconds, shown in its two largest units.
struct Uptime(u64);

impl fmt::Display for Uptime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3_600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            3_600..86_400 => write!(f, "{} h {} min", seconds / 3_600, seconds / 60 % 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::LinkStatus;

    #[test]
    fn names_are_escaped_and_other_hosts_are_not_referenced() {
        let service = ServiceStatus { name: "<script>\"&".into(), ..ServiceStatus::default() };
        let status = HelperStatus { services: vec![service], ..HelperStatus::default() };
        let page = html(&status, &[]);
        assert!(page.contains("&lt;script&gt;&quot;&amp;") && !page.contains("<script"), "{page}");
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("src="), "{page}");
        assert!(page.contains("http-equiv=\"refresh\""));
    }

    #[test]
    fn a_service_that_refuses_clients_is_red_with_the_reason_above() {
        let link = LinkStatus { state: "up".into(), ..LinkStatus::default() };
        let service = ServiceStatus { name: "a".into(), links: vec![link], ..ServiceStatus::default() };
        let page = |service| html(&HelperStatus { services: vec![service], ..HelperStatus::default() }, &[]);
        let accepts = page(service.clone());
        assert!(accepts.contains("healthy") && !accepts.contains("class=\"bad\""), "{accepts}");
        let off = page(ServiceStatus { relief_override: "off".into(), ..service });
        assert!(!off.contains("healthy") && !off.contains("class=\"good\""), "{off}");
        assert!(off.contains("a: relief is off: no new clients"), "{off}");
    }

    #[test]
    fn uptimes_have_two_units_and_figures_three_digits() {
        let uptimes = [59, 61, 3_600 * 5 + 60 * 4, 86_400 * 2 + 3_600].map(|s| Uptime(s).to_string());
        assert_eq!(uptimes, ["59 s", "1 min 1 s", "5 h 4 min", "2 d 1 h"]);
        let figures = [0.0, 1.234, 12.34, 123.4].map(|f| Figure(f).to_string());
        assert_eq!(figures, ["0.00", "1.23", "12.3", "123"]);
    }
}
