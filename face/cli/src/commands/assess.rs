//! `spillway assess`: estimates whether batching would help a server.

mod model;
mod process;
mod sockets;

use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spillway_shim_core::status::find_pages;

use super::output::Report;
use super::servers;
use super::times::interval;
use model::{Estimate, Sample, Verdict};
use process::Process;
use sockets::{Counts, Socket};

/// Estimate whether helpers would relieve a server
///
/// Reads only. Run it while the server is busy, as the server's user or as root. It measures the server's CPU time and
/// the segments of its TCP connections. CPU time that the kernel spends on received packets outside the process is not
/// visible, so the true gain is larger.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Process id of the server; several are measured at the same time
    #[arg(value_name = "PID", required = true)]
    pids: Vec<u32>,

    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "3s", alias = "seconds", value_parser = interval)]
    duration: Duration,

    /// Print JSON: an object, or a list with one for each of several processes
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let window = args.duration;
    // One thread for each process: all measure at the same time, and each enters its process's network namespace.
    let assessed: Vec<_> = std::thread::scope(|scope| {
        let start = |pid: &u32| {
            let pid = *pid;
            scope.spawn(move || assess_process(pid, window))
        };
        let threads: Vec<_> = args.pids.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    report(&args, assessed)
}

fn report(args: &Args, assessed: Vec<Result<Assessed, String>>) -> ExitCode {
    let (assessments, report) = Report::gather(assessed);
    let mut objects: Vec<Value> = assessments.iter().map(as_json).collect();
    let result = match args.pids.len() {
        1 => objects.pop().unwrap_or_default(),
        _ => json!(objects),
    };
    Report { lines: assessments.iter().map(as_text).collect(), result, ..report }.print("assess", args.json)
}

struct Assessed {
    pid: u32,
    name: String,
    sample: Sample,
    estimate: Estimate,
}

fn assess_process(pid: u32, window: Duration) -> Result<Assessed, String> {
    let process = Process::new(pid)?;
    process.enter_network()?;
    let page = find_pages()
        .0
        .into_iter()
        .find(|page| page.is_visible && page.pid == pid)
        .and_then(|page| page.status().ok());
    let link_port = page.as_ref().map(|status| status.link_port);
    let helped = page.map_or((0, 0), |status| (servers::established(&status), servers::connections(&status)));
    let (began, cpu, before) = (Instant::now(), process.cpu()?, connections(&process, link_port)?);
    std::thread::sleep(window);
    let (after, used) = (connections(&process, link_port)?, process.cpu()?.since(&cpu));
    let seconds = began.elapsed().as_secs_f64();
    let mut traffic = Counts::default();
    let (mut stayed, mut active) = (0, 0);
    for (inode, socket) in &after {
        let Some(earlier) = before.get(inode) else { continue };
        let growth = socket.counts.since(&earlier.counts);
        stayed += 1;
        active += usize::from(growth.data_in + growth.data_out > 0);
        traffic.add(&growth);
    }
    let changed = before.len() + after.len() - 2 * stayed;
    let sample = Sample { seconds, cpu: used, traffic, connections: stayed, active, changed, helped };
    Ok(Assessed { pid, name: process.name(), estimate: sample.estimate(), sample })
}

/// The process's connections from clients, by inode: those on a port where the process listens, without
/// links. If it has no listener, all its connections count.
fn connections(process: &Process, link_port: Option<u16>) -> Result<HashMap<u32, Socket>, String> {
    let process_inodes = process.sockets()?;
    let all = sockets::all().map_err(|error| format!("the kernel's list of sockets: {error}"))?;
    let is_of_process = |socket: &&Socket| process_inodes.contains(&socket.inode);
    let ports: HashSet<u16> = all
        .values()
        .filter(is_of_process)
        .filter(|socket| socket.is_listening)
        .map(|socket| socket.local.port())
        .collect();
    Ok(all
        .values()
        .filter(is_of_process)
        .filter(|socket| !socket.is_listening && link_port != Some(socket.local.port()))
        .filter(|socket| ports.is_empty() || ports.contains(&socket.local.port()))
        .map(|socket| (socket.inode, *socket))
        .collect())
}

fn conclusion(estimate: &Estimate) -> String {
    match estimate.verdict {
        Verdict::Helps => {
            format!("yes: expected gain {:.1}x when it is overloaded", estimate.gain_overloaded)
        }
        Verdict::Application => "no: CPU is in the application".into(),
        Verdict::LargeMessages => "no: the messages are large, and bytes cost the same in batches".into(),
        Verdict::FewConnections => "no: too few connections are active to fill batches".into(),
        Verdict::Little => {
            format!("no: expected gain only {:.1}x", estimate.gain_overloaded)
        }
        Verdict::TooQuiet => "unclear: the server has too little load now; run this while it is busy".into(),
        Verdict::NoClients => {
            "unclear: no TCP connection stayed open during the measurement; run this while clients are connected".into()
        }
    }
}

fn as_text(assessed: &Assessed) -> String {
    let Assessed { pid, name, sample, estimate } = assessed;
    let core = 1e9 * sample.seconds;
    let busy = 100.0 * sample.cpu.total_ns as f64 / core;
    let busiest = 100.0 * sample.cpu.busiest_ns as f64 / core;
    let split = sample.cpu.user.map_or_else(
        || "too little to split".into(),
        |user| {
            format!(
                "{:.0} % of it in the application, {:.0} % in the kernel",
                user * 100.0,
                (1.0 - user) * 100.0
            )
        },
    );
    let mut text = format!(
        "{name} ({pid}): {}\n\
         \x20 CPU      {busy:.1} % of a core: {split}; {} threads ran, the busiest {busiest:.1} %\n\
         \x20 traffic  {:.0} requests/s, {:.0} packets/s, {:.0} B a request, {:.0} B a reply\n\
         \x20 clients  {} connections, {} of them active",
        conclusion(estimate),
        sample.cpu.threads,
        estimate.requests_per_second,
        estimate.packets_per_second,
        estimate.bytes_per_request,
        estimate.bytes_per_reply,
        sample.connections,
        sample.active,
    );
    if sample.helped.0 > 0 {
        let (links, helped) = sample.helped;
        text += &format!(
            "; not counted: {helped} virtual connections on {links} links, which are helped already"
        );
    }
    if sample.changed > 0 {
        text += &format!("; not counted: {} that were opened or closed meanwhile", sample.changed);
    }
    if matches!(estimate.verdict, Verdict::TooQuiet | Verdict::NoClients)
        || estimate.requests_per_second < 1.0
    {
        return text;
    }
    text += &format!(
        "\n  why      a request costs {:.1} µs; {:.1} µs stay (the application, and copying bytes), the rest is shared \
         by the messages of a batch\n\
         \x20          at this rate {:.0} messages a batch: {:.1}x less CPU a request; overloaded {:.0}: {:.1}x",
        estimate.cpu_us,
        estimate.staying_us,
        estimate.batch_now,
        estimate.gain_now,
        estimate.batch_overloaded,
        estimate.gain_overloaded,
    );
    text + "\n  based on one request a segment, one helper core, 200 µs of delay, and what batches cost memcached and \
            redis (docs/howto/adopt.md)"
}

fn as_json(assessed: &Assessed) -> Value {
    let Assessed { pid, name, sample, estimate } = assessed;
    let core = 1e9 * sample.seconds;
    json!({
        "pid": pid,
        "program": name,
        "verdict": estimate.verdict.name(),
        "helps": estimate.verdict == Verdict::Helps,
        "conclusion": conclusion(estimate),
        "seconds": sample.seconds,
        "cpu_percent_of_core": 100.0 * sample.cpu.total_ns as f64 / core,
        "busiest_thread_percent": 100.0 * sample.cpu.busiest_ns as f64 / core,
        "threads": sample.cpu.threads,
        "user_percent": sample.cpu.user.map(|user| user * 100.0),
        "connections": sample.connections,
        "connections_active": sample.active,
        "connections_changed": sample.changed,
        "links": sample.helped.0,
        "virtual_connections": sample.helped.1,
        "requests_per_second": estimate.requests_per_second,
        "packets_per_second": estimate.packets_per_second,
        "segments_in": sample.traffic.segments_in,
        "segments_out": sample.traffic.segments_out,
        "bytes_per_request": estimate.bytes_per_request,
        "bytes_per_reply": estimate.bytes_per_reply,
        "cpu_us_per_request": estimate.cpu_us,
        "cpu_us_staying": estimate.staying_us,
        "messages_per_batch_now": estimate.batch_now,
        "gain_now": estimate.gain_now,
        "messages_per_batch_overloaded": estimate.batch_overloaded,
        "gain_overloaded": estimate.gain_overloaded,
    })
}
