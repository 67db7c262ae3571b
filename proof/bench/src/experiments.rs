//! The experiments that `spillway-lab bench` runs, by name.

pub mod batch;
mod common;
pub mod figures;
pub mod moves;
pub mod proxy;
pub mod sessions;
pub mod switch;
pub mod tcp;

use std::io::Write;

use crate::error::Error;
use crate::generator::Engine;
use crate::results::Results;
use crate::scene::{ServerShare, Setting};
use crate::table::Table;
use figures::Figure;

/// Options of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Finish within two minutes: fewer rounds, without the less important parts.
    pub quick: bool,
    /// Parts of the experiment to run, for experiments that have parts; empty for all.
    pub only: Vec<String>,
    /// The scene, for experiments that use one.
    pub setting: Setting,
}

/// An experiment's requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Needs root, to create network namespaces and interfaces.
    pub root: bool,
    /// Approximate duration of a full run on two virtual cores, without repeated rounds.
    pub minutes: u32,
}

/// One experiment.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// The question that the experiment answers.
    pub question: &'static str,
    /// The paper's value, with figure or section.
    pub paper: &'static str,
    /// Figures and tables that the experiment reproduces.
    pub figures: &'static [Figure],
    /// Requirements on the machine.
    pub needs: Needs,
    /// Runs the experiment and prints its progress.
    pub run: fn(&Options, &mut dyn Write) -> Result<Results, Error>,
}

/// All experiments, grouped by remedy.
pub fn all() -> impl Iterator<Item = &'static Experiment> {
    batch::EXPERIMENTS
        .iter()
        .chain(&sessions::EXPERIMENTS)
        .chain(&tcp::EXPERIMENTS)
        .chain(&switch::EXPERIMENTS)
        .chain(&moves::EXPERIMENTS)
        .chain(&proxy::EXPERIMENTS)
}

/// The experiment of this name.
pub fn by_name(name: &str) -> Option<&'static Experiment> {
    all().find(|experiment| experiment.name == name)
}

/// Whether a part runs: all do if `only`, the values of `--only`, is empty.
pub(crate) fn selects(only: &[String], part: &str) -> bool {
    only.is_empty() || only.iter().any(|selected| selected == part)
}

/// Checks the values of `--only`. Fails with [`Error::Usage`] if the experiment does not have one of these parts.
pub fn check_only(experiment: &Experiment, only: &[String]) -> Result<(), Error> {
    let parts = match experiment.name {
        "attacks" => batch::attacks::ids(),
        "burst" => batch::burst::PARTS.to_vec(),
        "handoff" => moves::handoff::PARTS.to_vec(),
        "migration" => moves::migration::PARTS.to_vec(),
        "migration-load" => moves::load::PARTS.to_vec(),
        "proxy" | "proxy-latency" => proxy::PARTS.to_vec(),
        "switch-cost" => switch::cost::PARTS.to_vec(),
        _ => Vec::new(),
    };
    let Some(unknown) = only.iter().find(|part| !parts.contains(&part.as_str())) else { return Ok(()) };
    Err(Error::Usage(match &parts[..] {
        [] => format!("{} has no parts: run it without --only", experiment.name),
        parts => format!("{} has no part {unknown}: it has {}", experiment.name, parts.join(", ")),
    }))
}

/// Fails with [`Error::Usage`] if a setting that the experiment does not use differs from its default.
pub fn check_setting(experiment: &Experiment, setting: &Setting) -> Result<(), Error> {
    let refuse = |option: &str, users: &[&str]| {
        let what = format!("{} does not use {option}: it is for {}", experiment.name, users.join(" and "));
        (!users.contains(&experiment.name)).then_some(Error::Usage(what))
    };
    let on_stack = (setting.engine != Engine::Sockets).then(|| refuse("--engine", &["burst", "helpers"]));
    let is_deferred = !setting.defer_interrupts.is_zero();
    if is_deferred && setting.engine != Engine::Xdp {
        return Err(Error::Usage("--defer-interrupts needs --engine xdp".into()));
    }
    let deferral = is_deferred.then(|| refuse("--defer-interrupts", &["burst"]));
    let has_share = setting.server_share != ServerShare::Calibrated;
    let share = has_share.then(|| refuse("--server-share", &["burst"]));
    on_stack.flatten().or(deferral.flatten()).or(share.flatten()).map_or(Ok(()), Err)
}

/// The table that `bench list` prints.
pub fn list() -> Table {
    let columns = ["name", "minutes", "root", "reproduces", "question", "paper"];
    let mut table = Table::new(columns).left(2).left(3).left(4).left(5);
    for Experiment { name, question, paper, figures, needs, .. } in all() {
        let figures = figures.iter().map(Figure::to_string).collect::<Vec<_>>().join(", ");
        let root = if needs.root { "yes" } else { "no" };
        table.row([name, &*needs.minutes.to_string(), root, &*figures, question, paper]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_found_by_name_and_listed() {
        assert!(by_name("burst").is_some() && by_name("no-such").is_none());
        let list = list().to_string();
        assert!(all().all(|e| list.contains(e.name) && list.contains(e.paper)));
        let mut names: Vec<_> = all().map(|e| e.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
        assert!(
            !names.contains(&"list") && !names.contains(&"all"),
            "`list` and `all` are reserved for commands"
        );
    }

    #[test]
    fn unknown_parts_are_refused() {
        let only = |name: &str, parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
            check_only(by_name(name).unwrap(), &parts).map_err(|error| error.to_string())
        };
        assert_eq!(
            (only("attacks", &[]), only("attacks", &["D7", "D9"]), only("burst", &["goodput"])),
            (Ok(()), Ok(()), Ok(()))
        );
        assert!(only("attacks", &["D7", "D3"]).unwrap_err().contains("no part D3: it has D1, D2"));
        assert!(only("payload", &["D7"]).unwrap_err().contains("has no parts"));
    }
}
