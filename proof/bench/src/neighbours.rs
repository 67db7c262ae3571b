//! Finds the other processes that use most CPU time, for errors about a machine that is not idle enough.

use std::collections::HashMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

const WINDOW: Duration = Duration::from_millis(500);
const NAMED_MAX: usize = 3;
/// Processes below this percentage of a core are not named.
const PERCENT_MIN: f64 = 3.0;
/// USER_HZ, the unit of the times in `/proc/PID/stat` (proc(5)).
const TICKS_PER_S: f64 = 100.0;

#[derive(Clone, Debug, PartialEq)]
struct Process {
    name: String,
    parent: u32,
    ticks: u64,
}

/// The processes that use most CPU now, such as `rustc (pid 812) 93 %`, without this process and its descendants. Empty
/// if each uses less than [`PERCENT_MIN`] or `/proc` cannot be read. Blocks for [`WINDOW`].
pub(crate) fn busiest() -> String {
    let before = processes();
    sleep(WINDOW);
    describe(&before, &processes(), std::process::id(), WINDOW.as_secs_f64())
}

fn processes() -> HashMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| Some((id, parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)?))).collect()
}

/// Parses `/proc/PID/stat`. The name, between the first and the last parenthesis, may contain any character.
fn parse(stat: &str) -> Option<Process> {
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Fields 4, 14 and 15 of proc(5): parent, user and system time; the state is field 3.
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let name = name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    Some(Process { name, parent: fields.get(1)?.parse().ok()?, ticks })
}

fn describe(before: &HashMap<u32, Process>, after: &HashMap<u32, Process>, own: u32, seconds: f64) -> String {
    let used = |id: &u32, process: &Process| {
        let earlier = before.get(id).map_or(process.ticks, |earlier| earlier.ticks);
        process.ticks.saturating_sub(earlier) as f64 / TICKS_PER_S / seconds * 100.0
    };
    let mut others: Vec<(f64, u32, &str)> = after
        .iter()
        // The kernel threads of the laboratory's interfaces are not descendants of this process.
        .filter(|(id, process)| !is_ours(after, **id, own) && !process.name.starts_with("napi/"))
        .map(|(id, process)| (used(id, process), *id, process.name.as_str()))
        .filter(|(percent, ..)| *percent >= PERCENT_MIN)
        .collect();
    others.sort_by(|a, b| b.0.total_cmp(&a.0));
    let named: Vec<String> = others
        .iter()
        .take(NAMED_MAX)
        .map(|(percent, id, name)| format!("{name} (pid {id}) {percent:.0} %"))
        .collect();
    named.join(", ")
}

/// Whether process `id` is `own` or its descendant. The loop's bound holds even if a changing `/proc` shows a cycle.
fn is_ours(processes: &HashMap<u32, Process>, id: u32, own: u32) -> bool {
    let mut current = id;
    for _ in 0..=processes.len() {
        if current == own {
            return true;
        }
        let Some(process) = processes.get(&current) else { return false };
        current = process.parent;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, parent: u32, ticks: u64) -> Process {
        Process { name: name.into(), parent, ticks }
    }

    #[test]
    fn names_may_have_parentheses_and_control_characters() {
        let stat = "812 (a) b\u{1b}(c) S 7 812 812 0 -1 0 0 0 0 0 30 12 0 0 20 0 1 0 100 0 0";
        assert_eq!(parse(stat), Some(process("a) b?(c", 7, 42)));
        assert_eq!(parse("812 nonsense"), None);
        assert_eq!(parse("1 (x) S 2"), None);
    }

    #[test]
    fn descendants_of_this_process_are_not_named() {
        let before = HashMap::from([
            (1, process("init", 0, 0)),
            (10, process("rustc", 1, 100)),
            (20, process("lab", 1, 0)),
            (21, process("memcached", 20, 0)),
            (30, process("idle", 1, 5)),
        ]);
        let mut after = before.clone();
        for (id, ticks) in [(10, 150), (20, 50), (21, 50), (30, 6)] {
            after.get_mut(&id).unwrap().ticks = ticks;
        }
        after.insert(40, process("new", 1, 1000));
        assert_eq!(describe(&before, &after, 20, 0.5), "rustc (pid 10) 100 %");
    }

    #[test]
    fn busiest_leaves_out_this_process() {
        let own = format!("(pid {})", std::process::id());
        assert!(!busiest().contains(&own));
    }
}
