//! The reference of commands and options, as Markdown.

use std::fmt::Write;

use clap::{Arg, Command};

/// A section for each command that help shows, with a table of its options.
pub(super) fn text(command: &Command) -> String {
    let mut text = String::new();
    for subcommand in command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help")
    {
        section(&mut text, subcommand, &format!("spillway {}", subcommand.get_name()));
    }
    text
}

fn section(text: &mut String, command: &Command, name: &str) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(text, "### `{name}`\n\n{about}.\n");
    let shown: Vec<&Arg> =
        command.get_arguments().filter(|arg| !arg.is_hide_set() && !is_common(arg)).collect();
    if !shown.is_empty() {
        text.push_str("| option | meaning | default |\n|---|---|---|\n");
        for arg in shown {
            let _ = writeln!(text, "| {} | {} | {} |", spelling(arg), meaning(arg), default(arg));
        }
        text.push('\n');
    }
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        section(text, subcommand, &format!("{name} {}", subcommand.get_name()));
    }
}

/// Whether every command has this option; docs/commands.md lists these once.
fn is_common(arg: &Arg) -> bool {
    ["help", "version", "log", "verbose"].contains(&arg.get_id().as_str())
}

fn spelling(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default().join(" ");
    let takes_value = arg.get_action().takes_values();
    match arg.get_long() {
        Some(long) if takes_value => format!("`--{long} {}`", escape(&values)),
        Some(long) => format!("`--{long}`"),
        None => format!("`{}`", escape(&values)),
    }
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let mut parts = vec![help.split(" [default:").next().unwrap_or_default().trim().to_owned()];
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|_| arg.get_action().takes_values())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() {
        parts.push(format!("({})", values.join(", ")));
    }
    if let Some(variable) = arg.get_env() {
        parts.push(format!("(`{}`)", variable.to_string_lossy()));
    }
    escape(&parts.join(" ")).replace('\n', " ")
}

/// The default value in the help text's `[default: …]`, otherwise clap's.
fn default(arg: &Arg) -> String {
    let values: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default_in_help =
        help.split_once("[default:").map(|(_, rest)| rest.trim().trim_end_matches(']').to_owned());
    match default_in_help {
        Some(default_in_help) => escape(&default_in_help).replace('\n', " "),
        None if values.is_empty() || !arg.get_action().takes_values() => String::new(),
        None => format!("`{}`", escape(&values.join(","))),
    }
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    #[test]
    fn documentation_equals_the_generated_reference() {
        let page = include_str!("../../../../../docs/commands.md");
        let mut command = crate::definition();
        command.build();
        let (_, documented) = page.split_once("## Every command\n\n").expect("the heading of the reference");
        let generated = super::text(&command);
        assert!(
            documented.trim() == generated.trim(),
            "docs/commands.md differs from the output of `spillway generate reference` below \"Every command\""
        );
    }
}
