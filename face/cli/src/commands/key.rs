//! `spillway key`: the secrets that links are authenticated with.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

/// Keys that helpers and clients prove themselves with to a server.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a new key and write it to FILE, for its owner only (mode 0600). An existing file is left alone.
    ///
    /// Give the same file to the server (`spillway run --key FILE`) and to its helpers (`spillway helper --key
    /// FILE`). Library clients get another key (`--client-key`), which cannot speak for anybody else.
    New {
        /// Where to write it. The file must not exist.
        file: PathBuf,
    },
}

pub(crate) fn run(args: Args) -> ExitCode {
    let KeyCommand::New { file } = args.command;
    match spillway_keys::write_new_key_file(&file) {
        Ok(key) => {
            println!("wrote key {} to {}", key.id(), file.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("spillway: {error}");
            ExitCode::FAILURE
        }
    }
}
