//! `spillway exporter`: metrics of servers that run under `spillway run`, read from their status pages.

mod metrics;

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{SystemTime, UNIX_EPOCH};

use spillway_daemon::{SignalEvent, Signals};
use spillway_metrics::{CONTENT_TYPE, Exposition, HttpServer, Request, Response, process};
use spillway_shim_core::status::find_pages;
use spillway_values::listen_address;
use tracing::{info, warn};

use metrics::Servers;

/// Serve Prometheus metrics of servers under `spillway run`
///
/// Reads the status pages of this host's servers at each scrape, without a request to their processes. A page can be
/// read by its server's user and by root. SIGTERM ends it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Serve /metrics and /health here: HOST:PORT, :PORT for all IPv4 addresses, or PORT for loopback. Without a
    /// password
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9413")]
    listen: String,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            spillway_daemon::log_line(&format!("spillway: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let address = listen_address(&args.listen)?;
    let listener = HttpServer::bind(address).map_err(|error| {
        format!("cannot serve metrics at {address}: {error}; give another address (--listen)")
    })?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let logged = AtomicUsize::new(0);
    let server = HttpServer::serve(listener, move |request| respond(request, started, &logged))?;
    info!(address = %server.address(), "metrics of this host's servers are at /metrics");
    wait_for_end()?;
    Ok(())
}

/// Returns at SIGTERM or SIGINT.
fn wait_for_end() -> io::Result<()> {
    let (sender, receiver) = channel();
    let _signals = Signals::watch(move |event| sender.send(event).is_ok())?;
    while receiver.recv().is_ok_and(|event| event != SignalEvent::Terminate) {}
    Ok(())
}

/// `logged`: the number of pages with equal labels at the last scrape, so that only changes are logged.
fn respond(request: &Request, started: f64, logged: &AtomicUsize) -> Response {
    match request.path.as_str() {
        "/metrics" => {
            let servers = Servers::from(find_pages());
            let same_labels = servers.same_labels();
            if logged.swap(same_labels, Ordering::Relaxed) < same_labels {
                warn!(
                    same_labels,
                    "{same_labels} status pages have the program, port and pid of another page, and so no samples: run the \
                     exporter in the host's PID namespace"
                );
            }
            let mut exposition = Exposition::new();
            metrics::expose(&servers, &mut exposition);
            process::expose(&mut exposition, started);
            Response::ok(CONTENT_TYPE, exposition.into_text())
        }
        "/health" => Response::text(200, "healthy\n"),
        _ => Response::text(404, "not found; this port serves /metrics and /health\n"),
    }
}
