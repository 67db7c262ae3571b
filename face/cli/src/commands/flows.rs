//! `spillway flows`: lists and clears the flows of a switch.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;
use spillway_daemon::RequestError;
use spillway_switch::control::{Request, request_status, send_request};
use spillway_switch::{Cleared, Client, Cursor, Flows, PAGE_FLOWS_MAX, Selection};

use super::output::Report;
use super::sockets;
use super::waiting::with_notice;

/// Maximum number of flows that one command lists.
const FLOWS_LISTED_MAX: usize = 100_000;

/// List or clear the flows of a switch
///
/// One line for each flow that was moved or is being moved: client, service, state, owner, target and generation. Flows
/// without a line belong to the server to which the client has connected.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<FlowsCommand>,

    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Subcommand)]
enum FlowsCommand {
    /// End the entries of flows, so that their packets go to the original servers
    ///
    /// A connection that lives on another server then ends: the original server resets it. For connections that have ended
    /// without a trace, and for tests.
    Clear(ClearArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    selection: SelectionArgs,

    /// List at most this many flows
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_limit)]
    limit: usize,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
#[group(skip)]
struct ClearArgs {
    #[command(flatten)]
    selection: SelectionArgs,

    /// All flows
    #[arg(long, conflicts_with_all = ["service", "client"], required_unless_present_any = ["service", "client"])]
    all: bool,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct SelectionArgs {
    /// Only flows of this service
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,

    /// Only flows of this client, or this connection of it
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    client: Option<Client>,
}

#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// Admin socket of the switch [default: switch.sock in /run/spillway or $XDG_RUNTIME_DIR/spillway]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| (1..=FLOWS_LISTED_MAX).contains(limit));
    limit.ok_or_else(|| format!("give a number from 1 to {FLOWS_LISTED_MAX}"))
}

impl SelectionArgs {
    fn selection(&self) -> Selection {
        Selection { service: self.service.clone(), client: self.client.map(|client| client.to_string()) }
    }
}

