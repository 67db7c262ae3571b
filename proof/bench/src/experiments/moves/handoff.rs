//! What a hand-off of a request takes, with the connection on which it has come (Prism, Table 1), on the kernel's sockets and on the
//! user-level stack.
//!
//! Three servers, each of which serves its part of the targets, stand behind a switch: `a`, to which clients connect (the paper's
//! frontend), `b` and `c` (backends). A client chooses the targets of its requests so that each of them is at another server than the
//! one before: each request is a hand-off.
//!
//! **latency**: the steps of single hand-offs, which the servers record on one clock, and how long the client waits. The sender's
//! thread does receive work, so that a message wakes only the thread that handles it. **cpu**: CPU time of both hosts for a
//! hand-off, with receive threads, so that each host's receive work is in its account.

mod client;
mod counts;
mod cpu;
mod findings;
mod latency;
mod parse;
mod stand;
mod steps;
mod system;
mod target;
mod targets;

use std::io::Write;

use crate::error::Error;
use crate::experiments::common::rounds::{measurement_order, print_line};
use crate::experiments::{Options, selects};
use crate::machine::Machine;
use crate::results::Results;
use crate::scene::Setting;
use crate::steady::Steady;

use counts::AllCounts;
use cpu::Cpu;
use latency::Latency;
use stand::Stand;
use system::System;

/// The parts that `--only` selects.
pub const PARTS: [&str; 2] = ["latency", "cpu"];
const SYSTEMS: [System; 2] = [System::Kernel, System::Stack];
/// Connections that send their requests together, in the part *cpu*.
const CONNECTIONS: [usize; 2] = [1, 32];
/// Requests that are parsed to measure the parser.
const PARSED: usize = 20_000;

/// A kind of hand-offs.
#[derive(Clone, Copy, Debug)]
struct HandOffKind {
    direction: &'static str,
    /// The server that hands off, and the one that gets the request.
    servers: (usize, usize),
}

/// The kinds of hand-offs on the clients' ways: around all servers, and to the second one and back.
const KINDS: [HandOffKind; 4] = [
    HandOffKind { direction: "frontend_to_backend", servers: (0, 1) },
    HandOffKind { direction: "backend_to_backend", servers: (1, 2) },
    HandOffKind { direction: "backend_to_frontend", servers: (1, 0) },
    HandOffKind { direction: "backend_to_frontend", servers: (2, 0) },
];

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Ways from the first server over both others and back, in a round: three hand-offs each.
    pub tours: usize,
    /// Ways from the first server to the second one and back, in a round: two hand-offs each.
    pub cycles: usize,
    /// Requests without hand-off at each server, in a round.
    pub quiet: usize,
    /// Requests of the part *cpu* in a round, of all connections together.
    pub cpu_requests: usize,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published: more than 100,000 hand-offs of each system.
    pub fn full() -> Effort {
        Effort { rounds: 7, tours: 3_000, cycles: 3_000, quiet: 1_000, cpu_requests: 6_000 }
    }

    /// The effort of a quick run: about a minute.
    pub fn quick() -> Effort {
        Effort { rounds: 3, tours: 300, cycles: 300, quiet: 300, cpu_requests: 1_500 }
    }
}

/// All rounds, by system in the order of [`SYSTEMS`].
#[derive(Debug, Default)]
struct Measured {
    latency: [Vec<Latency>; SYSTEMS.len()],
    /// By number of connections in the order of [`CONNECTIONS`].
    cpu: [[Vec<Cpu>; CONNECTIONS.len()]; SYSTEMS.len()],
    /// Time to parse a request, in µs.
    parse: Vec<f64>,
    counts: AllCounts,
    /// Cores of the servers.
    cores: [usize; 3],
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, &options.only, out)
}

/// Runs some parts of the experiment, or all of them if `only` is empty, with a given effort.
pub fn run_with(
    setting: &Setting,
    effort: &Effort,
    only: &[String],
    out: &mut dyn Write,
) -> Result<Results, Error> {
    let steady = Steady::start(setting.idle_cores_poll);
    let mut machine = Machine::held(&steady);
    let mut measured = Measured { cores: stand::server_cores(setting), ..Measured::default() };
    let mut outcome = Ok(());
    if selects(only, "latency") {
        outcome = measure_latency(setting, effort, (&mut measured, &mut machine), out);
    }
    if outcome.is_ok() && selects(only, "cpu") {
        outcome = measure_cpu(setting, effort, (&mut measured, &mut machine), out);
    }
    let mut results = Results::new("handoff", machine);
    findings::add(&measured, &mut results);
    results.checks = measured.counts.checks();
    Ok(results.with_outcome(outcome))
}

fn measure_latency(
    setting: &Setting,
    effort: &Effort,
    (measured, machine): (&mut Measured, &mut Machine),
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut stands = start_all(setting, (latency::TRACES, true), machine)?;
    for (round, index) in measurement_order(effort.rounds, SYSTEMS.len()) {
        let system = SYSTEMS[index];
        let latency = latency::round(&mut stands[index], effort, measured.counts.of_mut(system))?;
        let [out_of, between, back, _] = &latency.kinds;
        print_line(
            out,
            format_args!(
                "round {}: {}: out {:.0} µs, between {:.0}, back {:.0}; cycle {:.0}, at the client {:.0}; blackout {:.0}",
                round + 1,
                system.name(),
                out_of.total.p50,
                between.total.p50,
                back.total.p50,
                latency.cycle.p50,
                latency.cycle_at_client.p50,
                out_of.blackout.p50
            ),
        );
        measured.latency[index].push(latency);
        let parse = parse::measure(PARSED).map_err(|why| Error::process("parsing has failed", why))?;
        measured.parse.push(parse);
    }
    close_all(stands, measured)
}

fn measure_cpu(
    setting: &Setting,
    effort: &Effort,
    (measured, machine): (&mut Measured, &mut Machine),
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut stands = start_all(setting, (0, false), machine)?;
    for (round, index) in measurement_order(effort.rounds, SYSTEMS.len()) {
        let system = SYSTEMS[index];
        for (place, connections) in CONNECTIONS.into_iter().enumerate() {
            let size = (connections, effort.cpu_requests.div_ceil(connections));
            let cpu = cpu::round(&mut stands[index], size, measured.counts.of_mut(system))?;
            print_line(
                out,
                format_args!(
                    "round {}: {}, {connections} connections: {:.1} µs of CPU a hand-off, {:.1} a request; {:.0} hand-offs a second",
                    round + 1,
                    system.name(),
                    cpu.hand_off,
                    cpu.request,
                    cpu.hand_offs_per_s
                ),
            );
            measured.cpu[index][place].push(cpu);
        }
    }
    close_all(stands, measured)
}

fn start_all(
    setting: &Setting,
    options: (usize, bool),
    machine: &mut Machine,
) -> Result<[Stand; SYSTEMS.len()], Error> {
    let [kernel, stack] = SYSTEMS;
    Ok([Stand::start(kernel, setting, options, machine)?, Stand::start(stack, setting, options, machine)?])
}

fn close_all(stands: [Stand; SYSTEMS.len()], measured: &mut Measured) -> Result<(), Error> {
    for stand in stands {
        let system = stand.system;
        stand.close(measured.counts.of_mut(system))?;
    }
    Ok(())
}
