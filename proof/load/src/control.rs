//! The words that steer a run: by a schedule, on standard input, or by signals.

use std::fmt;
use std::time::Duration;

use spillway_client::Override;

use crate::report::Target;

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Arrivals a second from now on, over all connections.
    Rate(f64),
    /// Move connections.
    Move {
        /// Where to.
        target: Target,
        /// Between the starts of two connections' moves; the run's default where it is not given.
        pace: Option<Duration>,
        /// At most so many connections; all where it is not given.
        count: Option<u32>,
    },
    /// The operator's override, for connections that go to helpers by themselves.
    Relief(Override),
    /// Remember this moment under a name.
    Mark(String),
    /// With `--hold`: begin, with time zero at this time of the monotonic clock in ns, or as soon as possible.
    Start(Option<u64>),
    /// End the arrivals now.
    Stop,
}

/// Names of marks are cut off after so many characters.
const MARK_MAX: usize = 64;

impl Command {
    /// Reads one line: `rate 9600`, `move helper pace=100us count=33`, `move direct`, `relief on|off|auto`,
    /// `mark NAME`, `start [MONOTONIC_NS]`, `stop`.
    pub fn parse(line: &str) -> Result<Command, String> {
        let mut words = line.split_whitespace();
        let command = match words.next() {
            Some("rate") => {
                let text = words.next().ok_or("`rate` needs a number: `rate 9600`")?;
                let rate: f64 = text.parse().map_err(|_| format!("`{text}` is not a rate: give a number"))?;
                if !(0.0..=1e8).contains(&rate) {
                    return Err(format!("rate {rate} is not within 0 and 100000000"));
                }
                Command::Rate(rate)
            }
            Some("move") => parse_move(&mut words)?,
            Some("relief") => {
                let text = words.next().unwrap_or_default();
                Command::Relief(text.parse().map_err(|error| format!("`relief {text}`: {error}"))?)
            }
            Some("mark") => {
                let name = words.next().ok_or("`mark` needs a name: `mark burst`")?;
                Command::Mark(name.chars().take(MARK_MAX).collect())
            }
            Some("start") => Command::Start(match words.next() {
                Some(text) => Some(text.parse().map_err(|_| format!("`{text}` is not a time in ns"))?),
                None => None,
            }),
            Some("stop") => Command::Stop,
            other => {
                let other = other.unwrap_or_default();
                return Err(format!(
                    "`{other}` is no command: there are rate, move, relief, mark, start and stop"
                ));
            }
        };
        match words.next() {
            None => Ok(command),
            Some(extra) => Err(format!("`{extra}` does not belong to `{command}`")),
        }
    }

    /// Whether it can only be obeyed with a helper.
    pub fn needs_helper(&self) -> bool {
        matches!(self, Command::Move { target: Target::Helper, .. })
    }

    /// Whether sessions can only obey it with the server's own link port.
    pub fn needs_server(&self) -> bool {
        matches!(self, Command::Move { target: Target::Direct, .. })
    }

    /// Whether it can only be obeyed in the open loop.
    pub fn needs_open_loop(&self) -> bool {
        matches!(self, Command::Rate(_))
    }
}

fn parse_move<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Command, String> {
    let target = match words.next() {
        Some("helper") => Target::Helper,
        Some("direct") => Target::Direct,
        _ => return Err("`move` needs a target: `move helper` or `move direct`".into()),
    };
    let (mut pace, mut count) = (None, None);
    for word in words {
        match word.split_once('=') {
            Some(("pace", text)) => pace = Some(parse_duration(text)?),
            Some(("count", text)) => {
                count = Some(text.parse().map_err(|_| format!("`{text}` is not a number of connections"))?);
            }
            _ => return Err(format!("`{word}` does not belong to `move`: there are pace= and count=")),
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
            Command::Relief(word) => write!(f, "relief {word}"),
            Command::Mark(name) => write!(f, "mark {name}"),
            Command::Start(None) => f.write_str("start"),
            Command::Start(Some(ns)) => write!(f, "start {ns}"),
            Command::Stop => f.write_str("stop"),
        }
    }
}

/// A command and when it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// In ns since time zero.
    pub at_ns: u64,
    /// What to do.
    pub command: Command,
}

impl Order {
    /// Reads one `--at`: a time, `=`, and commands separated by commas, their words separated by colons:
    /// `20s=move:helper:pace=100us,rate:9600`.
    pub fn parse(text: &str) -> Result<Vec<Order>, String> {
        let (time, commands) =
            text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`: give `20s=rate:9600`"))?;
        let at_ns = u64::try_from(parse_duration(time)?.as_nanos()).unwrap_or(u64::MAX);
        let order = |words: &str| {
            let command = Command::parse(&words.replace(':', " "))?;
            match command {
                Command::Start(_) => Err("`start` cannot be scheduled".to_owned()),
                command => Ok(Order { at_ns, command }),
            }
        };
        commands.split(',').map(order).collect()
    }
}

/// Reads a duration, as [`spillway_values::parse_duration`] does.
fn parse_duration(text: &str) -> Result<Duration, String> {
    spillway_values::parse_duration(text).map_err(|error| format!("`{text}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_and_shown() {
        for text in ["rate 9600", "move direct", "move helper pace=100000ns count=33", "mark burst", "stop"] {
            assert_eq!(Command::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            Command::parse("  move helper  pace=1.5ms ").unwrap(),
            Command::Move { target: Target::Helper, pace: Some(Duration::from_micros(1500)), count: None }
        );
        assert_eq!(Command::parse("start 12").unwrap(), Command::Start(Some(12)));
        for (text, word) in [
            ("", "no command"),
            ("go", "go"),
            ("rate", "needs a number"),
            ("rate -1", "-1"),
            ("rate x", "x"),
            ("move", "target"),
            ("move helper fast", "fast"),
            ("move helper count=x", "x"),
            ("stop now", "now"),
        ] {
            let complaint = Command::parse(text).unwrap_err();
            assert!(complaint.contains(word), "{text}: {complaint}");
        }
    }

    #[test]
    fn a_schedule_is_read() {
        let orders = Order::parse("20.5s=move:helper:pace=100us,rate:9600").unwrap();
        assert_eq!(orders.len(), 2);
        assert!(orders.iter().all(|order| order.at_ns == 20_500_000_000));
        assert_eq!(orders[1].command, Command::Rate(9600.0));
        for text in ["20s", "20=stop", "1s=", "1s=start", "1s=rate:1,hop"] {
            assert!(Order::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_exact() {
        for (text, ns) in [("0.1ms", 100_000), ("100us", 100_000), ("7ns", 7), ("2m", 120_000_000_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1d", "1e3s", "1..2s", "99999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
