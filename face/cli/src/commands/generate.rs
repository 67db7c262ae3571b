//! `spillway generate`: writes files for packages and documentation from the commands' definitions.

mod reference;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, ValueEnum};
use clap_complete::Shell;

use super::output;

/// Write manual pages, completions or the reference of commands
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to write
    #[arg(value_enum)]
    what: What,

    /// Where to write the files; the reference goes to standard output
    #[arg(long, value_name = "DIRECTORY", required_if_eq_any = [("what", "man"), ("what", "completions")])]
    to: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// A manual page for each command
    Man,
    /// Completions for bash, fish and zsh
    Completions,
    /// Part of docs/commands.md
    Reference,
}

pub(crate) fn run(args: &Args, mut command: Command) -> ExitCode {
    command.build();
    let directory = args.to.as_deref().unwrap_or(Path::new("."));
    let written = match args.what {
        What::Man => man(&command, directory),
        What::Completions => completions(&mut command, directory),
        What::Reference => return output::print([reference::text(&command).trim_end()]),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway: cannot write into {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

/// `spillway.1`, and `spillway-COMMAND.1` for each command that help shows.
fn man(command: &Command, directory: &Path) -> io::Result<()> {
    let page = |command: Command, name: String| {
        let mut text = Vec::new();
        // Manual pages of subcommands have a hyphen in their names.
        clap_mangen::Man::new(command.name(name.clone())).render(&mut text)?;
        fs::write(directory.join(format!("{name}.1")), text)
    };
    page(command.clone(), "spillway".to_owned())?;
    command
        .get_subcommands()
        .filter(|one| !one.is_hide_set() && one.get_name() != "help")
        .try_for_each(|one| page(one.clone(), format!("spillway-{}", one.get_name())))
}

fn completions(command: &mut Command, directory: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, command, "spillway", directory)?;
    }
    Ok(())
}