impl CommonArgs {
    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(sockets::switch)
    }

    /// Sends a request; an error names the socket.
    fn request<T: serde::de::DeserializeOwned>(&self, request: &Request) -> Result<T, String> {
        let socket = self.socket();
        let answer = with_notice(&socket, || send_request(&socket, request));
        answer.map_err(|error| format!("{}: {error}", socket.display()))
    }

    /// Fails within seconds if no daemon answers at the socket. Reading a large table takes longer, so the timeout of a
    /// list must be longer.
    fn check_daemon(&self) -> Result<(), String> {
        let socket = self.socket();
        match request_status(&socket) {
            Err(error @ RequestError::Socket(_)) => Err(format!("{}: {error}", socket.display())),
            _ => Ok(()),
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match &args.command {
        None => list(&args.list).print("flows", args.list.common.json),
        Some(FlowsCommand::Clear(clear_args)) => {
            clear(clear_args).print("flows clear", clear_args.common.json)
        }
    }
}

fn list(args: &ListArgs) -> Report {
    let selection = args.selection.selection();
    let page = |limit, after| {
        let request = Request::Flows { selection: selection.clone(), limit, after };
        args.common.request::<Flows>(&request)
    };
    match args.common.check_daemon().and_then(|()| pages(args.limit, page)) {
        Ok(found) => report(&found),
        Err(error) => Report::failed(error),
    }
}

/// Collects pages until `limit` flows are listed, or the last page was read. `page`: returns the first flows after a
/// position, at most a number of them.
fn pages(
    limit: usize,
    page: impl Fn(usize, Option<Cursor>) -> Result<Flows, String>,
) -> Result<Flows, String> {
    let mut all = Flows::default();
    loop {
        let after = all.flows.last().map(Cursor::from);
        let wanted = (limit - all.flows.len()).min(PAGE_FLOWS_MAX);
        let next = page(wanted, after)?;
        let is_last = next.flows.len() < wanted;
        all.total = next.total;
        all.flows.extend(next.flows);
        if is_last || all.flows.len() >= limit {
            return Ok(all);
        }
    }
}

fn report(found: &Flows) -> Report {
    let cut = found.total.saturating_sub(found.flows.len() as u64);
    let warning = format!("{cut} more are not listed; --limit N lists more");
    Report {
        lines: found.flows.iter().map(ToString::to_string).collect(),
        result: json!(found),
        warnings: if cut > 0 { vec![warning] } else { Vec::new() },
        ..Report::default()
    }
}

fn clear(args: &ClearArgs) -> Report {
    let request = Request::ClearFlows { selection: args.selection.selection() };
    match args.common.request::<Cleared>(&request) {
        Ok(cleared) => report_cleared(cleared),
        Err(error) => Report::failed(error),
    }
}

fn report_cleared(cleared: Cleared) -> Report {
    let Cleared { cleared: ended, changed } = cleared;
    let kept = if changed > 0 {
        format!(
            ", {changed} stay: their servers moved them again while they were cleared; repeat the command"
        )
    } else {
        String::new()
    };
    Report {
        lines: vec![format!("{ended} flows cleared{kept}")],
        result: json!(cleared),
        is_failure: changed > 0,
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Program::try_parse_from(line.split(' ')).map(|program| program.args)
    }

    #[test]
    fn a_selection_is_parsed() {
        let args = parse("flows --service cache --client 10.0.0.7 --limit 5 --json").unwrap();
        assert!(args.command.is_none() && args.list.common.json);
        assert_eq!(args.list.limit, 5);
        let selection = Selection { service: Some("cache".into()), client: Some("10.0.0.7".into()) };
        assert_eq!(args.list.selection.selection(), selection);
        assert_eq!(parse("flows").unwrap().list.selection.selection(), Selection::default());
        for wrong in ["flows --client host", "flows --limit 0", "flows --limit 100001", "flows --all"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn clearing_needs_a_selection() {
        let selected = |line: &str| match parse(line).unwrap().command {
            Some(FlowsCommand::Clear(args)) => (args.all, args.selection.selection()),
            None => panic!("{line} should clear"),
        };
        assert_eq!(selected("flows clear --all"), (true, Selection::default()));
        let client = Selection { service: None, client: Some("[2001:db8::1]:80".into()) };
        assert_eq!(selected("flows clear --client [2001:db8::1]:80 --json"), (false, client));
        for wrong in ["flows clear", "flows clear --all --service a", "flows --service a clear --all"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn long_lists_come_in_pages() {
        let flow = |port: usize| spillway_switch::FlowStatus {
            client: std::net::SocketAddr::from(([10, 0, 0, 7], u16::try_from(port).unwrap())),
            service: "cache".into(),
            endpoint: "10.0.0.5:80".parse().unwrap(),
            state: "owned".into(),
            generation: 1,
            owner: site(),
            target: None,
            original: site(),
            idle_ms: 0,
            deadline_ms: None,
            client_fin: false,
            owner_fin: false,
            owner_reset: false,
        };
        fn site() -> spillway_switch::SiteStatus {
            let address = "10.0.0.6:80".parse().unwrap();
            spillway_switch::SiteStatus {
                server: "b".into(),
                id: 2,
                address,
                mac: String::new(),
                encapsulated: false,
            }
        }
        let listed = |total: usize, limit| {
            let requests = std::cell::Cell::new(0);
            let page = |limit: usize, after: Option<Cursor>| {
                requests.set(requests.get() + 1);
                assert!(limit <= PAGE_FLOWS_MAX);
                let first = after.map_or(0, |after| usize::from(after.client.port()) + 1);
                let flows = (first..total).take(limit).map(flow).collect();
                Ok(Flows { total: total as u64, flows })
            };
            let found = pages(limit, page).unwrap();
            assert!(found.flows.is_sorted_by_key(|flow| flow.client));
            (found.total, found.flows.len(), requests.get())
        };
        assert_eq!(listed(25_000, 100_000), (25_000, 25_000, 3));
        assert_eq!(listed(25_000, 15_000), (25_000, 15_000, 2));
        assert_eq!(listed(5, 1000), (5, 5, 1));
        assert_eq!(listed(0, 1000), (0, 0, 1));
    }

    #[test]
    fn flows_that_stay_are_a_failure_with_a_reason() {
        let cleared = report_cleared(Cleared { cleared: 5, changed: 0 });
        assert_eq!((&*cleared.lines[0], cleared.is_failure), ("5 flows cleared", false));
        let kept = report_cleared(Cleared { cleared: 5, changed: 2 });
        assert!(
            kept.is_failure && kept.lines[0].contains("2 stay: their servers moved them"),
            "{:?}",
            kept.lines
        );
    }

    #[test]
    fn flows_beyond_the_limit_are_a_warning() {
        let found = Flows { total: 3, flows: Vec::new() };
        assert!(report(&found).warnings[0].starts_with("3 more are not listed"));
        assert!(report(&Flows::default()).warnings.is_empty());
    }
}
