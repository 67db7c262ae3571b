//! `spillway key`: the secrets that links are authenticated with.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::output;

/// Create keys
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Create a key file, readable for its owner only (mode 0600)
    ///
    /// Give the same file to the server (`spillway run --key FILE`) and to its helpers (`spillway helper --key FILE`).
    /// Library clients get another key (`--client-key`), which opens no helper's link. An existing file is not changed.
    New {
        /// Where to write the key. The file must not exist
        file: PathBuf,
    },
}

pub(crate) fn run(args: Args) -> ExitCode {
    let KeyCommand::New { file } = args.command;
    match spillway_keys::write_new_key_file(&file) {
        Ok(key) => output::print([format!("wrote key {} to {}", key.id(), file.display())]),
        Err(error) => {
            eprintln!("spillway: {error}");
            ExitCode::FAILURE
        }
    }
}
