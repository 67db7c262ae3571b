//! The text of `top`, in lines of 79 columns at most, unless a name is long.

use spillway_helper::{HelperStatus, Rates, ServiceRates, ServiceStatus};
use spillway_shim_core::status::State;

use super::servers::ServerSample;
use super::{HelperSample, Snapshot};

const COLUMN_HEADS: [&str; 9] =
    ["links", "clients", "req/s", "batch/s", "msg/b", "p50 us", "p99 us", "stall/s", "ref/s"];

pub(super) fn text(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for HelperSample { socket, status, rates } in &snapshot.helpers {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        match status {
            Ok(status) => helper_lines(status, rates.as_ref(), &mut lines),
            Err(error) => lines.push(format!("{}: {error}", socket.display())),
        }
    }
    for sidecar in &snapshot.sidecars {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(sidecar.lines());
    }
    for switch in &snapshot.switches {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(switch.lines());
    }
    for server in &snapshot.stack_servers {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(server.lines());
    }
    if !snapshot.servers.is_empty() {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(row("server", COLUMN_HEADS));
        for server in &snapshot.servers {
            lines.push(server_line(server));
            lines.extend(state_line(server));
        }
    }
    lines
}

/// A server's line; servers do not measure batch delays.
fn server_line(server: &ServerSample) -> String {
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), format_figure);
    let rates = server.rates;
    row(
        &server.program,
        [
            &server.links().to_string(),
            &server.connections().to_string(),
            &figure(rates.map(|rates| rates.messages)),
            &figure(rates.map(|rates| rates.batches)),
            &figure(rates.and_then(|rates| rates.messages_per_batch)),
            "-",
            "-",
            &figure(rates.map(|rates| rates.stalls)),
            &figure(rates.map(|rates| rates.refused)),
        ],
    )
}

/// A line about a server whose link port is closed.
fn state_line(server: &ServerSample) -> Option<String> {
    let state = server.status.state;
    (state != State::On).then(|| format!("  process {}: {}", server.pid, state.name()))
}

fn helper_lines(status: &HelperStatus, rates: Option<&Rates>, lines: &mut Vec<String>) {
    let state = if status.draining { "draining" } else { "up" };
    lines.push(format!(
        "{} ({}) {state} {}  clients {} of {}  buffered {}B",
        status.name,
        status.pid,
        format_duration(status.uptime_ms / 1000),
        status.clients,
        status.max_connections,
        format_figure(status.buffered_bytes as f64)
    ));
    if let Some(rates) = rates {
        lines.push(cpu_line(&rates.thread_cpu_percent));
    }
    if status.threads_silent > 0 {
        lines.push(format!("{} of {} threads do not answer", status.threads_silent, status.threads));
    }
    lines.push(row("service", COLUMN_HEADS));
    for service in &status.services {
        let rates = rates.and_then(|rates| rates.services.iter().find(|rates| rates.name == service.name));
        lines.push(service_line(service, rates));
        lines.extend(links_line(service));
        lines.extend(load_queries_line(service));
    }
}

/// CPU use of network threads in percent of a core; only the busiest ones if a line has no room for all.
fn cpu_line(percent: &[f64]) -> String {
    const SHOWN_MAX: usize = 7;
    let mut threads: Vec<(usize, f64)> = percent.iter().copied().enumerate().collect();
    let hidden = threads.len().saturating_sub(SHOWN_MAX);
    if hidden > 0 {
        threads.sort_by(|a, b| b.1.total_cmp(&a.1));
        threads.truncate(SHOWN_MAX);
    }
    let each: Vec<String> =
        threads.iter().map(|(thread, percent)| format!("{thread}: {percent:.0}%")).collect();
    let hidden_text = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
    format!("CPU {}{hidden_text}", each.join(" "))
}

fn service_line(service: &ServiceStatus, rates: Option<&ServiceRates>) -> String {
    let up = service.links_up();
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), format_figure);
    let rate = |value: fn(&ServiceRates) -> Option<f64>| figure(rates.and_then(value));
    row(
        &service.name,
        [
            &format!("{up}/{}", service.links.len()),
            &(service.plain_clients + service.library_clients).to_string(),
            &rate(|r| Some(r.requests_per_second)),
            &rate(|r| Some(r.batches_per_second)),
            &rate(|r| r.messages_per_batch),
            &rate(|r| r.delay_p50_us),
            &rate(|r| r.delay_p99_us),
            &rate(|r| Some(r.stalls_per_second)),
            &rate(|r| Some(r.refused_per_second)),
        ],
    )
}

/// Links that do not accept clients, by state.
fn links_line(service: &ServiceStatus) -> Option<String> {
    let mut states: Vec<(&str, usize)> = Vec::new();
    for link in service.links.iter().filter(|link| link.state != "up") {
        match states.iter_mut().find(|(state, _)| *state == link.state) {
            Some((_, count)) => *count += 1,
            None => states.push((&link.state, 1)),
        }
    }
    let each: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    (!each.is_empty()).then(|| format!("  links to {}: {}", service.server, each.join(", ")))
}

