//! The command line of one load generator: its share of the clients.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_lab::{Host, Launch, Output};

use super::clients::{Clients, Routes, Traffic};
use crate::programs::Programs;

/// Longest wait for outstanding replies after the last request.
pub(super) const DRAIN: Duration = Duration::from_secs(10);

/// The generator with this index of `count` generators. Its options divide connections, rate and orders by `count`.
pub(super) fn launch(
    programs: &Programs,
    clients: &Clients,
    traffic: &Traffic,
    host: &Host,
    index: usize,
    count: usize,
) -> Launch {
    let share =
        clients.connections / count as u32 + u32::from((index as u32) < clients.connections % count as u32);
    let us_text = |d: Duration| format!("{}us", d.as_micros());
    let mut launch = Launch::new(traffic.engine.program(programs))
        .name("load")
        .args(["load", "--events", "--control", "stdin", "--hold", "--zipf", "0", "--key-size", "32"])
        .args(["--protocol", &traffic.protocol.to_string(), "--value-size", &traffic.value_size.to_string()])
        .args(["--get-ratio", &traffic.get_ratio.to_string()])
        .args(["--server", &clients.server.to_string()])
        .args(["--connections", &share.to_string()])
        .args(["--keys", &clients.keys.to_string()])
        .args(["--fill", if clients.fill && index == 0 { "set" } else { "skip" }])
        // Generators derive the keys from the seed, so all use the same keys; `--share` makes their requests
        // differ.
        .args(["--seed", &clients.seed.to_string(), "--share", &format!("{index}/{count}")])
        .args(["--duration", &us_text(clients.duration.unwrap_or_default())])
        .args([
            "--sla",
            &us_text(clients.sla),
            "--bin",
            &format!("{}ms", traffic.bin_ms),
            "--drain",
            &us_text(DRAIN),
        ])
        .args(["--threads", &clients.threads.to_string()])
        .args(traffic.engine.arguments(host));
    launch = match traffic.closed {
        true => launch.arg("--closed"),
        false => launch.args(["--rate", &format!("{:.3}", clients.rate_per_s / count as f64)]),
    };
    if let Some(bytes) = traffic.object_size {
        launch = launch.args(["--object-size", &bytes.to_string()]);
    }
    if traffic.constant {
        launch = launch.args(["--arrivals", "constant"]);
    }
    if let Some(exponent) = traffic.skew {
        launch = launch.args(["--assign", "skewed", "--skew", &exponent.to_string()]);
    }
    if let Some(routes) = &clients.sessions {
        launch = with_sessions(launch, routes, clients.helpers_asked);
    }
    if let Some((helpers, key)) = &clients.helpers {
        launch = with_helpers(launch, helpers).args(["--require-encryption", "--client-key"]).arg(key);
    }
    for (at, order) in &clients.schedule {
        launch = launch
            .args(["--at", &format!("{}={}", us_text(*at), order.arguments(count, clients.pace).join(":"))]);
    }
    launch.output(Output::Piped).piped_stdin()
}

fn with_sessions(launch: Launch, routes: &Routes, helpers_asked: Option<usize>) -> Launch {
    let launch = launch.args(["--sessions", "--require-encryption", "--client-key"]).arg(&routes.key);
    let mut launch = with_helpers(launch, &routes.helpers);
    if routes.standby {
        launch = launch.arg("--standby");
    }
    if let Some(link) = routes.link {
        launch = launch.args(["--link", &link.to_string()]);
    }
    if let Some(group) = routes.sessions_per_process {
        launch = launch.args(["--relief", "--group", &group.to_string()]);
        if let Some(helpers_asked) = helpers_asked {
            launch = launch.args(["--asked", &helpers_asked.to_string()]);
        }
    }
    launch
}

fn with_helpers(launch: Launch, helpers: &[SocketAddr]) -> Launch {
    helpers.iter().fold(launch, |launch, helper| launch.args(["--helper", &helper.to_string()]))
}
