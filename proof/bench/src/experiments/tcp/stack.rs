//! Cost of a message of 64 bytes in the user-level stack, without a network card: frames are in memory, clients are
//! scripted, and one thread runs everything. Measures an echo server on our stack and on smoltcp, and a helper's round
//! trip.
//!
//! Rounds are interleaved. valgrind counts instructions of the same program: counts do not depend on other work, and
//! their ratios compare code rather than machines.

mod counted;
mod echo;
mod helper;
mod ours;
mod server;
mod theirs;

use std::io::Write;

use spillway_lab::Place;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line};
use crate::machine::Machine;
use crate::results::{Check, Ratio, Results, Row};
use crate::stop;

use counted::Work;
use echo::System;

pub use counted::serve;
pub(super) use helper::{EchoServer, SERVER, SERVER_MAC, relay, server_stack};
pub(super) use ours::{EchoApplication, stack};

#[derive(Clone, Debug)]
struct Effort {
    rounds: usize,
    /// Messages of one time measurement with one connection; a tenth of this with many connections.
    messages: usize,
    /// Messages of one instruction count with one connection; a tenth of this with many connections.
    counted_messages: usize,
}

const FULL: Effort = Effort { rounds: 15, messages: 1_000_000, counted_messages: 20_000 };
const QUICK: Effort = Effort { rounds: 7, messages: 200_000, counted_messages: 5_000 };

/// Numbers of connections of the echo server: one, which is smoltcp's best case, and many.
const ECHO_CONNECTIONS: [usize; 2] = [1, 1_000];
const HELPER_CLIENTS: [usize; 2] = [200, 2_000];
/// The paper's time for a message in ns, on a core with a network card (PostMan, Figure 10).
const PAPER_NS: f64 = 1_040.0;

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { QUICK } else { FULL };
    let place = Place::local()?;
    let program = &options.setting.programs.lab;
    let mut machine = Machine::here();
    machine.server = Machine::version_of("valgrind", "--version");
    machine.lab.insert("stacks".into(), "one thread, frames in memory, MTU 1500, no network card".into());
    machine.lab.insert("smoltcp".into(), "0.12: newer ones need a newer Rust than Spillway".into());
    if cfg!(debug_assertions) {
        machine
            .lab
            .insert("build".into(), "with assertions: times and counts are not those of a release".into());
    }
    let mut results = Results::new("stack", machine);
    let count = |work, connections, messages| {
        counted::instructions_per_message(&place, program, work, connections, messages)
    };
    let echoes = ECHO_CONNECTIONS.iter().try_for_each(|&connections| {
        stop::check()?;
        add_echo_rows(connections, &effort, &count, &mut results, out)
    });
    let outcome = echoes.and_then(|()| {
        HELPER_CLIENTS.iter().try_for_each(|&clients| {
            stop::check()?;
            add_helper_rows(clients, &effort, &count, &mut results, out)
        })
    });
    // A wrong answer is an error that ends the run.
    if outcome.is_ok() {
        let detail = "every answer was compared: correct bytes, in order, once";
        results.checks.push(Check::new("wrong", true, detail));
    }
    Ok(results.with_outcome(outcome))
}

/// Counts instructions by work, number of connections, and number of messages.
type Count<'a> = dyn Fn(Work, usize, usize) -> Result<Option<f64>, Error> + 'a;

fn process_error(what: &str) -> impl Fn(String) -> Error {
    move |why| Error::process(what, why)
}

fn add_echo_rows(
    connections: usize,
    effort: &Effort,
    count: &Count<'_>,
    results: &mut Results,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut times: [Rounds<f64>; 2] = Default::default();
    for (round, index) in measurement_order(effort.rounds, System::ALL.len()) {
        let system = System::ALL[index];
        // smoltcp scans all sockets for each segment, so many connections are slow.
        let messages = if connections > 1 { effort.messages / 10 } else { effort.messages };
        let ns = echo::measure(system, connections, 2 * connections, messages)
            .map_err(process_error(system.name()))?;
        print_line(
            out,
            format_args!("round {round}, {}, {connections} connections: {ns:.0} ns a message", system.name()),
        );
        times[index].push((ns, None));
    }
    let counted_messages =
        if connections > 1 { effort.counted_messages / 10 } else { effort.counted_messages };
    let mut instructions = Vec::new();
    for (system, times) in System::ALL.iter().zip(&times) {
        let values: Vec<f64> = times.valid().copied().collect();
        let row = |metric: &str, unit: &str, values: &[f64]| {
            Row::new(system.name(), metric, unit, values).param("connections", connections)
        };
        results.rows.push(
            row("echo_ns", "ns", &values)
                .note("a segment in, a segment out; no network card. Compare within this run only"),
        );
        let per_message = count(Work::Echo(*system), connections, counted_messages)?;
        print_line(
            out,
            format_args!("{}, {connections} connections: {per_message:?} instructions", system.name()),
        );
        let row = row("echo_instructions", "instructions", per_message.as_slice());
        results.rows.push(row.void_if(per_message.is_none().then_some("valgrind is not installed")));
        instructions.push(per_message);
    }
    let suffix = if connections == 1 { String::new() } else { format!("_at_{connections}") };
    let values: Vec<f64> =
        instructions[0].iter().zip(&instructions[1]).map(|(spillway, smoltcp)| spillway / smoltcp).collect();
    results.ratios.push(
        Ratio::new(&format!("echo_instructions_over_smoltcp{suffix}"), &values)
            .note("counted once, because counts do not vary; expected ≤ 0.7 with one connection"),
    );
    let values = |times: &Rounds<f64>| times.each(|ns| *ns);
    results.ratios.push(Ratio::paired(
        &format!("echo_ns_over_smoltcp{suffix}"),
        &values(&times[0]),
        &values(&times[1]),
    ));
    Ok(())
}

fn add_helper_rows(
    clients: usize,
    effort: &Effort,
    count: &Count<'_>,
    results: &mut Results,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let (mut times, mut frames) = (Vec::new(), Vec::new());
    for round in 0..effort.rounds {
        let cost = helper::measure(clients, 2 * clients, effort.messages / 10)
            .map_err(process_error("the helper"))?;
        print_line(
            out,
            format_args!("round {round}, helper, {clients} clients: {:.0} ns a message", cost.message_ns),
        );
        times.push(cost.message_ns);
        frames.push(cost.link_frames);
    }
    let row = |metric: &str, unit: &str, values: &[f64]| {
        Row::new("helper", metric, unit, values)
            .param("clients", clients)
            .param("link", "encrypted")
            .param("requests_in_a_batch", helper::TURN)
    };
    results.rows.push(row("helper_message_ns", "ns", &times).note(format!(
        "half a round trip, stack and relay, no network card in it; PostMan: {PAPER_NS} ns a core with the card; \
         expected ≤ 200"
    )));
    results.rows.push(row("link_frames_per_round_trip", "frames", &frames));
    let per_round_trip = count(Work::Helper, clients, effort.counted_messages.max(5 * helper::TURN))?;
    print_line(out, format_args!("helper, {clients} clients: {per_round_trip:?} instructions a round trip"));
    let halves: Vec<f64> = per_round_trip.iter().map(|count| count / 2.0).collect();
    let row = row("helper_message_instructions", "instructions", &halves);
    results.rows.push(row.void_if(per_round_trip.is_none().then_some("valgrind is not installed")));
    Ok(())
}
