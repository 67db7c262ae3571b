//! Options of servers whose connections move, and the process around them.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use spillway_daemon::Log;
use spillway_stack_server::{
    AddressRange, EngineError, EngineSettings, LinkPortSettings, Measuring, Movable, MoveSettings, MovesFile,
    ProcessSettings,
};
use spillway_values::parse_duration;
use tracing::warn;

use super::partition::Partition;
use super::working::Working;

/// Maximum time to write the lines that wait when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Options of a server on the user-level stack.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct XdpArgs {
    /// The interface, which the stack shares with the kernel
    #[arg(long, value_name = "NAME")]
    interface: String,

    /// The address and port to which clients connect
    #[arg(long, value_name = "ADDRESS:PORT")]
    service: SocketAddr,

    /// The service's name, in orders and in the status [default: that of the command]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The servers of the service: a file with the section [moves]; without it no connection moves
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,

    /// The switch's address for control messages [default: `switch` in the file]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "peers")]
    switch: Option<SocketAddr>,

    /// The key that this server shares with the switch [default: `key_file` in the file]
    #[arg(long, value_name = "FILE", requires = "peers")]
    key: Option<PathBuf>,

    /// Path of the admin socket, for `spillway move` and `spillway status`
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Serve `/metrics`, `/status` and `/health` at this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,

    /// The link port, to which helpers connect, at the IP address that the service has here
    #[arg(long, value_name = "ADDRESS:PORT", requires = "link_key")]
    link: Option<SocketAddr>,

    /// The key of helpers
    #[arg(long, value_name = "FILE", requires = "link")]
    link_key: Option<PathBuf>,

    /// Client addresses that helpers may state; repeat for more [default: private ones]
    #[arg(long, value_name = "CIDR", requires = "link")]
    allow_clients: Vec<AddressRange>,

    /// Maximum number of connections
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    connections: u32,

    /// Record the times of the steps of moves, and keep those of the last N that have ended, for measurements
    #[arg(long, value_name = "N", default_value_t = 0, requires = "peers", value_parser = clap::value_parser!(u32).range(..=1 << 16))]
    trace_moves: u32,

    /// Stop the server's thread for this time after each export, as if exports took longer, for measurements
    #[arg(long, value_name = "TIME", default_value = "0s", requires = "peers", value_parser = parse_duration)]
    export_pause: Duration,

    /// Time that each request takes, one after the other: the server waits for it and uses no CPU. A request is a received
    /// segment
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    work: Duration,
}

/// Options of a server on the user-level stack or on the kernel's TCP.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StackArgs {
    /// The TCP that the server stands on
    #[arg(long, value_enum, default_value_t = Engine::Xdp)]
    engine: Engine,

    #[command(flatten)]
    args: XdpArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Engine {
    /// The user-level stack on AF_XDP
    Xdp,
    /// Sockets of the kernel
    Kernel,
}

impl XdpArgs {
    /// The settings of moves in the file of `--peers`.
    fn moves(&self) -> Result<Option<MoveSettings>, EngineError> {
        let file = self.peers.as_deref().map(MovesFile::read).transpose()?;
        file.map(|file| file.settings(self.switch, self.key.as_deref())).transpose()
    }

    fn partition(&self, name: &str) -> Result<Partition, EngineError> {
        let peers = self.moves()?.map(|moves| moves.peers).unwrap_or_default();
        let own = peers.iter().find(|peer| peer.name == name).ok_or_else(|| {
            let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
            EngineError::Settings(format!(
                "--partition: no peer has the name {name}: they are {}",
                names.join(", ")
            ))
        })?;
        Ok(Partition::new(name, own.id, peers.iter().map(|peer| peer.id)))
    }
}

impl StackArgs {
    /// The objects of the server that has this name among the peers.
    pub(crate) fn partition(&self, name: &str) -> Result<Partition, EngineError> {
        self.args.partition(name)
    }

    /// Runs the server of a command, as [`run_on`].
    pub(crate) fn run<A: Movable + Send + 'static>(&self, command: &str, application: A) -> ExitCode {
        run_on(self.engine, &self.args, command, application)
    }
}

