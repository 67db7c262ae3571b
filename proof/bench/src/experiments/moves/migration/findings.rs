//! Rows of the experiment.

use spillway_moves::Step;
use spillway_stack_server::step_name;

use super::aead::LIBRARIES;
use super::steps::PHASES;
use super::{BUSY_CLIENTS, Measured, Memory, Moves, Requests, STATES, Together, UNDER_WAY};
use crate::experiments::moves::distribution::Distribution;
use crate::results::{Results, Row};

const MEMORY: &str = "in memory";
const VETH: &str = "on veth";

/// Adds all rows.
pub(super) fn add(measured: &Measured, results: &mut Results) {
    for (index, state_bytes) in STATES.into_iter().enumerate() {
        let mut rows = Vec::new();
        add_memory(&measured.memory[index], &mut rows);
        add_moves(&measured.quiet[index], "quiet", &mut rows);
        add_together(&measured.together[index], &mut rows);
        results.rows.extend(rows.into_iter().map(|row| row.param("state_bytes", state_bytes)));
    }
    let mut rows = Vec::new();
    add_moves(&measured.busy, "busy", &mut rows);
    add_requests(&measured.requests, &mut rows);
    if !measured.busy.is_empty() {
        let counts = &measured.counts;
        let note = format!("of {} moves without think time; expected 0", counts.busy_moves);
        rows.push(Row::new(VETH, "requests_after_timeout", "requests", &[counts.late as f64]).note(note));
    }
    results.rows.extend(rows.into_iter().map(|row| row.param("busy_clients", BUSY_CLIENTS)));
}

/// A row with the value of each round. No row without rounds.
fn push<T>(
    rows: &mut Vec<Row>,
    (system, metric, unit): (&str, &str, &str),
    rounds: &[T],
    value: impl Fn(&T) -> f64,
    finish: impl FnOnce(Row) -> Row,
) {
    if !rounds.is_empty() {
        let values: Vec<f64> = rounds.iter().map(value).collect();
        rows.push(finish(Row::new(system, metric, unit, &values)));
    }
}

/// Rows of the quantiles of each round.
fn push_distribution<T>(
    rows: &mut Vec<Row>,
    (system, metric): (&str, &str),
    rounds: &[T],
    value: impl Fn(&T) -> Distribution,
    finish: impl Fn(Row) -> Row,
) {
    for (index, (quantile, _)) in Distribution::of(Vec::new()).named().into_iter().enumerate() {
        let of_round = |round: &T| value(round).named()[index].1;
        push(rows, (system, metric, "µs"), rounds, of_round, |row| finish(row.param("quantile", quantile)));
    }
}

fn push_phases<T>(rows: &mut Vec<Row>, system: &str, rounds: &[T], phases: impl Fn(&T) -> &[f64]) {
    for (phase, (from, to)) in PHASES.iter().zip(&PHASES[1..]).enumerate() {
        let (from, to): (Step, Step) = (*from, *to);
        let median = |round: &T| phases(round).get(phase).copied().unwrap_or(f64::NAN);
        push(rows, (system, "phase_us", "µs"), rounds, median, |row| {
            row.param("from", step_name(from)).param("to", step_name(to)).note("median of each round")
        });
    }
}

fn add_memory(rounds: &[Memory], rows: &mut Vec<Row>) {
    let host = (MEMORY, "host_cpu_us", "µs");
    let note =
        "both hosts, without a driver, sealed; Capybara: 3.7 µs, not sealed; expected ≤ 3 without state";
    let finish = |under_way: usize| move |row: Row| row.param("under_way", under_way).note(note);
    push(rows, host, rounds, |memory| memory.host, finish(1));
    push(rows, host, rounds, |memory| memory.host_together, finish(UNDER_WAY));
    let unsealed = (MEMORY, "host_cpu_without_seal_us", "µs");
    let finish = |row: Row| row.param("under_way", 1).note("expected ≤ 30 with 128 KB");
    push(rows, unsealed, rounds, |memory| memory.host - memory.seal, finish);
    push(
        rows,
        (MEMORY, "seal_us", "µs"),
        rounds,
        |memory| memory.seal,
        |row| row.note("sealing and opening the parts of the state, alone"),
    );
    for (index, library) in LIBRARIES.into_iter().enumerate() {
        push(
            rows,
            (MEMORY, "aead_us", "µs"),
            rounds,
            |memory| memory.aead[index],
            |row| row.param("library", library).note("AES-256-GCM of the parts, alone; the servers use ring"),
        );
    }
    push(
        rows,
        (MEMORY, "switch_us", "µs"),
        rounds,
        |memory| memory.switch,
        |row| row.note("the switch's rules in Rust, with the frames of its messages; not in host_cpu_us"),
    );
    push_distribution(
        rows,
        (MEMORY, "end_to_end_us"),
        rounds,
        |memory| memory.end_to_end,
        |row| row.note("one move at a time, with the switch's rules; expected ≤ 12 without state"),
    );
    push_phases(rows, MEMORY, rounds, |memory| &memory.phases);
}

fn add_moves(rounds: &[Moves], clients: &str, rows: &mut Vec<Row>) {
    push_distribution(
        rows,
        (VETH, "end_to_end_us"),
        rounds,
        |moves| moves.end_to_end,
        |row| {
            row.param("clients", clients)
                .note("from INIT_MIG to CONN_ACCEPTED, one move at a time; expected ≤ 40 without state")
        },
    );
    push_distribution(
        rows,
        (VETH, "blackout_us"),
        rounds,
        |moves| moves.blackout,
        |row| {
            row.param("clients", clients)
                .note("from EXPORT to CONN_ACCEPTED: neither server has the connection")
        },
    );
    let mut phases = Vec::new();
    push_phases(&mut phases, VETH, rounds, |moves| &moves.phases);
    rows.extend(phases.into_iter().map(|row| row.param("clients", clients)));
}

fn add_together(rounds: &[Together], rows: &mut Vec<Row>) {
    push(
        rows,
        (VETH, "host_cpu_us", "µs"),
        rounds,
        |together| together.threads,
        |row| {
            row.param("under_way", UNDER_WAY)
            .note("the threads with the stacks of both servers, with driver, datagrams and sealing; expected ≤ 10 without state")
        },
    );
    push(
        rows,
        (VETH, "process_cpu_us", "µs"),
        rounds,
        |together| together.processes,
        |row| {
            row.param("under_way", UNDER_WAY)
                .note("all threads of both servers: also orders and a line of the log for each move")
        },
    );
    push(
        rows,
        (VETH, "moves_per_s", "1/s"),
        rounds,
        |together| together.moves_per_s,
        |row| row.param("under_way", UNDER_WAY),
    );
}

fn add_requests(rounds: &[Requests], rows: &mut Vec<Row>) {
    push_distribution(
        rows,
        (VETH, "request_over_move_us"),
        rounds,
        |requests| requests.over_moves,
        |row| row.note("the longest request of a busy client during each move of its connection"),
    );
    push_distribution(
        rows,
        (VETH, "request_us"),
        rounds,
        |requests| requests.quiet,
        |row| row.note("requests of the same clients between their moves"),
    );
}
