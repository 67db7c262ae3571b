//! The command `load` of `spillway` and of `spillway-lab`: runs the load generator and prints a table or JSON.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;
use spillway_client::Encryption;
use spillway_values::{parse_duration, server_address};

use crate::arrivals::Spacing;
use crate::config::{
    Assignment, Config, EngineKind, Fill, Helpers, PolicySettings, ProtocolKind, RequestLoop, Sessions,
    XdpOptions,
};
use crate::control::ScheduledCommand;
use crate::{Error, Report, RunIo, failed, output};

/// Generate load and verify every reply
///
/// Replies are compared byte for byte. In the open loop (the default) a seeded process sets the times at which requests
/// are due, and latency counts from then. The exit code is 1 when replies were wrong or lost or connections were reset,
/// and 2 when the run could not be done. Slow replies do not change it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The server's ordinary port, or a helper's port for plain clients
    #[arg(long, value_name = "HOST:PORT", value_parser = server_address)]
    server: SocketAddr,
    /// Link port of a helper to move connections to; repeat for more
    #[arg(long, value_name = "HOST:PORT", value_parser = server_address)]
    helper: Vec<SocketAddr>,
    /// Make each connection a session of the client library, carried by a --helper or by --link, and by another one
    /// when that fails
    #[arg(long)]
    sessions: bool,
    /// The server's own link port, the last route of sessions or their only one
    #[arg(long, value_name = "HOST:PORT", value_parser = server_address, requires = "sessions")]
    link: Option<SocketAddr>,
    /// Begin all sessions on the first --helper and keep the others as standby; otherwise sessions are spread
    #[arg(long, requires = "sessions")]
    standby: bool,
    /// Begin sessions at --link, move them to helpers while replies are later than --sla, and back
    #[arg(long, requires = "link")]
    relief: bool,
    /// With --relief: connections that decide together, as those of one process do
    #[arg(long, value_name = "N", default_value_t = 10, requires = "relief")]
    group: u32,
    /// With --relief: helpers that are asked for their load before one is chosen
    #[arg(long = "asked", value_name = "N", default_value_t = 2, requires = "relief")]
    helpers_asked: usize,
    /// Key of library clients (with --helper or --link)
    #[arg(long, value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// Refuse links that would not be encrypted (older peers)
    #[arg(long, requires = "client_key")]
    require_encryption: bool,
    /// What carries the connections: the kernel's sockets, or, in `spillway-lab load`, the user-level TCP stack on an
    /// interface that it shares with the kernel by AF_XDP
    #[arg(long, value_enum, default_value_t = Engine::Sockets)]
    engine: Engine,
    /// With --engine xdp: the interface towards the server; it needs one of --threads for each receive queue
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// With --engine xdp: local ports of the connections, which the kernel does not use; by default from 10000 to the first
    /// one of the kernel's range
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports)]
    ports: Option<RangeInclusive<u16>>,
    /// Protocol of requests
    #[arg(long, value_enum, default_value_t = Protocol::Memcached)]
    protocol: Protocol,
    /// Connections, each with at most one outstanding request
    #[arg(short, long, value_name = "N", default_value_t = 50)]
    connections: u32,
    /// Threads, each with its share of connections and rate
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Open loop: requests per second over all connections
    #[arg(short, long, value_name = "PER_SECOND", default_value_t = 1000.0, conflicts_with = "closed")]
    rate: f64,
    /// Closed loop: each connection sends its next request when it has its reply
    #[arg(long)]
    closed: bool,
    /// Distribution of the times between arrivals
    #[arg(long, value_enum, default_value_t = Arrive::Poisson)]
    arrivals: Arrive,
    /// How an arrival chooses its connection
    #[arg(long, value_enum, default_value_t = Assign::RoundRobin)]
    assign: Assign,
    /// With --assign skewed: exponent of Zipf's law, by which the connections of a thread differ in their rates
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.8)]
    skew: f64,
    /// Time from the start to the last arrival; 0s: until `stop`, SIGINT or SIGTERM
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Time from the start that is left out of the totals
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    warmup: Duration,
    /// Requests that are unanswered for this time after the end are lost
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    drain: Duration,
    /// A reply later than this is late
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_duration)]
    sla: Duration,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keys: u32,
    /// Length of a key in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 32)]
    key_size: usize,
    /// Length of a value, of an echo's payload, or of the target of an HTTP request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    value_size: usize,
    /// With --protocol http: request objects of this size, up to 4 MiB, which `spillway-lab http` has: the target is followed
    /// by `?bytes=BYTES`
    #[arg(long, value_name = "BYTES")]
    object_size: Option<u32>,
    /// Exponent of the keys' popularity; 0 makes all keys equally likely
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.99)]
    zipf: f64,
    /// Fraction of gets; the others are sets
    #[arg(long, value_name = "0..1", default_value_t = 1.0)]
    get_ratio: f64,
    /// Before the run: set and verify all keys, only verify them, or neither
    #[arg(long, value_enum, default_value_t = Filling::Set)]
    fill: Filling,
    /// Several generators that set keys of one space: this one's number, from 0, and how many there are
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = share)]
    share: (u32, u32),
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests that may wait in the generator for their busy connections
    #[arg(long, value_name = "N", default_value_t = 1 << 18)]
    queue: u32,
    /// Time between the starts of two connections' moves
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = parse_duration)]
    pace: Duration,
    /// Run commands at a time after the start: `20s=rate:9600`, `20s=move:helper:pace=100us,mark:relief`
    #[arg(long, value_name = "TIME=COMMANDS", value_parser = ScheduledCommand::parse)]
    at: Vec<Vec<ScheduledCommand>>,
    /// Read commands: `rate N`, `move helper|direct [pace=TIME] [count=N]`, `relief on|off|auto`, `mark NAME`, `start`,
    /// `stop`
    #[arg(long, value_enum, value_name = "FROM")]
    control: Option<Control>,
    /// Connect and fill, then wait for the command `start [MONOTONIC_NS]`
    #[arg(long, requires = "control")]
    hold: bool,
    /// Do not count reset connections as failures (for tests of faults)
    #[arg(long)]
    allow_resets: bool,
    /// Width of the bins in the JSON outputs
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    bin: Duration,
    /// Write the final report, with all bins, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write events as JSON lines to standard output, instead of the table
    #[arg(long)]
    events: bool,
    /// Write a line a second to standard error even if it is not a terminal
    #[arg(long)]
    progress: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Protocol {
    Memcached,
    Redis,
    Echo,
    Http,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Arrive {
    Poisson,
    Constant,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Assign {
    RoundRobin,
    Random,
    Skewed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Filling {
    Set,
    Verify,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    Sockets,
    Xdp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Control {
    Stdin,
}

/// Executes the command of `program`. `envelope` makes the document for `--json` from the report, and from whether the
/// run failed.
pub fn run(args: Args, program: &str, envelope: fn(Value, bool) -> Value) -> ExitCode {
    match load(args, program, envelope) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("{program} load: {why}");
            ExitCode::from(2)
        }
    }
}

/// Runs the load; returns whether the run had no failures.
fn load(args: Args, program: &str, envelope: fn(Value, bool) -> Value) -> Result<bool, Error> {
    let system_error = |what: String| move |cause: io::Error| Error::System { what, cause };
    // Opened before the run, so that a report that cannot be written is an error at once.
    let json = match &args.json {
        Some(path) => {
            let file =
                File::create(path).map_err(system_error(format!("cannot write {}", path.display())))?;
            Some(BufWriter::new(file))
        }
        None => None,
    };
    let run_io = RunIo {
        control: match args.control {
            Some(Control::Stdin) => {
                let input = io::stdin().as_fd().try_clone_to_owned();
                Some(input.map_err(system_error("cannot read standard input".into()))?)
            }
            None => None,
        },
        events: args.events.then(|| Box::new(BufWriter::new(io::stdout())) as Box<dyn Write + Send>),
        progress: (args.progress || io::stderr().is_terminal())
            .then(|| Box::new(io::stderr()) as Box<dyn Write + Send>),
        signals: true,
    };
    let events = args.events;
    let config = config(args)?;
    let report = crate::run(&config, run_io)?;
    if let Some(mut file) = json {
        // The envelope's `ok` is false in a failed run, whose exit code is 1.
        let document = envelope(serde_json::json!(report), failed(&config, &report));
        let written = serde_json::to_writer(&mut file, &document).map_err(io::Error::from);
        written
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.flush())
            .map_err(system_error("cannot write the report".into()))?;
    }
    let is_printed = events || print(&report, program);
    Ok(is_printed && !failed(&config, &report))
}

/// Prints the report. Returns whether that succeeded; a closed pipe is not a failure.
fn print(report: &Report, program: &str) -> bool {
    let mut out = io::stdout().lock();
    match out.write_all(output::table(report).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("{program} load: cannot print: {error}");
            false
        }
        _ => true,
    }
}

