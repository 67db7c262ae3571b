//! Two implementations handle the same sequence.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use spillway_parts::Random;

use super::coverage::RandomCoverage;
use super::traffic::Drawn;
use super::world::{World, random_setup};
use crate::case::START_NS;
use crate::program::EGRESS_FRAME_BYTES_MIN;
use crate::run::show_difference;
use crate::setup::{EGRESS, HOST_PORT, Setup};
use crate::switch::{Outcome, State, Switch};

/// The length of a run, and the seed that determines it.
#[derive(Clone, Copy, Debug)]
pub struct Lockstep {
    /// Determines the sequence.
    pub seed: u64,
    /// Number of frames.
    pub steps: u64,
    /// Steps after which the states are compared.
    pub steps_between_states: u64,
}

/// Where two implementations differ, or one breaks an invariant.
#[derive(Debug)]
pub struct Difference {
    /// The run's seed.
    pub seed: u64,
    /// The step, counted from 0.
    pub step: u64,
    /// Whether only the states differ: an earlier step may be the cause.
    pub is_state: bool,
    /// What differs.
    pub message: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} step {}: {}", self.seed, self.step, self.message)
    }
}

/// Runs a sequence. `first` and `second` make the implementations for a configuration; without a second one only
/// invariants are checked. Returns what was reached, and the time spent in the switches.
///
/// # Errors
/// The first difference.
pub fn run<A: Switch, B: Switch>(
    run: Lockstep,
    base: &Setup,
    first: impl FnOnce(&Setup) -> A,
    second: impl FnOnce(&Setup) -> Option<B>,
) -> Result<RandomCoverage, Difference> {
    let mut random = Random::new(run.seed);
    let setup = random_setup(base, &mut random);
    let (mut first, mut second) = (first(&setup), second(&setup));
    let mut world = World::new(setup, random, START_NS);
    let mut coverage = RandomCoverage::default();
    let mut generations = Generations::default();
    for step in 0..run.steps {
        let difference = |is_state, message| Difference { seed: run.seed, step, is_state, message };
        world.advance();
        if let Some(setup) = world.reload() {
            first.reload(&setup);
            if let Some(second) = &mut second {
                second.reload(&setup);
            }
        }
        let drawn = draw(&mut world);
        let now_ns = world.skewed_now_ns();
        let frame = drawn.packet.bytes();
        let outcome = first.handle(drawn.ingress, now_ns, &frame);
        if let Some(second) = &mut second {
            let other = second.handle(drawn.ingress, now_ns, &frame);
            if outcome != other {
                let names = (first.name(), second.name());
                return Err(difference(false, show(names, &drawn, &frame, &outcome, &other)));
            }
        }
        coverage.count(&outcome);
        world.learn(&outcome.frame);
        if step % run.steps_between_states == 0 || step + 1 == run.steps {
            let state = first.state(world.now_ns);
            if let Some(second) = &second {
                let other = second.state(world.now_ns);
                if state != other {
                    let names = (first.name(), second.name());
                    return Err(difference(true, show_states(names, &drawn, &state, &other)));
                }
            }
            generations.check(&state).map_err(|message| difference(true, message))?;
        }
    }
    Ok(coverage)
}

fn draw(world: &mut World) -> Drawn {
    let mut drawn = match world.random.below(100) {
        0..35 => match world.due_message() {
            Some(message) => message,
            None => world.client_packet(),
        },
        35..58 => world.flow_message(),
        58..75 => world.client_packet(),
        75..88 => world.server_packet(),
        88..92 => world.icmp_error(),
        _ => world.other_frame(),
    };
    world.mutate(&mut drawn);
    if drawn.ingress == EGRESS && drawn.packet.bytes().len() < EGRESS_FRAME_BYTES_MIN {
        drawn.ingress = HOST_PORT;
    }
    drawn
}

/// A flow's generation never decreases or returns, also after the flow's entry has ended; the states of two steps
/// show this for those that are seen.
#[derive(Debug, Default)]
struct Generations(BTreeMap<(SocketAddr, SocketAddr), u64>);

impl Generations {
    fn check(&mut self, state: &State) -> Result<(), String> {
        for flow in &state.flows {
            let last = self.0.entry((flow.client, flow.service)).or_insert(0);
            if flow.generation < *last {
                return Err(format!("the flow's generation was {last} before:\n{flow:?}"));
            }
            *last = flow.generation;
        }
        Ok(())
    }
}

fn show(names: (&str, &str), drawn: &Drawn, frame: &[u8], outcome: &Outcome, other: &Outcome) -> String {
    let side = |name, outcome: &Outcome| {
        format!("{name}: {:?} to {:?}, {} bytes", outcome.verdict, outcome.ports, outcome.frame.len())
    };
    format!(
        "the outcomes differ\n{}\n{}\n`expected` is {}, `found` is {}:{}\nport {}, frame {}\n{:#?}",
        side(names.0, outcome),
        side(names.1, other),
        names.0,
        names.1,
        show_difference(&outcome.frame, &other.frame),
        drawn.ingress,
        hex(frame),
        drawn.packet
    )
}

fn show_states(names: (&str, &str), drawn: &Drawn, state: &State, other: &State) -> String {
    let mut text =
        format!("the states differ; the last frame, at port {}: {:#?}", drawn.ingress, drawn.packet);
    for (name, state, other) in [(names.0, state, other), (names.1, other, state)] {
        text.push_str(&format!("\nonly in {name}:"));
        for flow in state.flows.iter().filter(|flow| !other.flows.contains(flow)) {
            text.push_str(&format!("\n{flow:?}"));
        }
        for owner in state.owners.iter().filter(|owner| !other.owners.contains(owner)) {
            text.push_str(&format!("\n{owner:?}"));
        }
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
