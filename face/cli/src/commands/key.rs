//! `spillway key`: creates the keys that authenticate links.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::output::Report;

/// Create keys
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Create a key file, readable only by its owner (mode 0600)
    ///
    /// Give the same file to the server (`spillway run --key FILE`) and to its helpers (`spillway helper --key FILE`).
    /// Library clients get another key (`--client-key`), which does not authenticate helpers. An existing file is not
    /// changed.
    New {
        /// Where to write the key. The file must not exist
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: Args) -> ExitCode {
    let KeyCommand::New { file, json: as_json } = args.command;
    let report = match spillway_keys::write_new_key_file(&file) {
        Ok(key) => Report {
            lines: vec![format!("wrote key {} to {}", key.id(), file.display())],
            result: json!({ "key": key.id().to_string(), "file": file }),
            ..Report::default()
        },
        Err(error) => Report::failed(error),
    };
    report.print("key new", as_json)
}
