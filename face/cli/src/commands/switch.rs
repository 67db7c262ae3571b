//! `spillway switch`: forwards packets between interfaces, and moves flows between servers.

use std::path::PathBuf;
use std::process::ExitCode;

use spillway_switch::SettingsSource;
use spillway_switch::config::read_file;

/// For `read_file`: key files and interfaces are read too, not only the configuration file.
const READS_HOST: bool = true;

/// Run a switch: forward packets, move flows between servers
///
/// Attaches an XDP program to the interfaces that the configuration names. The program forwards packets, and servers change
/// its rules for single flows with control messages. It works without this daemon, and stays attached when the
/// daemon ends: a restart with the same file loses no packet and no flow.
///
/// SIGTERM ends the daemon. SIGHUP reloads, as `spillway reload --socket PATH` does. SIGUSR1 logs the status.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  spillway check /etc/spillway/switch.toml
  spillway switch --config /etc/spillway/switch.toml
  spillway switch --config /etc/spillway/switch.toml --detach")]
pub(crate) struct Args {
    /// Read all settings from this file; `spillway check FILE` finds mistakes in it
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// Detach the program from all interfaces and forget all flows, instead of running; the daemon must not run
    #[arg(long)]
    detach: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let outcome = if args.detach { detach(args) } else { serve(args) };
    outcome.unwrap_or_else(|error| {
        spillway_daemon::log_line(&format!("spillway: {error}"));
        ExitCode::FAILURE
    })
}

fn serve(args: &Args) -> Result<ExitCode, String> {
    let path = args.config.clone();
    let mut source: SettingsSource =
        Box::new(move || read_file(&path, READS_HOST).map_err(|problems| problems.to_string()));
    let config = source()?;
    spillway_switch::run(config, source).map_err(|error| error.to_string())
}

fn detach(args: &Args) -> Result<ExitCode, String> {
    // Only the switch's name is needed: keys and interfaces may be gone.
    let config = read_file(&args.config, !READS_HOST).map_err(|problems| problems.to_string())?;
    let rest = spillway_switch::detach(&config.name).map_err(|error| error.to_string())?;
    if let Some(file) = rest {
        let file = file.display();
        spillway_daemon::log_line(&format!(
            "spillway: {file} is not of the switch, and stays with its directory"
        ));
    }
    spillway_daemon::log_line(&format!("spillway: switch {} is detached", config.name));
    Ok(ExitCode::SUCCESS)
}
