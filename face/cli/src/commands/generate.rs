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

/// Writes the manual page `spillway.1`, and one for each visible command and for each of its subcommands. The page of a command
/// lists those of its subcommands.
fn man(command: &Command, directory: &Path) -> io::Result<()> {
    pages(command, "spillway").into_iter().try_for_each(|(name, command)| {
        let mut text = Vec::new();
        // Manual pages of subcommands have a hyphen in their names.
        clap_mangen::Man::new(command.name(name.clone())).render(&mut text)?;
        fs::write(directory.join(format!("{name}.1")), text)
    })
}

fn pages(command: &Command, name: &str) -> Vec<(String, Command)> {
    let mut all_pages = vec![(name.to_owned(), command.clone().mut_subcommands(hide_help))];
    for subcommand in command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help")
    {
        all_pages.extend(pages(subcommand, &format!("{name}-{}", subcommand.get_name())));
    }
    all_pages
}

/// Hides the command `help`, which has no page.
fn hide_help(command: Command) -> Command {
    if command.get_name() == "help" { command.hide(true) } else { command }
}

fn completions(command: &mut Command, directory: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, command, "spillway", directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_pages_refer_only_to_existing_pages() {
        let directory = std::env::temp_dir().join(format!("spillway-man-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut command = crate::definition();
        command.build();
        man(&command, &directory).unwrap();
        let files = fs::read_dir(&directory).unwrap().map(|file| file.unwrap());
        let pages: Vec<(String, String)> = files
            .map(|file| {
                let name = file.file_name().into_string().unwrap();
                (name, fs::read_to_string(file.path()).unwrap())
            })
            .collect();
        fs::remove_dir_all(&directory).unwrap();
        let exists = |page: &str| pages.iter().any(|(name, _)| name == page);
        assert!(exists("spillway.1") && exists("spillway-server-off.1"));
        for (name, text) in &pages {
            let text = text.replace('\\', "");
            for word in text.split_whitespace().filter_map(|word| word.strip_suffix("(1)")) {
                assert!(
                    exists(&format!("{word}.1")),
                    "{name} should refer to existing pages only, not to {word}(1)"
                );
            }
        }
    }
}