/// Counts since the start: load queries answered and refused, and library clients sent away. `None` if all
/// are 0.
fn load_queries_line(service: &ServiceStatus) -> Option<String> {
    let refused: Vec<String> = service
        .load_queries_refused
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{reason} {}", format_count(*count)))
        .collect();
    let answered = service.load_queries_answered;
    if answered == 0 && refused.is_empty() && service.library_clients_sent_away == 0 {
        return None;
    }
    let refused =
        if refused.is_empty() { String::new() } else { format!(", refused: {}", refused.join(", ")) };
    let sent_away = if service.library_clients_sent_away == 0 {
        String::new()
    } else {
        format!("; sent away {}", format_count(service.library_clients_sent_away))
    };
    Some(format!("  asked for load {}{refused}{sent_away}", format_count(answered)))
}

fn format_count(count: u64) -> String {
    if count < 10 { count.to_string() } else { format_figure(count as f64) }
}

fn row(name: &str, cells: [&str; 9]) -> String {
    let [links, clients, requests, batches, messages, p50, p99, stalls, refused] = cells;
    format!(
        "{name:<13}{links:>6}{clients:>8}{requests:>9}{batches:>8}{messages:>6}{p50:>7}{p99:>7}{stalls:>8}{refused:>7}"
    )
}

/// Formats a figure in at most five characters.
fn format_figure(value: f64) -> String {
    match value {
        v if v < 9.95 && v > 0.0 => format!("{v:.1}"),
        v if v < 9_999.5 => format!("{v:.0}"),
        v if v < 999_500.0 => format!("{:.0}k", v / 1e3),
        v if v < 999.5e6 => format!("{:.0}M", v / 1e6),
        v => format!("{:.0}G", v / 1e9),
    }
}

fn format_duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_helper::LinkStatus;

    fn service(states: &[&str]) -> ServiceStatus {
        let json = |state: &&str| {
            serde_json::json!({
                "thread": 0, "state": state, "connections": 0, "pending_bytes": 0
            })
        };
        let links: Vec<_> = states.iter().map(json).collect();
        let links: Vec<LinkStatus> = serde_json::from_value(links.into()).expect("links");
        ServiceStatus {
            name: "cache".into(),
            server: "10.0.0.5:11411".into(),
            links,
            ..ServiceStatus::default()
        }
    }

    #[test]
    fn a_busy_helper_fits_eighty_columns() {
        let status = HelperStatus {
            name: "helper-1".into(),
            pid: 4_000_000,
            uptime_ms: 200_000_000,
            clients: 50_000,
            max_connections: 50_000,
            buffered_bytes: 1 << 30,
            services: vec![ServiceStatus {
                load_queries_answered: 12_345,
                load_queries_refused: [("off", 0), ("proof", 7)].map(|(r, n)| (r.to_owned(), n)).into(),
                library_clients_sent_away: 40,
                ..service(&["up", "up", "waiting", "draining"])
            }],
            ..HelperStatus::default()
        };
        let rates = ServiceRates {
            name: "cache".into(),
            requests_per_second: 1_234_567.0,
            batches_per_second: 98_765.0,
            messages_per_batch: Some(1000.0),
            delay_p50_us: Some(123.4),
            delay_p99_us: Some(1_000_000.0),
            stalls_per_second: 0.25,
            ..ServiceRates::default()
        };
        let rates = Rates { seconds: 1.0, thread_cpu_percent: vec![100.0; 64], services: vec![rates] };
        let helpers = vec![
            HelperSample { socket: "/run/a".into(), status: Ok(status), rates: Some(rates) },
            HelperSample { socket: "/run/b".into(), status: Err("no answer".into()), rates: None },
        ];
        let lines = text(&Snapshot { helpers, ..Snapshot::default() });
        assert!(lines.iter().all(|line| line.chars().count() <= 79), "{lines:#?}");
        let text = lines.join("\n");
        assert!(
            text.contains("cache           2/4       0       1M     99k  1000    123     1M     0.2      0"),
            "{text}"
        );
        assert!(text.contains("links to 10.0.0.5:11411: 1 waiting, 1 draining"), "{text}");
        assert!(text.contains("asked for load 12k, refused: proof 7; sent away 40"), "{text}");
        assert!(
            text.contains("and 57 more") && text.contains("2d07h") && text.contains("/run/b: no answer"),
            "{text}"
        );
    }

    #[test]
    fn figures_are_short() {
        let figures = [0.0, 0.04, 9.9, 9.97, 123.6, 9_999.0, 12_345.0, 1e6, 5e12].map(format_figure);
        assert_eq!(figures, ["0", "0.0", "9.9", "10", "124", "9999", "12k", "1M", "5000G"]);
        assert_eq!([59, 61, 3_700, 90_000].map(format_duration), ["59s", "1m01s", "1h01m", "1d01h"]);
    }
}
