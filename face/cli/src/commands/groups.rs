//! The first page of help: commands in groups by the host they run on.

use std::fmt::Write;

use clap::Command;

const GROUPS: [(&str, &[&str]); 6] = [
    ("On a server's host", &["assess", "run", "server", "exporter", "move"]),
    ("On a helper's host", &["helper", "check", "reload", "drain"]),
    ("On a client's host", &["sidecar"]),
    ("On a switch's host", &["switch", "flows"]),
    ("Anywhere", &["status", "top", "connections", "relief", "doctor", "key"]),
    ("To try it", &["load"]),
];

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed, or what was checked is not in order
  2  wrong usage; of `run` and `load` also: could not be started
  126, 127  of `run`: the command cannot be run, or does not exist; otherwise the server's own";

/// Replaces the command's help by one that lists subcommands in groups.
pub(crate) fn grouped(command: Command) -> Command {
    let mut page = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (title, names) in GROUPS {
        let _ = write!(page, "\n{title}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(page, "  {name:<12} {about}");
        }
    }
    page.push_str("\n`spillway help COMMAND` shows a command's options.\n\n{all-args}{after-help}");
    // Hide the subcommands in clap's own list: the template lists them.
    command
        .mut_subcommands(|subcommand| subcommand.hide(true))
        .override_usage("spillway [OPTIONS] <COMMAND>")
        .help_template(page)
        .after_help(EXIT_CODES)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = crate::Cli::command();
        let mut shown: Vec<&str> = command
            .get_subcommands()
            .filter(|subcommand| !subcommand.is_hide_set())
            .map(Command::get_name)
            .collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(shown, grouped);
    }

    #[test]
    fn summaries_fit_a_line() {
        for command in crate::Cli::command().get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
        {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!((1..=60).contains(&about.len()), "{}: {about}", command.get_name());
        }
    }
}