fn config(args: Args) -> Result<Config, Error> {
    let key = match &args.client_key {
        Some(path) => Some(spillway_keys::read_key_file(path).map_err(|e| Error::Usage(e.to_string()))?),
        None => None,
    };
    let engine = engine(&args)?;
    let spacing = match args.arrivals {
        Arrive::Poisson => Spacing::Poisson,
        Arrive::Constant => Spacing::Constant,
    };
    let mut schedule: Vec<ScheduledCommand> = args.at.into_iter().flatten().collect();
    schedule.sort_by_key(|scheduled| scheduled.at_ns);
    Ok(Config {
        server: args.server,
        helpers: Helpers {
            addresses: args.helper,
            key,
            encryption: if args.require_encryption { Encryption::Required } else { Encryption::Preferred },
        },
        sessions: args.sessions.then_some(Sessions {
            server_link: args.link,
            standby: args.standby,
            relief: args
                .relief
                .then_some(PolicySettings { group: args.group, helpers_asked: args.helpers_asked }),
        }),
        engine,
        protocol: match args.protocol {
            Protocol::Memcached => ProtocolKind::Memcached,
            Protocol::Redis => ProtocolKind::Redis,
            Protocol::Echo => ProtocolKind::Echo,
            Protocol::Http => ProtocolKind::Http,
        },
        connections: args.connections,
        threads: args.threads,
        request_loop: if args.closed {
            RequestLoop::Closed
        } else {
            RequestLoop::Open { rate_per_s: args.rate, spacing }
        },
        assignment: match args.assign {
            Assign::RoundRobin => Assignment::RoundRobin,
            Assign::Random => Assignment::Random,
            Assign::Skewed => Assignment::Skewed { exponent: args.skew },
        },
        duration: (!args.duration.is_zero()).then_some(args.duration),
        warmup: args.warmup,
        drain: args.drain,
        keys: args.keys,
        key_size: args.key_size,
        value_size: args.value_size,
        object_size: args.object_size,
        zipf: (args.zipf != 0.0).then_some(args.zipf),
        get_ratio: args.get_ratio,
        share: args.share,
        fill: match args.fill {
            Filling::Set => Fill::Set,
            Filling::Verify => Fill::Verify,
            Filling::Skip => Fill::Skip,
        },
        seed: args.seed,
        sla: args.sla,
        bin: args.bin,
        queue: args.queue,
        move_pace: args.pace,
        schedule,
        allow_resets: args.allow_resets,
        hold: args.hold,
    })
}

fn engine(args: &Args) -> Result<EngineKind, Error> {
    let usage = |what: String| Err(Error::Usage(what));
    match (args.engine, &args.interface) {
        (Engine::Sockets, None) if args.ports.is_none() => Ok(EngineKind::Sockets),
        (Engine::Sockets, _) => {
            usage("--interface and --ports need the user-level stack: give --engine xdp".into())
        }
        (Engine::Xdp, Some(interface)) => {
            Ok(EngineKind::Xdp(XdpOptions { interface: interface.clone(), ports: args.ports.clone() }))
        }
        (Engine::Xdp, None) => usage(format!(
            "--engine xdp needs the interface towards the server: give --interface NAME (`ip route get {}` prints the \
             name)",
            args.server.ip()
        )),
    }
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let ends = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    ends.map(|(first, last)| RangeInclusive::new(first, last))
        .ok_or_else(|| "give the first and the last port, such as 10000-19999".into())
}

fn share(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    numbers.ok_or_else(|| {
        "give this generator's number, from 0, and the number of generators, such as 0/4".into()
    })
}
