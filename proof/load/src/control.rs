//! Commands that control a run: from a schedule, standard input or signals.

use std::fmt;
use std::time::Duration;

use spillway_client::Override;

use crate::report::Target;

/// A command that controls a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Sets the rate of arrivals over all connections, per second.
    Rate(f64),
    /// Moves connections.
    Move {
        /// The new carrier.
        target: Target,
        /// Time between the starts of two connections' moves; `None` uses [`crate::Config::move_pace`].
        pace: Option<Duration>,
        /// Maximum of connections that move; `None` moves all.
        count: Option<u32>,
    },
    /// Overrides the relief policy of all sessions (needs `--relief`).
    Relief(Override),
    /// Records the current time under a name.
    Mark(String),
    /// Starts a run that waits because of `--hold`. The value is time zero of the run, in ns of the monotonic clock;
    /// `None`: as soon as possible.
    Start(Option<u64>),
    /// Ends the arrivals.
    Stop,
}

/// Maximum length of a mark's name; longer names are truncated.
const MARK_CHARS_MAX: usize = 64;

impl Command {
    /// Parses one line: `rate 9600`, `move helper pace=100us count=33`, `move direct`, `relief on|off|auto`,
    /// `mark NAME`, `start [MONOTONIC_NS]`, `stop`.
    pub fn parse(line: &str) -> Result<Command, String> {
        let mut arguments = line.split_whitespace();
        let command = match arguments.next() {
            Some("rate") => {
                let text = arguments.next().ok_or("`rate` needs a number: `rate 9600`")?;
                let rate: f64 = text.parse().map_err(|_| format!("`{text}` is not a rate: give a number"))?;
                if !(0.0..=1e8).contains(&rate) {
                    return Err(format!("rate {rate} is out of range: give 0 to 100000000"));
                }
                Command::Rate(rate)
            }
            Some("move") => parse_move(&mut arguments)?,
            Some("relief") => {
                let text = arguments
                    .next()
                    .ok_or("`relief` needs an override: `relief on`, `relief off` or `relief auto`")?;
                Command::Relief(text.parse().map_err(|error| format!("`relief {text}`: {error}"))?)
            }
            Some("mark") => {
                let name = arguments.next().ok_or("`mark` needs a name: `mark burst`")?;
                Command::Mark(name.chars().take(MARK_CHARS_MAX).collect())
            }
            Some("start") => Command::Start(match arguments.next() {
                Some(text) => Some(text.parse().map_err(|_| format!("`{text}` is not a time in ns"))?),
                None => None,
            }),
            Some("stop") => Command::Stop,
            other => {
                let name = other.unwrap_or_default();
                return Err(format!(
                    "unknown command `{name}`: give rate, move, relief, mark, start or stop"
                ));
            }
        };
        match arguments.next() {
            None => Ok(command),
            Some(extra) => Err(format!("unexpected `{extra}` after `{command}`")),
        }
    }

    /// Whether the command needs a helper.
    pub fn needs_helper(&self) -> bool {
        matches!(self, Command::Move { target: Target::Helper, .. })
    }

    /// Whether a run with `--sessions` needs the server's link port (`--link`) for this command.
    pub fn needs_server(&self) -> bool {
        matches!(self, Command::Move { target: Target::Direct, .. })
    }

    /// Whether the command needs the open loop.
    pub fn needs_open_loop(&self) -> bool {
        matches!(self, Command::Rate(_))
    }
}

fn parse_move<'a>(arguments: &mut impl Iterator<Item = &'a str>) -> Result<Command, String> {
    let target = match arguments.next() {
        Some("helper") => Target::Helper,
        Some("direct") => Target::Direct,
        _ => return Err("`move` needs a target: `move helper` or `move direct`".into()),
    };
    let (mut pace, mut count) = (None, None);
    for option in arguments {
        match option.split_once('=') {
            Some(("pace", text)) => pace = Some(parse_duration(text)?),
            Some(("count", text)) => {
                count = Some(text.parse().map_err(|_| format!("`{text}` is not a number of connections"))?);
            }
            _ => return Err(format!("unknown option `{option}` of `move`: give pace= or count=")),
        }
    }
    Ok(Command::Move { target, pace, count })
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Rate(rate) => write!(f, "rate {rate}"),
            Command::Move { target, pace, count } => {
                f.write_str(match target {
                    Target::Helper => "move helper",
                    Target::Direct => "move direct",
                })?;
                pace.map_or(Ok(()), |pace| write!(f, " pace={}ns", pace.as_nanos()))?;
                count.map_or(Ok(()), |count| write!(f, " count={count}"))
            }
            Command::Relief(relief) => write!(f, "relief {relief}"),
            Command::Mark(name) => write!(f, "mark {name}"),
            Command::Start(None) => f.write_str("start"),
            Command::Start(Some(ns)) => write!(f, "start {ns}"),
            Command::Stop => f.write_str("stop"),
        }
    }
}

/// A command and the time at which it takes effect.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduledCommand {
    /// Time of the command, in ns since time zero.
    pub at_ns: u64,
    /// The command.
    pub command: Command,
}

impl ScheduledCommand {
    /// Parses one `--at`: a time, `=`, and commands separated by commas, with colons for blanks, such as
    /// `20s=move:helper:pace=100us,rate:9600`.
    pub fn parse(text: &str) -> Result<Vec<ScheduledCommand>, String> {
        let (time, commands) =
            text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`: give `20s=rate:9600`"))?;
        let at_ns = u64::try_from(parse_duration(time)?.as_nanos()).unwrap_or(u64::MAX);
        let parse_command = |arguments: &str| {
            let command = Command::parse(&arguments.replace(':', " "))?;
            match command {
                Command::Start(_) => Err("`start` cannot be scheduled".to_owned()),
                command => Ok(ScheduledCommand { at_ns, command }),
            }
        };
        commands.split(',').map(parse_command).collect()
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    spillway_values::parse_duration(text).map_err(|error| format!("`{text}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed_and_printed_and_invalid_ones_refused() {
        for text in ["rate 9600", "move direct", "move helper pace=100000ns count=33", "mark burst", "stop"] {
            assert_eq!(Command::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            Command::parse("  move helper  pace=1.5ms ").unwrap(),
            Command::Move { target: Target::Helper, pace: Some(Duration::from_micros(1500)), count: None }
        );
        assert_eq!(Command::parse("start 12").unwrap(), Command::Start(Some(12)));
        for (text, expected) in [
            ("", "unknown command"),
            ("go", "go"),
            ("rate", "needs a number"),
            ("rate -1", "-1"),
            ("rate x", "x"),
            ("move", "target"),
            ("relief", "needs an override"),
            ("relief maybe", "maybe"),
            ("move helper fast", "fast"),
            ("move helper count=x", "x"),
            ("stop now", "now"),
        ] {
            let error = Command::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn schedules_are_parsed_and_invalid_ones_refused() {
        let commands = ScheduledCommand::parse("20.5s=move:helper:pace=100us,rate:9600").unwrap();
        assert_eq!(commands.len(), 2);
        assert!(commands.iter().all(|scheduled| scheduled.at_ns == 20_500_000_000));
        assert_eq!(commands[1].command, Command::Rate(9600.0));
        for text in ["20s", "20=stop", "1s=", "1s=start", "1s=rate:1,hop"] {
            assert!(ScheduledCommand::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_exact_to_the_nanosecond_and_invalid_ones_refused() {
        for (text, ns) in [("0.1ms", 100_000), ("100us", 100_000), ("7ns", 7), ("2m", 120_000_000_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1d", "1e3s", "1..2s", "99999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
