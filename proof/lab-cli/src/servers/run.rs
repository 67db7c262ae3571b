//! Options of servers on the user-level stack, and the process around them.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use spillway_stack_server::{EngineError, EngineSettings, Movable, MovesFile, ProcessSettings};

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
    start_log();
    match serve(args, command, application) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("spillway-lab {command}: {error}");
            ExitCode::FAILURE
        }
    }
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

fn start_log() {
    let log = tracing_subscriber::fmt().with_ansi(false).with_target(false).with_writer(io::stderr);
    // Fails only if a log is already set up.
    let _ = tracing::subscriber::set_global_default(log.finish());
}
