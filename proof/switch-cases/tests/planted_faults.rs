//! Cases and random sequences find a switch that is wrong: each fault is one that an implementation could have.

use spillway_switch_cases::case::{Action, folder, host_folder, read_all, read_setup};
use spillway_switch_cases::random::{Lockstep, run as run_random};
use spillway_switch_cases::rules::Rules;
use spillway_switch_cases::run::{Coverage, run};
use spillway_switch_cases::setup::{EGRESS, LOCAL_PORT, Setup};
use spillway_switch_cases::switch::{Outcome, State, Switch, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Packets of held flows go to the owner's counter.
    HeldIsCountedAsOwner,
    /// Packets to a target carry a wrong byte.
    TargetByte,
    /// A flood leaves one port out.
    FloodMissesPort,
    /// The owner's FIN is forgotten.
    OwnerFin,
    /// Deadlines are a millisecond late.
    Deadline,
    /// A move does not use up a free place of its target.
    FreePlaces,
    /// The switch's time stands still for 10 ms, so that owners are silent too late.
    CoarseClock,
    /// A new configuration is ignored.
    Reload,
    /// Frames with a length of 200 bytes and more are cut.
    LongFrames,
    /// At the egress of a host, segments of another than the owner pass.
    EgressOfOther,
    /// Packets for the local server of a host have one hop less.
    HopToLocal,
}

const FAULTS: [Fault; 11] = [
    Fault::HeldIsCountedAsOwner,
    Fault::TargetByte,
    Fault::FloodMissesPort,
    Fault::OwnerFin,
    Fault::Deadline,
    Fault::FreePlaces,
    Fault::CoarseClock,
    Fault::Reload,
    Fault::LongFrames,
    Fault::EgressOfOther,
    Fault::HopToLocal,
];

struct Faulty {
    rules: Rules,
    fault: Fault,
}

impl Switch for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn handle(&mut self, ingress: u8, now_ns: u64, frame: &[u8]) -> Outcome {
        let now_ns = if self.fault == Fault::CoarseClock { now_ns / 10_000_000 * 10_000_000 } else { now_ns };
        let mut outcome = self.rules.handle(ingress, now_ns, frame);
        let is_to_target = Some(outcome.verdict) == Verdict::named("to-target");
        match self.fault {
            Fault::HeldIsCountedAsOwner if is_to_target => {
                outcome.verdict = Verdict::named("to-owner").unwrap();
            }
            Fault::TargetByte if is_to_target => *outcome.frame.last_mut().unwrap() ^= 1,
            Fault::FloodMissesPort if outcome.ports.len() > 2 => {
                outcome.ports.pop();
            }
            Fault::LongFrames => outcome.frame.truncate(199),
            Fault::EgressOfOther if ingress == EGRESS && outcome.verdict.is_drop() => {
                let verdict = Verdict::named("passed").unwrap();
                outcome = Outcome { verdict, ports: Vec::new(), frame: frame.to_vec() };
            }
            // The time to live of IPv4.
            Fault::HopToLocal
                if outcome.ports == [LOCAL_PORT] && outcome.verdict != Verdict::named("relayed").unwrap() =>
            {
                outcome.frame[22] = outcome.frame[22].wrapping_sub(1);
            }
            _ => {}
        }
        outcome
    }

    fn reload(&mut self, setup: &Setup) {
        if self.fault != Fault::Reload {
            self.rules.reload(setup);
        }
    }

    fn state(&self, now_ns: u64) -> State {
        let mut state = self.rules.state(now_ns);
        match self.fault {
            Fault::OwnerFin => state.flows.iter_mut().for_each(|flow| flow.owner_fin = false),
            Fault::Deadline => {
                state
                    .flows
                    .iter_mut()
                    .filter(|flow| flow.deadline_ns > 0)
                    .for_each(|flow| flow.deadline_ns += 1_000_000);
            }
            Fault::FreePlaces => state.owners.iter_mut().for_each(|owner| owner.free = 4),
            _ => {}
        }
        state
    }
}

#[test]
fn cases_find_planted_faults() {
    let files = read_all().unwrap_or_else(|error| panic!("{error}"));
    for fault in FAULTS {
        let finds = files.iter().flat_map(|file| &file.cases).any(|case| {
            let mut switch = Faulty { rules: Rules::new(&case.setup), fault };
            run(case, &mut switch, &mut Coverage::default(), |_, _| Ok(())).is_err()
        });
        assert!(finds, "no case finds {fault:?}");
    }
}

#[test]
fn random_sequences_find_planted_faults() {
    let setups =
        [folder(), host_folder()].map(|folder| read_setup(&folder).unwrap_or_else(|error| panic!("{error}")));
    for fault in FAULTS {
        let is_of_host = matches!(fault, Fault::EgressOfOther | Fault::HopToLocal);
        let setup = &setups[usize::from(is_of_host)];
        let finds = (1..=5).any(|seed| {
            let lockstep = Lockstep { seed, steps: 20_000, steps_between_states: 50 };
            let faulty = |setup: &_| Some(Faulty { rules: Rules::new(setup), fault });
            run_random(lockstep, setup, Rules::new, faulty).is_err()
        });
        assert!(finds, "no sequence finds {fault:?}");
    }
}

/// Most steps compare a frame with one that was built here.
#[test]
fn most_steps_are_frames() {
    let files = read_all().unwrap_or_else(|error| panic!("{error}"));
    let steps = || files.iter().flat_map(|file| &file.cases).flat_map(|case| &case.steps);
    let frames = steps().filter(|step| matches!(step.action, Action::Frame(_))).count();
    assert!(frames * 2 > steps().count());
}
