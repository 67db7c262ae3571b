//! The steps of a move, and what can go wrong at each: every combination has a name.

use std::fmt;
use std::time::Duration;

/// A message of a move, in the order in which a move sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// *prepare*, from the source to the switch.
    Prepare,
    /// *prepare*, from the switch to the target.
    RelayedPrepare,
    /// *prepared*, from the target to the switch.
    Prepared,
    /// *prepared*, from the switch to the source.
    RelayedPrepared,
    /// The first part of the state.
    State,
    /// The first *received*.
    Received,
    /// *own*, from the target to the switch.
    Own,
    /// The switch's answer to *own* of the target.
    OwnAnswer,
    /// *accepted*: the first message from the target to the source after the answer to *own*.
    Accepted,
}

impl Step {
    /// All steps.
    pub const ALL: [Step; 9] = [
        Step::Prepare,
        Step::RelayedPrepare,
        Step::Prepared,
        Step::RelayedPrepared,
        Step::State,
        Step::Received,
        Step::Own,
        Step::OwnAnswer,
        Step::Accepted,
    ];

    fn name(self) -> &'static str {
        match self {
            Step::Prepare => "prepare",
            Step::RelayedPrepare => "relayed-prepare",
            Step::Prepared => "prepared",
            Step::RelayedPrepared => "relayed-prepared",
            Step::State => "state",
            Step::Received => "received",
            Step::Own => "own",
            Step::OwnAnswer => "own-answer",
            Step::Accepted => "accepted",
        }
    }
}

/// A participant of a move, as one end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The server that has the connection.
    Source,
    /// The server that imports the connection.
    Target,
    /// The switch.
    Switch,
}

/// What happens when a step's message is sent for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The message is lost.
    Lost,
    /// The message is late by [`LATE`].
    Late,
    /// The message is late by [`VERY_LATE`]: the other end has given the move up.
    VeryLate,
    /// The message arrives twice.
    Repeated,
    /// A copy of the message arrives [`REPLAYED_AFTER`] later.
    Replayed,
    /// Messages that are sent later arrive before this one.
    Reordered,
    /// The source stops, and restarts after [`DEAD_FOR`].
    SourceDies,
    /// The target stops, and restarts after [`DEAD_FOR`].
    TargetDies,
    /// The switch restarts without its entries.
    SwitchDies,
    /// The switch restarts with its entries.
    SwitchRestarts,
    /// The switch stands still for [`PAUSED_FOR`].
    SwitchPauses,
    /// Nothing passes from one end to the other for [`CUT_FOR`]; the opposite direction works.
    Cut(End, End),
}

/// Delay of a late message: longer than the first intervals of retransmission.
pub const LATE: Duration = Duration::from_millis(5);
/// Delay of a very late message: longer than a target waits for a state.
pub const VERY_LATE: Duration = Duration::from_millis(130);
/// Time after which a copy of a message arrives.
pub const REPLAYED_AFTER: Duration = Duration::from_millis(50);
/// Delay of a message that others overtake.
pub const REORDERED_BY: Duration = Duration::from_micros(300);
/// A dead server restarts after this time: later than the switch notices its silence.
pub const DEAD_FOR: Duration = Duration::from_millis(2_500);
/// Duration of a pause of the switch, and of the outage when it restarts.
pub const PAUSED_FOR: Duration = Duration::from_millis(60);
/// Duration of a cut.
pub const CUT_FOR: Duration = Duration::from_millis(300);

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 17] = [
        Fault::Lost,
        Fault::Late,
        Fault::VeryLate,
        Fault::Repeated,
        Fault::Replayed,
        Fault::Reordered,
        Fault::SourceDies,
        Fault::TargetDies,
        Fault::SwitchDies,
        Fault::SwitchRestarts,
        Fault::SwitchPauses,
        Fault::Cut(End::Source, End::Switch),
        Fault::Cut(End::Switch, End::Source),
        Fault::Cut(End::Target, End::Switch),
        Fault::Cut(End::Switch, End::Target),
        Fault::Cut(End::Source, End::Target),
        Fault::Cut(End::Target, End::Source),
    ];

    fn name(self) -> &'static str {
        match self {
            Fault::Lost => "lost",
            Fault::Late => "late",
            Fault::VeryLate => "very-late",
            Fault::Repeated => "repeated",
            Fault::Replayed => "replayed",
            Fault::Reordered => "reordered",
            Fault::SourceDies => "source-dies",
            Fault::TargetDies => "target-dies",
            Fault::SwitchDies => "switch-dies",
            Fault::SwitchRestarts => "switch-restarts",
            Fault::SwitchPauses => "switch-pauses",
            Fault::Cut(End::Source, End::Switch) => "source-to-switch-cut",
            Fault::Cut(End::Source, _) => "source-to-target-cut",
            Fault::Cut(End::Target, End::Switch) => "target-to-switch-cut",
            Fault::Cut(End::Target, _) => "target-to-source-cut",
            Fault::Cut(End::Switch, End::Source) => "switch-to-source-cut",
            Fault::Cut(End::Switch, _) => "switch-to-target-cut",
        }
    }

    /// Delays with which the copies of the message arrive.
    pub(crate) fn delays(self) -> Vec<Duration> {
        match self {
            Fault::Lost => vec![],
            Fault::Late => vec![LATE],
            Fault::VeryLate => vec![VERY_LATE],
            Fault::Repeated => vec![Duration::ZERO; 2],
            Fault::Replayed => vec![Duration::ZERO, REPLAYED_AFTER],
            Fault::Reordered => vec![REORDERED_BY],
            _ => vec![Duration::ZERO],
        }
    }

    /// Whether the fault concerns the one message only, so that no segment of the connection is lost by it.
    pub fn is_of_message(self) -> bool {
        use Fault::{Late, Lost, Reordered, Repeated, Replayed, VeryLate};
        matches!(self, Lost | Late | VeryLate | Repeated | Replayed | Reordered)
    }
}

/// A fault at a step. The name is `STEP/FAULT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The step.
    pub step: Step,
    /// The fault that strikes at this step.
    pub fault: Fault,
}

impl Case {
    /// All cases, in the order of a move.
    pub fn all() -> impl Iterator<Item = Case> {
        Step::ALL.into_iter().flat_map(|step| Fault::ALL.into_iter().map(move |fault| Case { step, fault }))
    }

    /// The case with this name.
    ///
    /// # Errors
    /// No case has the name; the text says what names there are.
    pub fn named(name: &str) -> Result<Case, String> {
        let steps = Step::ALL.map(Step::name).join(", ");
        let faults = Fault::ALL.map(Fault::name).join(", ");
        let unknown = || format!("give STEP/FAULT; steps: {steps}; faults: {faults}");
        Case::all().find(|case| case.to_string() == name).ok_or_else(unknown)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.step.name(), self.fault.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let names: BTreeSet<String> = Case::all().map(|case| case.to_string()).collect();
        assert_eq!(names.len(), Step::ALL.len() * Fault::ALL.len());
        assert!(Case::all().all(|case| Case::named(&case.to_string()) == Ok(case)));
        assert!(Case::named("state/melts").unwrap_err().contains("target-dies"));
    }
}
