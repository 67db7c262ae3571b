//! Instruction counts: this program runs itself under valgrind, which counts inside one function. Unlike times, counts
//! do not depend on other work on the machine.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use spillway_lab::{Launch, Place};

use super::echo::System;
use super::{echo, helper};
use crate::error::Error;

/// Timeout of one count; valgrind is about fifty times slower than the program alone.
const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Echo(System),
    Helper,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Work::Echo(System::Ours) => "echo-ours",
            Work::Echo(System::Smoltcp) => "echo-smoltcp",
            Work::Helper => "helper",
        })
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(name: &str) -> Result<Work, String> {
        let all = [Work::Echo(System::Ours), Work::Echo(System::Smoltcp), Work::Helper];
        all.into_iter().find(|work| work.to_string() == name).ok_or_else(|| format!("unknown work {name}"))
    }
}

/// The hidden command `stack-work WORK CONNECTIONS MESSAGES`, which valgrind runs.
pub fn serve(arguments: &[String]) -> Result<(), String> {
    let [work, connections, messages] = arguments else {
        return Err("usage: WORK CONNECTIONS MESSAGES".into());
    };
    let number = |text: &str| text.parse::<usize>().map_err(|error| format!("{text}: {error}"));
    let (connections, messages) = (number(connections)?, number(messages)?);
    match work.parse()? {
        Work::Echo(system) => echo::measure(system, connections, 2 * connections, messages).map(drop),
        Work::Helper => helper::measure(connections, 2 * connections, messages).map(drop),
    }
}

/// Instructions for each message: the difference between a run with `messages` and one with five times that
/// number. `None` if valgrind cannot be started.
pub fn instructions_per_message(
    place: &Place,
    program: &Path,
    work: Work,
    connections: usize,
    messages: usize,
) -> Result<Option<f64>, Error> {
    let (few, many) = (messages, 5 * messages);
    let Some(count_few) = count(place, program, work, connections, few)? else { return Ok(None) };
    let Some(count_many) = count(place, program, work, connections, many)? else { return Ok(None) };
    Ok(Some(count_many.saturating_sub(count_few) as f64 / (many - few) as f64))
}

fn count(
    place: &Place,
    program: &Path,
    work: Work,
    connections: usize,
    messages: usize,
) -> Result<Option<u64>, Error> {
    let launch = Launch::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--collect-atstart=no", "--toggle-collect=*counted_turns*"])
        .arg(program)
        .arg("stack-work")
        .args([work.to_string(), connections.to_string(), messages.to_string()]);
    let Ok(mut process) = place.spawn(&launch) else { return Ok(None) };
    let status = process.wait(TIMEOUT);
    let output = process.stderr()?;
    if !status.is_some_and(|status| status.success()) {
        return Err(Error::process(format!("counting {work} ended with {status:?}"), output));
    }
    match collected(&output) {
        Some(instructions) if instructions > 0 => Ok(Some(instructions)),
        _ => Err(Error::process(format!("counting {work} found no instructions"), output)),
    }
}

fn collected(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit_once(':')?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_count_is_parsed() {
        let output = "==7== Callgrind, a call-graph generating cache profiler\n==7== Events    : Ir\n==7== Collected : 1234567\n";
        assert_eq!(collected(output), Some(1_234_567));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
    }

    #[test]
    fn work_names_are_parsed() {
        for work in [Work::Echo(System::Ours), Work::Echo(System::Smoltcp), Work::Helper] {
            assert_eq!(work.to_string().parse(), Ok(work));
        }
        assert!("other".parse::<Work>().is_err());
    }
}