/// Runs a server until SIGTERM. Prints a line when clients can connect.
pub(crate) fn run_on<A: Movable + Send + 'static>(
    engine: Engine,
    args: &XdpArgs,
    command: &str,
    application: A,
) -> ExitCode {
    let served = start_log().map_err(EngineError::Host).and_then(|()| {
        if args.work.is_zero() {
            serve(engine, args, command, application)
        } else {
            serve(engine, args, command, Working::new(application, args.work, args.export_pause))
        }
    });
    let code = served.unwrap_or_else(|error| {
        spillway_daemon::log_line(&format!("spillway-lab {command}: {error}"));
        ExitCode::FAILURE
    });
    spillway_daemon::flush_log(FLUSH_TIMEOUT);
    code
}

fn serve<A: Movable + Send + 'static>(
    engine: Engine,
    args: &XdpArgs,
    command: &str,
    application: A,
) -> Result<ExitCode, EngineError> {
    let mut moves = args.moves()?;
    if let Some(moves) = &mut moves {
        let moves_traced = usize::try_from(args.trace_moves).unwrap_or(usize::MAX);
        moves.measuring = Measuring { moves: moves_traced, export_pause: args.export_pause };
    }
    let settings = EngineSettings {
        name: args.name.clone().unwrap_or_else(|| command.to_owned()),
        connections_max: args.connections,
        moves,
        link: args.link,
        ..EngineSettings::new(&args.interface, args.service)
    };
    let process = ProcessSettings { socket: args.socket.clone(), metrics: args.metrics };
    let service = args.service;
    let ready = || announce(&mut io::stdout(), service);
    if engine == Engine::Kernel {
        return spillway_stack_server::run_on_kernel(&settings, &process, application, ready);
    }
    let Some((link, key)) = args.link.zip(args.link_key.as_deref()) else {
        return spillway_stack_server::run(&settings, &process, application, ready);
    };
    let port = LinkPortSettings::with_key_file(link, key, args.allow_clients.clone())?;
    let application = spillway_stack_server::linked(application, port)?;
    spillway_stack_server::run(&settings, &process, application, ready)
}

/// Prints that clients can connect. A standard output that is closed or full ends no server.
fn announce(out: &mut impl Write, service: SocketAddr) {
    if let Err(error) = writeln!(out, "serving {service}").and_then(|()| out.flush()) {
        warn!("cannot print that {service} is served: {error}; the server runs");
    }
}

/// Sets up the log: a separate thread writes all lines, so that a full pipe does not stop the stack's thread.
fn start_log() -> io::Result<()> {
    let dropped =
        |count| format!("{count} log lines dropped: standard error was written too slowly\n").into_bytes();
    let log = Log::to_standard_error(dropped)?;
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_target(false)
        .with_writer(move || log)
        .log_internal_errors(false);
    // Fails only if a log is already set up.
    let _ = tracing::subscriber::set_global_default(subscriber.finish());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;

    use super::*;

    const CHILD: &str = "SPILLWAY_TEST_OF_THE_LOG";

    /// A writer without room, such as a file on a full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_server_runs_also_if_standard_output_is_full() {
        let service = "10.0.0.5:11211".parse().unwrap();
        announce(&mut Full, service);
        let mut line = Vec::new();
        announce(&mut line, service);
        assert_eq!(line, b"serving 10.0.0.5:11211\n");
    }

    /// The test runs itself as a process whose standard error is a pipe that is never read.
    #[test]
    fn a_log_that_is_not_read_stops_no_thread() {
        if std::env::var_os(CHILD).is_some() {
            start_log().unwrap();
            (0..10_000).for_each(|number| tracing::info!(number, "a line of the log"));
            println!("written");
            std::process::exit(0);
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "servers::run::tests::a_log_that_is_not_read_stops_no_thread", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let is_written = output.lines().map_while(Result::ok).any(|line| line.ends_with("written"));
            sender.send(is_written).unwrap();
        });
        let is_written = receiver.recv_timeout(Duration::from_secs(30));
        let _ = child.kill();
        child.wait().unwrap();
        assert_eq!(is_written, Ok(true), "the child waits for the reader of its log");
    }
}
