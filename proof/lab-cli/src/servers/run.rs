//! Options of servers on the user-level stack, and the process around them.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use spillway_daemon::Log;
use spillway_stack_server::{EngineError, EngineSettings, Movable, MovesFile, ProcessSettings};

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

    /// Maximum number of connections
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    connections: u32,
}

/// Runs a server until SIGTERM. Prints a line when clients can connect.
pub(crate) fn run<A: Movable + Send + 'static>(args: &XdpArgs, command: &str, application: A) -> ExitCode {
    let served = start_log().map_err(EngineError::Host).and_then(|()| serve(args, command, application));
    let code = served.unwrap_or_else(|error| {
        spillway_daemon::log_line(&format!("spillway-lab {command}: {error}"));
        ExitCode::FAILURE
    });
    spillway_daemon::flush_log(FLUSH_TIMEOUT);
    code
}

fn serve<A: Movable + Send + 'static>(
    args: &XdpArgs,
    command: &str,
    application: A,
) -> Result<ExitCode, EngineError> {
    let moves = args.peers.as_deref().map(MovesFile::read).transpose()?;
    let moves = moves.map(|file| file.settings(args.switch, args.key.as_deref())).transpose()?;
    let settings = EngineSettings {
        name: args.name.clone().unwrap_or_else(|| command.to_owned()),
        connections_max: args.connections,
        moves,
        ..EngineSettings::new(&args.interface, args.service)
    };
    let process = ProcessSettings { socket: args.socket.clone(), metrics: args.metrics };
    let service = args.service;
    spillway_stack_server::run(&settings, &process, application, || println!("serving {service}"))
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
